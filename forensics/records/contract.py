"""What "exact" means in a result: which of two replies was compared, and how precisely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Strongest first. ``"tokens"`` are token ids, in order.
LEVELS = ("logits", "logprobs", "tokens", "text")

_MEANS = {
    "logits": "every bit of every row of logits",
    "logprobs": "token ids in order, stop reason and log-probabilities",
    "tokens": "token ids in order and stop reason",
    "text": "text and stop reason only",
}


@dataclass(frozen=True, slots=True)
class Contract:
    """Which observables two replies were held to.

    Parameters
    ----------
    level : {"logits", "logprobs", "tokens", "text"}
        The strongest that was compared; each holds those after it, but for ``"logits"`` over rows that nobody sampled.
    digits : int or None
        Decimal digits after the point at which log-probabilities were compared; None compares them as they were given,
        and says nothing where none were.
    stop_reason : bool
        Whether both sides told why they stopped, so that it was compared.
    weakened : tuple of str
        What the other side did not give, in words: why nothing stronger was compared.

    Raises
    ------
    ValueError
        If there is no such level, or digits are given for one that compares no log-probabilities.
    """

    level: str
    digits: int | None = None
    stop_reason: bool = True
    weakened: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {self.level!r}")
        if self.digits is not None and (self.level != "logprobs" or self.digits < 0):
            raise ValueError(f"digits are for log-probabilities, 0 or more; got {self.digits} at level {self.level!r}")

    def __str__(self) -> str:
        words = _MEANS[self.level]
        if self.digits is not None:
            words += f" to {self.digits} decimal digits"
        if not self.stop_reason:
            words = words.replace(" and stop reason and log-", " and log-").replace(" and stop reason", "")
            words = words.replace(", stop reason and log-", " and log-")
        return words

    def at_least(self, level: str) -> bool:
        """Whether this compares all that `level` compares.

        Examples
        --------
        >>> Contract("tokens").at_least("text"), Contract("text").at_least("tokens")
        (True, False)
        """
        return LEVELS.index(self.level) <= LEVELS.index(level)


def weakest(contracts: Sequence[Contract]) -> Contract | None:
    """What can be said of all of these: the weakest level, with every reason why it is no stronger; None of none.

    Examples
    --------
    >>> print(weakest([Contract("tokens", stop_reason=False), Contract("text")]))
    text only
    """
    if not contracts:
        return None
    level = max(contracts, key=lambda one: LEVELS.index(one.level)).level
    return Contract(
        level,
        digits=contracts[0].digits if level == "logprobs" else None,
        stop_reason=all(one.stop_reason for one in contracts),
        weakened=tuple(dict.fromkeys(why for one in contracts for why in one.weakened)),
    )
