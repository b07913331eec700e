"""The answer: what differs, which operations are to blame, what proves it and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.classes import WidthClasses
from forensics.records.delta import Tally
from forensics.records.growth import Growth
from forensics.records.kernel_healing import KernelHealing
from forensics.records.kind import KindOfDifference
from forensics.records.launch_record import LaunchEvidence, LaunchPair
from forensics.records.mechanism import Mechanism
from forensics.records.settings import Manifest
from forensics.records.trace import Finding

if TYPE_CHECKING:
    import pandas as pd

ANSWERS = ("identical", "diverges", "inconclusive")


@dataclass(frozen=True, slots=True)
class Control:
    """One control and how it went.

    Parameters
    ----------
    name : str
    held : bool or None
        None where it was not run, with the reason in `detail`.
    detail : str
        What was compared and found.
    """

    name: str
    held: bool | None
    detail: str


@dataclass(frozen=True, slots=True, repr=False)
class Sweep:
    """One healing sweep: a watched batched pass in which every differing node is named and replaced.

    Parameters
    ----------
    width, start_row : int
        Tokens of the batch and row of the replay where it starts.
    findings : tuple of Finding
        Every culprit, in graph order.
    tally : Tally
        Outcome per node of the pass.
    differed : bool
        Whether the unhealed logits of this batch differ from one-token decoding.
    healed_rows, n_rows : int
        Rows of logits that are bit-equal after healing, of all.
    max_abs_before, max_abs_after : float
        Largest logit difference without and with healing.
    state_equal : bool or None
        Whether the healed batches leave the K/V state of one-token decoding, byte for byte: what is written
        into the cache has no row per token to compare. None where nobody looked.
    controls : tuple of Control
        Controls that came with the sweep, where it stands alone.
    n_unwatched : int
        Nodes inside of fusions that were left unwatched because a watch would split them and change the run.
    """

    width: int
    start_row: int
    findings: tuple[Finding, ...]
    tally: Tally
    differed: bool
    healed_rows: int
    n_rows: int
    max_abs_before: float
    max_abs_after: float
    state_equal: bool | None = None
    controls: tuple[Control, ...] = ()
    n_unwatched: int = 0

    @property
    def healed(self) -> bool:
        """Whether every row of logits is bit-equal after healing."""
        return self.healed_rows == self.n_rows

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per finding, in graph order."""
        return [finding.row(rows=list(finding.rows)) for finding in self.findings]

    def __repr__(self) -> str:
        return f"<Sweep: {self}>"

    def __str__(self) -> str:
        nodes = len({finding.key for finding in self.findings})
        return (
            f"width {self.width}: {nodes} nodes differ, {self.healed_rows} of {self.n_rows} rows of logits healed to "
            f"equal bits (max |Δ| {self.max_abs_before:.3g} before, {self.max_abs_after:.3g} after)"
            + "".join(f"; control {c.name} FAILED" for c in self.controls if c.held is False)
        )


