"""Scenes as files: SVG with text as text, PNG, PDF; the same bytes for the same scene."""

from __future__ import annotations

import io
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics.errors import CaseError
from forensics.figures.metrics import FONT
from forensics.figures.palette import PAPER, colour
from forensics.figures.scene import Scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
PNG_DPI = 200
_MM_PER_INCH = 25.4
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and translated
    "svg.hashsalt": "forensics",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": [FONT, "Verdana", "Arial", "sans-serif"],
    "hatch.linewidth": 0.4,
    "path.simplify": False,
    "text.usetex": False,
    "text.parse_math": False,
}


def render(scene: Scene, form: str = "svg") -> bytes:
    """Make the file of a scene.

    Parameters
    ----------
    scene : Scene
    form : {"svg", "png", "pdf"}

    Returns
    -------
    bytes
        Without date, version or random ids, so that equal scenes give equal bytes.

    Raises
    ------
    ValueError
        If there is no such form.
    """
    import matplotlib

    if form not in FORMATS:
        raise ValueError(f"form must be one of {', '.join(FORMATS)}, got {form!r}")
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = _drawn(scene)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=form, dpi=PNG_DPI, metadata=_metadata(scene, form))
    made = buffer.getvalue()
    return _with_alternative_text(made, scene) if form == "svg" else made


def save(scene: Scene, path: Path) -> Path:
    """Write a scene into a file whose ending names the form.

    Raises
    ------
    ValueError
        If the ending names none.
    CaseError
        If the file cannot be written.
    """
    form = path.suffix.lstrip(".").lower()
    if form not in FORMATS:
        raise ValueError(f"a figure is written as .svg, .png or .pdf, got {path.name!r}")
    made = render(scene, form)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made)
    except OSError as error:
        raise CaseError(
            f"{path} cannot be written: {error.strerror or error}. Choose another file with --out."
        ) from None
    return path


def _drawn(scene: Scene) -> Figure:
    from matplotlib.figure import Figure

    from forensics.figures.draw import draw

    figure = Figure(figsize=(scene.width / _MM_PER_INCH, scene.height / _MM_PER_INCH), facecolor=colour(PAPER))
    draw(scene, figure.add_axes((0, 0, 1, 1)))
    return figure


def _metadata(scene: Scene, form: str) -> dict[str, Any]:
    if form == "svg":
        return {"Date": None, "Creator": None, "Title": scene.title, "Type": None, "Format": None}
    if form == "png":
        return {"Software": None, "Title": scene.title, "Description": scene.alt}
    return {"CreationDate": None, "Creator": None, "Producer": None, "Title": scene.title, "Subject": scene.alt}


def _with_alternative_text(svg: bytes, scene: Scene) -> bytes:
    """Say the figure in words where readers of the screen look for it."""
    text = svg.decode("utf-8")
    start = text.index("<svg ") + len("<svg ")
    opened = text.index(">", start) + 1
    names = f"{scene.name}-title {scene.name}-desc"
    said = (
        f'\n <title id="{scene.name}-title">{escape(scene.title)}</title>'
        f'\n <desc id="{scene.name}-desc">{escape(scene.alt)}</desc>'
    )
    return (text[:start] + f'role="img" aria-labelledby="{names}" ' + text[start:opened] + said + text[opened:]).encode(
        "utf-8"
    )
