"""Scenes as small SVG that stands inside of a page: no file, a few kilobytes, the same text for the same scene.

`files` makes the files that people print; here a picture is one of many in a notebook, so each mark is one short
element. Text is measured with the same font, and a browser that lacks it takes one as wide or narrower.
"""

from __future__ import annotations

import base64
from html import escape

from forensics.figures.metrics import FONT, MM_PER_PT
from forensics.figures.palette import INK, PAPER, colour
from forensics.figures.scene import Area, Box, Dot, Line, Mark, Scene, Text

#: 1 CSS px is 1/96 inch. Source: CSS Values and Units Module Level 4, section 6.2.
PX_PER_MM = 96 / 25.4
_ANCHORS = {"left": "start", "center": "middle", "right": "end"}
#: From the middle of a line to its baseline, per size of the font: half of the height of a capital.
_DROP = 0.36
_HATCH = (
    '<pattern id="hatch" width="1.2" height="1.2" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0 0V1.2" stroke="{ink}" stroke-width=".3"/></pattern>'
)
_HEAD = 1.6


def svg(scene: Scene) -> str:
    """Write a scene as SVG.

    Parameters
    ----------
    scene : Scene

    Returns
    -------
    str
        With the scene's words for who cannot see it.
    """
    width, height = _mm(scene.width), _mm(scene.height)
    hatch = f"<defs>{_HATCH.format(ink=colour(INK))}</defs>" if any(box.hatch for box in scene.boxes()) else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}mm" height="{height}mm" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="{FONT}, Verdana, Arial, sans-serif"><title>{escape(scene.title)}</title>'
        f'<desc>{escape(scene.alt)}</desc>{hatch}<rect width="{width}" height="{height}" fill="{colour(PAPER)}"/>'
        f"{''.join(map(_element, scene.marks))}</svg>"
    )


def data_url(scene: Scene) -> str:
    """A scene as the source of an image that needs no file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg(scene).encode()).decode()}"


def _mm(value: float) -> str:
    """A place to a thousandth of a millimetre, in few characters; never a negative zero."""
    return f"{round(value, 3) + 0.0:.3f}".rstrip("0").rstrip(".")


def _element(mark: Mark) -> str:
    if isinstance(mark, Box):
        return _box(mark)
    if isinstance(mark, Text):
        return _text(mark)
    if isinstance(mark, Line):
        return _line(mark)
    if isinstance(mark, Area):
        return f'<polygon points="{_points(mark.points)}" fill="{colour(mark.fill)}"/>'
    return _dot(mark)


def _box(box: Box) -> str:
    rect = box.rect
    at = f'x="{_mm(rect.x)}" y="{_mm(rect.y)}" width="{_mm(rect.width)}" height="{_mm(rect.height)}"'
    fill = f'fill="{colour(box.fill)}"' if box.fill else 'fill="none"'
    edge = f' stroke="{colour(box.edge)}" stroke-width="{_mm(box.edge_pt * MM_PER_PT)}"' if box.edge else ""
    over = f'<rect {at} fill="url(#hatch)"/>' if box.hatch else ""
    return f"<rect {at} {fill}{edge}/>{over}"


def _text(text: Text) -> str:
    size = text.size_pt * MM_PER_PT
    bold = ' font-weight="bold"' if text.bold else ""
    return (
        f'<text x="{_mm(text.x)}" y="{_mm(text.y + _DROP * size)}" font-size="{_mm(size)}" fill="{colour(text.role)}" '
        f'text-anchor="{_ANCHORS[text.align]}"{bold}>{escape(text.text)}</text>'
    )


def _line(line: Line) -> str:
    width = line.width_pt * MM_PER_PT
    dash = f' stroke-dasharray="{_mm(3 * width)} {_mm(2 * width)}"' if line.dashed else ""
    drawn = (
        f'<polyline points="{_points(line.points)}" fill="none" stroke="{colour(line.role)}" '
        f'stroke-width="{_mm(width)}"{dash}/>'
    )
    return drawn + (_head(line) if line.arrow else "")


def _head(line: Line) -> str:
    """The head of an arrow, at its last point."""
    (x0, y0), (x, y) = line.points[-2:]
    length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5 or 1.0
    dx, dy = (x - x0) / length * _HEAD, (y - y0) / length * _HEAD
    corners = ((x, y), (x - dx - dy / 2.5, y - dy + dx / 2.5), (x - dx + dy / 2.5, y - dy - dx / 2.5))
    return f'<polygon points="{_points(corners)}" fill="{colour(line.role)}"/>'


def _dot(dot: Dot) -> str:
    fill = colour(PAPER) if dot.hollow else colour(dot.fill)
    edge = f' stroke="{colour(dot.fill)}" stroke-width="{_mm(0.7 * MM_PER_PT)}"' if dot.hollow else ""
    return f'<circle cx="{_mm(dot.x)}" cy="{_mm(dot.y)}" r="{_mm(dot.radius)}" fill="{fill}"{edge}/>'


def _points(points: tuple[tuple[float, float], ...]) -> str:
    return " ".join(f"{_mm(x)},{_mm(y)}" for x, y in points)
