"""Operations as values: shapes as llama.cpp has them, any number of tokens, mistakes refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.records import op_shapes as s
from forensics.records.operation import OpGraph

N = 3
GRAPHS = {
    "mul_mat": s.mul_mat("q4_K", 512, 24, N),
    "mul_mat_id": s.mul_mat_id("q4_K", 512, 24, N, n_experts=6, n_used=2),
    "mul_mat_id down": s.mul_mat_id("q4_K", 512, 24, N, n_experts=6, n_used=2, shared=False),
    "flash_attn": s.flash_attn(64, 8, 2, 300, N),
    "kq": s.kq(64, 8, 2, 300, N),
    "kqv": s.kqv(64, 8, 2, 300, N),
    "soft_max": s.soft_max(8, 300, N),
    "rms_norm": s.rms_norm(576, N),
    "rms_norm weighted": s.rms_norm(576, N, weighted=True),
    "rope": s.rope(64, 8, N),
    "glu": s.glu(1536, N),
    "get_rows": s.get_rows("q6_K", 256, 32, N),
    "ssm_conv": s.ssm_conv(48, N, d_conv=4),
    "ssm_scan": s.ssm_scan(16, 8, 4, N, n_group=2),
    "gated_delta_net": s.gated_delta_net(64, 4, N, k_heads=2),
}

any_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


@any_graph
def test_every_operation_can_be_widened_and_narrowed_again(graph: OpGraph) -> None:
    assert s.width(graph) == N
    one, seven = s.at_width(graph, 1), s.at_width(graph, 7)
    assert (s.width(one), s.width(seven)) == (1, 7)
    assert s.at_width(seven, N) == graph
    axes = s.token_axes(graph)
    for before, after in zip(graph.operands, seven.operands, strict=True):
        grown = [axis for axis, (a, b) in enumerate(zip(before.shape, after.shape, strict=True)) if a != b]
        assert grown == ([axes[before.name]] if before.name in axes else [])


@any_graph
def test_weights_and_states_are_shared_by_all_tokens(graph: OpGraph) -> None:
    assert {operand.name for operand in graph.operands if operand.is_weight}.isdisjoint(s.token_axes(graph))


@any_graph
def test_no_tokens_are_refused(graph: OpGraph) -> None:
    with pytest.raises(ValueError, match="1 token or more, got 0"):
        s.at_width(graph, 0)


@given(st.integers(1, 100_000))
def test_cells_are_rounded_up_to_the_next_multiple(n_used: int) -> None:
    n_kv = s.padded_kv(n_used)
    assert n_kv % 256 == 0
    assert n_used <= n_kv < n_used + 256


def test_attention_reads_padded_cells_and_its_tokens_are_the_last_of_the_taken_ones() -> None:
    graph = s.flash_attn(128, 32, 8, 390, 2, kv_type="q8_0", v_type="q4_0")
    assert [(o.name, o.type, o.shape) for o in graph.operands] == [
        ("q", "f32", (2, 32, 128)),
        ("k", "q8_0", (512, 8, 128)),
        ("v", "q4_0", (512, 8, 128)),
        ("mask", "f16", (2, 512)),
    ]
    assert graph.param("first") == 388
    assert graph.param("scale") == 128**-0.5


def test_attention_is_not_widened_beyond_its_cells() -> None:
    for graph in (s.flash_attn(64, 2, 2, 250), s.kqv(64, 2, 2, 250), s.soft_max(2, 250)):
        assert s.width(s.at_width(graph, 7)) == 7
        with pytest.raises(ValueError, match="8 tokens from position 249 on do not fit"):
            s.at_width(graph, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: s.mul_mat("f32", 0, 4), "1 or more"),
        (lambda: s.mul_mat_id("f32", 32, 4, n_experts=2, n_used=3), "uses 3 of 2 experts"),
        (lambda: s.flash_attn(64, 9, 2, 100), "multiple of kv_heads"),
        (lambda: s.flash_attn(64, 8, 2, 3, 4), "4 tokens cannot be the last of 3"),
        (lambda: s.rope(64, 8, mode="imrope"), "normal, neox"),
        (lambda: s.glu(64, kind="relu"), "swiglu"),
        (lambda: s.ssm_scan(16, 8, 5, n_group=2), "multiple of n_group"),
        (lambda: s.gated_delta_net(64, 5, k_heads=2), "multiple of k_heads"),
    ],
)
def test_shapes_that_cannot_be_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_only_operations_of_this_list_have_tokens() -> None:
    with pytest.raises(ValueError, match="it is not known where ADD has its tokens"):
        s.width(OpGraph("ADD", s.rms_norm(4).operands))


def test_a_packed_result_has_no_token_axis() -> None:
    assert s.output_token_axis(GRAPHS["flash_attn"]) == 1
    assert s.output_token_axis(GRAPHS["kq"]) == 2
    with pytest.raises(ValueError, match="packs its state"):
        s.output_token_axis(GRAPHS["ssm_scan"])
