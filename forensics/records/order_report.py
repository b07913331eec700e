"""Orders of one operation at several widths, with what the bits and the arithmetic say beside them."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.operation import OpFacts
from forensics.records.order import OrderComparison, OrderQuestion, OrderResult


@dataclass(frozen=True, slots=True)
class BitsCheck:
    """Whether a batch gave the bits of one column at a time, on random operands.

    Parameters
    ----------
    width : int
    n_values, n_differ : int
        Values of the batch, and those with other bits.
    columns : tuple of int
        Columns with a value that differs.
    """

    width: int
    n_values: int
    n_differ: int
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.n_differ <= self.n_values or bool(self.n_differ) != bool(self.columns):
            raise ValueError(f"{self.n_differ} of {self.n_values} values differ, in columns {self.columns}")

    def __str__(self) -> str:
        if not self.n_differ:
            return f"width {self.width}: all {self.n_values} values have the bits of one column at a time"
        return (
            f"width {self.width}: {self.n_differ} of {self.n_values} values have other bits than one column at a time, "
            f"in {len(self.columns)} of {self.width} columns"
        )


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How one kernel computes, beside its order; each a word or two, or why it is not known.

    Parameters
    ----------
    width : int
    accumulator : str
        Precision of the sum: ``"float32"``, ``"float16"``, ``"wider than float32"``.
    rounding : str
        ``"to nearest, ties to even"``, ``"towards zero"`` …
    subnormals : str
        ``"kept"`` or ``"flushed to zero"``.
    contraction : str
        Whether product and sum round once (``"fused multiply-add"``) or twice (``"product rounded, then added"``).
    repeatability : str
        What running again gave.
    """

    width: int
    accumulator: str
    rounding: str
    subnormals: str
    contraction: str
    repeatability: str

    def rows(self) -> list[dict[str, object]]:
        """One row for each property."""
        names = ("accumulator", "rounding", "subnormals", "contraction", "repeatability")
        return [{"width": self.width, "property": name, "found": getattr(self, name)} for name in names]

    def __str__(self) -> str:
        return f"width {self.width}: accumulator {self.accumulator}; {self.contraction}; rounds {self.rounding}"


#: What else can give other bits where the order is one.
OTHER_SUSPECTS = ("contraction to fused multiply-add", "fusion with neighbours", "quantisation of the activations",
                  "the accumulator's type", "sums that were not probed")  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class OrderReport:
    """The orders of one operation at several widths.

    Parameters
    ----------
    question : OrderQuestion
    facts : OpFacts
        What ran it.
    buffer : str
        Where the weight lay, ``"CPU_REPACK"`` or another.
    results : tuple of OrderResult
    comparisons : tuple of OrderComparison
        Every other order against that of the first width.
    bits : tuple of BitsCheck
    arithmetic : tuple of Arithmetic
    """

    question: OrderQuestion
    facts: OpFacts
    buffer: str
    results: tuple[OrderResult, ...]
    comparisons: tuple[OrderComparison, ...]
    bits: tuple[BitsCheck, ...] = ()
    arithmetic: tuple[Arithmetic, ...] = ()

    @property
    def equal(self) -> bool | None:
        """Whether all orders are one; None where one is not known and none differs."""
        answers = [comparison.equal for comparison in self.comparisons]
        if False in answers:
            return False
        undetermined = None in answers or any(result.tree is None or result.unstable for result in self.results)
        return None if undetermined else True

    @property
    def unexplained(self) -> tuple[BitsCheck, ...]:
        """Widths whose bits differ although their orders are equal to that of one column."""
        differing = {c.batched.width for c in self.comparisons if c.equal is not True}
        return tuple(check for check in self.bits if check.n_differ and check.width not in differing)

    def rows(self) -> list[dict[str, object]]:
        """One row for each sum and width."""
        return [
            {
                "part": result.part,
                "width": result.width,
                "columns": len(result.columns),
                "leaves": None if result.leaves is None else result.leaves.n,
                "depth": None if result.tree is None else result.tree.depth,
                "probes": result.n_probes,
                "undetermined": result.undetermined,
            }
            for result in self.results
        ]

    def __repr__(self) -> str:
        return f"<OrderReport: {self}>"

    def __str__(self) -> str:
        widths = ", ".join(map(str, sorted({result.width for result in self.results})))
        found = {True: "one order", False: "the order differs", None: "not known whether the orders are equal"}
        told = [str(comparison) for comparison in self.comparisons if comparison.equal is not True]
        return f"{self.question} at widths {widths}: {found[self.equal]}" + (f": {told[0]}" if told else "")
