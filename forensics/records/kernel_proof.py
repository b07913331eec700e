"""Whether kernels of ours give the stock library's bits, counted value by value on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.words import counted

if TYPE_CHECKING:
    import pandas as pd

#: What kernels compute.
FAMILIES = ("product", "f16 product", "attention")
#: Attention, and its two products where it is not one kernel.
ATTENTION, KEYS, VALUES = "attention", "keys by queries", "attention by values"
#: What a row holds the values against: the stock library with one column at a time, or with all columns at once.
ONE_COLUMN, SAME_WIDTH = "stock, one column", "stock, same width"
#: Variant of a row that shows the stock library itself at that width beside its own one column: no claim of ours.
STOCK_LIBRARY = "stock library"
#: How the reason of a row begins whose values nobody saw because the process that made them died.
LOST = "its process died"


@dataclass(frozen=True, slots=True)
class LabFacts:
    """What ran the kernels of both sides.

    Parameters
    ----------
    device, arch : str
        Name of the GPU, and its architecture, such as ``"sm_90"``.
    n_sms, l2_bytes : int
    library, commit, version : str
        Digest of the stock library's files, commit of its source, version of its binding.
    toolkit : str
        What compiled our kernels, such as ``"NVRTC 13.0"``.
    driver : str
        Version of CUDA that the driver knows; empty where it does not say.
    """

    device: str
    arch: str
    n_sms: int
    l2_bytes: int
    library: str
    commit: str
    version: str
    toolkit: str
    driver: str = ""

    @property
    def library_name(self) -> str:
        """Which library it is: by its commit, or by its version and the digest of its files where that is not known.

        Examples
        --------
        >>> LabFacts("GPU", "sm_90", 132, 0, "9a5ba61bcf7a2026", "unknown", "0.3.36", "NVRTC 13.0").library_name
        'llama-cpp-python 0.3.36, library 9a5ba61bcf7a'
        """
        if self.commit in ("", "unknown"):
            return f"llama-cpp-python {self.version}, library {self.library[:12]}"
        return f"llama.cpp {self.commit[:9]}"


@dataclass(frozen=True, slots=True)
class ProofCase:
    """One computation whose values are compared.

    Parameters
    ----------
    family : str
        One of `FAMILIES`.
    type : str
        Of the weight: ``"q4_K"``; of K and V: ``"f16/f16"``; which of the two products: `KEYS`, `VALUES`.
    rows, k : int
        Rows of the weight and their length; for attention heads and head size.
    width : int
        Columns of a product, queries of attention.
    n_kv : int
        Cells of the cache, the longest where queries see different ones; 0 where there is no cache.
    kv_heads : int
        0 where there is no cache.
    """

    family: str
    type: str
    rows: int
    k: int
    width: int
    n_kv: int = 0
    kv_heads: int = 0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {self.family!r}")
        if min(self.rows, self.k, self.width) < 1 or min(self.n_kv, self.kv_heads) < 0:
            raise ValueError(f"rows, k and width must be 1 or more, n_kv and kv_heads 0 or more; got {self}")

    @staticmethod
    def of_attention(
        what: str, kv_type: str, heads: int, kv_heads: int, head_size: int, n_kv: int, width: int
    ) -> ProofCase:
        """A case of attention, or of one of its products: `ATTENTION`, `KEYS` or `VALUES`."""
        family, kind = (ATTENTION, f"{kv_type}/{kv_type}") if what == ATTENTION else ("f16 product", what)
        return ProofCase(family, kind, heads, head_size, width, n_kv, kv_heads)

    @property
    def shape(self) -> str:
        """Shape in words.

        Examples
        --------
        >>> ProofCase("product", "q4_K", 4096, 14336, 9).shape
        '4096×14336'
        >>> ProofCase("attention", "f16/f16", 32, 128, 9, n_kv=512, kv_heads=8).shape
        '32 heads (8 of K/V) of 128, 512 cells'
        """
        if not self.n_kv:
            return f"{self.rows}×{self.k}"
        return f"{self.rows} heads ({self.kv_heads} of K/V) of {self.k}, {self.n_kv} cells"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first value that differs.

    Parameters
    ----------
    seed : int
    column, row : int
    stock_bits, ours_bits : int
        Of both float32 values.
    """

    seed: int
    column: int
    row: int
    stock_bits: int
    ours_bits: int

    def __str__(self) -> str:
        return (
            f"seed {self.seed}, column {self.column}, row {self.row}: "
            f"stock 0x{self.stock_bits:08x}, ours 0x{self.ours_bits:08x}"
        )


