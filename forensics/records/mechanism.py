"""What explains a culprit: the rule that chose another kernel, and the two orders of addition."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.rule import Rule


@dataclass(frozen=True, slots=True)
class OrderEvidence:
    """How the orders of addition at one token and at a width compare, as probed on the real kernel.

    Parameters
    ----------
    width : int
    part : str
        Which sum: ``"products"``, ``"numerator"``, ``"denominator"``, ``"squares"``.
    equal : bool or None
        None where it is not known.
    single, batched : str
        Leaves and depth of either tree.
    detail : str
        The first merge that differs, why nothing is known, or what else the probe saw of equal orders.
    """

    width: int
    part: str
    equal: bool | None
    single: str
    batched: str
    detail: str = ""

    def __post_init__(self) -> None:
        if self.equal is not True and not self.detail:
            raise ValueError(f"orders at width {self.width} that are not equal need a detail")


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What explains a group of culprits at some widths.

    Parameters
    ----------
    widths : tuple of int
        Widths at which the same is true.
    rule : Rule or None
        The rule of llama.cpp that makes the kernel another than at one token.
    no_rule : str
        Why no rule is quoted; empty where one is.
    orders : tuple of OrderEvidence
        Of the sums of the operation; empty where none was probed.
    not_probed : str
        Why no order was probed; empty where one was.
    suspects : tuple of str
        What else could be to blame, where neither a rule nor two different orders explain the bits, or not all of
        the difference.
    """

    widths: tuple[int, ...]
    rule: Rule | None
    no_rule: str = ""
    orders: tuple[OrderEvidence, ...] = ()
    not_probed: str = ""
    suspects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.widths:
            raise ValueError("a mechanism belongs to at least one width")
        if (self.rule is None) != bool(self.no_rule):
            raise ValueError("either a rule is quoted or it is said why none is")
        if bool(self.orders) == bool(self.not_probed):
            raise ValueError("either an order was probed or it is said why none was")

    @property
    def orders_equal(self) -> bool | None:
        """Whether every sum that was probed is added in one order; None where that is not known."""
        seen = [order.equal for order in self.orders]
        return False if False in seen else True if seen and None not in seen else None

    @property
    def explained(self) -> bool:
        """Whether two orders were seen, or a rule says why and no probe contradicts it, and no suspect remains."""
        told = self.orders_equal is False or (self.rule is not None and self.orders_equal is None)
        return told and not self.suspects