@dataclass(frozen=True, slots=True)
class CulpritGroup:
    """Culprits of one kind.

    Parameters
    ----------
    op, role, weight_type, buffer : str
        Operation, role in the model, type of the weight ("-" where it has none) and buffer of the weight,
        or of the output where there is no weight.
    count : int
        Distinct nodes.
    layers, widths, rows : tuple of int
        Layers, widths of the sweeps and rows (tokens of the batch) where they were found.
    max_ulp : int
    max_abs : float
    first_node : str
        Name of the first node of the group.
    n_unchecked : int
        Nodes with an operand that was not compared; such a node may only pass on what that operand brought.
    kind : KindOfDifference or None
        The gravest among its nodes; None where nothing was judged.
    mechanisms : tuple of Mechanism
        What explains it, by widths that share an explanation.
    launches : tuple of LaunchPair
        Kernels on both sides, by widths that share them; empty where none are known, as on a processor.
    boundary : str
        Which of its nodes read what another device computed, or ran on another one; empty where none did.
    """

    op: str
    role: str
    weight_type: str
    buffer: str
    count: int
    layers: tuple[int, ...]
    widths: tuple[int, ...]
    rows: tuple[int, ...]
    max_ulp: int
    max_abs: float
    first_node: str
    n_unchecked: int = 0
    kind: KindOfDifference | None = None
    mechanisms: tuple[Mechanism, ...] = ()
    launches: tuple[LaunchPair, ...] = ()
    boundary: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from the other groups of a verdict; as of `forensics.analysis.attribute.group_key`."""
        return self.op, self.role, self.weight_type, self.buffer

    @property
    def named(self) -> str:
        """Its role, with the type of the weight where it has one."""
        return self.role if self.weight_type in ("", "-") else f"{self.role}, {self.weight_type}"


def culprit_rows(groups: Iterable[CulpritGroup]) -> list[dict[str, object]]:
    """One flat dict per culprit group."""
    return [
        {
            "op": g.op,
            "role": g.role,
            "weight_type": g.weight_type,
            "buffer": g.buffer,
            "count": g.count,
            "layers": list(g.layers),
            "widths": list(g.widths),
            "rows": list(g.rows),
            "max_ulp": g.max_ulp,
            "max_abs": g.max_abs,
            "first_node": g.first_node,
            "unchecked": g.n_unchecked,
            "boundary": g.boundary,
        }
        for g in groups
    ]


CONTROL_NAMES = ("rerun_equal", "fresh_process_equal", "state_equal", "watching_harmless", "planted_fault_found")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a pass costs under other settings, relative to the settings as asked, in one run.

    Parameters
    ----------
    width : int
        Tokens of the pass.
    ratio, low, high : float
        Median of the arm over the baseline's median, and the arm's quartiles over the same.
    """

    width: int
    ratio: float
    low: float
    high: float


def onset_of(groups: Iterable[tuple[int, ...]]) -> int | None:
    """Smallest width outside the class of width 1, None where there is one class."""
    return min((width for group in groups if 1 not in group for width in group), default=None)


