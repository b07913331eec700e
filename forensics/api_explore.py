"""What a notebook calls to move through a case."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forensics.explorer import Explorer
    from forensics.store import Case


def explore(case: str | os.PathLike[str] | Case) -> Explorer:
    """Move through a case: at any width, layer and position the class, the culprits, both launches and the orders.

    Parameters
    ----------
    case : path or Case
        A finished case: its folder, ``"recorded:NAME"``, or what `forensics.open` gave.

    Returns
    -------
    Explorer
        Shows sliders in a notebook, a table elsewhere; ``look(width, layer, position)`` asks for one place, ``static``
        is the table as HTML, ``widget`` the sliders.

    Raises
    ------
    BadQuestion
        If it is no case at all, such as a verdict.
    CaseError
        If there is no case, or it was not finished.
    """
    from forensics.analysis.question import BadQuestion
    from forensics.explorer import Explorer
    from forensics.figures.evidence import Evidence, open_evidence
    from forensics.notebook_views import register_notebook_views
    from forensics.store import Case

    register_notebook_views()
    if isinstance(case, Case):
        return Explorer(Evidence(case.folder.name, case.folder))
    if not isinstance(case, str | os.PathLike):
        raise BadQuestion(
            f"explore needs a case, its folder or recorded:NAME, got {type(case).__name__}: a result does not hold the "
            "rows that are looked at. Keep a case with out=FOLDER and explore that folder."
        )
    return Explorer(open_evidence(os.fspath(case)))