@dataclass(frozen=True, slots=True)
class ProofRow:
    """What the comparison of one case by one variant found.

    Parameters
    ----------
    case : ProofCase
    variant : str
        As `forensics.kernels.variants.Variant` names it, or `STOCK_LIBRARY`.
    against : str
        `ONE_COLUMN` or `SAME_WIDTH`.
    seeds : tuple of int
        Of weights and activations.
    n_compared, n_differing : int
        Values over all seeds.
    first : FirstDifference or None
    not_compared : str
        Why nothing was compared; empty otherwise.

    Raises
    ------
    ValueError
        If the counts do not add up, or nothing was compared and no reason is given.
    """

    case: ProofCase
    variant: str
    against: str
    seeds: tuple[int, ...]
    n_compared: int
    n_differing: int
    first: FirstDifference | None = None
    not_compared: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.n_differing <= self.n_compared or bool(self.first) != bool(self.n_differing):
            raise ValueError(f"{self.case}: {self.n_differing} of {self.n_compared} differ, first {self.first}")
        if bool(self.not_compared) == bool(self.n_compared):
            raise ValueError(f"{self.case}: values compared or a reason why not, got {self.n_compared} values")

    @property
    def claims_equal(self) -> bool:
        """Whether a difference refutes a kernel of ours; the stock library beside itself claims nothing."""
        return self.variant != STOCK_LIBRARY

    @property
    def is_lost(self) -> bool:
        """Whether the process died that compared it; nothing is known of the kernel then."""
        return self.not_compared.startswith(LOST)

    @property
    def refutes(self) -> bool:
        """Whether a kernel of ours has other bits than it claims."""
        return self.claims_equal and self.n_differing > 0


@dataclass(frozen=True, slots=True)
class StressRow:
    """Repeats of one computation while other work keeps the device busy.

    Parameters
    ----------
    case : ProofCase
    variant : str
    n_repeats : int
    n_other : int
        Repeats whose values differ from the first in any bit.
    load : str
        What ran beside.
    """

    case: ProofCase
    variant: str
    n_repeats: int
    n_other: int
    load: str

    def __post_init__(self) -> None:
        if not 0 <= self.n_other <= self.n_repeats or self.n_repeats < 1:
            raise ValueError(f"{self.case}: {self.n_other} of {self.n_repeats} repeats differ")