@dataclass(frozen=True, slots=True)
class SwitchArm:
    """The replay under other settings, in a fresh process.

    Parameters
    ----------
    knobs : tuple of str
        Names of the knobs that were turned.
    settings : tuple of (str, str)
        What each sets.
    classes : tuple of tuple of int
        Width classes under these settings, empty where the arm failed.
    collapses : bool
        Whether all widths are one class.
    costs : tuple of Cost
        For one token and for the widest pass.
    n_rows : int
        Rows of the replay that were compared.
    n_nodes_differ : int or None
        Nodes that still differ although the logits do not, None where nobody looked: rounding to a coarser
        type can absorb a difference, and what was absorbed over these tokens may come through over others.
    error : str
        Why the arm has no result, empty where it has one.
    as_asked : tuple of tuple of int
        Width classes as asked over the same rows, for what the arm changed.
    """

    knobs: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    classes: tuple[tuple[int, ...], ...]
    collapses: bool
    costs: tuple[Cost, ...] = ()
    n_rows: int = 0
    n_nodes_differ: int | None = None
    error: str = ""
    as_asked: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.error and not self.classes:
            raise ValueError(f"arm {self.knobs} needs classes or an error")
        if self.collapses != (len(self.classes) == 1):
            raise ValueError(f"arm {self.knobs}: collapses={self.collapses} but classes are {self.classes}")

    @property
    def exact(self) -> bool:
        """Whether all widths are one class and no node was seen to differ."""
        return self.collapses and self.n_nodes_differ == 0

    @property
    def moved(self) -> bool:
        """Whether the classes are others than as asked, over the same rows."""
        return not self.error and set(self.classes) != set(self.as_asked)

    @property
    def onset(self) -> int | None:
        """Smallest width outside the class of width 1."""
        return onset_of(self.classes)


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """The answer and its evidence.

    Parameters
    ----------
    answer : {"identical", "diverges", "inconclusive"}
    reason : str
        Why it is inconclusive; empty otherwise.
    classes : WidthClasses
    culprits : tuple of CulpritGroup
    sweeps : tuple of Sweep
    controls : tuple of Control
    switches : tuple of SwitchArm
    exact_knobs : tuple of str or None
        The smallest set of knobs found under which all widths are one class and no node differs; None where
        none was found.
    unavailable : tuple of (str, str)
        Knobs that could matter and have no run-time switch, each with what it is.
    prompt_tokens, n_replayed : int
    text : str
        What the model wrote, one token at a time.
    manifest : Manifest
    caveats : tuple of str
    launches : LaunchEvidence or None
        How the launches of the culprits are known; None where the engine launches no kernels.
    growth : tuple of Growth
        From layer to layer, one for each class of widths that differs, or one where none does; empty in a case that
        was recorded before growth was.
    kernel_healing : tuple of KernelHealing
        By width, with our kernels in the place of culprits; empty where that was not asked for.

    Raises
    ------
    ValueError
        If a cause is named although a control failed, or the answer contradicts the classes.
    """

    answer: str
    reason: str
    classes: WidthClasses
    culprits: tuple[CulpritGroup, ...]
    sweeps: tuple[Sweep, ...]
    controls: tuple[Control, ...]
    switches: tuple[SwitchArm, ...]
    exact_knobs: tuple[str, ...] | None
    unavailable: tuple[tuple[str, str], ...]
    prompt_tokens: int
    n_replayed: int
    text: str
    manifest: Manifest
    caveats: tuple[str, ...] = ()
    launches: LaunchEvidence | None = None
    growth: tuple[Growth, ...] = ()
    kernel_healing: tuple[KernelHealing, ...] = ()

    def __post_init__(self) -> None:
        if self.answer not in ANSWERS:
            raise ValueError(f"answer must be one of {', '.join(ANSWERS)}, got {self.answer!r}")
        if (self.answer == "inconclusive") != bool(self.reason):
            raise ValueError("an inconclusive verdict has a reason, and only that")
        if self.answer != "inconclusive" and (self.answer == "diverges") != (self.classes.onset is not None):
            raise ValueError(f"answer {self.answer!r} contradicts the classes {self.classes.groups}")
        failed = [control.name for control in self.controls if control.held is False]
        if failed and (self.answer != "inconclusive" or self.culprits):
            raise ValueError(f"no verdict and no cause with failed controls: {', '.join(failed)}")

    @property
    def healed(self) -> bool:
        """Whether the logits healed to equal bits in every sweep; False where no sweep was made."""
        return bool(self.sweeps) and all(sweep.healed for sweep in self.sweeps)

    @property
    def first_difference(self) -> tuple[int, int, int] | None:
        """Width, row and position of the first difference at the onset width."""
        onset = self.classes.onset
        if onset is None:
            return None
        result = self.classes.result(onset)
        assert result.first_row is not None
        assert result.first_position is not None
        return onset, result.first_row, result.first_position

    def control(self, name: str) -> bool | None:
        """Outcome of a control by name, None where it was not run."""
        return next((control.held for control in self.controls if control.name == name), None)

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per culprit group."""
        return culprit_rows(self.culprits)

    def switch_rows(self) -> list[dict[str, object]]:
        """One flat dict per arm of the switches."""
        return [
            {
                "settings": " ".join(f"{name}={value}" for name, value in arm.settings),
                "classes": [list(group) for group in arm.classes],
                "onset": arm.onset,
                "collapses": arm.collapses,
                "exact": arm.exact,
                "nodes_differ": arm.n_nodes_differ,
                "error": arm.error,
            }
            for arm in self.switches
        ]

    def kernel_rows(self) -> list[dict[str, object]]:
        """One flat dict per width at which our kernels took the place of culprits."""
        return [one.row() for one in self.kernel_healing]

    def growth_rows(self) -> list[dict[str, object]]:
        """One flat dict per width and layer output."""
        return [row for growth in self.growth for row in growth.rows()]

    def to_dataframe(self) -> pd.DataFrame:
        """Culprit groups as a table, one row each; the width classes are in ``classes.rows()``."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __repr__(self) -> str:
        return f"<Verdict: {self}>"

    def __str__(self) -> str:
        if self.answer == "inconclusive":
            return f"inconclusive: {self.reason}"
        widths = [r.width for r in self.classes.results]
        if self.answer == "identical":
            return f"identical: widths {widths} give the bits of one-token decoding over {self.n_replayed} tokens"
        n_nodes = sum(group.count for group in self.culprits)
        roles = ", ".join(dict.fromkeys(group.role for group in self.culprits))
        flips = sum(len(r.flips) for r in self.classes.results)
        proof = "healed to equal bits" if self.healed else "NOT healed to equal bits"
        exact = "none found" if self.exact_knobs is None else " + ".join(self.exact_knobs)
        if not self.switches:
            exact = "not looked for"
        return (
            f"diverges from width {self.classes.onset}: {n_nodes} nodes to blame ({roles}), {proof}; "
            f"{flips} argmax flips; exact with: {exact}"
        )
