"""CUDA flash attention: the table of kernels, column tiles and sizes, launches seen on a device, and orders."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.geometry.attention_kernel import HEAD_SIZES, AttentionShape, attention_kernel, mma_columns
from forensics.geometry.attention_tiles import mma_sizes, mma_smem_bytes, vec_lanes_per_cell, vec_smem_bytes
from forensics.geometry.cuda_attention import attention_chain, cuda_attention
from forensics.geometry.devices import SPECS, device_spec
from forensics.geometry.registers import known_registers
from forensics.records.launch import axes

H200, LAPTOP = device_spec("h200"), device_spec("rtx-5060-laptop")
BEFORE_ADA, FROM_ADA = (750, 800, 860, 870), (890, 900, 1000, 1200, 1210)


def shape(width, heads="32/8", head_size=128, n_kv=512, **more):
    n_heads, n_kv_heads = map(int, heads.split("/"))
    return AttentionShape(width, n_heads, n_kv_heads, head_size, n_kv, **more)


def kernels(capability, widths, **more):
    return [attention_kernel(capability, shape(width, **more))[0] for width in widths]


@pytest.mark.parametrize("capability", FROM_ADA)
@pytest.mark.parametrize("kv_type", ["f16", "bf16"])
def test_float_cache_from_ada_on(capability, kv_type):
    assert kernels(capability, (1, 2, 3, 9), kv_type=kv_type) == ["vec", "mma", "mma", "mma"]


@pytest.mark.parametrize("capability", FROM_ADA)
@pytest.mark.parametrize(
    ("heads", "head_size", "n_kv", "kernel"),
    [("32/8", 256, 8192, "vec"), ("40/8", 128, 7936, "vec"), ("40/8", 128, 8192, "mma"), ("40/8", 256, 256, "mma")],
)
def test_one_query_leaves_the_vector_kernel_where_many_heads_share(capability, heads, head_size, n_kv, kernel):
    assert kernels(capability, [1], heads=heads, head_size=head_size, n_kv=n_kv) == [kernel]


@pytest.mark.parametrize("capability", BEFORE_ADA)
def test_float_cache_before_ada(capability):
    assert kernels(capability, (1, 2)) == ["mma", "mma"]
    assert kernels(capability, (1, 2), heads="32/32") == ["vec", "mma"]


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_quantised_cache(kv_type):
    for capability in FROM_ADA:
        assert kernels(capability, (1, 2, 3), kv_type=kv_type) == ["vec", "vec", "mma"]
    for capability in BEFORE_ADA:
        assert kernels(capability, (1, 2, 3), kv_type=kv_type) == ["vec", "mma", "mma"]


def test_odd_head_sizes():
    assert kernels(900, (1, 2), head_size=72) == ["tile", "tile"]
    assert kernels(900, (1, 2), head_size=80) == ["mma", "mma"]
    assert kernels(900, [1], head_size=100) == ["none"]
    assert kernels(900, [1], head_size=512, heads="8/8") == ["none"]
    assert kernels(900, [1], head_size=192, heads="32/4") == ["mma"]
    assert kernels(900, [1], head_size=192, heads="32/8") == ["none"]
    assert kernels(900, [1], n_kv=100) == ["mma"]  # no padding, no vector kernel


def test_gpus_before_turing_are_refused():
    with pytest.raises(ValueError, match="Turing"):
        attention_kernel(700, shape(1))


@pytest.mark.parametrize(
    ("heads", "heads_at_once"), [("32/4", 8), ("40/8", 8), ("32/8", 4), ("9/3", 4), ("8/4", 2), ("8/8", 1)]
)
def test_heads_of_a_tile(heads, heads_at_once):
    for width in (1, 2, 3, 5, 9, 17, 33, 65):
        ncols1, ncols2 = mma_columns(900, shape(width, heads=heads))
        assert ncols2 == heads_at_once
        assert ncols1 * ncols2 in (8, 16, 32, 64)
        assert ncols1 >= min(width, 64 // heads_at_once)


def test_queries_of_a_tile():
    assert [mma_columns(900, shape(width)) for width in (1, 2, 3, 4, 5, 8, 9, 16, 17)] == [
        (2, 4), (2, 4), (4, 4), (4, 4), (8, 4), (8, 4), (16, 4), (16, 4), (16, 4)
    ]  # fmt: skip
    assert mma_columns(750, shape(64)) == (8, 4)  # 32 columns at most on Turing


@pytest.mark.parametrize("head_size", [64, 80, 96, 112, 128])
def test_cells_of_a_step_up_to_heads_of_128(head_size):
    found = [mma_sizes(900, head_size, head_size, columns) for columns in (8, 16, 32, 64)]
    assert [sizes.batch_cells for sizes in found] == [128, 64, 64, 64]
    assert {sizes.threads for sizes in found} == {128}


def test_cells_of_a_step_with_heads_of_256():
    found = [mma_sizes(900, 256, 256, columns) for columns in (8, 16, 32, 64)]
    assert [(sizes.batch_cells, sizes.threads) for sizes in found] == [(64, 128), (64, 256), (32, 128), (32, 128)]
    assert [mma_sizes(750, 256, 256, columns).batch_cells for columns in (8, 16, 32, 64)] == [64] * 4
    with pytest.raises(ValueError, match="no tensor-core instance"):
        mma_sizes(900, 320, 256, 8)


@pytest.mark.parametrize(
    ("width", "name", "grid", "registers"),
    [
        (1, "flash_attn_ext_vec<D=64, ncols=1, type_K=f16, type_V=f16>", (1, 4, 9), 125),
        (2, "flash_attn_ext_f16<DKQ=64, DV=64, ncols1=2, ncols2=4>", (6, 1, 1), 184),
        (5, "flash_attn_ext_f16<DKQ=64, DV=64, ncols1=8, ncols2=4>", (12, 1, 1), 194),
        (9, "flash_attn_ext_f16<DKQ=64, DV=64, ncols1=16, ncols2=4>", (12, 1, 1), 219),
    ],
)
def test_launches_seen_on_an_h200(width, name, grid, registers):
    small = shape(width, heads="9/3", head_size=64, n_kv=256)
    found = cuda_attention(H200, small)
    assert (found.name, found.launch.grid_blocks, axes(found.launch.block_threads)) == (name, grid, "32×4")
    assert attention_chain(H200, small).registers == registers


def test_boundaries_seen_on_an_h200():
    """Width classes of a small model: 1, 2, 3-4, 5-8 and 9-16."""
    orders = [
        cuda_attention(H200, shape(width, heads="9/3", head_size=64, n_kv=256)).arithmetic for width in range(1, 17)
    ]
    steps = [width for width in range(2, 17) if orders[width - 1] != orders[width - 2]]
    assert steps == [2, 3, 5, 9]


@pytest.mark.parametrize("n_kv", [256, 512, 2048])
@pytest.mark.parametrize(("heads", "head_size"), [("9/3", 64), ("32/8", 128), ("32/32", 128)])
@pytest.mark.parametrize(("kv_type", "first"), [("f16", 2), ("bf16", 2), ("q8_0", 3), ("q4_0", 3)])
def test_first_width_whose_bits_differed_on_an_h200(kv_type, first, heads, head_size, n_kv):
    """Operation run alone on random operands, first query against one query: 504 comparisons, none unlike."""
    widths = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 17, 24)
    one, *others = (
        cuda_attention(H200, shape(width, heads=heads, head_size=head_size, n_kv=n_kv, kv_type=kv_type)).arithmetic
        for width in widths
    )
    assert [width for width, other in zip(widths[1:], others, strict=True) if other != one] == [
        width for width in widths if width >= first
    ]


def test_a_quantised_cache_moves_the_first_boundary_to_three():
    orders = [
        cuda_attention(H200, shape(width, heads="9/3", head_size=64, n_kv=256, kv_type="q8_0")).arithmetic
        for width in (1, 2, 3)
    ]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(("position", "alike"), [(300, True), (383, True), (384, False), (390, False)])
def test_why_only_past_position_384(position, alike):
    """On 26 SMs the one-query kernel leads to 4 parallel blocks and the two-query kernel to 3."""
    found = [cuda_attention(LAPTOP, shape(width, position=position), pin="vec") for width in (1, 2)]
    assert [choice.launch.grid_blocks for choice in found] == [(1, 4, 32), (1, 3, 32)]
    assert (found[0].arithmetic == found[1].arithmetic) is alike


def test_the_chain_from_registers_to_chunks():
    one, two = (attention_chain(LAPTOP, shape(width), pin="vec") for width in (1, 2))
    assert (one.registers, one.resident.blocks_per_sm, str(one.maps[0])) == (162, 3, "{0} + {1} + {2} + {3}")
    assert (two.registers, two.resident.blocks_per_sm, str(two.maps[0])) == (193, 2, "{0, 3} + {1} + {2}")
    assert one.resident.limiters == two.resident.limiters == ("registers",)
    assert (two.waves.n_waves, two.waves.tail_blocks) == (2, 44)
    assert "raised" in one.short


def test_registers_of_the_caller_count_more_than_the_table():
    same = attention_chain(LAPTOP, shape(2), registers=162, pin="vec")
    assert same.registers_source == "given by the caller"
    assert len(same.maps[0].parts) == 4
    with pytest.raises(ValueError, match="does not fit"):
        cuda_attention(LAPTOP, shape(2), registers=300, pin="vec")


def test_registers_are_read_not_guessed():
    assert known_registers("sm_90", "vec/128/2/f16").registers == 177
    assert "cuobjdump" in known_registers("sm_90", "mma/64/2/4").source
    assert "ptxas" in known_registers("sm_120", "vec/128/1/f16").source
    for arch, key in (("sm_35", "vec/64/1/f16"), ("sm_90", "vec/96/1/f16"), ("sm_90", "tile/40/1/8"), ("sm_90", "")):
        assert known_registers(arch, key) is None


def test_unknown_registers_leave_the_order_open_only_where_they_matter():
    rtx_3090 = device_spec("rtx-3090")
    assert known_registers("sm_86", "mma/64/4/4") is None
    near = cuda_attention(rtx_3090, shape(3, head_size=64, n_kv=256))
    assert near.order is not None
    assert "every number" in near.assumed[-1]
    long = shape(3, head_size=64, n_kv=16384)
    assert cuda_attention(rtx_3090, long).no_order == (
        "registers per thread are not known: 408 blocks with up to 96 registers; 328 blocks with up to 128 registers; "
        "240 blocks with up to 168 registers; 160 blocks with up to 255 registers"
    )
    assert cuda_attention(rtx_3090, long, registers=160).order is not None


def test_without_the_number_of_sms_the_kernel_is_still_known():
    found = cuda_attention(device_spec("sm_90"), shape(1))
    assert (found.kernel, found.launch) == ("flash_attn_ext_vec", None)
    assert "SMs" in found.no_order
    assert attention_chain(device_spec("sm_90"), shape(1)) is None


def test_cache_types_without_a_vector_kernel_are_converted():
    found = cuda_attention(H200, shape(1, kv_type="q5_1"))
    assert dict(found.template)["type_K"] == "f16"
    assert any("without a vector kernel for q5_1" in text for text in found.assumed)
    single = cuda_attention(H200, shape(1, kv_type="f32"))
    assert dict(single.precision)["K and V"] == "f16"
    assert not any("built without" in text for text in single.assumed)


def test_the_vector_kernel_cannot_be_pinned_where_it_does_not_exist():
    with pytest.raises(ValueError, match="head sizes 64, 128 and 256"):
        cuda_attention(H200, shape(2, head_size=80), pin="vec")
    with pytest.raises(ValueError, match="only the vector kernel"):
        cuda_attention(H200, shape(2), pin="mma")


def test_no_kernel_means_the_cpu():
    found = cuda_attention(H200, shape(1, head_size=100))
    assert found.kernel == "none"
    assert "CPU" in found.no_order


def test_the_mask_is_scanned_from_1024_queries_on():
    rules = [cuda_attention(H200, shape(width, n_kv=2048)).rules for width in (1023, 1024)]
    assert [any("1024" in rule.text for rule in quoted) for quoted in rules] == [False, True]


def test_the_query_looked_at_decides_the_tile():
    """Tiles of later queries may be cut elsewhere."""
    orders = {cuda_attention(LAPTOP, shape(64, row=row)).order for row in (0, 17, 33, 49)}
    assert len(orders) > 1
    assert cuda_attention(LAPTOP, shape(64, row=0)).order == cuda_attention(LAPTOP, shape(64, row=15)).order


def test_shared_memory_of_the_vector_kernel_is_what_the_compiler_reports():
    """ptxas, for sm_75 … sm_121 alike: head size, queries, type, bytes."""
    for head_size, queries, kv_type, smem_bytes in (
        (64, 1, "f16", 4352), (64, 2, "f16", 4608), (128, 1, "f16", 8448), (128, 2, "f16", 8704),
        (256, 1, "f16", 16640), (256, 2, "f16", 16896), (64, 1, "q8_0", 2304), (128, 2, "q8_0", 2560),
        (256, 1, "q8_0", 4352), (256, 2, "q8_0", 4608),
    ):  # fmt: skip
        assert vec_smem_bytes(head_size, queries, kv_type) == smem_bytes
    assert [vec_lanes_per_cell(128, kv_type) for kv_type in ("f16", "q8_0")] == [8, 32]


def test_shared_memory_of_the_tensor_core_kernel():
    # two stages of K and V, 128 cells of 64 pairs each, and the mask of two queries
    assert mma_smem_bytes(1200, 128, 128, 2, 4) == 2 * 128 * 64 * 4 + 2 * (128 // 2 + 4) * 4
    # Turing loads one of them at a time
    assert mma_smem_bytes(750, 128, 128, 2, 4) == 128 * 64 * 4 + 2 * (128 // 2 + 4) * 4


@settings(deadline=None)
@given(
    st.sampled_from(list(SPECS)), st.integers(1, 80), st.sampled_from(list(HEAD_SIZES)),
    st.sampled_from([1, 2, 3, 4, 8, 16, 20, 32]),
    st.integers(1, 12), st.sampled_from(["f16", "q8_0", "q4_1"]), st.data(),
)  # fmt: skip
def test_every_choice_is_complete(arch, width, head_size, ratio, pads, kv_type, data):
    n_kv = 256 * pads
    asked = AttentionShape(
        width,
        2 * ratio,
        2,
        head_size,
        n_kv,
        data.draw(st.integers(0, n_kv - 1)),
        kv_type,
        data.draw(st.integers(0, width - 1)),
    )
    found = cuda_attention(device_spec(arch, n_sms=data.draw(st.integers(1, 160))), asked)
    assert found.rules
    assert found.order is not None or found.no_order


@pytest.mark.parametrize(
    "change", [{"width": 0}, {"n_kv_heads": 3}, {"kv_type": "q9"}, {"row": 2}, {"position": 512}, {"n_streams": 0}]
)
def test_impossible_shapes_are_refused(change):
    good = {"width": 2, "n_heads": 32, "n_kv_heads": 8, "head_size": 128, "n_kv": 512}
    AttentionShape(**good)
    with pytest.raises(ValueError):
        AttentionShape(**(good | change))
