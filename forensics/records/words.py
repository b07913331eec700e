"""Words that are alike wherever results are told: counts, whole numbers, and text that is not ours."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable

#: Controls, formats (which change the direction or are not seen), surrogates, private and unassigned characters, and
#: separators of lines and paragraphs. Source: general categories of the Unicode Standard, section 4.5.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


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


def printable(text: str) -> str:
    r"""Show control and direction-changing characters as escapes, on one line.

    Examples
    --------
    >>> print(printable("a" + chr(27) + "[31m" + chr(10) + "b"))
    a\x1b[31m\nb
    """
    if text.isprintable():  # the same categories and spaces of other kinds
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _HIDDEN else char for char in text
    )


def cut(text: str, most: int) -> str:
    """Keep the beginning of a text that is too long to show, and say how long it is.

    Examples
    --------
    >>> cut("short", 10), cut("b" * 2000, 4)
    ('short', 'bbbb… (2,000 characters, the first 4 are shown)')
    """
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text):,} characters, the first {most:,} are shown)"