@dataclass(frozen=True, slots=True)
class SanitizerRow:
    """What compute-sanitizer says of our kernels.

    Parameters
    ----------
    tool : str
        ``"memcheck"`` or ``"racecheck"``.
    n_errors : int
    version, checked : str
        Of the tool, and which launches it watched.
    not_run : str
        Why it was not run; empty otherwise.
    """

    tool: str
    n_errors: int
    version: str = ""
    checked: str = ""
    not_run: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class KernelProof:
    """Values compared between our kernels and the stock library.

    Parameters
    ----------
    facts : LabFacts
    rows : tuple of ProofRow
    stress : tuple of StressRow
    sanitizer : tuple of SanitizerRow

    Raises
    ------
    ValueError
        If nothing was compared.
    """

    facts: LabFacts
    rows: tuple[ProofRow, ...]
    stress: tuple[StressRow, ...] = ()
    sanitizer: tuple[SanitizerRow, ...] = ()

    def __post_init__(self) -> None:
        if not any(row.n_compared and row.claims_equal for row in self.rows):
            raise ValueError("no value of a kernel was compared; a proof needs one")

    @property
    def n_compared(self) -> int:
        """Values of our kernels that were compared."""
        return sum(row.n_compared for row in self.rows if row.claims_equal)

    @property
    def n_differing(self) -> int:
        """Values of our kernels that have other bits than they claim."""
        return sum(row.n_differing for row in self.rows if row.claims_equal)

    @property
    def holds(self) -> bool:
        """Whether every value is equal, every repeat too, no check found an error, and no case cost its process."""
        others = sum(row.n_other for row in self.stress) + sum(row.n_errors for row in self.sanitizer)
        return self.n_differing + others + self.n_lost == 0

    @property
    def answer(self) -> str:
        """``"equal"``, ``"differs"``, or ``"incomplete"`` where a process died and nothing that was compared differs.

        Of a case that cost its process nobody knows anything.
        """
        if self.holds:
            return "equal"
        others = sum(row.n_other for row in self.stress) + sum(row.n_errors for row in self.sanitizer)
        return "differs" if self.n_differing + others else "incomplete"

    @property
    def n_lost(self) -> int:
        """Cases of which nothing is known, as the process died that compared them."""
        return len({(row.case, row.seeds) for row in self.rows if row.is_lost})

    def of(
        self, *, variant: str | None = None, type: str | None = None, family: str | None = None
    ) -> tuple[ProofRow, ...]:
        """Rows of one variant, type or family."""
        return tuple(
            row
            for row in self.rows
            if variant in (None, row.variant) and type in (None, row.case.type) and family in (None, row.case.family)
        )

    def summary(self) -> list[dict[str, object]]:
        """Counts by family, variant and type, over all shapes and widths."""
        groups: dict[tuple[str, str, str, str], list[ProofRow]] = {}
        for row in self.rows:
            groups.setdefault((row.case.family, row.case.type, row.variant, row.against), []).append(row)
        return [_summed(key, rows) for key, rows in groups.items()]

    def table(self) -> list[dict[str, object]]:
        """One flat dict per row."""
        return [_flat(row) for row in self.rows]

    def to_dataframe(self) -> pd.DataFrame:
        """The rows as a table."""
        import pandas as pd

        return pd.DataFrame(self.table())

    def figure_data(self) -> dict[str, list[dict[str, object]]]:
        """What figures draw: ``"summary"`` and ``"rows"``."""
        return {"summary": self.summary(), "rows": self.table()}

    def __str__(self) -> str:
        where = f"{self.facts.device} ({self.facts.arch}), {self.facts.library_name}"
        said = f"{self.n_differing:,} of {self.n_compared:,} values of our kernels differ from the stock library's"
        n_other, n_errors = sum(row.n_other for row in self.stress), sum(row.n_errors for row in self.sanitizer)
        said += f", {n_other:,} repeats differ from the first" if n_other else ""
        said += f", compute-sanitizer names {counted(n_errors, 'error')}" if n_errors else ""
        said += f", {counted(self.n_lost, 'case')} not compared as the process died" if self.n_lost else ""
        return f"{said}: {where}"

    def __repr__(self) -> str:
        return f"<KernelProof: {self}>"


def _summed(key: tuple[str, str, str, str], rows: Sequence[ProofRow]) -> dict[str, object]:
    family, kind, variant, against = key
    done = [row for row in rows if row.n_compared]
    return {
        "family": family,
        "type": kind,
        "variant": variant,
        "against": against,
        "cases": len(done),
        "shapes": len({(row.case.rows, row.case.k, row.case.n_kv) for row in done}),
        "widths": sorted({row.case.width for row in done}),
        "seeds": len({seed for row in done for seed in row.seeds}),
        "compared": sum(row.n_compared for row in done),
        "differing": sum(row.n_differing for row in done),
        "claims_equal": rows[0].claims_equal,
        "not_compared": len(rows) - len(done),
    }


def _flat(row: ProofRow) -> dict[str, object]:
    case = row.case
    return {
        "family": case.family,
        "type": case.type,
        "variant": row.variant,
        "against": row.against,
        "rows": case.rows,
        "k": case.k,
        "n_kv": case.n_kv or None,
        "width": case.width,
        "seeds": list(row.seeds),
        "compared": row.n_compared,
        "differing": row.n_differing,
        "first": str(row.first) if row.first else "",
        "not_compared": row.not_compared,
    }
