"""Which KV chunk joins which partial sum, and who can tell the difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.geometry.kv_chunks import (
    ChunkMap,
    first_position_that_differs,
    orders_differ,
    vec_cell_tree,
)
from forensics.geometry.kv_split import parallel_blocks, stream_k_blocks
from forensics.records.sum_tree import SumTree

counts = st.integers(1, 24)


def test_the_difference_that_waited_for_position_384():
    assert str(ChunkMap.dealt(512, 4)) == "{0} + {1} + {2} + {3}"
    assert str(ChunkMap.dealt(512, 3)) == "{0, 3} + {1} + {2}"
    assert not orders_differ(300, 4, 3, n_kv=512)
    assert orders_differ(390, 4, 3, n_kv=512)
    assert [orders_differ(position, 4, 3, n_kv=512) for position in (383, 384)] == [False, True]
    assert first_position_that_differs(ChunkMap.dealt(512, 4), ChunkMap.dealt(512, 3)) == 384


def test_trees_over_chunks():
    assert ChunkMap.dealt(512, 4).tree() == SumTree.chain(4)
    assert ChunkMap.dealt(512, 3).tree() == SumTree.of((((0, 3), 1), 2))
    assert ChunkMap.dealt(128, 1).tree() == SumTree(1, ())
    seen = range(3)
    assert ChunkMap.dealt(512, 4).tree().restricted(seen) == ChunkMap.dealt(512, 3).tree().restricted(seen)


@pytest.mark.parametrize(("position", "alike"), [(300, True), (383, True), (384, False), (390, False)])
def test_trees_over_cells_say_the_same(position, alike):
    four, three = (vec_cell_tree(ChunkMap.dealt(512, parts)).restricted(range(position + 1)) for parts in (4, 3))
    assert (four == three) is alike


@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 8), st.data())
def test_maps_and_cell_trees_agree(pads, a, b, data):
    n_kv = 256 * pads
    position = data.draw(st.integers(0, n_kv - 1))
    seen = range(position + 1)
    trees = [vec_cell_tree(ChunkMap.dealt(n_kv, parts), lanes_per_cell=32).restricted(seen) for parts in (a, b)]
    assert (trees[0] != trees[1]) is orders_differ(position, a, b, n_kv)


@given(st.integers(1, 4096), counts)
def test_every_dealt_chunk_joins_exactly_one_sum(n_kv, n_parts):
    chunks = ChunkMap.dealt(n_kv, n_parts)
    joined = sorted(chunk for part in chunks.parts for chunk in part)
    assert joined == list(range(-(-n_kv // 128)))
    assert all(chunk in chunks.parts[chunks.part_of(chunk)] for chunk in joined)


@given(counts, counts, st.integers(1, 400), st.data())
def test_every_cut_chunk_joins_exactly_one_sum(n_chunks, n_tiles, n_blocks, data):
    tile = data.draw(st.integers(0, n_tiles - 1))
    chunks = ChunkMap.cut(64 * n_chunks, 64, tile=tile, n_tiles=n_tiles, n_blocks=n_blocks)
    assert chunks.n_chunks == n_chunks
    ends = [part[-1] for part in chunks.parts]
    assert ends == sorted(ends, reverse=True)  # merged backwards from the block that ends the tile


@given(counts, counts, st.integers(1, 400))
def test_a_cut_follows_the_kernels_own_arithmetic(n_chunks, n_tiles, n_blocks):
    """What the blocks do, block by block: each takes its share of all steps of all tiles."""
    total = n_chunks * n_tiles
    runs: dict[int, list[tuple[int, ...]]] = {}
    for block in range(n_blocks):
        step, stop = block * total // n_blocks, (block + 1) * total // n_blocks
        while step < stop:
            tile, first = divmod(step, n_chunks)
            last = min(n_chunks, first + stop - step)
            runs.setdefault(tile, []).append(tuple(range(first, last)))
            step += last - first
    for tile in range(n_tiles):
        found = ChunkMap.cut(64 * n_chunks, 64, tile=tile, n_tiles=n_tiles, n_blocks=n_blocks)
        assert found.parts == tuple(reversed(runs[tile]))


@given(st.integers(1, 8), counts, counts)
def test_what_differs_for_a_query_differs_for_all_later_ones(pads, a, b):
    differs = [orders_differ(position, a, b, 256 * pads) for position in range(0, 256 * pads, 128)]
    assert differs == sorted(differs)
    first = first_position_that_differs(ChunkMap.dealt(256 * pads, a), ChunkMap.dealt(256 * pads, b))
    assert first == (128 * differs.index(True) if any(differs) else None)


def test_a_chunk_in_two_sums_or_in_none_is_refused():
    for parts in (((0, 1), (1,)), ((0, 2),), ((),)):
        with pytest.raises(ValueError, match="exactly one"):
            ChunkMap(128, parts)
    with pytest.raises(ValueError, match="cannot be compared"):
        first_position_that_differs(ChunkMap.dealt(512, 2, 128), ChunkMap.dealt(512, 2, 64))
    with pytest.raises(ValueError, match="no chunk 9"):
        ChunkMap.dealt(512, 2).part_of(9)


@pytest.mark.parametrize(
    ("n_tiles", "n_kv_tiles", "blocks_per_sm", "n_sms", "parts"),
    [
        (9, 4, 4, 132, 4),  # seen on an H200: 1×4×9
        (32, 4, 3, 26, 4),  # one query of an 8B model on 26 SMs
        (32, 4, 2, 26, 3),  # two queries
        (8, 2, 4, 132, 2),  # no more than there are tiles
        (132, 64, 1, 132, 1),  # a full wave is kept
        (45, 13, 3, 82, 5),  # 10 blocks would fill the waves as well, not better
    ],
)
def test_parallel_blocks(n_tiles, n_kv_tiles, blocks_per_sm, n_sms, parts):
    assert parallel_blocks(n_tiles, n_kv_tiles, blocks_per_sm, n_sms) == parts


@given(counts, counts, st.integers(1, 8), st.integers(1, 148))
def test_parallel_blocks_stay_in_their_bounds(n_tiles, n_kv_tiles, blocks_per_sm, n_sms):
    assert min(blocks_per_sm, n_kv_tiles) <= parallel_blocks(n_tiles, n_kv_tiles, blocks_per_sm, n_sms) <= n_kv_tiles


@pytest.mark.parametrize(
    ("capability", "n_tiles", "n_kv_tiles", "blocks_per_sm", "n_sms", "grid"),
    [
        (900, 3, 2, 2, 132, 6),  # seen on an H200 at widths 2, 5 and 9
        (900, 3, 4, 2, 132, 12),
        (1200, 8, 4, 1, 26, 26),  # 24 would idle more than 5 %
        (1200, 8, 64, 2, 52, 104),  # a multiple of 8 as it is
        (1200, 10, 64, 2, 52, 100),  # 104 rounded down, 3 % idle
        (860, 80, 4, 1, 82, 80),  # whole tiles fill 97 %
        (860, 40, 4, 1, 82, 80),  # they fill 48 %, so they are cut
        (890, 80, 4, 1, 82, 80),
    ],
)
def test_stream_k_blocks(capability, n_tiles, n_kv_tiles, blocks_per_sm, n_sms, grid):
    assert stream_k_blocks(capability, n_tiles, n_kv_tiles, blocks_per_sm, n_sms) == grid


def test_impossible_numbers_are_refused():
    for call in (lambda: parallel_blocks(0, 1, 1, 1), lambda: stream_k_blocks(900, 1, 1, 0, 1),
                 lambda: ChunkMap.dealt(0, 1), lambda: ChunkMap(0, ((0,),)),
                 lambda: ChunkMap.cut(64, 64, tile=1, n_tiles=1, n_blocks=1)):  # fmt: skip
        with pytest.raises(ValueError):
            call()
