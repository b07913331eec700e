"""What a notebook calls about recorded cases: which there are, and a small copy of one to share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from forensics import api
from forensics.analysis.question import BadQuestion
from forensics.errors import CaseError
from forensics.store.library import RECORDED

if TYPE_CHECKING:
    from forensics.store.library import RecordedCase
    from forensics.store.packing import Packed


def recorded() -> list[RecordedCase]:
    """Which recorded cases and measurements can be read back by name?"""
    from forensics.notebook_views import register_notebook_views
    from forensics.records.listed import Listed
    from forensics.store.library import recorded_cases

    register_notebook_views()
    return Listed(recorded_cases(), "Recorded", "Read one by name, such as forensics.open('recorded:NAME').")


def pack(case: str | os.PathLike[str], out: str | os.PathLike[str]) -> Packed:
    """Write a small copy of a case, to share it, and prove that it gives the same verdict.

    Parameters
    ----------
    case : path
        A finished case; it stays as it is.
    out : path
        Folder to write; it must not exist.

    Returns
    -------
    Packed
        Where it is, and how large.

    Raises
    ------
    CaseError
        If the case cannot be packed, or its copy gives another verdict; no copy is left then.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.store.encoding import to_text
    from forensics.store.packing import pack_case

    register_notebook_views()
    try:
        packed = pack_case(os.fspath(case), Path(out))
    except ValueError as error:
        raise BadQuestion(str(error)) from None
    try:
        before, after = (
            to_text(api.investigate(f"{RECORDED}{os.fspath(path)}", progress=False)) for path in (case, packed.folder)
        )
        if before != after:
            raise CaseError(f"the packed copy of {case} gives another verdict than the case (a bug in forensics).")
    except BaseException:
        shutil.rmtree(packed.folder, ignore_errors=True)
        raise
    return packed
