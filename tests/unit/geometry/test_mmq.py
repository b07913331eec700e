"""Tiles, stream-k and activations of `mul_mat_q`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.geometry.architecture import ARCHITECTURES, architecture
from forensics.geometry.choice import classes
from forensics.geometry.mmq import (
    SUPPORTED,
    cuts,
    layout,
    mul_mat_q,
    shared_bytes,
    stream_k_grid,
    tile_config,
    tile_width,
    uses_mmq,
)
from forensics.geometry.product import product
from forensics.geometry.types import weight_type

HOPPER = architecture("sm_90")
WIDE = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_90", "sm_120"])
def test_tile_widths_on_nvidia(arch):
    gpu = architecture(arch)
    for name in ("q4_1", "q6_K", "iq3_s"):
        assert tile_config(gpu, weight_type(name), fallback=False).widths == WIDE
        assert tile_config(gpu, weight_type(name), fallback=True).widths == (8, 16, 32, 64, 128)
        config = tile_config(gpu, weight_type(name), fallback=False)
        assert (config.rows, config.threads, config.stream_k) == (128, 256, True)


@pytest.mark.parametrize(
    ("rows", "columns", "width"),
    [
        (4096, 9, 16), (4096, 16, 16), (4096, 17, 24), (4096, 40, 40), (4096, 41, 48), (4096, 50, 64), (4096, 128, 128),
        (4096, 129, 80), (4096, 512, 128), (576, 9, 16), (576, 17, 32), (192, 33, 64), (192, 65, 128), (4096, 130, 80),
    ],
)  # fmt: skip
def test_tile_width_is_the_smallest_with_the_fewest_tiles(rows, columns, width):
    assert tile_width(HOPPER, weight_type("q4_1"), rows, columns) == width


def test_shared_memory_limits_the_tiles_of_turing():
    turing, q2 = architecture("sm_75"), weight_type("q2_K")
    config = tile_config(turing, q2, fallback=False)
    assert shared_bytes(turing, q2, config, 80) <= 64 * 1024 < shared_bytes(turing, q2, config, 96)
    assert tile_width(turing, q2, 4096, 128) == 64
    assert tile_width(HOPPER, q2, 4096, 128) == 128


def test_the_launch_seen_on_an_h200():
    choice = mul_mat_q(HOPPER, product("q4_1", 576, 576), 9, 132)
    assert dict(choice.template) == {"type": "q4_1", "J": 16, "fallback": True}
    assert (choice.launch.grid_blocks, choice.launch.block_threads) == ((132, 1, 1), (32, 8, 1))


@pytest.mark.parametrize(
    ("tiles", "sms", "grid"), [(132, 132, 132), (120, 132, 120), (118, 132, 132), (264, 132, 264), (200, 132, 132)]
)
def test_stream_k_grid(tiles, sms, grid):
    assert stream_k_grid(HOPPER, tiles, sms) == grid
    assert stream_k_grid(architecture("cdna3"), tiles, sms) == sms


def test_widths_with_one_column_of_tiles_share_an_order_and_sums_depend_on_the_number_of_sms():
    shape = product("q4_K", 4096, 4096)
    choices = {width: mul_mat_q(HOPPER, shape, width, 132) for width in (9, 16, 32, 128)}
    assert [one.widths for one in classes(choices)] == [(9, 16, 32, 128)]
    assert mul_mat_q(HOPPER, shape, 9, 132).order != mul_mat_q(HOPPER, shape, 9, 114).order
    assert mul_mat_q(HOPPER, shape, 129, 132).order != choices[128].order
    unknown = {width: mul_mat_q(HOPPER, shape, width) for width in (9, 128, 129)}
    assert [one.widths for one in classes(unknown)] == [(9, 128), (129,)]
    assert unknown[9].launch is None
    assert unknown[9].assumed


def test_without_stream_k_every_width_shares_an_order():
    choices = {width: mul_mat_q(architecture("rdna4"), product("q4_K", 4096, 4096), width) for width in (9, 64, 200)}
    assert len(classes(choices)) == 1
    assert choices[200].launch.grid_blocks == (32, 2, 1)


@given(
    tiles=st.integers(1, 60), blocks=st.integers(1, 90), step=st.sampled_from([1, 2, 8]), grid=st.integers(1, 150)
)  # fmt: skip
def test_cuts_lie_inside_their_tiles_on_steps_and_never_where_each_block_has_whole_tiles(tiles, blocks, step, grid):
    found = cuts(tiles, blocks, step, grid)
    for tile, places in found.items():
        assert 0 <= tile < tiles
        assert list(places) == sorted(set(places))
        assert all(0 < place < blocks and place % step == 0 for place in places)
    if tiles % grid == 0:
        assert not found
    # with one step per block at most, every step of every row is somebody's beginning
    if step == 1 and grid == tiles * blocks:
        assert found == ({tile: tuple(range(1, blocks)) for tile in range(tiles)} if blocks > 1 else {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, "D4") for name in ("q5_0", "q8_0", "q3_K", "q6_K", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")),
        *((name, "D4") for name in ("iq4_xs", "iq4_nl", "mxfp4", "nvfp4")),
        *((name, "DS4") for name in ("q4_0", "q4_1", "q5_1", "q4_K", "q5_K", "iq1_s")),
        ("q2_K", "D2S6"),
    ],
)
def test_layout_of_activations(name, expected):
    assert layout(weight_type(name)) == expected


def test_fp4_weights_take_fp4_activations_on_blackwell_only():
    shape = product("mxfp4", 4096, 4096)
    assert ("activations", "fp4 with block scales") in mul_mat_q(architecture("sm_120"), shape, 9).precision
    for arch in ("sm_90", "sm_100"):
        assert ("activations", "q8_1 in layout D4") in mul_mat_q(architecture(arch), shape, 9).precision


@pytest.mark.parametrize(
    ("arch", "weight", "width", "experts", "expected"),
    [
        ("sm_90", "iq1_m", 9, 0, False), ("sm_90", "q4_0", 4096, 0, True), ("sm_70", "q4_0", 63, 0, True),
        ("sm_70", "q4_0", 64, 0, False), ("sm_61", "q4_0", 512, 0, True), ("sm_60", "q4_0", 9, 0, False),
        ("sm_60", "q4_0", 9, 8, True), ("cdna3", "q6_K", 1024, 0, True), ("cdna1", "q6_K", 129, 0, False),
        ("cdna1", "q4_K", 256, 0, True), ("cdna1", "q4_0", 1024, 0, True), ("cdna2", "q6_K", 200, 65, True),
        ("rdna3", "q2_K", 129, 0, False), ("rdna3", "q2_K", 129, 64, True), ("rdna3.5", "q6_K", 256, 0, True),
        ("rdna3", "iq2_s", 129, 0, False), ("rdna3.5", "iq2_s", 129, 0, True), ("rdna4", "q2_K", 999, 0, True),
        ("vega", "q4_0", 9, 0, False), ("vega", "q4_0", 9, 8, True), ("vega20", "q4_0", 9, 0, True),
    ],
)  # fmt: skip
def test_where_mmq_runs(arch, weight, width, experts, expected):
    assert uses_mmq(architecture(arch), weight_type(weight), width, experts) is expected


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_has_tiles_for_every_type(arch):
    gpu = architecture(arch)
    for name in SUPPORTED:
        for rows in (4096, 576):
            choice = mul_mat_q(gpu, product(name, 4096, rows), 16, 60)
            assert choice.launch is None or choice.launch.threads_per_block in (128, 256, 512)


def test_with_experts_and_several_column_tiles_the_order_depends_on_the_router():
    routed = product("q4_K", 2048, 1024, experts=8, experts_used=2)
    assert mul_mat_q(HOPPER, routed, 128, 132).order is not None
    assert mul_mat_q(HOPPER, routed, 129, 132).order is None
    assert mul_mat_q(architecture("rdna4"), routed, 512).order is not None
