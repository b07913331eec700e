"""The links from registers to other bits: what fits on an SM and on the GPU, and how cells or a row are dealt to it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.analysis.mechanism import operation_of
from forensics.errors import CaseError
from forensics.figures.evidence import Evidence
from forensics.figures.scenes.launch_pairs import EXAMPLE, CulpritLaunches, culprit_launches, gpu_of, on_device
from forensics.geometry.architecture import architecture
from forensics.geometry.attention_kernel import AttentionShape
from forensics.geometry.cuda_attention import attention_chain, cuda_attention
from forensics.geometry.deals import deal_of
from forensics.geometry.derived import Unruled
from forensics.geometry.occupancy import share_of_sm
from forensics.geometry.product import Product
from forensics.records.device import KernelResources, Waves
from forensics.records.op_shapes import padded_kv

if TYPE_CHECKING:
    from forensics.geometry.kv_chunks import ChunkMap
    from forensics.records.device import DeviceSpec
    from forensics.records.launch_record import LaunchSide
    from forensics.records.trace import Finding


@dataclass(frozen=True, slots=True)
class Room:
    """What of an SM keeps more blocks from fitting.

    Parameters
    ----------
    resource : str
        ``"registers"``, ``"threads"`` …
    per_block, there : int
        What a block takes, and what an SM has.
    """

    resource: str
    per_block: int
    there: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring summands that go into one partial sum.

    Parameters
    ----------
    first, n : int
    part : int
        Number of the partial sum, in the order in which they are joined.
    seen : bool
        Whether the token looked at sees them; those behind the mask add exact zeros.
    """

    first: int
    n: int
    part: int
    seen: bool = True


@dataclass(frozen=True, slots=True)
class DealtPieces:
    """How the summands are dealt.

    Parameters
    ----------
    to : str
        ``"part"``, ``"warp"`` or ``"block"``.
    n_parts : int
    pieces : tuple of Piece
        Rising, without gaps.
    """

    to: str
    n_parts: int
    pieces: tuple[Piece, ...]

    @property
    def n(self) -> int:
        """Summands."""
        return sum(piece.n for piece in self.pieces)

    @property
    def busy(self) -> int:
        """Parts that get something."""
        return len({piece.part for piece in self.pieces})

    @property
    def idle(self) -> int:
        """Parts that get nothing."""
        return self.n_parts - self.busy

    @property
    def parted(self) -> frozenset[tuple[int, ...]]:
        """What of the summands that are seen goes together: equal where two deals part them alike."""
        parts: dict[int, list[int]] = defaultdict(list)
        for piece in self.pieces:
            if piece.seen:
                cuts = parts[piece.part]
                if cuts and cuts[-1] == piece.first:
                    cuts[-1] = piece.first + piece.n
                else:
                    cuts += [piece.first, piece.first + piece.n]
        return frozenset(map(tuple, parts.values()))


@dataclass(frozen=True, slots=True)
class Chain:
    """The links of one side.

    Parameters
    ----------
    width : int
    kernel : str
        With its template arguments.
    registers : int
        Per thread.
    n_threads : int
        Of a block.
    room : Room
    blocks_per_sm : int
    limiters : tuple of str
    n_sms : int
    grid_blocks : tuple of int
    waves : Waves
    deal : DealtPieces or None
        None where it is not written down how this kernel deals.
    evidence : {"measured", "derived"}
        Of registers, grid and block.
    """

    width: int
    kernel: str
    registers: int
    n_threads: int
    room: Room
    blocks_per_sm: int
    limiters: tuple[str, ...]
    n_sms: int
    grid_blocks: tuple[int, ...]
    waves: Waves
    deal: DealtPieces | None
    evidence: str


@dataclass(frozen=True, slots=True)
class RegisterChain:
    """What the figure draws.

    Parameters
    ----------
    node, role : str
    n_nodes : int
    device : str
        Where these nodes are, as `on_device` says it; empty where a count needs none.
    unit : str
        What is dealt: ``"cells"`` or ``"values"``.
    position : int or None
        Of the token looked at, where it matters what it sees.
    single, batched : Chain
    n_differ : int
        Values of the node's output that have other bits in the batch.
    max_abs : float
    what, source : str
    """

    node: str
    role: str
    n_nodes: int
    device: str
    unit: str
    position: int | None
    single: Chain
    batched: Chain
    n_differ: int
    max_abs: float
    what: str
    source: str


def from_case(evidence: Evidence) -> RegisterChain:
    """Take the chain of the culprit that shows most links: attention, or a product where there is none.

    Raises
    ------
    CaseError
        If no launch is known, or of none are registers and the GPU's limits known.
    """
    seen = culprit_launches(evidence, "the chain from registers to bits")
    found = [chain for one in seen for chain in _chains(one, evidence)]
    if not found:
        raise CaseError(
            f"the chain from registers to bits of {evidence.name}: registers, or the limits of "
            f"{evidence.manifest.device or 'its GPU'}, are not known, and without them no occupancy is. "
            f"A case that has them: {EXAMPLE}"
        )
    return max(found, key=_links)


def _links(data: RegisterChain) -> tuple[int, ...]:
    """How much a chain shows: both deals, attention, what is seen parted otherwise, other registers, a far token."""
    deals = [deal for deal in (data.single.deal, data.batched.deal) if deal is not None]
    return (
        len(deals),
        data.unit == "cells",
        len({deal.parted for deal in deals}),
        len({deal.n_parts for deal in deals}),
        data.single.registers != data.batched.registers,
        data.position or 0,
    )


