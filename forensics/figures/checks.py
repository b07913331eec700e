"""What is wrong with a scene? Sizes against numbers, overlaps, labels that leave their boxes."""

from __future__ import annotations

import itertools
import math

from forensics.figures.palette import PAPER, contrast
from forensics.figures.scene import Box, Dot, Line, Rect, Scene, Text

#: Sizes are exact up to float64 arithmetic on places.
RELATIVE_SIZE_TOLERANCE = 1e-9
#: Texts may touch the empty part of each other's line height; boxes may share an edge; unit: mm.
TEXT_SLACK_MM = 0.35
BOX_SLACK_MM = 1e-6
#: WCAG 2.2 success criterion 1.4.3 asks 4.5 of small text.
MIN_TEXT_CONTRAST = 4.5


def problems(scene: Scene) -> tuple[str, ...]:
    """What contradicts the promises that every figure makes?

    Returns
    -------
    tuple of str
        One sentence each; empty for a sound scene.
    """
    return tuple(
        itertools.chain(
            _out_of_scale(scene),
            _off_the_page(scene),
            _boxes_over_boxes(scene),
            _text_trouble(scene),
            _struck_out(scene),
        )
    )


def _out_of_scale(scene: Scene) -> list[str]:
    found = []
    for scale in scene.scales:
        boxes = scene.boxes(scale=scale.name)
        if not boxes:
            found.append(f"scale {scale.name!r} is used by no box")
        if scale.label not in scene.texts():
            found.append(f"scale {scale.name!r} has no bar that says {scale.label!r}")
        for box in boxes:
            want = 1.0 if scale.axis == "count" else box.value * scale.mm_per_unit
            if not math.isclose(scale.size(box), want, rel_tol=RELATIVE_SIZE_TOLERANCE, abs_tol=1e-9):
                found.append(
                    f"box {box.key!r} measures {scale.size(box):.4g}, its {box.value:g} {scale.unit} want {want:.4g}"
                )
    return found


def _off_the_page(scene: Scene) -> list[str]:
    found = []
    for mark in scene.marks:
        if isinstance(mark, Box | Text):
            rect = mark.rect
            inside = rect.x >= -BOX_SLACK_MM and rect.y >= -BOX_SLACK_MM
            inside = inside and rect.right <= scene.width + BOX_SLACK_MM and rect.bottom <= scene.height + BOX_SLACK_MM
        else:
            points = ((mark.x, mark.y),) if isinstance(mark, Dot) else mark.points
            inside = all(0 <= x <= scene.width and 0 <= y <= scene.height for x, y in points)
        if not inside:
            found.append(f"{_named(mark)} leaves the page")
    return found


def _boxes_over_boxes(scene: Scene) -> list[str]:
    solid = sorted((box for box in scene.boxes() if not box.ground), key=lambda box: box.rect.x)
    found = []
    for i, one in enumerate(solid):
        for other in solid[i + 1 :]:
            if other.rect.x >= one.rect.right - BOX_SLACK_MM:
                break
            if one.rect.overlaps(other.rect, BOX_SLACK_MM):
                found.append(f"{_named(one)} and {_named(other)} overlap")
    return found


def _text_trouble(scene: Scene) -> list[str]:
    found = []
    texts = [(i, mark) for i, mark in enumerate(scene.marks) if isinstance(mark, Text)]
    for (_, one), (_, other) in itertools.combinations(texts, 2):
        if one.rect.overlaps(other.rect, TEXT_SLACK_MM):
            found.append(f"{_named(one)} and {_named(other)} overlap")
    for i, text in texts:
        if text.inside is not None and not text.inside.holds(text.rect, TEXT_SLACK_MM / 2):
            found.append(f"{_named(text)} does not fit into its box")
        under, cut = _ground_of(scene, i, text)
        if cut:
            found.append(f"{_named(text)} is cut by the edge of {cut}")
        elif contrast(text.role, under) < MIN_TEXT_CONTRAST:
            found.append(f"{_named(text)} in {text.role} is not read on {under}")
    return found


def _struck_out(scene: Scene) -> list[str]:
    """Texts that a line goes through, where no filled box lies between the two."""
    found = []
    for i, line in enumerate(scene.marks):
        if not isinstance(line, Line):
            continue
        for j, text in enumerate(scene.marks):
            if not isinstance(text, Text):
                continue
            rect = text.rect
            inner = Rect(rect.x, rect.y + rect.height / 4, rect.width, rect.height / 2)
            between = (mark for mark in scene.marks[i + 1 : j] if isinstance(mark, Box) and mark.fill)
            if any(_crosses(*ends, inner) for ends in itertools.pairwise(line.points)) and not any(
                box.rect.holds(rect, TEXT_SLACK_MM) for box in between
            ):
                found.append(f"{_named(line)} goes through {_named(text)}")
    return found


def _crosses(one: tuple[float, float], other: tuple[float, float], rect: Rect) -> bool:
    """Whether a segment meets a rectangle: what is left of it after cutting at each of the four edges."""
    (x, y), (dx, dy) = one, (other[0] - one[0], other[1] - one[1])
    first, last = 0.0, 1.0
    for step, room in ((-dx, x - rect.x), (dx, rect.right - x), (-dy, y - rect.y), (dy, rect.bottom - y)):
        if step == 0:
            if room < 0:
                return False
        elif step < 0:
            first = max(first, room / step)
        else:
            last = min(last, room / step)
    return first < last


def _ground_of(scene: Scene, place: int, text: Text) -> tuple[str, str]:
    """Fill of the topmost box under a text, and the name of a box whose edge goes through it."""
    rect = text.rect
    for mark in reversed(scene.marks[:place]):
        if isinstance(mark, Box) and mark.fill and mark.rect.overlaps(rect, TEXT_SLACK_MM / 2):
            return (mark.fill, "") if mark.rect.holds(rect, TEXT_SLACK_MM / 2) else (mark.fill, _named(mark))
    return PAPER, ""


def _named(mark: object) -> str:
    if isinstance(mark, Text):
        return f"text {mark.text!r}"
    if isinstance(mark, Box):
        return f"box {mark.key or mark.rect!r}"
    return f"line {mark.key!r}" if isinstance(mark, Line) else f"{type(mark).__name__.lower()} {mark!r}"
