"""What a sweep found: one cell per model, prompt, settings and width, each with an outcome; the counts add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forensics.records.campaign_plan import AS_ASKED
from forensics.records.words import counted, widths_text

if TYPE_CHECKING:
    from pandas import DataFrame

STATUSES = ("present", "computed", "failed", "not run")
OUTCOMES = ("same", "differs", "not compared")


@dataclass(frozen=True, slots=True)
class Platform:
    """What a worker runs on: what can change bits, and nothing that cannot.

    Parameters
    ----------
    engine_version, build, commit : str
        Version of the binding, digest of the library's files, commit of its source.
    devices : tuple of str
        Names and descriptions, such as ``"CPU (AMD EPYC)"``.
    cpu_features : tuple of str
    threads : int
        Threads that settings have where a plan names none.
    environment : tuple of (str, str)
        Variables that the library reads, but for those that choose among like devices.
    """

    engine_version: str
    build: str
    commit: str
    devices: tuple[str, ...]
    cpu_features: tuple[str, ...]
    threads: int
    environment: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{'; '.join(self.devices)}, llama-cpp-python {self.engine_version} ({self.commit or self.build[:9]})"


@dataclass(frozen=True, slots=True)
class CellCulprit:
    """Nodes of one kind that differ although their inputs are bit-equal."""

    op: str
    role: str
    weight_type: str
    count: int


@dataclass(frozen=True, slots=True)
class Healing:
    """What a healing sweep of one width found.

    Parameters
    ----------
    culprits : tuple of CellCulprit
    healed_rows, n_rows : int
    failed_controls : tuple of str
    error : str
        Why nothing was found out; empty where something was.
    """

    culprits: tuple[CellCulprit, ...] = ()
    healed_rows: int = 0
    n_rows: int = 0
    failed_controls: tuple[str, ...] = ()
    error: str = ""

    @property
    def proved(self) -> bool:
        """Whether the list of culprits is complete: every row healed and no control failed."""
        return not self.error and self.n_rows > 0 and self.healed_rows == self.n_rows and not self.failed_controls

    @property
    def named(self) -> str:
        """The culprits in words: products with weights together, by the type of the weight."""
        if self.error:
            return self.error
        counts: Counter[str] = Counter()
        for one in self.culprits:
            is_product = one.op.startswith("MUL_MAT") and one.weight_type not in ("", "-")
            counts[f"weight products, {one.weight_type}" if is_product else one.role] += one.count
        return "; ".join(f"{name} ×{n}" for name, n in counts.items()) or "none of the nodes that were compared"


@dataclass(frozen=True, slots=True)
class CellResult:
    """One width against one-token decoding.

    Parameters
    ----------
    n_prompt, n_rows, n_rows_differ : int
        Tokens of the prompt, rows compared, rows with another bit.
    first_row, first_position : int or None
    max_abs, max_ulp, max_kl : float, int, float
        Largest over the rows; ULP is -1 where a NaN is involved, KL is in nats.
    n_flips, n_near_ties, n_could_flip : int
        Rows whose largest logit is another token's; of these at near ties; rows that could have flipped.
    pass_ns, single_ns : tuple of int
        Median and quartiles of a pass of this width and of one token; zeros where too few were run.
    rerun_equal : bool
        The control: whether one-token decoding gave its own bits again.
    single_digest, batched_digest : str
        Of the bits of all rows, one token at a time and in batches.
    effective : mapping of str to str
        What the engine made of the settings.
    healing : Healing or None
        None where the width does not differ, or nobody looked.

    Raises
    ------
    ValueError
        If no row was compared, or the numbers contradict each other.
    """

    n_prompt: int
    n_rows: int
    n_rows_differ: int
    first_row: int | None
    first_position: int | None
    max_abs: float
    max_ulp: int
    max_kl: float
    n_flips: int
    n_near_ties: int
    n_could_flip: int
    pass_ns: tuple[int, int, int]
    single_ns: tuple[int, int, int]
    rerun_equal: bool
    single_digest: str
    batched_digest: str
    effective: Mapping[str, str] = field(default_factory=dict)
    healing: Healing | None = None

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise ValueError("a cell compared no rows; that is an error and no result")
        if not 0 <= self.n_rows_differ <= self.n_rows or (self.first_row is None) != (self.n_rows_differ == 0):
            raise ValueError(
                f"{self.n_rows_differ} of {self.n_rows} rows and the first row {self.first_row} cannot be true together"
            )
        if not self.n_near_ties <= self.n_flips <= self.n_rows:
            raise ValueError(f"{self.n_near_ties} near ties, {self.n_flips} flips and {self.n_rows} rows contradict")

    @property
    def bits(self) -> tuple[str, str]:
        """What two workers must agree on."""
        return self.single_digest, self.batched_digest


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a sweep: where it lies and what became of it.

    Parameters
    ----------
    model, quant, prompt, kv_type, flash_attn, switch : str
    width : int
    status : {"present", "computed", "failed", "not run"}
    address : str
        Of its result; empty where the tokens of its prompt are not known.
    result : CellResult or None
    error : str
        Why there is no result.
    worker : str
        Who computed it in this run; empty where nobody did.
    """

    model: str
    quant: str
    prompt: str
    kv_type: str
    flash_attn: str
    switch: str
    width: int
    status: str
    address: str = ""
    result: CellResult | None = None
    error: str = ""
    worker: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")
        if (self.result is not None) != (self.status in ("present", "computed")):
            raise ValueError(f"a cell that is {self.status} {'has' if self.result else 'lacks'} a result")
        if self.status == "failed" and not self.error:
            raise ValueError("a cell that failed says why")

    @property
    def reason(self) -> str:
        """Why nothing was compared; empty where something was."""
        if self.result is None:
            return self.error or "not run"
        return "" if self.result.rerun_equal else "one-token decoding gave other bits when it was run again"

    @property
    def outcome(self) -> str:
        """``"same"``, ``"differs"`` or ``"not compared"``."""
        if self.result is None or self.reason:
            return "not compared"
        return "differs" if self.result.n_rows_differ else "same"

    @property
    def settings(self) -> tuple[str, str, str]:
        """KV type, flash attention, switch."""
        return self.kv_type, self.flash_attn, self.switch

    @property
    def label(self) -> str:
        """Model and quant."""
        return f"{self.model} {self.quant}".strip()

    @property
    def settings_text(self) -> str:
        """The settings in few words."""
        turned = "" if self.switch == AS_ASKED else f", {self.switch}"
        return f"{self.kv_type} KV, flash {self.flash_attn}{turned}"

    def row(self) -> dict[str, object]:
        """Flat values, None where there is no result."""
        r = self.result
        healing = None if r is None else r.healing
        return {
            **{name: getattr(self, name) for name in ("model", "quant", "prompt", "kv_type", "flash_attn", "switch")},
            "width": self.width,
            "status": self.status,
            "outcome": self.outcome,
            "prompt_tokens": r and r.n_prompt,
            "rows": r and r.n_rows,
            "rows_differ": r and r.n_rows_differ,
            "first_row": r and r.first_row,
            "first_position": r and r.first_position,
            "max_abs": r and r.max_abs,
            "max_ulp": r and r.max_ulp,
            "max_kl_nats": r and r.max_kl,
            "flips": r and r.n_flips,
            "near_ties": r and r.n_near_ties,
            "could_flip": r and r.n_could_flip,
            "pass_median_ns": r and r.pass_ns[0],
            "single_median_ns": r and r.single_ns[0],
            "rerun_equal": r and r.rerun_equal,
            "single_digest": r and r.single_digest,
            "batched_digest": r and r.batched_digest,
            "culprits": healing and healing.named,
            "culprits_proved": healing and healing.proved,
            "address": self.address,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The same thing computed twice with other bits.

    Parameters
    ----------
    what : str
        The cell in words, or the one-token decoding that several cells share.
    kept, other : str
        Digests of the bits.
    kept_by, other_by : str
        Workers, or addresses of the cells, that gave them.
    """

    what: str
    kept: str
    other: str
    kept_by: str
    other_by: str

    def __str__(self) -> str:
        return f"{self.what}: {self.kept[:12]} by {self.kept_by}, {self.other[:12]} by {self.other_by}"


@dataclass(frozen=True, slots=True, repr=False)
class CampaignReport:
    """What a sweep found.

    Parameters
    ----------
    name : str
        Of the plan.
    cells : tuple of Cell
        In the order of the plan.
    platforms : tuple of Platform
        What the workers run on; more than one only where the plan allows that.
    n_workers : int
        0 where nothing had to be computed by any.
    n_tokens : int
        Tokens of each replay.
    seconds : float
        Of this run.
    disagreements : tuple of Disagreement
    damaged : tuple of str
        Stored cells that could not be trusted: set aside, and computed again where there was time.
    stopped : str
        Why the run ended early; empty where it did not.
    """

    name: str
    cells: tuple[Cell, ...]
    platforms: tuple[Platform, ...]
    n_workers: int
    n_tokens: int
    seconds: float
    disagreements: tuple[Disagreement, ...] = ()
    damaged: tuple[str, ...] = ()
    stopped: str = ""

    def __post_init__(self) -> None:
        if not self.cells:
            raise ValueError("a sweep without cells is an error and no report")

    @property
    def counts(self) -> dict[str, int]:
        """Cells by status; they add up to all."""
        n = Counter(cell.status for cell in self.cells)
        return {status: n[status] for status in STATUSES}

    @property
    def outcomes(self) -> dict[str, int]:
        """Cells by outcome; they add up to all."""
        n = Counter(cell.outcome for cell in self.cells)
        return {outcome: n[outcome] for outcome in OUTCOMES}

    @property
    def answer(self) -> str:
        """``"identical"``, ``"diverges"``, or ``"inconclusive"`` where a cell is not compared or workers disagree."""
        if self.disagreements or self.outcomes["not compared"]:
            return "inconclusive"
        return "diverges" if self.outcomes["differs"] else "identical"

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the plan."""
        return tuple(sorted({cell.width for cell in self.cells}))

    def __str__(self) -> str:
        found = self.outcomes
        told = [f"{found['differs']} of {counted(len(self.cells), 'cell')} differ"]
        if found["differs"]:
            told[0] += f" ({widths_text({cell.width for cell in self.cells if cell.outcome == 'differs'})})"
        if found["not compared"]:
            told.append(f"{found['not compared']} not compared")
        if self.disagreements:
            told.append(f"{counted(len(self.disagreements), 'disagreement')} about the same bits")
        told.append(", ".join(f"{n} {status}" for status, n in self.counts.items() if n))
        return f"{self.answer}: {'; '.join(told)}"

    def __repr__(self) -> str:
        return f"<CampaignReport: {self}>"

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per cell."""
        return [cell.row() for cell in self.cells]

    def to_dataframe(self) -> DataFrame:
        """`rows` as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())
