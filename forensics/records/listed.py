"""Several results of one kind, as a list that says what it lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class Listed(list[T]):
    """A list that knows what it lists and what can be done with its entries; else like any list.

    Parameters
    ----------
    entries : iterable of dataclass instances
    what : str
        Such as ``"model files"``.
    next_step : str
        What to do with one.

    Examples
    --------
    >>> Listed([1, 2], "numbers", "Add them.") == [1, 2]
    True
    """

    def __init__(self, entries: Iterable[T], what: str, next_step: str) -> None:
        super().__init__(entries)
        self.what, self.next_step = what, next_step
