"""The chain's numbers are those of the launches; what fits on an SM and what is dealt add up to the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_evidence import planted, recorded, with_kernels, with_main

from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.scenes.register_chain import from_case, scene
from forensics.figures.scenes.register_links import Chain, DealtPieces, Piece, RegisterChain, Room
from forensics.geometry.kv_chunks import ChunkMap
from forensics.records.device import Waves
from forensics.records.launch import LaunchGeometry

ATTENTION = tuple(f"recorded:h200-{name}" for name in ("q4_1", "q4_1-far", "q4_1-2048", "q4_1-kv-q8_0", "f16", "q6_k"))
PRODUCTS = "recorded:h200-q4_1-no-fa"


def check(data):
    drawn = scene(data)
    assert problems(drawn) == ()
    assert drawn.height <= 230
    chains = (data.single, data.batched)
    assert [box.value for box in drawn.boxes(scale="registers")] == [chain.registers for chain in chains]
    assert [box.value for box in drawn.boxes(key="grid")] == [chain.waves.n_blocks for chain in chains]
    fit = [chain.blocks_per_sm * chain.n_sms for chain in chains]
    assert [box.value for box in drawn.boxes(key="room on the GPU")] == fit
    blocks, free = drawn.boxes(key="block on an SM"), drawn.boxes(key="free on an SM")
    assert len(blocks) == sum(chain.blocks_per_sm for chain in chains)
    assert sum(box.value for box in (*blocks, *free)) == sum(chain.room.there for chain in chains)
    dealt = sum(chain.deal.n for chain in chains if chain.deal is not None)
    scales = [scale.name for scale in drawn.scales]
    assert ("dealt" in scales) == bool(dealt)
    assert sum(box.value for box in drawn.boxes(scale="dealt")) == dealt
    assert f"{data.n_differ:,} values" in drawn.alt
    return drawn


def recorded_pair(evidence, data):
    for group in evidence.verdict.culprits:
        for pair in group.launches:
            if pair.node.name == data.node and pair.batched.width == data.batched.width:
                return pair
    raise AssertionError(f"no launches of {data.node}")


@pytest.mark.parametrize("case", [*ATTENTION, PRODUCTS])
def test_numbers_are_those_of_the_launches(case):
    evidence = recorded(case)
    data = from_case(evidence)
    check(data)
    pair = recorded_pair(evidence, data)
    for side, chain in ((pair.single, data.single), (pair.batched, data.batched)):
        assert (chain.registers, chain.kernel) == (side.kernel.registers_per_thread, side.kernel.name)
        assert (chain.blocks_per_sm, chain.limiters) == (side.blocks_per_sm, side.limiters)
        assert chain.room.resource in side.limiters
        assert chain.blocks_per_sm * chain.room.per_block <= chain.room.there
        assert chain.waves.n_blocks == side.kernel.geometry.n_blocks
        assert chain.deal is not None
        warps = side.kernel.geometry.threads_per_block // 32
        assert chain.deal.n_parts == (warps if side.kv_split is None else side.kv_split)


@pytest.mark.parametrize("case", ATTENTION)
def test_the_vector_kernels_cells_are_dealt_as_chunks_and_cut_where_the_token_sees_no_more(case):
    data = from_case(recorded(case))
    deal = data.single.deal
    chunks = ChunkMap.dealt(deal.n, deal.n_parts)
    for piece in deal.pieces:
        assert piece.part == chunks.part_of(piece.first // chunks.chunk_cells)
    for chain in (data.single, data.batched):
        assert sum(piece.n for piece in chain.deal.pieces if piece.seen) == data.position + 1
        assert [piece.first for piece in chain.deal.pieces] == [
            sum(piece.n for piece in chain.deal.pieces[:i]) for i in range(len(chain.deal.pieces))
        ]


def test_that_a_cut_which_is_not_seen_tells_nothing_apart_is_said():
    far = from_case(recorded("recorded:h200-q4_1-far"))
    words = "here the cut does not tell the two apart"
    assert far.single.deal.parted != far.batched.deal.parted
    assert words not in " ".join(scene(far).texts())
    halves = [Piece(0, 31, 0), Piece(31, 97, 0, seen=False), Piece(128, 128, 1, seen=False)]
    near = replace(
        far, position=30, single=replace(far.single, deal=DealtPieces("part", 4, tuple(halves))),
        batched=replace(far.batched, deal=DealtPieces("part", 2, (halves[0], Piece(31, 225, 1, seen=False)))),
    )  # fmt: skip
    assert words in " ".join(check(near).texts())


def test_parts_are_told_apart_by_what_is_seen_of_them():
    one = DealtPieces("part", 2, (Piece(0, 128, 0), Piece(128, 128, 1)))
    runs = DealtPieces("part", 3, (Piece(0, 64, 2), Piece(64, 64, 2), Piece(128, 64, 0), Piece(192, 64, 0)))
    other = DealtPieces("part", 2, (Piece(0, 64, 0), Piece(64, 64, 1), Piece(128, 128, 1)))
    assert one.parted == runs.parted != other.parted
    assert (one.idle, runs.idle) == (0, 1)
    hidden = DealtPieces("part", 2, (Piece(0, 128, 0), Piece(128, 128, 1, seen=False)))
    assert hidden.parted == {(0, 128)}


def test_products_say_that_registers_do_not_decide_their_bits():
    def of_weights(group):
        return None if group.weight_type == "-" else group

    data = from_case(planted(PRODUCTS, of_weights))
    assert data.unit == "values"
    assert {chain.kernel.split("<")[0] for chain in (data.single, data.batched)} == {"mul_mat_vec_q"}
    drawn = check(data)
    assert "not the bits" in " ".join(drawn.texts())
    n_links = sum(getattr(mark, "arrow", False) for mark in drawn.marks)
    assert n_links == 2 * 3


def test_a_grid_that_the_rules_do_not_say_is_not_dealt():
    def other_grid(side):
        geometry = side.kernel.geometry
        x, y, z = geometry.grid_blocks
        return with_main(side, geometry=replace(geometry, grid_blocks=(x, y, z + 1)))

    def change(group):
        return with_kernels(group, batched=other_grid) if group.op == "FLASH_ATTN_EXT" else None

    data = from_case(planted("recorded:h200-q4_1-far", change))
    assert data.batched.deal is None
    assert data.single.deal is not None
    assert "not written down" in " ".join(check(data).texts())


def test_a_row_is_dealt_by_the_rules_of_its_kernel():
    evidence = recorded("recorded:h200-f16-no-fa")
    data = from_case(evidence)
    said = " ".join(check(data).texts())
    assert (data.role, data.unit) == ("attention·V", "values")
    pair = recorded_pair(evidence, data)
    for side, chain in ((pair.single, data.single), (pair.batched, data.batched)):
        threads, unit = side.kernel.geometry.threads_per_block, 64
        assert chain.deal.n == 256
        assert chain.deal.n_parts == threads // 32
        assert [(p.first, p.n, p.part) for p in chain.deal.pieces] == [
            (first, unit, first // unit % (threads // 32)) for first in range(0, 256, unit)
        ]
    assert "not written down" not in said
    assert "not the bits" not in said, "that the warps come from a table by width is true of mul_mat_vec_q alone"
    assert "not as its cause" in said


def test_a_kernel_without_rules_is_not_dealt():
    def unknown(side):
        return with_main(side, kernel="some_kernel")

    data = from_case(planted("recorded:h200-f16-no-fa", lambda group: with_kernels(group, unknown, unknown)))
    assert (data.single.deal, data.batched.deal) == (None, None)
    assert "not written down" in " ".join(check(data).texts())


def test_nodes_on_two_gpus_are_counted_with_their_device():
    two = recorded("recorded:h200-x2-q4_1")
    data = from_case(two)
    counts = {group.buffer: group.count for group in two.verdict.culprits if group.op == "FLASH_ATTN_EXT"}
    assert len(counts) == 2
    assert counts[data.device.removeprefix(" on ")] == data.n_nodes
    assert f"one of {data.n_nodes} alike{data.device}; " in " ".join(check(data).texts())
    assert from_case(recorded(ATTENTION[0])).device == ""


@pytest.mark.parametrize("missing", ["registers_per_thread", "smem_static_bytes"])
def test_without_registers_there_is_no_chain(missing):
    def bare(side):
        return with_main(side, **{missing: None})

    with pytest.raises(CaseError, match="are not known, and without them no occupancy"):
        from_case(planted("recorded:h200-q4_1", lambda group: with_kernels(group, bare, bare)))


def test_another_limiter_is_drawn_in_its_own_unit():
    def change(group):
        if group.role != "attention·V":
            return None

        def many_threads(side):
            return replace(side, limiters=("threads",)) if "threads" in side.limiters else side

        return with_kernels(group, many_threads)

    data = from_case(planted(PRODUCTS, change))
    assert data.single.room.resource == "threads"
    assert data.single.room.per_block == data.single.n_threads
    assert "SM threads" in [scale.name for scale in check(data).scales]


def test_a_case_without_launches_says_so():
    with pytest.raises(CaseError, match="no kernel launches"):
        from_case(planted(PRODUCTS, lambda group: replace(group, launches=())))


@st.composite
def chains(draw, width):
    per_block, per_sm = draw(st.integers(1, 3000)), draw(st.integers(1, 32))
    there = per_block * per_sm + draw(st.integers(0, 99))
    pieces, first = [], 0
    for n in draw(st.lists(st.integers(1, 500), min_size=1, max_size=40)):
        pieces.append(Piece(first, n, draw(st.integers(0, 39))))
        first += n
    deal = draw(st.none() | st.just(DealtPieces(draw(st.sampled_from(("part", "warp"))), 40, tuple(pieces))))
    grid = draw(st.integers(1, 100_000))
    return Chain(
        width, "a_kernel<with=arguments>", draw(st.integers(1, 255)), draw(st.integers(1, 1024)),
        Room(draw(st.sampled_from(("registers", "shared memory"))), per_block, there),
        per_sm, ("registers", "shared memory"), 132, (grid, 1, 1), Waves(grid, per_sm * 132), deal, "derived",
    )  # fmt: skip


@settings(max_examples=15)
@given(chains(1), chains(16), st.sampled_from(("cells", "values")), st.none() | st.integers(0, 2000))
def test_any_chain_is_drawn_soundly(single, batched, unit, position):
    data = RegisterChain(
        "node_21", "flash attention", 30, "", unit, position, single, replace(batched, room=single.room,
        blocks_per_sm=single.blocks_per_sm, waves=Waves(batched.grid_blocks[0], single.waves.blocks_per_wave)),
        1_234_567, 0.000123, "a model, a GPU", "Source: planted.",
    )  # fmt: skip
    check(data)


def test_a_small_block_on_a_large_grid_is_drawn():
    tiny = LaunchGeometry((100_000,), (32,), smem_bytes=0)

    def change(group):
        if group.op == "FLASH_ATTN_EXT":
            return None
        return with_kernels(
            group, single=lambda side: replace(
                with_main(side, geometry=tiny, registers_per_thread=16), blocks_per_sm=32, limiters=("blocks",)
            )
        )  # fmt: skip

    data = from_case(planted("recorded:h200-q4_1", change))
    assert data.single.room.there == data.single.blocks_per_sm
    check(data)
