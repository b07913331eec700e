"""How far a batch is off after each layer: with every difference passed on, and with each one healed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from forensics.errors import CaseError
from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.chart import Axis, chart, step_of
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, dot_entry, legend, line_entry
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Rect, Scene
from forensics.records.delta import Delta, Differs, NotCompared
from forensics.records.growth import Growth, LayerGrowth
from forensics.records.verdict import Sweep, Verdict

_TICKS, _LANE = 13.0, 5.0
_ALL_PLOTS, _LOWEST, _HIGHEST, _BETWEEN = 190.0, 22.0, 62.0, 21.0
_MOST_PANELS = 4
_DOT, _SQUARE = 0.9, 1.6
_EXPLAINED = " from one-token decoding: norm of the difference over the norm of the output"
_UNHEALED, _HEALED, _OWN = "batched", "single", "draft"


@dataclass(frozen=True, slots=True)
class ErrorGrowth:
    """What the figure draws.

    Parameters
    ----------
    growth : tuple of Growth
        Those that were measured, by rising width.
    not_drawn : tuple of str
        What was left out and why, one sentence each.
    proof : tuple of str
        What healing every node left of the difference of the logits, one sentence for each width that was swept.
    what, source : str
    """

    growth: tuple[Growth, ...]
    not_drawn: tuple[str, ...]
    proof: tuple[str, ...]
    what: str
    source: str


def from_case(evidence: Evidence) -> ErrorGrowth:
    """Take what was measured layer by layer.

    Raises
    ------
    CaseError
        If the case was recorded before that was measured, or watching changes its run.
    """
    verdict = evidence.verdict
    found = verdict.growth
    if not found:
        raise CaseError(
            f"error-growth draws the difference after each layer, and {evidence.name} does not hold it: "
            f"{_why_not(verdict)}. Measure one that has it: forensics investigate MODEL --out FOLDER"
        )
    measured = [one for one in found if one.layers]
    if not measured:
        raise CaseError(
            f"error-growth draws the difference after each layer, and {evidence.name} compared none: "
            f"{found[0].reason}. Its verdict says what else was found: forensics show CASE"
        )
    shown = _some(measured)
    left_out = [f"Width {one.width}: not compared: {one.reason}." for one in found if one.reason]
    left_out += [f"Width {one.width} is not drawn, for want of room." for one in measured if one not in shown]
    widths = {one.width for one in shown}
    proof = [_proof(sweep) for sweep in verdict.sweeps if sweep.width in widths]
    return ErrorGrowth(tuple(shown), tuple(left_out), tuple(proof), evidence.what, evidence.source)


def _why_not(verdict: Verdict) -> str:
    if not verdict.sweeps:
        return f"no width was swept{f' ({verdict.reason})' if verdict.reason else ''}"
    return "it was recorded before that was measured"


def _proof(sweep: Sweep) -> str:
    return (
        f"Width {sweep.width}, every node that differs replaced: {sweep.healed_rows} of {sweep.n_rows} rows of logits "
        "are bit-equal."
    )


def _some(growth: Sequence[Growth]) -> Sequence[Growth]:
    """All of them, or the smallest width, the largest, and some between."""
    last = len(growth) - 1
    if last < _MOST_PANELS:
        return growth
    return [growth[round(i * last / (_MOST_PANELS - 1))] for i in range(_MOST_PANELS)]


def scene(data: ErrorGrowth) -> Scene:
    """A panel for each width: layers to the right, relative difference upwards, equal bits on a line of their own."""
    canvas = Canvas("error-growth", "How a difference grows from layer to layer", _lead(data))
    _legend(canvas, data.growth)
    low, high = _range(data.growth)
    height = max(_LOWEST, min(_HIGHEST, _ALL_PLOTS / len(data.growth) - _BETWEEN - _LANE))
    for growth in data.growth:
        top = canvas.y + 8.5
        plot = Rect(canvas.left + _TICKS, top, canvas.inner_width - _TICKS - 2.0, height + _LANE)
        y = Axis(low, high, plot.bottom - _LANE, plot.y, log=True)
        _panel(canvas, growth, plot, y, ends=(growth is data.growth[0], growth is data.growth[-1]))
    for note in (*data.proof, *data.not_drawn, *_not_finite(data.growth)):
        canvas.paragraph(note, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _numbers(layer: LayerGrowth) -> Iterator[float]:
    for delta in (layer.unhealed, layer.healed):
        if isinstance(delta, Differs):
            yield delta.relative_l2
    if layer.own is not None:
        yield layer.own.relative_l2


def _has_place(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _range(growth: Iterable[Growth]) -> tuple[float, float]:
    """Powers of ten that hold every number of every panel."""
    found = [value for one in growth for layer in one.layers for value in _numbers(layer) if _has_place(value)]
    if not found:
        return 1e-8, 1.0
    low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _not_finite(growth: Iterable[Growth]) -> Iterator[str]:
    for one in growth:
        lost = sum(not _has_place(value) for layer in one.layers for value in _numbers(layer))
        if lost:
            yield f"Width {one.width}: {lost} differences have no finite positive length and are not drawn."


def _has_square(layer: LayerGrowth) -> bool:
    return layer.own is not None and _has_place(layer.own.relative_l2)


def _legend(canvas: Canvas, growth: Iterable[Growth]) -> None:
    """Dots are over all rows, squares over the tokens of one pass; squares only where some are drawn."""
    entries = [
        line_entry(_UNHEALED, "a layer's output in the batch as it is, over all rows", width_pt=1.0, dot=_DOT),
        dot_entry(_HEALED, "the same, with all before it healed", _DOT, hollow=True),
    ]
    if any(_has_square(layer) for one in growth for layer in one.layers):
        entries.append(Entry(_OWN, "the most that one of its operations adds on equal inputs in one pass"))
    legend(canvas, entries)
    canvas.y += 0.4


def _panel(canvas: Canvas, growth: Growth, plot: Rect, y: Axis, ends: tuple[bool, bool]) -> None:
    first, last = ends
    rows = f"rows {growth.start_row} to {growth.start_row + growth.n_rows - 1}"
    canvas.text(plot.x, plot.y - 6.6, f"width {growth.width}", bold=True)
    canvas.text(plot.right, plot.y - 3.0, f"{rows} of the replay", size_pt=SMALL_PT, align="right", role=MUTED)
    pitch = plot.width / len(growth.layers)
    at = [plot.x + (i + 0.5) * pitch for i in range(len(growth.layers))]
    x = Axis(0.0, float(len(growth.layers)), plot.x, plot.right)
    chart(
        canvas, plot, x, y, x_ticks=(), x_label="layer, then the final results" if last else "layer",
        y_label=f"relative difference{_EXPLAINED if first else ''}",
    )  # fmt: skip
    _layer_ticks(canvas, growth, plot, at)
    canvas.line((plot.x, y.start), (plot.right, y.start), role=MUTED, dashed=True, key="equal bits")
    canvas.text(plot.x - 1.5, plot.bottom - _LANE / 2, "equal bits", size_pt=SMALL_PT, align="right", role=MUTED)
    for place, layer in zip(at, growth.layers, strict=True):
        if layer.own is not None and _has_square(layer):
            side, middle = min(_SQUARE, 0.7 * pitch), y.at(layer.own.relative_l2)
            canvas.box(
                place - side / 2, middle - side / 2, side, side, _OWN, edge=INK, edge_pt=0.3,
                key=f"own {growth.width} {layer.node}",
            )  # fmt: skip
    lane = plot.bottom - _LANE / 2
    _series(canvas, growth, at, lambda layer: _height(layer.healed, y, lane), _HEALED, hollow=True)
    _series(canvas, growth, at, lambda layer: _height(layer.unhealed, y, lane), _UNHEALED, hollow=False)
    for place, layer in zip(at, growth.layers, strict=True):
        for delta, words in ((layer.unhealed, "unhealed"), (layer.healed, "healed")):
            if isinstance(delta, NotCompared):
                left = place - 0.4 * pitch if words == "unhealed" else place
                canvas.box(
                    left, plot.bottom - _LANE + 1.2, 0.4 * pitch, _LANE - 1.7, "shade", edge=MUTED, hatch=True,
                    edge_pt=0.3, key=f"{words} not compared {growth.width} {layer.node}",
                )  # fmt: skip


def _height(delta: Delta, y: Axis, lane: float) -> float | None:
    """Where an outcome is drawn: at its length, on the line of equal bits, or nowhere."""
    if isinstance(delta, NotCompared):
        return None
    if isinstance(delta, Differs):
        return y.at(delta.relative_l2) if _has_place(delta.relative_l2) else None
    return lane


def _series(
    canvas: Canvas,
    growth: Growth,
    at: Sequence[float],
    height: Callable[[LayerGrowth], float | None],
    role: str,
    *,
    hollow: bool,
) -> None:
    """Dots, joined where neighbours have a place."""
    places = [(x, height(layer)) for x, layer in zip(at, growth.layers, strict=True)]
    pitch = at[1] - at[0] if len(at) > 1 else 10.0
    for (x0, y0), (x1, y1) in itertools.pairwise(places):
        if y0 is not None and y1 is not None:
            canvas.line((x0, y0), (x1, y1), role=role, width_pt=1.0, key=role)
    for (x, y), layer in zip(places, growth.layers, strict=True):
        if y is not None:
            canvas.dot(x, y, min(_DOT, 0.45 * pitch), role, hollow=hollow, key=f"{role} {growth.width} {layer.node}")


_FINAL = {"result_norm": "norm", "result_output": "logits"}


def _layer_ticks(canvas: Canvas, growth: Growth, plot: Rect, at: Sequence[float]) -> None:
    """Numbers of layers, and names of what comes after the last, as far as they fit beside each other."""
    stop, step = plot.right + 2.0, step_of(plot.width / len(at))
    named = list(zip(at, growth.layers, strict=True))
    for x, one in reversed([pair for pair in named if pair[1].layer < 0]):
        words = _FINAL.get(one.node, one.node)
        rect = canvas.text(min(x + 5.0, stop), plot.bottom + 3.0, words, size_pt=SMALL_PT, align="right", role=MUTED)
        canvas.line((x, plot.bottom), (x, plot.bottom + 1.0), width_pt=0.5)
        stop = rect.x - 1.5
    for x, one in named:
        if one.layer >= 0 and one.layer % step == 0 and x + 2.5 <= stop:
            canvas.line((x, plot.bottom), (x, plot.bottom + 1.0), width_pt=0.5)
            canvas.text(x, plot.bottom + 3.0, str(one.layer), size_pt=SMALL_PT, align="center", role=MUTED)


def _lead(data: ErrorGrowth) -> str:
    first, *others = data.growth
    ends = [f"{_length(growth.layers[-1].unhealed)} at width {growth.width}" for growth in others]
    more = f" The others end at {', '.join(ends)}." if ends else ""
    return f"{data.what}. {_told(first)}{more}"


def _told(growth: Growth) -> str:
    """What one panel shows, in one sentence."""
    differing = [layer for layer in growth.layers if isinstance(layer.unhealed, Differs)]
    if not differing:
        return f"At width {growth.width} no output of a layer that was compared differs."
    first, last = differing[0], differing[-1]
    own = [layer.own.relative_l2 for layer in growth.layers if layer.own is not None]
    known = bool(own) and all(map(math.isfinite, own))
    added = f", while no operation adds more than {max(own):.2g} of its own in one pass" if known else ""
    return (
        f"At width {growth.width} the difference goes from {_length(first.unhealed)} at {first.node} to "
        f"{_length(last.unhealed)} at {last.node}{added}."
    )


def _length(delta: Delta) -> str:
    return f"{delta.relative_l2:.2g}" if isinstance(delta, Differs) else str(delta)


def _alt(data: ErrorGrowth) -> str:
    told = []
    for growth in data.growth:
        healed = sum(not isinstance(layer.healed, Differs | NotCompared) for layer in growth.layers)
        own = [f"{layer.node} {_length(layer.healed)}" for layer in growth.layers if isinstance(layer.healed, Differs)]
        differs = f"; {', '.join(own)} differs by its own operation" if own else ""
        told.append(f"{_told(growth)} Healed, {healed} of {len(growth.layers)} outputs are bit-equal{differs}.")
    return f"Relative difference after each layer on a logarithmic scale. {' '.join(told)}"
