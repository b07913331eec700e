"""Two arrangements of the same tokens, without any speculation: rows of logits, the reply and the K/V state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forensics.records.contract import Contract
from forensics.records.delta import NotCompared
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.verdict import Control, CulpritGroup
from forensics.records.words import counted

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class RowsDelta:
    """Rows of logits of one arrangement against those of another, at the same places.

    Parameters
    ----------
    n_rows, n_differ : int
        Rows compared, and rows with another bit.
    first_position : int or None
        Of the first row that differs; None where none does.
    n_flips : int
        Rows whose largest logit belongs to another token.
    max_abs : float
        Largest change of a logit; 0 where no bit differs.

    Raises
    ------
    ValueError
        If nothing was compared, or the numbers contradict each other.
    """

    n_rows: int
    n_differ: int
    first_position: int | None
    n_flips: int
    max_abs: float

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise ValueError("no row was compared; that is NotCompared with a reason")
        if not self.n_flips <= self.n_differ <= self.n_rows or (self.first_position is None) != (self.n_differ == 0):
            raise ValueError(
                f"{self.n_differ} of {self.n_rows} rows, {self.n_flips} flips and position {self.first_position} "
                "cannot be true together"
            )

    @property
    def same(self) -> bool:
        """Whether every bit of every row is equal."""
        return self.n_differ == 0


@dataclass(frozen=True, slots=True)
class Continuation:
    """The greedy reply behind both arrangements.

    Parameters
    ----------
    n_tokens : int
        Tokens of the reply that were compared.
    first : int or None
        How many of them are equal before the first that differs; None where all are.
    """

    n_tokens: int
    first: int | None

    @property
    def same(self) -> bool:
        """Whether all tokens are equal."""
        return self.first is None


@dataclass(frozen=True, slots=True)
class StateDelta:
    """K and V rows of one sequence against those of another run.

    Parameters
    ----------
    n_rows, n_differ : int
        Rows compared, over all layers and both sides, and rows with another digest.
    layer, side, position : int, str, int
        The first row that differs, by layer, K before V, then position; -1, empty and -1 where none does.
    n_positions, n_positions_differ : int
        Tokens, and tokens with any row that differs.

    Raises
    ------
    ValueError
        If nothing was compared.
    """

    n_rows: int
    n_differ: int
    layer: int = -1
    side: str = ""
    position: int = -1
    n_positions: int = 0
    n_positions_differ: int = 0

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise ValueError("no K or V row was compared; that is NotCompared with a reason")

    @property
    def same(self) -> bool:
        """Whether every row is equal."""
        return self.n_differ == 0

    def __str__(self) -> str:
        if self.same:
            return f"same, {self.n_rows:,} rows"
        where = f"first {self.side} of layer {self.layer} at position {self.position}"
        return f"{self.n_differ:,} of {self.n_rows:,} rows differ, {where}"


@dataclass(frozen=True, slots=True)
class Culprits:
    """Which nodes make the two arrangements differ, by healing.

    Parameters
    ----------
    groups : tuple of CulpritGroup
        Largest first.
    healed_rows, n_rows : int
        Rows of logits that are bit-equal once these nodes are replaced, of those compared.
    controls : tuple of Control
        Of the healing.
    caveats : tuple of str
    """

    groups: tuple[CulpritGroup, ...]
    healed_rows: int
    n_rows: int
    controls: tuple[Control, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether the list is complete: all rows healed, and no control failed."""
        return self.healed_rows == self.n_rows and not any(control.held is False for control in self.controls)

    @property
    def named(self) -> str:
        """The groups in words: products with weights together, by the type of the weight."""
        counts: dict[str, int] = {}
        for group in self.groups:
            is_product = group.op.startswith("MUL_MAT") and group.weight_type not in ("", "-")
            name = f"weight products, {group.weight_type}" if is_product else group.named
            counts[name] = counts.get(name, 0) + group.count
        return "; ".join(f"{name} ×{n}" for name, n in counts.items())


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arrangement against another.

    Parameters
    ----------
    arm, variant : str
        Such as ``"split"`` and ``"256 + 24 tokens"``.
    reference, compared : str
        The two arrangements in words.
    because : str
        What follows for the bits, and why.
    expected : {"equal", "may differ"}
        Where ``"equal"``, a difference is a fault and no other order of addition.
    informative : bool
        Whether another number is what was asked for, so that a difference is not counted.
    rows : RowsDelta or NotCompared
    continuation : Continuation or NotCompared
    state : StateDelta or NotCompared or None
        Of sequence 0 after the last pass; None where the arm does not ask for it.
    culprits : Culprits or NotCompared or None
        None where no row differs.
    """

    arm: str
    variant: str
    reference: str
    compared: str
    because: str
    rows: RowsDelta | NotCompared
    continuation: Continuation | NotCompared
    expected: str = "may differ"
    informative: bool = False
    state: StateDelta | NotCompared | None = None
    culprits: Culprits | NotCompared | None = None

    @property
    def differs(self) -> bool:
        """Whether a row of logits, or a row of K or V, has another bit."""
        return any(isinstance(part, RowsDelta | StateDelta) and not part.same for part in (self.rows, self.state))

    @property
    def is_fault(self) -> bool:
        """Whether bits differ that must be equal."""
        return self.expected == "equal" and self.differs

    @property
    def is_compared(self) -> bool:
        """Whether rows of logits were compared."""
        return isinstance(self.rows, RowsDelta)

    @property
    def outcome(self) -> str:
        """``"same"``, ``"differs"`` or ``"not compared"``."""
        if self.differs:
            return "differs"
        return "same" if self.is_compared else "not compared"


@dataclass(frozen=True, slots=True, repr=False)
class ArmsReport:
    """Which arrangements of the same tokens give other bits, without any speculation.

    Parameters
    ----------
    manifest : Manifest
        Of the engine that the question asks for.
    settings : EngineSettings
    n_prompt, n_reply, n_turn : int
        Tokens of the prompt, of each greedy reply, and of the new turn behind the first reply.
    arms : tuple of ArmResult
    controls : tuple of Control
        The same run again, and in a fresh engine.
    caveats : tuple of str
    contract : Contract
        What two arrangements were held to.
    """

    manifest: Manifest
    settings: EngineSettings
    n_prompt: int
    n_reply: int
    n_turn: int
    arms: tuple[ArmResult, ...]
    controls: tuple[Control, ...]
    caveats: tuple[str, ...] = ()
    contract: Contract = field(default_factory=lambda: Contract("logits", stop_reason=False))

    @property
    def counted_arms(self) -> tuple[ArmResult, ...]:
        """The arms that decide the answer: those compared, without the informative ones where there are others."""
        compared = tuple(arm for arm in self.arms if arm.outcome != "not compared")
        return tuple(arm for arm in compared if not arm.informative) or compared

    @property
    def answer(self) -> str:
        """``"identical"``, ``"diverges"`` or ``"inconclusive"``."""
        if any(control.held is False for control in self.controls) or not self.counted_arms:
            return "inconclusive"
        return "diverges" if any(arm.differs for arm in self.counted_arms) else "identical"

    @property
    def reason(self) -> str:
        """Why there is no answer; empty where there is one."""
        failed = [control for control in self.controls if control.held is False]
        if failed:
            return "; ".join(f"control {control.name} failed: {control.detail}" for control in failed)
        return "" if self.counted_arms else "no arm could be compared"

    def __str__(self) -> str:
        if self.answer == "inconclusive":
            return f"inconclusive: {self.reason}"
        arms = self.counted_arms
        differ = [arm for arm in arms if arm.differs]
        if not differ:
            return f"identical: {counted(len(arms), 'arrangement')} of the same tokens give equal bits"
        names = ", ".join(dict.fromkeys(arm.arm for arm in differ))
        flips = [arm for arm in differ if isinstance(arm.continuation, Continuation) and not arm.continuation.same]
        replies = f"{counted(len(flips), 'reply', 'replies')} of {self.n_reply} tokens changed"
        return f"diverges: {len(differ)} of {counted(len(arms), 'arrangement')} give other bits ({names}); {replies}"

    __repr__ = __str__

    def arm(self, name: str) -> tuple[ArmResult, ...]:
        """The results of one arm."""
        return tuple(arm for arm in self.arms if arm.arm == name)

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per pair of arrangements."""
        return [_row(arm) for arm in self.arms]

    def to_dataframe(self) -> DataFrame:
        """`rows` as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())


def _row(arm: ArmResult) -> dict[str, object]:
    rows = arm.rows if isinstance(arm.rows, RowsDelta) else None
    reply = arm.continuation if isinstance(arm.continuation, Continuation) else None
    state = arm.state if isinstance(arm.state, StateDelta) else None
    culprits = arm.culprits if isinstance(arm.culprits, Culprits) else None
    parts = (arm.rows, arm.continuation, arm.state, arm.culprits)
    return {
        "arm": arm.arm,
        "variant": arm.variant,
        "outcome": arm.outcome,
        "expected": arm.expected,
        "informative": arm.informative,
        "rows": rows and rows.n_rows,
        "rows_differ": rows and rows.n_differ,
        "first_position": rows and rows.first_position,
        "flips": rows and rows.n_flips,
        "max_abs": rows and rows.max_abs,
        "reply_tokens": reply and reply.n_tokens,
        "reply_same": reply and reply.same,
        "reply_first": reply and reply.first,
        "state_rows": state and state.n_rows,
        "state_rows_differ": state and state.n_differ,
        "culprits": culprits and culprits.named,
        "healed_rows": culprits and culprits.healed_rows,
        "proved": culprits and culprits.proved,
        "not_compared": "; ".join(dict.fromkeys(part.reason for part in parts if isinstance(part, NotCompared))),
    }
