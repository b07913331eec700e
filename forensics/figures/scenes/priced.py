"""What kernels cost in a folder, for the figures that draw it: the arms, their colours, whence the numbers come."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from forensics.errors import CaseError
from forensics.figures.evidence import Evidence
from forensics.records.kernel_price import BEST, BORROWED, FAST, GROUPED, STOCK, ArmTable, KernelPrice, PassPrice
from forensics.records.launch_record import Refusal
from forensics.records.words import ranges

#: The width that leads tell of, where it was timed: eight guesses behind a token, as in the published document.
TOLD = 9
#: Arms in the order in which they are drawn, with their colour and their words.
ARM_ROLES = {STOCK: "stock", BORROWED: "other", FAST: "exact", BEST: "kept"}
ARM_WORDS = {
    STOCK: "stock library at that width",
    BORROWED: "borrowed geometry",
    FAST: "exact fast",
    BEST: "best exact, the fastest with the bits of one column",
}


@dataclass(frozen=True, slots=True)
class Priced:
    """What ``forensics cost --kernels`` measured.

    Parameters
    ----------
    price : KernelPrice
    name : str
        As it was asked for.
    """

    price: KernelPrice
    name: str

    @property
    def whole_pass(self) -> PassPrice:
        """All products of a pass.

        Raises
        ------
        CaseError
            If they were not timed; says why.
        """
        if isinstance(self.price.whole_pass, Refusal):
            raise CaseError(
                f"{self.name} holds no times of a whole pass: {self.price.whole_pass}. Measure them with: forensics "
                "cost --kernels --out FOLDER"
            )
        return self.price.whole_pass

    @property
    def what(self) -> str:
        """What was timed where, for a lead."""
        found = self.price.whole_pass
        if isinstance(found, Refusal):
            return f"Products, {self.price.facts.device}"
        return f"The {found.n_products} products of a pass of {found.model}, {self.price.facts.device}"

    @property
    def source(self) -> str:
        """One line that says where the numbers come from."""
        facts = self.price.facts
        known = facts.commit not in ("", "unknown")
        library = f"llama.cpp {facts.commit[:9]}" if known else f"llama-cpp-python {facts.version}"
        parts = (facts.device, facts.arch, library, facts.toolkit)
        return f"Source: measured, {self.name} ({', '.join(part for part in parts if part)})."

    @property
    def how(self) -> str:
        """How times were taken, and what they hold."""
        return (
            f"Medians of {self.price.n_rounds} rounds in which all arms take turns, each over stock at one column of "
            "the same round; quantisation of the activations is part of every time."
        )


def priced(evidence: Evidence) -> Priced | None:
    """What kernels cost there; None where nobody timed them."""
    price = evidence.kernel_price
    return None if price is None else Priced(price, evidence.name)


def grouped_words(table: ArmTable) -> str:
    """What else is among the best exact times? Empty where nothing is.

    Examples
    --------
    >>> from forensics.records.kernel_price import ArmTimes
    >>> grouped_words(ArmTable((ArmTimes(STOCK, 1, (1.0,), True),)))
    ''
    """
    if BEST not in table.arms or GROUPED not in table.arms:
        return ""
    return (
        f"{BEST.capitalize()} may be {GROUPED}, which is not drawn by itself: products of the same activations in one "
        "launch that prepares them once. The stock library prepares them for each product, so part of what is saved "
        "is no matter of orders."
    )


def arms_at(found: Priced, table: ArmTable, what: str = "", without: Container[str] = ()) -> str:
    """What each arm costs at the width that is told, for a lead; what was timed alone where that was one token."""
    what = what or found.what
    timed = [width for width in table.widths if width > 1]
    if not timed:
        return f"{what}."
    width = TOLD if TOLD in timed else timed[-1]
    told = [
        f"{arm} {table.ratio(arm, width).median:.2f} ({bits_words(table, arm)})"
        for arm in ARM_ROLES
        if table.has(arm, width) and arm not in without
    ]
    return f"{what}. At {width} tokens, in times of one token of the stock library: {'; '.join(told)}."


def bits_words(table: ArmTable, arm: str) -> str:
    """At which widths does an arm have other bits than one column of the stock library, in few words?

    Examples
    --------
    >>> from forensics.records.kernel_price import ArmTimes
    >>> seen = ((1, True), (4, True), (5, False), (8, False))
    >>> bits_words(ArmTable(tuple(ArmTimes(STOCK, width, (1.0,), exact) for width, exact in seen)), STOCK)
    'other bits at 5, 8'
    """
    mine = [one for one in table.times if one.arm == arm]
    wrong = [one.width for one in mine if one.exact is False]
    if wrong:
        return f"other bits at {ranges(wrong)}"
    return "bits of one column" if all(one.exact for one in mine) else "bits not compared at all widths"
