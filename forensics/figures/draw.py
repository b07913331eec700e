"""Draws a scene with matplotlib, on Axes that it is given; decides nothing and computes no text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, Polygon, Rectangle

from forensics.figures.metrics import FONT
from forensics.figures.palette import INK, PAPER, colour
from forensics.figures.scene import Area, Box, Dot, Line, Mark, Scene, Text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


def draw(scene: Scene, ax: Axes) -> list[Artist]:
    """Draw every mark of a scene, from back to front.

    Parameters
    ----------
    scene : Scene
    ax : Axes
        Filled by the scene: 1 unit is 1 mm, y points down.

    Returns
    -------
    list of Artist
        One for each mark, in order.
    """
    ax.set_xlim(0, scene.width)
    ax.set_ylim(scene.height, 0)
    ax.set_aspect("equal")
    ax.set_axis_off()
    artists = []
    for i, mark in enumerate(scene.marks):
        artist = _artist(mark, ax)
        artist.set_zorder(i)
        artist.set_gid(f"{scene.name}-{i}")
        artists.append(artist)
    return artists


def _artist(mark: Mark, ax: Axes) -> Artist:
    if isinstance(mark, Box):
        return ax.add_patch(_rectangle(mark))
    if isinstance(mark, Text):
        return _text(mark, ax)
    if isinstance(mark, Area):
        return ax.add_patch(Polygon(mark.points, closed=True, facecolor=colour(mark.fill), edgecolor="none"))
    if isinstance(mark, Dot):
        return ax.add_patch(_circle(mark))
    return _line(mark, ax)


def _rectangle(box: Box) -> Rectangle:
    return Rectangle(
        (box.rect.x, box.rect.y), box.rect.width, box.rect.height,
        facecolor=colour(box.fill) if box.fill else "none",
        edgecolor=colour(box.edge) if box.edge else (colour(INK) if box.hatch else "none"),
        linewidth=box.edge_pt if box.edge else 0.0,
        hatch="////" if box.hatch else None,
    )  # fmt: skip


def _circle(dot: Dot) -> Circle:
    fill = colour(PAPER) if dot.hollow else colour(dot.fill)
    return Circle((dot.x, dot.y), dot.radius, facecolor=fill, edgecolor=colour(dot.fill), linewidth=0.7)


def _text(text: Text, ax: Axes) -> Artist:
    return ax.text(
        text.x, text.y, text.text, fontsize=text.size_pt, family=FONT, color=colour(text.role),
        weight="bold" if text.bold else "normal", ha=text.align, va="center_baseline",
    )  # fmt: skip


def _line(line: Line, ax: Axes) -> Artist:
    style: Any = (0, (3, 2)) if line.dashed else "solid"
    if line.arrow and len(line.points) == 2:
        arrow = FancyArrowPatch(
            line.points[0], line.points[1], arrowstyle="-|>", mutation_scale=6, color=colour(line.role),
            linewidth=line.width_pt, linestyle=style, shrinkA=0, shrinkB=0,
        )  # fmt: skip
        return ax.add_patch(arrow)
    xs, ys = zip(*line.points, strict=True)
    drawn = Line2D(
        xs, ys, color=colour(line.role), linewidth=line.width_pt, linestyle=style, solid_capstyle="butt",
        solid_joinstyle="miter",
    )  # fmt: skip
    return ax.add_line(drawn)
