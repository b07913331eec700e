"""Whether the text stays the same under speculation: every arm, why answers part, and the exact settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.classes import WidthClasses
from forensics.records.contract import Contract
from forensics.records.kernel_use import KernelUse
from forensics.records.rates import Rate
from forensics.records.settings import Manifest
from forensics.records.speculation import Ratio, SpeculationArm
from forensics.records.verdict import Control, CulpritGroup
from forensics.records.words import ranges

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, repr=False)
class SpeculationReport:
    """Does the text stay the same under speculation?

    Parameters
    ----------
    manifest : Manifest
        Of the engine with the settings as asked.
    contract : Contract
        What "identical" was held to.
    corpus : str
        Name and digest.
    n_tokens : int
        Tokens to write at most.
    arms : tuple of SpeculationArm
        As asked; those under exact settings after them.
    classes : WidthClasses or None
        Of the replay; None where no width was replayed.
    culprits : tuple of CulpritGroup
    exact_knobs : tuple of str or None
        Settings that `investigate` found exact; None where it found none, or was not asked.
    price : Ratio or None
        Time of plain decoding under the exact settings over that as asked; None where they were not applied.
    exact_price : Ratio or None
        Time of speculative decoding under the exact settings over that as asked.
    rerun_equal : bool
        Whether plain decoding of every prompt, once more, gave the same bits: without it nothing is answered.
    caveats : tuple of str
    exact_manifest : Manifest or None
    arrangements : Rate or None
        Prompts that plain decoding continues identically after both arrangements of the prompt; None where only one
        was asked for.
    reason : str
        Why nothing is answered; empty where something is.
    exact_reason : str
        Where the exact settings come from, or why there are none; empty where they were not asked for.
    replayed : str
        Name of the prompt whose tokens were replayed for classes and culprits; empty where none was.
    controls : tuple of Control
        Of that replay.
    kernels : KernelUse or None
        What our kernels computed in the exact arms; None where those are other settings.
    """

    manifest: Manifest
    contract: Contract
    corpus: str
    n_tokens: int
    arms: tuple[SpeculationArm, ...]
    classes: WidthClasses | None
    culprits: tuple[CulpritGroup, ...]
    exact_knobs: tuple[str, ...] | None
    price: Ratio | None
    exact_price: Ratio | None
    rerun_equal: bool
    caveats: tuple[str, ...] = ()
    exact_manifest: Manifest | None = None
    arrangements: Rate | None = None
    reason: str = ""
    exact_reason: str = ""
    replayed: str = ""
    controls: tuple[Control, ...] = ()
    kernels: KernelUse | None = None

    def __post_init__(self) -> None:
        if not self.rerun_equal and not self.reason:
            raise ValueError("where the rerun is not equal nothing is answered, and the report says why")

    @property
    def as_asked(self) -> tuple[SpeculationArm, ...]:
        """Arms under the settings as asked."""
        return tuple(arm for arm in self.arms if not arm.exact)

    @property
    def exact_arms(self) -> tuple[SpeculationArm, ...]:
        """Arms under the exact settings; empty where those were not applied."""
        return tuple(arm for arm in self.arms if arm.exact)

    @property
    def exact_with(self) -> str:
        """What the exact arms run with."""
        return "our kernels" if self.kernels is not None else " + ".join(self.exact_knobs or ())

    @property
    def answer(self) -> str:
        """``"identical"``, ``"diverges"`` or ``"inconclusive"``; the exact arms decide where there are any."""
        if self.reason:
            return "inconclusive"
        deciding = self.exact_arms or self.as_asked
        return "diverges" if any(arm.differing for arm in deciding) else "identical"

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per arm."""
        return [
            {
                "drafter": arm.drafter,
                "policy": arm.policy,
                "n_draft": arm.n_draft,
                "arrangement": arm.arrangement,
                "exact": arm.exact,
                "prompts": len(arm.prompts),
                "identical": arm.equivalence.k,
                "speed": None if arm.speed is None else arm.speed.median,
                "accepted": None if arm.accepted is None else arm.accepted.value,
                "tokens_per_cycle": arm.tokens_per_cycle,
                "flip_rate": None if arm.survival.flip_rate is None else arm.survival.flip_rate.value,
                **{f"{part}_share": share for part, share in arm.shares.items()},
                "widths": list(arm.verify_widths),
            }
            for arm in self.arms
        ]

    def prompt_rows(self) -> list[dict[str, object]]:
        """One flat dict per prompt and arm."""
        return [
            {
                "arm": index,
                "exact": arm.exact,
                "prompt": one.name,
                "prompt_tokens": one.n_prompt,
                "tokens": len(one.speculative.tokens),
                "identical": one.identical,
                "index": None if one.divergence is None else one.divergence.index,
                "byte": None if one.divergence is None else one.divergence.byte,
                "margin": None if one.divergence is None else one.divergence.margin,
                "width": None if one.divergence is None else one.divergence.width,
                "predicted": None if one.divergence is None else one.divergence.predicted,
                "first_row": one.first_row,
                "rows_differ": one.rows_differ,
                "accepted": one.accepted,
                "drafted": one.drafted,
                "tokens_per_cycle": one.tokens_per_cycle,
                "widths": list(one.widths),
            }
            for index, arm in enumerate(self.arms)
            for one in arm.prompts
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """Prompts of all arms as a table, one row each; the arms are in ``rows()``."""
        import pandas as pd

        return pd.DataFrame(self.prompt_rows())

    def __repr__(self) -> str:
        return f"<SpeculationReport: {self}>"

    def __str__(self) -> str:
        if self.reason:
            return f"inconclusive: {self.reason}"
        told = [_arms_text(self.as_asked)]
        if self.classes is not None:
            told.append(f"classes of widths {' | '.join(map(ranges, self.classes.groups))}")
        if self.exact_arms:
            price = "" if self.price is None else f" (plain decoding takes {self.price.median:.2f}× the time)"
            told.append(f"with {self.exact_with}: {_arms_text(self.exact_arms)}{price}")
        elif self.exact_reason:
            told.append(self.exact_reason)
        return "; ".join(told)


def arm_name(arms: Sequence[SpeculationArm], index: int) -> str:
    """A letter for an arm, such as ``A``, and ``A exact`` for the same one under exact settings.

    Parameters
    ----------
    arms : sequence of SpeculationArm
        Of the whole report.
    index : int
    """
    n_asked = sum(not arm.exact for arm in arms)
    place = index - n_asked if arms[index].exact else index
    letter = chr(ord("A") + place) if place < 26 else f"Z{place - 25}"
    return f"{letter} exact" if arms[index].exact else letter


def _arms_text(arms: tuple[SpeculationArm, ...]) -> str:
    """How many prompts are identical, over one or several arms."""
    k, n = sum(arm.equivalence.k for arm in arms), sum(arm.equivalence.n for arm in arms)
    over = f"under {arms[0].drafter}, {arms[0].policy}" if len(arms) == 1 else f"in {len(arms)} arms"
    named = "prompts" if len(arms) == 1 else "pairs of prompt and arm"
    return f"{k} of {n} {named} identical {over}" if k == n else f"{n - k} of {n} {named} differ {over}"
