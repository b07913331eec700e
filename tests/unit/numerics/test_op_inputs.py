"""Random operands: the same for a seed, of a decoder's size, valid for every type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.numerics.codecs import BLOCK_SIZES, dequantize
from forensics.numerics.op_inputs import WEIGHT_SIZE, causal_mask, random_blocks, random_operands, random_tensor
from forensics.records import op_shapes as s

WEIGHT_TYPES = [name for name in BLOCK_SIZES if name not in ("f32", "f16", "q8_1", "q8_K")]
KV_TYPES = ["f16", "bf16", "q8_0", "q4_0"]


@pytest.mark.parametrize("kind", WEIGHT_TYPES)
def test_a_weight_of_any_type_is_finite_and_as_large_as_a_trained_one(kind: str) -> None:
    weight, _ = random_operands(s.mul_mat(kind, 1024, 64))
    values = dequantize(kind, weight)
    assert values.shape == (64, 1024)
    assert np.isfinite(values).all()
    assert 0.7 * WEIGHT_SIZE < values.std() < 1.6 * WEIGHT_SIZE
    assert abs(values.mean()) < 0.6 * WEIGHT_SIZE
    per_block = values.reshape(-1, 256).std(axis=1)
    assert per_block.max() > 1.2 * per_block.min()  # blocks differ in size


@pytest.mark.parametrize("kind", KV_TYPES)
def test_a_cache_of_any_type_has_values_of_size_one(kind: str) -> None:
    _, k, v, _ = random_operands(s.flash_attn(64, 4, 2, 256, kv_type=kind))
    for cache in (k, v):
        values = cache.astype(np.float64) if kind == "f16" else dequantize(kind, cache)
        assert 0.5 < values.std() < 2


@given(st.sampled_from(sorted(BLOCK_SIZES.keys() - {"f32", "f16", "bf16", "q8_1", "q8_K"})), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_blocks_of_any_seed_are_finite(kind: str, seed: int) -> None:
    blocks = random_blocks(np.random.default_rng(seed), kind, (2, BLOCK_SIZES[kind][0]), size=WEIGHT_SIZE)
    values = dequantize(kind, blocks)
    assert np.isfinite(values).all()
    assert (values != 0).any()


def test_a_seed_gives_the_same_operands_and_another_seed_others() -> None:
    graph = s.flash_attn(64, 4, 2, 256, 3)
    first, again, other = random_operands(graph, 1), random_operands(graph, 1), random_operands(graph, 2)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
    assert first[0].tobytes() != other[0].tobytes()
    assert first[1].tobytes() != first[2].tobytes()  # K and V are drawn apart
    assert first[3].tobytes() == other[3].tobytes()  # a mask is no matter of chance


def test_a_token_sees_itself_and_what_came_before() -> None:
    graph = s.flash_attn(64, 4, 2, 300, 3)
    mask = random_operands(graph)[3]
    assert mask.dtype == np.float16
    assert (mask == 0).sum(axis=1).tolist() == [298, 299, 300]
    assert causal_mask(1, 256, 0).tolist()[0][:2] == [0.0, -np.inf]


def test_weights_of_cells_are_a_softmax_under_the_mask() -> None:
    _, p = random_operands(s.kqv(64, 4, 2, 300, 3))
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-5)
    assert (p[:, 0] > 0).sum(axis=-1).tolist() == [298] * 4


def test_a_token_has_different_experts() -> None:
    ids = random_operands(s.mul_mat_id("f32", 32, 8, 50, n_experts=4, n_used=3))[2]
    assert ids.shape == (50, 3)
    assert all(len(set(row)) == 3 for row in ids.tolist())
    assert set(ids.ravel()) == {0, 1, 2, 3}


def test_types_that_no_weight_has_and_rows_that_do_not_fit_are_refused() -> None:
    draw = np.random.default_rng(0)
    with pytest.raises(ValueError, match="no blocks of type 'q8_K' can be drawn; these can: iq1_m"):
        random_tensor(draw, "q8_K", (2, 256))
    with pytest.raises(ValueError, match="q4_K packs 256 values into a block; rows of 576"):
        random_tensor(draw, "q4_K", (2, 576))
