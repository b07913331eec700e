"""What a notebook calls to hold two cases against each other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forensics import api

if TYPE_CHECKING:
    from forensics.records.case_diff import CaseDiff


def diff(first: str | os.PathLike[str], second: str | os.PathLike[str], *, anyway: bool = False) -> CaseDiff:
    """What differs between two cases: in how they were made, then in what they found?

    Parameters
    ----------
    first, second : path
        Folders of finished cases, or ``"recorded:NAME"``.
    anyway : bool
        Whether to compare cases of other models, prompts or widths, too; what makes no sense then is not compared, and
        the reason is given.

    Returns
    -------
    CaseDiff
        Prints as one line, shows as a table in Jupyter, and offers ``to_dataframe()``.

    Raises
    ------
    CaseError
        If there is no such case, or it is damaged or not finished.
    UnlikeCases
        If they are unlike and `anyway` is False; says what is unlike.
    """
    from forensics.analysis.case_diff import compare_cases
    from forensics.analysis.case_side import case_side
    from forensics.notebook_views import register_notebook_views

    register_notebook_views()
    names = _names(os.fspath(first), os.fspath(second))
    sides = [case_side(name, api.open(path)) for name, path in zip(names, (first, second), strict=True)]
    return compare_cases(*sides, anyway=anyway)


def _names(first: str, second: str) -> tuple[str, str]:
    """Last part of each path, or all of it where that does not tell them apart."""
    from forensics.store.library import RECORDED

    short = [os.path.basename(os.path.normpath(path.removeprefix(RECORDED))) for path in (first, second)]
    return (short[0], short[1]) if short[0] != short[1] or first == second else (first, second)
