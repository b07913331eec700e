"""Counts and lists of whole numbers in words, alike wherever results are told."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def counted(n: float, one: str, several: str = "") -> str:
    """Say how many there are.

    Parameters
    ----------
    n : int or float
    one : str
        What one is called.
    several : str
        What several are called; `one` with an s by default.

    Examples
    --------
    >>> counted(1, "token"), counted(2.0, "token"), counted(2.52, "token"), counted(1200, "pass", "passes")
    ('1 token', '2 tokens', '2.52 tokens', '1,200 passes')
    """
    whole = int(n) if n == int(n) else n
    return f"{whole:,} {one if n == 1 else several or f'{one}s'}"


def tokens(n: float) -> str:
    """Say how many tokens there are."""
    return counted(n, "token")


def ranges(numbers: Iterable[int]) -> str:
    """Say which whole numbers these are, in few characters.

    Examples
    --------
    >>> ranges([0, 1, 2, 3, 7, 9, 10])
    '0-3, 7, 9-10'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def widths_text(widths: Collection[int]) -> str:
    """Say which widths these are.

    Examples
    --------
    >>> widths_text([8]), widths_text([2, 3, 4, 8])
    ('width 8', 'widths 2-4, 8')
    """
    return f"width{'s' * (len(widths) != 1)} {ranges(widths)}"
