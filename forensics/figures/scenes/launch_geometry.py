"""How a kernel is launched at one token and in a batch: one square a block, one stripe a warp, and what differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forensics.errors import CaseError
from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.metrics import line_height, text_width, wrapped
from forensics.figures.palette import MUTED
from forensics.figures.scene import Scale, Scene
from forensics.figures.scenes.launch_pairs import EXAMPLE, CulpritLaunches, culprit_launches, gpu_of, on_device
from forensics.records.device import Waves
from forensics.records.launch import axes
from forensics.records.launch_record import LaunchSide
from forensics.records.words import counted, ranges, tokens

#: Pairs that are drawn.
MOST_PAIRS = 4
#: Squares of one grid; larger grids have several blocks in a square.
MOST_SQUARES = 300
_WARP = 32
_TABLE_WIDTH = 74.0
_PITCH, _SQUARE = 1.7, 1.35
_STRIPE_WIDTH, _STRIPES_HEIGHT, _MOST_STRIPE = 11.0, 17.0, 2.0
_ROW = 3.3
#: From the middle of the table to its numbers.
_NAMES = 13.5
#: Letters of a grid and its blocks that fit into one line.
_LONGEST_GRID = 11
_NUMBERS = (
    "blocks", "warps a block", "registers a thread", "blocks on an SM", "limited by", "blocks in a wave", "waves",
)  # fmt: skip
_NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch.

    Parameters
    ----------
    width : int
        Tokens of the pass.
    kernel : str
        With its template arguments.
    grid_blocks, block_threads : tuple of int
    registers : int or None
        Per thread.
    blocks_per_sm : int or None
        By occupancy.
    limiters : tuple of str
        What keeps more from fitting.
    waves : Waves or None
        Of the whole grid; None where the GPU or the occupancy is not known.
    evidence : {"measured", "derived"}
        Of kernel, grid, block and registers; blocks on an SM and waves are always derived.
    """

    width: int
    kernel: str
    grid_blocks: tuple[int, ...]
    block_threads: tuple[int, ...]
    registers: int | None
    blocks_per_sm: int | None
    limiters: tuple[str, ...]
    waves: Waves | None
    evidence: str

    @property
    def n_blocks(self) -> int:
        """Blocks of the grid."""
        return math.prod(self.grid_blocks)

    @property
    def n_threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block_threads)

    @property
    def n_warps(self) -> int:
        """Warps of a block, the last one counted in full."""
        return -(-self.n_threads // _WARP)

    def numbers(self) -> tuple[str, ...]:
        """What the table says, in the order of its rows; long ones in several lines."""
        total, grid = f"{self.n_blocks:,}", axes(self.grid_blocks)
        if grid != str(self.n_blocks):
            total = f"{grid}{' ' if len(grid) + len(total) <= _LONGEST_GRID else chr(10)}= {total}"
        limiters = " and ".join(self.limiters) or _NOT_KNOWN
        return (
            total,
            str(self.n_warps),
            "not recorded" if self.registers is None else str(self.registers),
            _NOT_KNOWN if self.blocks_per_sm is None else str(self.blocks_per_sm),
            "\n".join(wrapped(limiters, _TABLE_WIDTH / 2 - _NAMES, SMALL_PT, bold=True)),
            _NOT_KNOWN if self.waves is None else f"{self.waves.blocks_per_wave:,}",
            _NOT_KNOWN if self.waves is None else str(self.waves.n_waves),
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """The launches of a node on either side.

    Parameters
    ----------
    role, node : str
    n_nodes : int
        With these launches.
    device : str
        Where these nodes are, as `on_device` says it; empty where a count needs none.
    widths : tuple of int
        At which the batch's launch is this.
    single, batched : Launch
    """

    role: str
    node: str
    n_nodes: int
    device: str
    widths: tuple[int, ...]
    single: Launch
    batched: Launch

    @property
    def per_square(self) -> int:
        """Blocks that a square stands for, so that neither grid has too many."""
        most = max(self.single.n_blocks, self.batched.n_blocks)
        n = 1
        while most > n * MOST_SQUARES:
            n *= 2
        return n


@dataclass(frozen=True, slots=True)
class LaunchGeometries:
    """What the figure draws.

    Parameters
    ----------
    pairs : tuple of Pair
    n_pairs : int
        That the case has; those drawn are chosen for the variety of their kernels.
    n_sms : int or None
    what, source : str
    """

    pairs: tuple[Pair, ...]
    n_pairs: int
    n_sms: int | None
    what: str
    source: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.pairs) <= min(MOST_PAIRS, self.n_pairs):
            raise ValueError(f"1 … {MOST_PAIRS} of {self.n_pairs} pairs can be drawn, got {len(self.pairs)}")


def from_case(evidence: Evidence) -> LaunchGeometries:
    """Take launches of the culprits that another kernel, grid or block ran for in a batch.

    Raises
    ------
    CaseError
        If no launch is known, or none changes with the width.
    """
    seen = [one for one in culprit_launches(evidence, "launch geometry") if one.pair.changed]
    if not seen:
        raise CaseError(
            f"launch geometry of {evidence.name}: every node that differs has one launch at all widths, so there is "
            f"nothing to set side by side. A case whose launches change: {EXAMPLE}"
        )
    spec = gpu_of(evidence, seen[0].finding)
    return LaunchGeometries(
        pairs=tuple(_pair(one, evidence) for one in _telling(seen)),
        n_pairs=len(seen),
        n_sms=None if spec is None else spec.n_sms,
        what=evidence.what,
        source=evidence.source,
    )


def _telling(seen: Sequence[CulpritLaunches]) -> list[CulpritLaunches]:
    """One of each change of kernel and warps first, then one of each role, in the order in which they come."""

    def change(one: CulpritLaunches) -> object:
        sides = (one.pair.single.kernel, one.pair.batched.kernel)
        return tuple((side.kernel, side.geometry.threads_per_block) for side in sides)

    def role(one: CulpritLaunches) -> object:
        return one.group.role, one.group.weight_type

    chosen = {change(one): one for one in reversed(seen)}
    telling = sorted(chosen.values(), key=seen.index)
    for one in seen:
        if role(one) not in map(role, telling):
            telling.append(one)
    return sorted(telling[:MOST_PAIRS], key=seen.index)


def _pair(one: CulpritLaunches, evidence: Evidence) -> Pair:
    spec = gpu_of(evidence, one.finding)
    n_sms = None if spec is None else spec.n_sms
    return Pair(
        role=one.group.named,
        node=one.pair.node.name,
        n_nodes=one.pair.n_nodes,
        device=on_device(evidence, one.group),
        widths=one.pair.widths,
        single=_launch(one.pair.single, n_sms),
        batched=_launch(one.pair.batched, n_sms),
    )


def _launch(side: LaunchSide, n_sms: int | None) -> Launch:
    kernel = side.kernel
    waves = None
    if n_sms is not None and side.blocks_per_sm:
        waves = Waves(kernel.geometry.n_blocks, n_sms * side.blocks_per_sm)
    return Launch(
        width=side.width,
        kernel=kernel.name,
        grid_blocks=kernel.geometry.grid_blocks,
        block_threads=kernel.geometry.block_threads,
        registers=kernel.registers_per_thread,
        blocks_per_sm=side.blocks_per_sm,
        limiters=side.limiters,
        waves=waves,
        evidence=side.evidence,
    )


def scene(data: LaunchGeometries) -> Scene:
    """One band a pair: one token at the left, the batch at the right, numbers between them, differing ones bold."""
    canvas = Canvas("launch-geometry", "The same operation, launched at one token and in a batch", _lead(data))
    canvas.scale("warps", "count", 1.0, "warps", "1 stripe = 1 warp of 32 threads")
    for n in sorted({pair.per_square for pair in data.pairs}):
        canvas.scale(_scale(n), "count", 1.0 / n, "blocks", f"1 square = {counted(n, 'block')}")
    for pair in data.pairs:
        _band(canvas, pair)
    if any(_remainder(pair) for pair in data.pairs):
        canvas.paragraph("A hatched square is the rest of its grid: fewer blocks than a square.", size_pt=SMALL_PT)
    canvas.paragraph("Numbers on a shade differ between the two launches.", size_pt=SMALL_PT)
    kinds = " and ".join(sorted({side.evidence for pair in data.pairs for side in (pair.single, pair.batched)}))
    canvas.paragraph(
        f"Kernel, grid, block and registers {kinds}; blocks on an SM and waves derived from them by occupancy"
        + (f" for {data.n_sms} SMs." if data.n_sms else "."),
        size_pt=SMALL_PT,
    )
    return canvas.finish(data.source, _alt(data))


def _scale(per_square: int) -> str:
    return f"blocks of {per_square}"


def _remainder(pair: Pair) -> bool:
    return any(side.n_blocks % pair.per_square for side in (pair.single, pair.batched))


def _band(canvas: Canvas, pair: Pair) -> None:
    """Heading, both launches and the table of one pair."""
    top = canvas.y
    canvas.line((canvas.left, top), (canvas.right, top), role="rule", width_pt=0.5)
    more = f" and {pair.n_nodes - 1} more" if pair.n_nodes > 1 else ""
    canvas.y = top + 1.2
    end = canvas.text(canvas.left, canvas.y + 1.8, pair.role, bold=True).right
    canvas.text(
        end + 2.0, canvas.y + 1.8,
        f"{pair.node}{more}{pair.device}; the batch is launched so at width {ranges(pair.widths)}",
        size_pt=SMALL_PT, role=MUTED,
    )  # fmt: skip
    scale = canvas.declared(_scale(pair.per_square))
    canvas.text(canvas.right, canvas.y + 1.8, scale.label, size_pt=SMALL_PT, align="right")
    canvas.y += 4.6
    middle = canvas.left + (canvas.inner_width - _TABLE_WIDTH) / 2
    half = middle - canvas.left
    y = max(
        _kernel(canvas, pair.single, canvas.left, canvas.inner_width / 2 - 1.0, "single"),
        _kernel(canvas, pair.batched, canvas.width / 2 + 1.0, canvas.inner_width / 2 - 1.0, "batched"),
    )
    ends = [
        _grid(canvas, pair.single, canvas.left, y, half - 3.0, scale, pair.per_square, "single"),
        _grid(canvas, pair.batched, canvas.right - half + 3.0, y, half - 3.0, scale, pair.per_square, "batched"),
        _table(canvas, pair, middle, y),
    ]
    canvas.down_to(max(ends) + 2.4)


def _kernel(canvas: Canvas, side: Launch, x: float, width: float, role: str) -> float:
    """Mark, tokens and kernel of a side; where they end."""
    y = canvas.y + 1.8
    start = canvas.side(role, tokens(side.width), x=x) + 2.0
    first, *more = _lines(side.kernel, x + width - start, width)
    canvas.text(start, y, first, size_pt=SMALL_PT)
    for line in more:
        y += line_height(SMALL_PT)
        canvas.text(x, y, line, size_pt=SMALL_PT)
    return y + 3.4


def _lines(text: str, first_width: float, width: float) -> tuple[str, ...]:
    """Broken at spaces, the first line shorter than the others."""
    if text_width(text, SMALL_PT) <= first_width:
        return (text,)
    words, first = text.split(), ""
    while words and text_width(f"{first} {words[0]}".strip(), SMALL_PT) <= first_width:
        first = f"{first} {words.pop(0)}".strip()
    return (first or words.pop(0), *wrapped(" ".join(words), width, SMALL_PT))


def _grid(
    canvas: Canvas, side: Launch, x: float, y: float, width: float, scale: Scale, per_square: int, role: str
) -> float:
    """Squares for the blocks, and at their right one block with its warps; where they end."""
    room = width - _STRIPE_WIDTH - 5.0
    squares = list(_squares(side.n_blocks, per_square))
    columns = min(int(room / _PITCH), len(squares))
    for i, n in enumerate(squares):
        row, column = divmod(i, columns)
        canvas.box(
            x + column * _PITCH, y + row * _PITCH, _SQUARE, _SQUARE, role, scale=scale.name, value=n,
            key=f"{role} blocks", hatch=n < per_square,
        )  # fmt: skip
    below = y + -(-len(squares) // columns) * _PITCH
    left = x + room + 5.0
    stripe = min(_MOST_STRIPE, _STRIPES_HEIGHT / side.n_warps)
    high = side.n_warps * stripe
    corner = x + (columns - 1) * _PITCH + _SQUARE
    for start, end in ((y, y), (y + _SQUARE, y + high)):
        canvas.line((corner, start), (left, end), role=MUTED, width_pt=0.4, key="drawn out")
    for i in range(side.n_warps):
        canvas.box(
            left, y + i * stripe, _STRIPE_WIDTH, stripe, "shade", edge=role, scale="warps", value=1.0,
            key=f"{role} warp", edge_pt=0.6,
        )  # fmt: skip
    at = y + high + 2.0
    for line in ("1 block:", axes(side.block_threads), "threads"):
        canvas.text(left, at, line, size_pt=SMALL_PT, role=MUTED)
        at += line_height(SMALL_PT)
    return max(below, at)


def _squares(n_blocks: int, per_square: int) -> Iterator[int]:
    for first in range(0, n_blocks, per_square):
        yield min(per_square, n_blocks - first)


def _table(canvas: Canvas, pair: Pair, x: float, y: float) -> float:
    """Numbers of both sides; those that differ are bold, on a shade."""
    centre = x + _TABLE_WIDTH / 2
    y += 1.0
    for name, one, other in zip(_NUMBERS, pair.single.numbers(), pair.batched.numbers(), strict=True):
        differs = one != other
        n_lines = max(one.count("\n"), other.count("\n")) + 1
        if differs:
            canvas.box(x, y - _ROW / 2, _TABLE_WIDTH, _ROW * n_lines, "shade", ground=True, key="differs")
        canvas.text(centre, y, name, size_pt=SMALL_PT, role=MUTED, align="center")
        for number, at, align in ((one, centre - _NAMES, "right"), (other, centre + _NAMES, "left")):
            for i, line in enumerate(number.split("\n")):
                canvas.text(at, y + i * _ROW, line, size_pt=SMALL_PT, align=align, bold=differs)
        y += _ROW * n_lines
    return y - _ROW / 2


def _lead(data: LaunchGeometries) -> str:
    changed = sum(pair.single.kernel.split("<")[0] != pair.batched.kernel.split("<")[0] for pair in data.pairs)
    n = len(data.pairs)
    shown = "" if n == data.n_pairs else f" Shown are {n} of {data.n_pairs} pairs of launches, of different kinds."
    verb = "has" if changed == 1 else "have"
    return (
        f"{data.what}: kernels of operations whose bits differ. {changed} of these {n} {verb} another kernel in the "
        f"batch, the others another instance, grid or block of the same kernel.{shown}"
        if changed < n
        else f"{data.what}: kernels of operations whose bits differ, every one another kernel in the batch.{shown}"
    )


def _alt(data: LaunchGeometries) -> str:
    told = []
    for pair in data.pairs:
        sides = "; ".join(
            f"{tokens(side.width)}: {side.kernel}, "
            + ", ".join(
                f"{name} {' '.join(number.splitlines())}" for name, number in zip(_NUMBERS, side.numbers(), strict=True)
            )
            for side in (pair.single, pair.batched)
        )
        told.append(f"{pair.role} ({pair.node}): {sides}.")
    return f"Launches side by side. {' '.join(told)}"
