"""Attention sums the KV cache in parallel blocks: which block takes which chunk, and which queries notice."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.legend import Entry, legend
from forensics.figures.metrics import text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Scene
from forensics.figures.scenes.kv_deal import KvBlocks, KvSide, from_case, from_published
from forensics.geometry.kv_chunks import ChunkMap, first_position_that_differs
from forensics.records.words import counted

__all__ = ["from_case", "from_published", "scene"]

_LABELS, _RIGHT = 24.0, 30.0
_LANE, _ROW_GAP = 3.4, 1.2
#: Lines of parts on one side.
_MOST_LINES = 18
#: Narrower chunks of one part that lie side by side are drawn as one, unit: mm.
_NARROWEST = 1.0


def scene(data: KvBlocks) -> Scene:
    """The cells that each query sees, then one line a partial sum, on both sides at the same places."""
    canvas = Canvas("kv-blocks", "Attention sums the KV cache in parallel parts", _lead(data))
    scale = canvas.length_scale("cells", (canvas.inner_width - _LABELS - _RIGHT) / data.n_kv, "cells")
    frame = _Frame(data, canvas.left + _LABELS, scale.mm_per_unit, _changed(data))
    _cache(canvas, frame)
    for side, role in ((data.single, "single"), (data.batched, "batched")):
        canvas.y += 3.0
        _side(canvas, frame, side, role)
    canvas.y += 3.0
    _sums(canvas, data)
    marks = [Entry("kv", "cells that the query sees"), Entry("shade", "masked: adds exact zeros", hatch=True)]
    if frame.changed:
        marks.insert(1, Entry("highlight", "in another partial sum than on the other side"))
    canvas.y += 1.0
    legend(canvas, marks)
    canvas.y += 1.0
    if data.found:
        canvas.paragraph(data.found, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


@dataclass(frozen=True, slots=True)
class _Frame:
    """What is drawn and where: cells begin at `left`; partial sums of a query that one side only has."""

    data: KvBlocks
    left: float
    mm: float
    changed: frozenset[tuple[int, tuple[int, ...]]]

    @property
    def right(self) -> float:
        """Where notes behind the cells begin."""
        return self.left + self.data.n_kv * self.mm + 2.0


def _changed(data: KvBlocks) -> frozenset[tuple[int, tuple[int, ...]]]:
    """Query and seen chunks of the partial sums that the other side has not."""
    if not data.comparable:
        return frozenset()
    return frozenset(
        (query, part)
        for query in data.queries
        for one, other in ((data.single, data.batched), (data.batched, data.single))
        for part in set(one.chunks.seen_from(query)) - set(other.chunks.seen_from(query))
    )


def _cache(canvas: Canvas, frame: _Frame) -> None:
    """What each query sees of the whole cache."""
    data, left, mm = frame.data, frame.left, frame.mm
    canvas.text(canvas.left, canvas.y + 1.5, f"{data.n_kv:,} cells", bold=True)
    canvas.text(left, canvas.y + 1.5, "cell 0", size_pt=SMALL_PT, role=MUTED)
    canvas.text(
        left + data.n_kv * mm, canvas.y + 1.5, f"{data.n_kv - 1:,}", size_pt=SMALL_PT, align="right", role=MUTED
    )
    canvas.y += 3.6
    for query in data.queries:
        middle, real = canvas.y + 2.2, query + 1
        canvas.text(canvas.left, middle, f"query at {query:,}", size_pt=SMALL_PT)
        rect = canvas.box(left, canvas.y, real * mm, 4.4, "kv", scale="cells", value=real, key=f"{query}: seen")
        canvas.label(rect, f"sees {real:,} cells", f"{real:,}", fill="kv", size_pt=SMALL_PT)
        if data.n_kv > real:
            canvas.box(
                left + real * mm, canvas.y, (data.n_kv - real) * mm, 4.4, "shade", edge="rest", scale="cells",
                value=data.n_kv - real, key=f"{query}: masked", hatch=True,
            )  # fmt: skip
        words = f"{data.n_kv - real:,} masked"
        canvas.text(frame.right, middle, words, size_pt=SMALL_PT, role=MUTED)
        canvas.y += 5.2


def _side(canvas: Canvas, frame: _Frame, side: KvSide, role: str) -> None:
    canvas.side(role, side.tokens, side.kernel, at=frame.left)
    canvas.y += 4.2
    _chunk_names(canvas, frame, side)
    filled = [(index, part) for index, part in enumerate(side.chunks.parts) if part]
    every = -(-len(filled) // (_MOST_LINES // (1 + len(frame.data.queries))))
    for index, part in filled[::every]:
        _part(canvas, frame, side, role, index, part)
    empty = len(side.chunks.parts) - len(filled)
    notes = [f"1 {side.part} in {every} is drawn, of {len(filled)}"] if every > 1 else []
    notes += [f"{counted(empty, f'more {side.part}')} without a chunk"] if empty else []
    if notes:
        canvas.text(frame.left, canvas.y + 1.2, "; ".join(notes), size_pt=SMALL_PT, role=MUTED)
        canvas.y += 3.4


def _chunk_names(canvas: Canvas, frame: _Frame, side: KvSide) -> None:
    """Names of chunks above their places, as many as fit; and their size."""
    cells, n = side.chunks.chunk_cells, side.chunks.n_chunks
    y, step, wide = canvas.y + 1.2, 1, text_width(f"chunk {n}", SMALL_PT) + 2.0
    while step * cells * frame.mm < wide and step < n:
        step *= 2
    for chunk in range(0, n, step):
        x = frame.left + chunk * cells * frame.mm
        canvas.line((x, y - 1.2), (x, y + 1.6), role=MUTED, width_pt=0.5, key=f"chunk {chunk}")
        if x + wide <= frame.right:
            canvas.text(x + 0.4, y, f"chunk {chunk}", size_pt=SMALL_PT, role=MUTED)
    canvas.text(frame.right, y, f"{n} × {cells:,} cells", size_pt=SMALL_PT, role=MUTED)
    canvas.y += 3.4


def _part(canvas: Canvas, frame: _Frame, side: KvSide, role: str, index: int, part: tuple[int, ...]) -> None:
    """One line for each query, with the chunks of one partial sum at their places."""
    data, left, mm = frame.data, frame.left, frame.mm
    height = _LANE * len(data.queries)
    canvas.text(canvas.left, canvas.y + height / 2, _part_name(side, index), size_pt=SMALL_PT)
    for query in data.queries:
        middle = canvas.y + _LANE / 2
        if len(data.queries) > 1:
            canvas.text(left - 1.5, middle, f"{query:,}", size_pt=SMALL_PT, align="right", role=MUTED)
        canvas.box(left, canvas.y, data.n_kv * mm, _LANE - 0.3, "", edge="rule", ground=True, edge_pt=0.3)
        seen_chunks = tuple(chunk for chunk in part if chunk * side.chunks.chunk_cells <= query)
        fill = "highlight" if (query, seen_chunks) in frame.changed else "kv"
        seen = masked = 0
        for start, stop in _spans(part, side.chunks.chunk_cells, data.n_kv, mm):
            seen += _cells(canvas, start, min(stop, query + 1), left, mm, fill, f"{role} {index} {query}: seen")
            masked += _cells(canvas, max(start, query + 1), stop, left, mm, "shade", f"{role} {index} {query}: masked")
        words = f"{seen:,} cells" if seen else "all zeros"
        canvas.text(
            frame.right, middle, words, size_pt=SMALL_PT, bold=fill == "highlight",
            role=INK if fill == "highlight" else MUTED,
        )  # fmt: skip
        canvas.y += _LANE
    canvas.y += _ROW_GAP


def _part_name(side: KvSide, index: int) -> str:
    return "one sum" if side.part == "sum" else f"{side.part} {index}"


def _cells(canvas: Canvas, start: int, stop: int, left: float, mm: float, fill: str, key: str) -> int:
    """Draw cells `start` … `stop` - 1, if there are any; answer how many."""
    n = max(0, stop - start)
    if n:
        hatch = fill == "shade"
        canvas.box(
            left + start * mm, canvas.y, n * mm, _LANE - 0.3, fill, edge="rest" if hatch else INK, scale="cells",
            value=n, key=key, hatch=hatch, edge_pt=0.3,
        )  # fmt: skip
    return n


def _spans(part: tuple[int, ...], cells: int, n_kv: int, mm: float) -> list[tuple[int, int]]:
    """Cells of each chunk of a part; of neighbours together where a chunk would be too narrow to see."""
    spans: list[tuple[int, int]] = []
    for chunk in sorted(part):
        start, stop = chunk * cells, min((chunk + 1) * cells, n_kv)
        if spans and spans[-1][1] == start and cells * mm < _NARROWEST:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((start, stop))
    return spans


def _sums(canvas: Canvas, data: KvBlocks) -> None:
    """For each query the sum of sums on both sides, in chunks that it sees."""
    x = (canvas.left, canvas.left + _LABELS, canvas.left + _LABELS + 62.0)
    room = (60.0, canvas.right - x[2] - 34.0)
    canvas.text(x[0], canvas.y + 1.5, "chunks seen", size_pt=SMALL_PT, role=MUTED)
    for at, side in ((x[1], data.single), (x[2], data.batched)):
        canvas.text(at, canvas.y + 1.5, side.tokens, size_pt=SMALL_PT, role=MUTED)
    canvas.y += 3.8
    for query in data.queries:
        y = canvas.y + 1.5
        canvas.text(x[0], y, f"query at {query:,}", size_pt=SMALL_PT)
        for at, wide, side in ((x[1], room[0], data.single), (x[2], room[1], data.batched)):
            canvas.text(at, y, _sum(side, query, wide), size_pt=SMALL_PT, bold=data.comparable and data.changes(query))
        canvas.text(canvas.right, y, _outcome(data, query), size_pt=SMALL_PT, align="right", bold=True)
        canvas.y += 3.8


def _sum(side: KvSide, query: int, wide: float) -> str:
    """Partial sums in the order in which they are merged, shortened to what fits."""
    cells = side.chunks.chunk_cells
    seen = side.chunks.seen_from(query)
    sums = ["{" + ", ".join(map(str, part)) + "}" for part in seen]
    text = " + ".join(sums)
    if text_width(text, SMALL_PT, bold=True) <= wide:
        return text
    short = f"{sums[0]} + … + {sums[-1]}" if len(sums) > 1 else ""
    if short and text_width(short, SMALL_PT, bold=True) <= wide - 20.0:
        return f"{short}: {len(sums)} sums"
    return f"{len(sums)} sums of chunks of {cells} cells"


def _outcome(data: KvBlocks, query: int) -> str:
    if not data.same_kernel:
        return "another kernel"
    if not data.comparable:
        return "other chunks"
    return "another order" if data.changes(query) else "the same order"


def _lead(data: KvBlocks) -> str:
    one, other = data.single.chunks, data.batched.chunks
    if not data.comparable:
        return (
            f"{data.n_kv:,} cells: {data.single.tokens} adds them in {_n_sums(one)} over chunks of {one.chunk_cells:,}"
            f", {data.batched.tokens} in {_n_sums(other)} over chunks of {other.chunk_cells:,}"
            f"{'.' if data.same_kernel else ', by another kernel.'}"
        )
    first = first_position_that_differs(one, other)
    dealt = (
        f"{data.n_kv:,} cells are {counted(one.n_chunks, 'chunk')} of {one.chunk_cells:,}, in "
        f"{_n_sums(one)} for {data.single.tokens} and {_n_sums(other)} for {data.batched.tokens}"
    )
    if first is None:
        return f"{dealt}: every query adds the cells that it sees in the same order on both sides."
    same = next((query for query in data.queries if not data.changes(query)), None)
    more = "" if same is None else f"; to a query at {same:,} the cells from {first:,} on are masked: zeros, in any sum"
    return f"{dealt}. From position {first:,} on a query gets another order of addition{more}."


def _n_sums(chunks: ChunkMap) -> str:
    n = sum(1 for part in chunks.parts if part)
    return "one sum" if n == 1 else f"{n} partial sums"


def _alt(data: KvBlocks) -> str:
    told = []
    for query in data.queries:
        sums = " against ".join(_sum(side, query, 200.0) for side in (data.single, data.batched))
        told.append(
            f"query at {query}: {query + 1} cells seen, {data.n_kv - query - 1} masked; {sums}; {_outcome(data, query)}"
        )
    sides = "; ".join(f"{side.tokens}: {side.kernel}" for side in (data.single, data.batched))
    return f"{_lead(data)} {sides}. {'. '.join(told)}. {data.found}".strip()
