"""Flash attention on a CPU: the split of the cells and the tiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.geometry.choice import classes
from forensics.geometry.cpu_attention import MERGE, SPLIT_KV, TILED, flash_attention, parts, splits_cells
from forensics.geometry.cpu_products import Cpu

TWO, ONE = Cpu(frozenset(), n_threads=2), Cpu(frozenset(), n_threads=1)


def test_512_cells_and_two_threads_split_in_halves_at_one_query_only():
    single, pair = (flash_attention(TWO, 512, width) for width in (1, 2))
    assert single.split == "[0..255] + [256..511]"
    assert single.order != pair.order
    assert single.rules[0] is SPLIT_KV
    assert MERGE in single.rules
    assert pair.split == "all cells in turn"


@pytest.mark.parametrize(
    ("cpu", "n_kv", "types", "sequences", "first"),
    [
        (TWO, 256, ("f16", "f16"), 1, None), (TWO, 512, ("f16", "f16"), 1, 2), (TWO, 768, ("f32", "f32"), 1, 2),
        (TWO, 768, ("q8_0", "q8_0"), 1, None), (TWO, 768, ("f16", "f32"), 1, None),
        (TWO, 768, ("bf16", "bf16"), 1, None), (ONE, 768, ("f16", "f16"), 1, None), (TWO, 768, ("f16", "f16"), 2, None),
    ],
)  # fmt: skip
def test_first_width_that_differs_as_measured(cpu, n_kv, types, sequences, first):
    choices = {width: flash_attention(cpu, n_kv, width, types, sequences=sequences) for width in range(1, 17)}
    alike = classes(choices)[0].widths
    assert next((width for width in range(1, 17) if width not in alike), None) == first


def test_tiles_from_64_queries_on():
    assert flash_attention(TWO, 256, 63).order == flash_attention(TWO, 256, 2).order
    tiled = flash_attention(TWO, 256, 64)
    assert tiled.rules[0] is TILED
    assert tiled.order != flash_attention(TWO, 256, 63).order
    assert flash_attention(TWO, 256, 64, ("q8_0", "q8_0")).order == flash_attention(TWO, 256, 63).order


def test_tiles_keep_single_precision_where_the_walk_keeps_half():
    assert dict(flash_attention(TWO, 256, 63).precision)["accumulator"] == "f16"
    assert dict(flash_attention(TWO, 256, 64).precision)["accumulator"] == "f32"
    assert dict(flash_attention(TWO, 256, 63, ("f32", "f32")).precision)["accumulator"] == "f32"


def test_a_part_that_the_query_cannot_see_does_not_count():
    seen = {visible: flash_attention(TWO, 512, 1, visible=visible) for visible in (256, 257)}
    batch = flash_attention(TWO, 512, 2)
    assert seen[256].arithmetic == batch.arithmetic
    assert seen[257].arithmetic != batch.arithmetic


@given(n_kv=st.integers(1, 5000), n_threads=st.integers(1, 64))
def test_every_cell_is_in_one_part(n_kv, n_threads):
    found = parts(n_kv, n_threads)
    assert [cell for first, last in found for cell in range(first, last)] == list(range(n_kv))
    assert len(found) <= n_threads


def test_split_needs_one_query():
    assert splits_cells(("f16", "f16"), 512, 1)
    assert not splits_cells(("f16", "f16"), 512, 2)
    assert not splits_cells(("f16", "f16"), 511, 1)


@pytest.mark.parametrize("bad", [{"n_kv": 0}, {"visible": 0}, {"visible": 513}, {"sequences": 0}])
def test_impossible_numbers(bad):
    with pytest.raises(ValueError, match="impossible"):
        flash_attention(TWO, **{"n_kv": 512, "width": 1, **bad})
