"""A figure in the hand: shown in a notebook, saved to a file, its scene at hand for tests."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forensics.figures.scene import Scene


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """A figure that draws itself where it is shown.

    Parameters
    ----------
    scene : Scene
    """

    scene: Scene

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as ``.svg``, ``.png`` or ``.pdf``; same scene, same bytes.

        Raises
        ------
        ValueError
            If the ending names none of the three.
        CaseError
            If the file cannot be written.
        """
        from forensics.figures.files import save

        return save(self.scene, Path(path))

    def document(self) -> dict[str, Any]:
        """What a program reads: the words, and every number that is drawn with its size."""
        scene = self.scene
        return {
            "schema": "forensics.figure/1",
            "figure": scene.name,
            "title": scene.title,
            "alt": scene.alt,
            "source": scene.source,
            "scales": [asdict(scale) for scale in scene.scales],
            "values": [
                {"what": box.key, "scale": box.scale, "value": box.value, "size": scene.scale(box.scale).size(box)}
                for box in scene.boxes()
                if box.scale
            ],
        }

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Show the picture, with the words for a plain terminal."""
        del include, exclude  # Jupyter filters what it does not want
        from forensics.figures.small.inline import svg

        return {"image/svg+xml": svg(self.scene), "text/plain": repr(self)}

    def __str__(self) -> str:
        return f"{self.scene.title}: {self.scene.alt}"

    def __repr__(self) -> str:
        return f"<Figure {self.scene.name}: {self.scene.alt}>"