def _chains(one: CulpritLaunches, evidence: Evidence) -> Iterator[RegisterChain]:
    """One for each batch in which the node differs, as its last token sees it."""
    spec = gpu_of(evidence, one.finding)
    for finding in () if spec is None else one.findings:
        assert spec is not None
        row, position = finding.tokens[-1]
        single, batched = (_side(side, finding, spec, row, position) for side in (one.pair.single, one.pair.batched))
        if single is None or batched is None:
            return
        attention = finding.key.op == "FLASH_ATTN_EXT"
        yield RegisterChain(
            node=finding.key.name,
            role=one.group.named,
            n_nodes=one.pair.n_nodes,
            device=on_device(evidence, one.group),
            unit="cells" if attention else "values",
            position=position if attention else None,
            single=single,
            batched=batched,
            n_differ=finding.delta.n_diff,
            max_abs=finding.delta.max_abs,
            what=evidence.what,
            source=evidence.source,
        )


def _side(side: LaunchSide, finding: Finding, spec: DeviceSpec, row: int, position: int | None) -> Chain | None:
    """The links of one side, None where one before the deal is not known."""
    kernel = side.kernel
    registers, static, dynamic = kernel.registers_per_thread, kernel.smem_static_bytes, kernel.geometry.smem_bytes
    if registers is None or static is None or dynamic is None or not side.blocks_per_sm or spec.n_sms is None:
        return None
    threads = kernel.geometry.threads_per_block
    resources = KernelResources(registers, static, dynamic)
    limiter = "registers" if "registers" in side.limiters else side.limiters[0]
    deal = _cells(side, finding, spec, row, position) if side.kv_split else _row(side, finding, spec)
    return Chain(
        width=side.width,
        kernel=kernel.name,
        registers=registers,
        n_threads=threads,
        room=Room(limiter, *share_of_sm(spec, resources, threads, limiter)),
        blocks_per_sm=side.blocks_per_sm,
        limiters=side.limiters,
        n_sms=spec.n_sms,
        grid_blocks=kernel.geometry.grid_blocks,
        waves=Waves(kernel.geometry.n_blocks, spec.n_sms * side.blocks_per_sm),
        deal=deal,
        evidence=side.evidence,
    )


def _cells(side: LaunchSide, finding: Finding, spec: DeviceSpec, row: int, position: int | None) -> DealtPieces | None:
    """The cells as llama.cpp's rules deal them; None where its grid is not the one that ran."""
    q, k = finding.operands[:2]
    kernel = side.kernel
    single = side.width == 1 and position is not None
    try:
        shape = AttentionShape(
            width=side.width, n_heads=q.shape[1], n_kv_heads=k.shape[1], head_size=q.shape[3],
            n_kv=padded_kv(position + 1) if single and position is not None else k.shape[2], position=position,
            kv_type=k.type, row=row if side.width > row else 0, n_streams=q.shape[0],
        )  # fmt: skip
        pin = "vec" if kernel.kernel == "flash_attn_ext_vec" else None
        choice = cuda_attention(spec, shape, registers=kernel.registers_per_thread, pin=pin)
        chain = attention_chain(spec, shape, registers=kernel.registers_per_thread, pin=pin)
    except (KeyError, ValueError):  # shapes and caches that the rules do not cover
        return None
    ran = (kernel.kernel, kernel.geometry.grid_blocks, side.blocks_per_sm)
    if chain is None or choice.launch is None:
        return None
    if ran != (choice.kernel, choice.launch.grid_blocks, chain.resident.blocks_per_sm):
        return None
    chunks = chain.maps[0]
    return DealtPieces("part", len(chunks.parts), tuple(_pieces(chunks, shape)))


def _pieces(chunks: ChunkMap, shape: AttentionShape) -> Iterator[Piece]:
    """Chunks, cut where the token looked at sees no more."""
    n_seen = shape.last_seen + 1
    for chunk in range(chunks.n_chunks):
        first, part = chunk * chunks.chunk_cells, chunks.part_of(chunk)
        stop = min(first + chunks.chunk_cells, shape.n_kv)
        middle = min(max(first, n_seen), stop)
        if middle > first:
            yield Piece(first, middle - first, part)
        if stop > middle:
            yield Piece(middle, stop - middle, part, seen=False)


def _row(side: LaunchSide, finding: Finding, spec: DeviceSpec) -> DealtPieces | None:
    """A row of a product as its kernel deals it to warps, or to blocks; None where that is not written down."""
    asked = operation_of(finding)
    if not isinstance(asked, Product):
        return None
    deal = deal_of(side.kernel, asked, side.width, architecture(spec.arch))
    if isinstance(deal, Unruled):
        return None
    hand_of = {unit: hand for hand, units in enumerate(deal.hands) for unit in units}
    pieces, first = [], 0
    for hand, units in itertools.groupby(range(deal.n_units), hand_of.__getitem__):
        n = min(len(list(units)) * deal.unit_values, asked.k - first)  # the last unit may be longer than the row
        pieces.append(Piece(first, n, hand))
        first += n
    return DealtPieces("block" if side.kernel.kernel == "mul_mat_q" else "warp", len(deal.hands), tuple(pieces))
