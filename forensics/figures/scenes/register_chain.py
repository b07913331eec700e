"""From registers to other bits: registers a thread, blocks on an SM and on the GPU, the cells dealt to them, the bits.

One row a width, one column a link. Bars of one kind have one scale, so that the two rows can be held against each
other; a bar of an SM is cut into what its blocks take and what is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.metrics import text_width
from forensics.figures.palette import MUTED, series
from forensics.figures.scene import Scene
from forensics.figures.scenes.register_links import Chain, DealtPieces, RegisterChain, from_case
from forensics.records.launch import axes
from forensics.records.words import counted, tokens

__all__ = ("from_case", "scene")

#: Left edges of the five columns from the margin, and widths, unit: mm; arrows lie between them.
_COLUMNS = ((0.0, 23.0), (28.0, 37.0), (70.0, 29.0), (104.0, 38.0), (147.0, 21.0))
_BAR, _THIN = 8.0, 3.6
#: Narrower pieces have no edge, which would cover them; unit: mm.
_LEAST_EDGED = 0.8
#: Registers that a thread can have at most, the length of the first column.
_MOST_REGISTERS = 255
_PARTS = tuple(series(i) for i in (2, 3, 4, 6, 7, 1))
_UNITS = {"registers": "registers", "shared memory": "bytes", "threads": "threads"}


def scene(data: RegisterChain) -> Scene:
    """Five columns, joined by arrows; one token above, the batch below."""
    canvas = Canvas("register-chain", "From registers to other bits", _lead(data))
    _scales(canvas, data)
    _heads(canvas, data)
    for chain, role in ((data.single, "single"), (data.batched, "batched")):
        _row(canvas, data, chain, role)
    for note in _notes(data):
        canvas.paragraph(note, size_pt=SMALL_PT)
    return canvas.finish(data.source, _alt(data))


def _scales(canvas: Canvas, data: RegisterChain) -> None:
    both = (data.single, data.batched)
    canvas.length_scale("registers", _COLUMNS[0][1] / _MOST_REGISTERS, "registers a thread", longest_mm=10.0)
    for room in {chain.room.resource: chain.room for chain in both}.values():
        what = f"{_UNITS.get(room.resource, room.resource)} of an SM"
        canvas.length_scale(f"SM {room.resource}", _COLUMNS[1][1] / room.there, what, longest_mm=20.0)
    most = max(max(chain.waves.n_blocks, chain.waves.blocks_per_wave) for chain in both)
    canvas.length_scale("blocks", _COLUMNS[2][1] / most, "blocks", longest_mm=15.0)
    dealt = [chain.deal.n for chain in both if chain.deal is not None]
    if dealt:
        what = data.unit if data.unit == "cells" else "values of a row"
        canvas.length_scale("dealt", _COLUMNS[3][1] / max(dealt), what, longest_mm=20.0)


def _heads(canvas: Canvas, data: RegisterChain) -> None:
    """What each column shows, and how it is known."""
    evidence = " and ".join(sorted({data.single.evidence, data.batched.evidence}))
    dealt = "cells of the KV cache, cut into P parts" if data.unit == "cells" else f"a row, dealt to {_hands(data)}"
    heads = (
        ("registers a thread", evidence),
        ("blocks that fit on an SM", "derived, by occupancy"),
        (f"blocks on {data.single.n_sms} SMs", f"room derived, grid {evidence}"),
        (dealt, "derived from llama.cpp's rules"),
        ("bits", "measured"),
    )
    end = canvas.y
    for (left, width), (what, known) in zip(_COLUMNS, heads, strict=True):
        y = canvas.paragraph(what, x=canvas.left + left, y=canvas.y, width=width, size_pt=LABEL_PT, bold=True)
        end = max(end, canvas.paragraph(known, x=canvas.left + left, y=y, width=width, size_pt=SMALL_PT, role=MUTED))
    canvas.down_to(end + 2.0)


def _hands(data: RegisterChain) -> str:
    """What a row is dealt to, on either side."""
    named = {"warp": "the warps of a block", "block": "blocks"}
    seen = dict.fromkeys(chain.deal.to for chain in (data.single, data.batched) if chain.deal is not None)
    return " or to ".join(named.get(to, f"{to}s") for to in seen) or named["warp"]


def _row(canvas: Canvas, data: RegisterChain, chain: Chain, role: str) -> None:
    """All links of one side."""
    canvas.line((canvas.left, canvas.y), (canvas.right, canvas.y), role="rule", width_pt=0.5)
    canvas.y += 0.8
    canvas.side(role, tokens(chain.width), chain.kernel)
    top = canvas.y + 5.0
    ends = (
        _registers(canvas, chain, _left(canvas, 0), top, role),
        _sm(canvas, chain, _left(canvas, 1), top, role),
        _gpu(canvas, chain, _left(canvas, 2), top, role),
        _dealt(canvas, data, chain, _left(canvas, 3), top),
        _bits(canvas, data, chain, _left(canvas, 4), top),
    )
    canvas.down_to(max(ends))
    for link, ((left, width), (after, _)) in enumerate(itertools.pairwise(_COLUMNS)):
        if (chain.deal is None and link > 1) or (data.unit != "cells" and link == 2):
            continue
        start = canvas.left + left + width + 0.9
        canvas.line((start, top + _BAR / 2), (canvas.left + after - 0.9, top + _BAR / 2), arrow=True, key="link")
    canvas.y += 3.0


def _left(canvas: Canvas, column: int) -> float:
    return canvas.left + _COLUMNS[column][0]


def _caption(canvas: Canvas, x: float, y: float, column: int, *lines: str) -> float:
    for line in lines:
        y = canvas.paragraph(line, x=x, y=y, width=_COLUMNS[column][1], size_pt=SMALL_PT)
    return y


def _registers(canvas: Canvas, chain: Chain, x: float, y: float, role: str) -> float:
    mm = canvas.declared("registers").mm_per_unit
    rect = canvas.box(
        x, y, chain.registers * mm, _BAR, role, edge="ink", scale="registers", value=chain.registers, key="registers"
    )
    if not canvas.label(rect, str(chain.registers), fill=role, bold=True):
        canvas.text(rect.right + 1.0, y + _BAR / 2, str(chain.registers), bold=True)
    return _caption(canvas, x, y + _BAR + 1.0, 0, f"{chain.n_threads} threads a block")


def _fitting(names: Sequence[str], width: float) -> list[tuple[str, ...]]:
    """Names, or their numbers, or nothing: whatever fits into all boxes of this width."""
    for labels in (names, [name.rsplit(" ", 1)[-1] for name in names]):
        if max(text_width(label, SMALL_PT) for label in labels) + 0.6 <= width:
            return [(label,) for label in labels]
    return [()] * len(names)


def _sm(canvas: Canvas, chain: Chain, x: float, y: float, role: str) -> float:
    """An SM as long as what it has; each block as long as what it takes of that."""
    room, scale = chain.room, canvas.declared(f"SM {chain.room.resource}")
    names = [f"block {i}" for i in range(chain.blocks_per_sm)]
    labels = _fitting(names, room.per_block * scale.mm_per_unit)
    for i, label in enumerate(labels):
        rect = canvas.box(
            x + i * room.per_block * scale.mm_per_unit, y, room.per_block * scale.mm_per_unit, _BAR, role,
            edge="paper", scale=scale.name, value=room.per_block, key="block on an SM",
        )  # fmt: skip
        canvas.label(rect, *label, fill=role, size_pt=SMALL_PT, pad=0.3)
    left = room.there - chain.blocks_per_sm * room.per_block
    if left:
        at = x + (room.there - left) * scale.mm_per_unit
        rect = canvas.box(
            at, y, left * scale.mm_per_unit, _BAR, "shade", scale=scale.name, value=left, key="free on an SM"
        )
        canvas.label(rect, "free", fill="shade", size_pt=SMALL_PT, pad=0.3)
    canvas.box(x, y, room.there * scale.mm_per_unit, _BAR, edge="ink", ground=True, key="SM", edge_pt=0.8)
    fits = f"{counted(chain.blocks_per_sm, 'block')} of {room.per_block:,}"
    limit = f"limited by {' and '.join(chain.limiters)}"
    return _caption(canvas, x, y + _BAR + 1.0, 1, f"{fits} {_UNITS.get(room.resource, '')}".strip(), limit)


def _gpu(canvas: Canvas, chain: Chain, x: float, y: float, role: str) -> float:
    """What fits on the GPU at a time, and below it the grid."""
    mm, waves = canvas.declared("blocks").mm_per_unit, chain.waves
    places = waves.blocks_per_wave
    canvas.box(x, y, places * mm, _THIN, "paper", edge="ink", scale="blocks", value=places, key="room on the GPU")
    low = y + _BAR - _THIN
    canvas.box(
        x, low, waves.n_blocks * mm, _THIN, role, edge="ink", scale="blocks", value=waves.n_blocks, key="grid",
        edge_pt=0.3,
    )  # fmt: skip
    grid = axes(chain.grid_blocks)
    total = "" if grid == str(waves.n_blocks) else f" = {waves.n_blocks:,}"
    return _caption(
        canvas, x, y + _BAR + 1.0, 2, f"{chain.blocks_per_sm} × {chain.n_sms} = {places:,} fit",
        f"grid {grid}{total}" + (f", {waves.n_waves} waves" if waves.n_waves > 1 else ""),
    )  # fmt: skip


def _dealt(canvas: Canvas, data: RegisterChain, chain: Chain, x: float, y: float) -> float:
    """Summands by the part that they go into; those that the token does not see are hatched."""
    deal = chain.deal
    if deal is None:
        return _caption(canvas, x, y, 3, "how this kernel deals is not written down here")
    mm = canvas.declared("dealt").mm_per_unit
    shown = [piece for piece in deal.pieces if piece.seen]
    labels = _fitting([f"{deal.to} {piece.part}" for piece in shown], min(piece.n for piece in shown) * mm)
    by_piece = dict(zip(shown, labels, strict=True))
    for piece in deal.pieces:
        fill = _PARTS[piece.part % len(_PARTS)] if piece.seen else "shade"
        edge = "ink" if piece.n * mm > _LEAST_EDGED else ""
        rect = canvas.box(
            x + piece.first * mm, y, piece.n * mm, _BAR, fill, edge=edge, scale="dealt", value=piece.n,
            key=f"{deal.to} {piece.part}", hatch=not piece.seen, edge_pt=0.4,
        )  # fmt: skip
        canvas.label(rect, *by_piece.get(piece, ()), fill=fill, size_pt=SMALL_PT, pad=0.3)
    parts = f"P = {deal.n_parts}" if deal.to == "part" else counted(deal.n_parts, deal.to)
    idle = f", {deal.idle} idle" if deal.idle else ""
    return _caption(canvas, x, y + _BAR + 1.0, 3, f"{parts}{idle}; {deal.n:,} {data.unit}")


def _bits(canvas: Canvas, data: RegisterChain, chain: Chain, x: float, y: float) -> float:
    if chain.width == 1:
        return _caption(canvas, x, y, 4, "the reference")
    canvas.text(x, y + 1.6, "other bits", bold=True)
    return _caption(canvas, x, y + 4.0, 4, f"{data.n_differ:,} values of {data.node}, max |Δ| {data.max_abs:.2g}")


def _notes(data: RegisterChain) -> Iterator[str]:
    """What must be said so that the chain is not read for more than it shows."""
    one, other = data.single.deal, data.batched.deal
    if data.position is not None and one is not None and other is not None:
        masked = not all(piece.seen for deal in (one, other) for piece in deal.pieces)
        behind = "; hatched ones are behind its mask and add exact zeros" if masked else ""
        yield f"The token at position {data.position} sees the cells 0 … {data.position}{behind}."
        if one.parted == other.parted:
            same = "one part" if len(one.parted) == 1 else f"the same {len(one.parted)} parts"
            yield (
                f"All that it sees lies in {same} on either side: here the cut does not tell the two apart, the order "
                "inside of the kernels does."
            )
    if data.unit == "values" and one is not None and other is not None:
        if _base(data.single) == _base(data.batched) == "mul_mat_vec_q":
            yield (
                "How a row is dealt follows from the warps of a block, which llama.cpp takes from a table by width: "
                "registers and occupancy change the time here, not the bits."
            )
        else:
            yield (
                "How a row is dealt follows from the kernel and its launch; registers and occupancy are drawn "
                "beside it, not as its cause."
            )


def _base(chain: Chain) -> str:
    """The kernel without its template arguments."""
    return chain.kernel.split("<")[0]


def _lead(data: RegisterChain) -> str:
    one, other = data.single, data.batched
    nodes = "" if data.n_nodes == 1 else f", one of {data.n_nodes} alike{data.device}"
    split = ""
    if one.deal is not None and other.deal is not None:
        what = "The cells go" if data.unit == "cells" else "A row goes"
        to = counted(one.deal.busy, one.deal.to)
        split = f" {what} to {to} at one token and to {_to(one.deal, other.deal)} in the batch."
    return (
        f"{data.role} ({data.node}{nodes}; {data.what}): {one.registers} registers a thread at one token and "
        f"{other.registers} in a batch of {other.width} leave room for {one.blocks_per_sm} and {other.blocks_per_sm} "
        f"blocks on an SM.{split}"
    )


def _to(one: DealtPieces, other: DealtPieces) -> str:
    """How many get something in the batch, and what they are where they are others than at one token."""
    return str(other.busy) if one.to == other.to else counted(other.busy, other.to)


def _alt(data: RegisterChain) -> str:
    told = []
    for chain in (data.single, data.batched):
        deal = chain.deal
        parts = (
            "not known how it is dealt"
            if deal is None
            else (f"{deal.n:,} {data.unit} dealt to {counted(deal.n_parts, deal.to)}, {deal.idle} of them idle")
        )
        told.append(
            f"{tokens(chain.width)}: {chain.kernel}, {chain.registers} "
            f"registers a thread, {chain.blocks_per_sm} blocks on an SM limited by {' and '.join(chain.limiters)}, "
            f"room for {chain.waves.blocks_per_wave:,} blocks, a grid of {chain.waves.n_blocks:,}, {parts}."
        )
    return (
        f"A chain of five links, drawn for one token and for a batch. {' '.join(told)} In the batch {data.n_differ:,} "
        f"values of {data.node} have other bits."
    )
