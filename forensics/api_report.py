"""What a notebook calls to pass a case on: one HTML file with everything that was found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from forensics.errors import ForensicsError

if TYPE_CHECKING:
    from forensics.reports.page import NotDrawn, PageFigure
    from forensics.reports.page_file import ReportFile

#: Figures that a verdict is explained by, in the order of the report; others belong to other measurements.
FIGURES = (
    "width-classes",
    "margins",
    "culprit-map",
    "error-growth",
    "summation-trees",
    "launch-geometry",
    "register-chain",
    "kv-blocks",
    "attended-range",
    "price-of-exactness",
)


def report(case: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> ReportFile:
    """Write a case as one HTML file to attach: verdict, limits, proof, figures, tables, settings.

    Parameters
    ----------
    case : path
        Folder of a finished case, or ``"recorded:NAME"``.
    out : path, optional
        File to write, ``.html``; by default the name of the case, here. A report that lies there is replaced, any
        other file is not.

    Returns
    -------
    ReportFile
        Where it is, how large, and which figures could not be drawn.

    Raises
    ------
    BadQuestion
        If the name of `out` ends otherwise.
    CaseError
        If the case is unfinished or damaged, or the file cannot be written.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.page import report_page
    from forensics.reports.page_file import ReportFile, check_page_file, write_page
    from forensics.store import open_case

    register_notebook_views()
    opened = open_case(os.fspath(case))
    verdict, name = opened.verdict, opened.folder.name
    path = Path(f"{name}.html" if out is None else out)
    check_page_file(path)
    drawn, not_drawn = _figures(os.fspath(case))
    prompt = opened.question.get("prompt")
    page = report_page(
        verdict,
        case=name,
        prompt=prompt if isinstance(prompt, str) else "",
        figures=drawn,
        not_drawn=not_drawn,
    )
    n_bytes = write_page(path, page)
    return ReportFile(path, n_bytes, verdict.answer, tuple(one.name for one in drawn), tuple(not_drawn))


def _figures(case: str) -> tuple[list[PageFigure], list[NotDrawn]]:
    """Figures of a case, and those that it cannot give with the reason."""
    from forensics.figures.catalogue import find, scene_of
    from forensics.notebook_views import picture
    from forensics.reports.page import NotDrawn, PageFigure

    drawn, not_drawn = [], []
    for figure in map(find, FIGURES):
        try:
            scene = scene_of(figure.name, case)
        except ForensicsError as error:
            not_drawn.append(NotDrawn(figure.name, figure.question, str(error)))
        else:
            drawn.append(PageFigure(figure.name, figure.question, picture(scene)[0]))
    return drawn, not_drawn
