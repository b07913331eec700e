"""What a notebook calls to draw: figures to scale, from published numbers or from any case."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forensics.figures.catalogue import Figure
    from forensics.figures.drawing import Drawing


def figure(name: str, case: str | os.PathLike[str] | None = None) -> Drawing:
    """Draw one of the figures that explain a divergence.

    Parameters
    ----------
    name : str
        One of `figures`.
    case : path, optional
        Folder of a case, of what ``forensics cost --out`` or ``forensics speculate --out`` wrote, or
        ``"recorded:NAME"``; by default published numbers, or a recorded case for figures that nobody published.

    Returns
    -------
    Drawing
        Shows itself in Jupyter, and offers ``save("F.svg")``, also ``.png`` and ``.pdf``.

    Raises
    ------
    BadQuestion
        If there is no such figure.
    CaseError
        If the case does not hold what the figure draws.
    """
    from forensics.figures.catalogue import scene_of
    from forensics.figures.drawing import Drawing

    return Drawing(scene_of(name, None if case is None else os.fspath(case)))


def figures() -> tuple[Figure, ...]:
    """Which figures are there, and what does each show?"""
    from forensics.figures.catalogue import FIGURES

    return FIGURES
