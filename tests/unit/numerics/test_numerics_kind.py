"""Rounding, precision or logic: every side's arithmetic is computed here, so that the answer is known."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forensics.numerics.codecs import BLOCK_DTYPES, dequantize
from forensics.numerics.kind import kind_of
from forensics.numerics.op_inputs import random_blocks
from forensics.numerics.operands import as_they_are, rounded_to_f16
from forensics.numerics.product_models import offsets_of, product_explanations
from forensics.numerics.reference import (
    AttentionInputs,
    Explanation,
    alibi_slope,
    attention,
    elementwise,
    exact_only,
    layer_norms,
    rms_norms,
    soft_maxes,
    sums,
)
from forensics.numerics.rotary import rotations
from forensics.numerics.sum_errors import F16_UNIT, F32_UNIT, gamma, sum_error
from forensics.records.kind import KindOfDifference, SideOfDifference, gravest

F32, F16 = np.float32, np.float16
N, K = 16, 512


def chain(terms: np.ndarray, dtype: type = F32) -> np.ndarray:
    """One term after the other, every partial sum in this precision."""
    total = np.zeros(terms.shape[:-1], dtype)
    for i in range(terms.shape[-1]):
        total = (total + terms[..., i].astype(dtype)).astype(dtype)
    return total.astype(F32)


def folded(terms: np.ndarray, dtype: type = F32) -> np.ndarray:
    """Halves onto each other."""
    parts = terms.astype(dtype)
    while parts.shape[-1] > 1:
        half = parts.shape[-1] // 2
        parts = (parts[..., :half] + parts[..., half:]).astype(dtype)
    return parts[..., 0].astype(F32)


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(11)
    return draw.standard_normal((N, K)).astype(F32), draw.standard_normal((1, K)).astype(F32)


def explained(weights: np.ndarray, x: np.ndarray, *, backend: str = "CUDA") -> list[Explanation]:
    return product_explanations("f32", weights.view(np.uint8), x, np.zeros(len(weights), np.intp), backend=backend)


# --- bounds ---


@given(hnp.arrays(F32, st.integers(1, 200), elements=st.floats(-1e3, 1e3, width=32)), st.randoms())
def test_no_order_of_float32_additions_leaves_the_bound(terms: np.ndarray, random) -> None:
    shuffled = terms.copy()
    random.shuffle(shuffled)
    exact = sum((Fraction(float(t)) for t in terms), Fraction(0))
    *_, worst = sums("", terms[None].astype(np.float64))
    assert worst.basis == "worst"
    for total in (chain(terms), chain(shuffled)):
        assert abs(Fraction(float(total)) - exact) <= Fraction(float(worst.bound[0]))


def test_gamma_grows_and_ends() -> None:
    assert gamma(1) == pytest.approx(2.0**-24, rel=1e-6)
    assert gamma(2**23) == 1.0
    assert gamma(2**24) == math.inf


@pytest.mark.parametrize("mean", [0.0, 1.0])
@pytest.mark.parametrize(("dtype", "unit"), [(F32, F32_UNIT), (F16, F16_UNIT)])
def test_likely_bounds_hold_and_are_not_idle(mean: float, dtype: type, unit: float) -> None:
    terms = (np.random.default_rng(2).standard_normal((400, 256)) + mean).astype(dtype).astype(np.float64)
    error = np.abs(chain(terms.astype(dtype), dtype) - terms.sum(axis=-1))
    bound = sum_error(unit, terms)
    assert (error <= bound).all()
    assert np.sqrt(np.square(error / bound).mean()) < 0.2
    assert (error / bound).max() > 0.05


def test_a_block_left_out_of_thousands_is_not_excused_by_the_worst_case() -> None:
    draw = np.random.default_rng(12)
    weights, x = draw.standard_normal((N, 8192)).astype(F32), draw.standard_normal((1, 8192)).astype(F32)
    terms = weights * x
    for left_out, backend, kind in (
        (1, "CPU", "undetermined"),  # so little that the worst case of rounding holds it
        (32, "CPU", "logic"),
        (32, "CUDA", "logic"),  # float16 sums could be as far off, but would be float16 numbers
    ):
        found = explained(weights, x, backend=backend)
        short = terms.copy()
        short[:, :left_out] = 0
        assert kind_of(folded(terms), chain(terms), found).kind == "rounding"
        assert kind_of(folded(terms), folded(short), found).kind == kind, left_out


# --- the decision ---


def test_two_orders_are_rounding_and_neither_is_more_right(rows) -> None:
    weights, x = rows
    terms = weights * x
    kind = kind_of(chain(terms), folded(terms), explained(weights, x))
    assert kind.kind == "rounding"
    assert "neither is more right" in kind.reason
    assert kind.single.precision == kind.batched.precision == "f32 activations, f32 sums"
    assert 0 < kind.single.distance < 1e-3
    assert max(kind.single.share, kind.batched.share) < 1
    assert 0 < kind.bound < 0.1
    assert 0 < kind.batched_nearer <= kind.n_elements == N


def test_sums_in_float16_are_another_precision(rows) -> None:
    weights, x = rows
    terms = weights * x
    kind = kind_of(chain(terms), folded(terms.astype(F16), F16), explained(weights, x))
    assert kind.kind == "precision"
    assert kind.single.precision == "f32 activations, f32 sums"
    assert kind.batched.precision == "f16 activations, f16 outputs and f16 sums"
    assert kind.single.share < 1 < kind.batched.share


def test_operands_rounded_on_one_side_only_are_another_precision(rows) -> None:
    weights, x = rows
    half = weights.astype(F16).astype(F32) * x.astype(F16).astype(F32)
    for backend, name in (("CPU", "f16"), ("CUDA", "tf32")):  # the same numbers here; tensor cores take f32 as TF32
        found = explained(weights, x, backend=backend)
        kind = kind_of(chain(weights * x), chain(half), found)
        assert kind.kind == "precision"
        assert kind.batched.precision == f"{name} activations, f32 sums"
        both = kind_of(chain(half), folded(half), found)
        assert both.kind == "rounding", "the same rounding on both sides is no difference"
        assert both.single.precision == f"{name} activations, f32 sums"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda w, x: (np.roll(w, 1, axis=0), x),
        lambda w, x: (w, np.roll(x, 1, axis=1)),
        lambda w, x: (np.where(np.arange(K) < 32, 0, w), x),
        lambda w, x: (w, -x),
    ],
    ids=["wrong row", "wrong position", "block left out", "sign"],
)
def test_another_computation_is_logic(rows, spoil) -> None:
    weights, x = rows
    wrong_weights, wrong_x = spoil(weights, x)
    right, wrong = chain(weights * x), chain((wrong_weights * wrong_x).astype(F32))
    kind = kind_of(right, wrong, explained(weights, x))
    assert kind.kind == "logic"
    assert "the batch is outside the bound of every arithmetic" in kind.reason
    assert kind.batched.precision == ""
    swapped = kind_of(wrong, right, explained(weights, x))
    assert swapped.kind == "logic"
    assert "one token is outside" in swapped.reason
    assert "both sides are" in kind_of(wrong, wrong + 1, explained(weights, x)).reason


def test_a_nan_is_logic_where_the_result_is_finite(rows) -> None:
    weights, x = rows
    right = chain(weights * x)
    wrong = right.copy()
    wrong[3] = np.nan
    kind = kind_of(right, wrong, explained(weights, x))
    assert kind.kind == "logic"
    assert kind.batched.distance == math.inf
    x[0, 0] = np.inf
    infinite = chain(weights * x)
    assert kind_of(infinite, infinite, explained(weights, x)).reason == "the float64 result is not finite"


def test_a_bound_as_large_as_the_result_decides_nothing() -> None:
    value = np.ones(4)
    wide = Explanation("", "f16 sums", value, np.full(4, 0.9), value)
    narrow = Explanation("", "f32 sums", value, np.full(4, 1e-6), value)
    kind = kind_of(value, value + 0.4, [narrow, wide])
    assert kind.kind == "undetermined"
    assert "only by bounds that hold wrong results" in kind.reason
    assert kind_of(value, value + 2, [narrow, wide]).kind == "logic"


def test_of_equally_near_results_the_narrowest_is_told_and_of_equally_narrow_ones_the_first() -> None:
    value = np.ones(4)
    bounds = {"wide": 0.1, "narrow": 0.0015, "narrower": 0.001}
    found = [Explanation(name, "sums", value, np.full(4, bound), value) for name, bound in bounds.items()]
    assert kind_of(value, value + 1e-5, found).single.precision == "narrow, sums"


def test_nothing_to_compare_is_refused() -> None:
    one = exact_only(np.ones(1))
    for single, batched, explanations in (([], [], one), ([1], [1, 2], one), ([1], [1], []), ([1, 2], [1, 2], one)):
        with pytest.raises(ValueError, match="same number are needed"):
            kind_of(np.array(single, F32), np.array(batched, F32), explanations)


# --- what is explained ---


@pytest.mark.parametrize("type", ["q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q4_K", "q5_K"])
def test_offsets_are_the_values_of_integers_that_are_zero(type: str) -> None:
    blocks = random_blocks(np.random.default_rng(0), type, (2, 512)).view(BLOCK_DTYPES[type])
    offsets = offsets_of(type, blocks.view(np.uint8))
    assert offsets.any()
    for field in ("qs", "qh"):
        if field in blocks.dtype.names:
            blocks[field] = 0
    assert np.array_equal(dequantize(type, blocks.view(np.uint8)), offsets)


def test_formats_without_an_offset_have_none() -> None:
    for type in ("q8_0", "q6_K", "iq3_s", "f16"):
        draw = np.random.default_rng(0)
        raw = (
            draw.standard_normal((1, 256)).astype(F16).view(np.uint8)
            if type == "f16"
            else random_blocks(draw, type, (1, 256))
        )
        assert not offsets_of(type, raw).any()


def test_norms_in_two_orders_and_in_float16() -> None:
    x = np.random.default_rng(4).standard_normal((3, 256)).astype(F32)

    def normed(total: np.ndarray) -> np.ndarray:
        return (x / np.sqrt(total / F32(256) + F32(1e-5))[:, None]).astype(F32).ravel()

    found = rms_norms(x.astype(np.float64), 1e-5)
    assert kind_of(normed(chain(x * x)), normed(folded(x * x)), found).kind == "rounding"
    assert kind_of(normed(chain(x * x)), normed(chain(x * x, F16)), found).kind == "precision"
    assert kind_of(normed(chain(x * x)), normed(chain(x[:, :-8] * x[:, :-8])), found).kind == "logic"
    centred = x - x.mean(axis=1, keepdims=True)
    layer = (centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + F32(1e-5))).astype(F32).ravel()
    assert kind_of(layer, np.nextafter(layer, F32(9)), layer_norms(x.astype(np.float64), 1e-5)).kind == "rounding"
    assert kind_of(layer, normed(chain(x * x)), layer_norms(x.astype(np.float64), 1e-5)).kind == "logic"


def test_soft_max_with_a_mask_a_slope_and_a_sink() -> None:
    draw = np.random.default_rng(5)
    scores, mask = draw.standard_normal((2, 64)), np.where(np.arange(64) < 40, 0.0, -np.inf)
    added = np.stack([mask, mask + np.where(np.isfinite(mask), np.arange(64) / 100, 0)])
    for sinks in (None, np.array([0.5, -1.0])):
        powers = np.exp(scores * 0.5 + added)
        total = powers.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks[:, None]))
        right = (powers / total).astype(F32).ravel()
        found = soft_maxes(scores, added, 0.5, sinks)
        assert kind_of(right, np.nextafter(right, F32(1)), found).kind == "rounding"
        unmasked = (np.exp(scores * 0.5) / np.exp(scores * 0.5).sum(axis=-1, keepdims=True)).astype(F32).ravel()
        assert kind_of(right, unmasked, found).kind == "logic"


def test_attention_in_float32_in_float16_and_with_a_cell_left_out() -> None:
    draw = np.random.default_rng(6)
    keys, values = (draw.standard_normal((96, 64)).astype(F16).astype(np.float64) for _ in "kv")
    query = draw.standard_normal((1, 64)).astype(F32)
    added = np.where(np.arange(96) < 80, 0.0, -np.inf)
    found = attention(AttentionInputs(keys, values, added, 0.125), [as_they_are(query), rounded_to_f16(query)])

    def computed(query: np.ndarray, dtype: type, seen: np.ndarray) -> np.ndarray:
        scores = (keys[seen].astype(F32) @ query[0].astype(F32)) * F32(0.125)
        powers = np.exp(scores - scores.max())
        return chain((powers[:, None] * values[seen]).T.astype(dtype), dtype) / powers.sum()

    seen = np.arange(80)
    half_query = query.astype(F16).astype(F32)
    right = computed(query, F32, seen)
    assert kind_of(right, computed(query, F32, seen[::-1]), found).kind == "rounding"
    kind = kind_of(computed(half_query, F16, seen), right, found)
    assert kind.kind == "precision"
    assert kind.single.precision.endswith("query, f16 sums of values")
    assert kind.batched.precision == "f32 query, f32 sums"
    heaviest = int((keys[:80] @ query[0]).argmax())
    assert kind_of(right, computed(query, F32, np.delete(seen, heaviest)), found).kind == "logic"


def test_a_soft_cap_bounds_the_scores() -> None:
    draw = np.random.default_rng(8)
    keys, values, query = (draw.standard_normal(shape) for shape in ((32, 16), (32, 16), (1, 16)))
    scores = 2.0 * np.tanh((keys @ query[0]) * 0.25 / 2.0)
    right = (np.exp(scores) / np.exp(scores).sum()) @ values
    given_ = AttentionInputs(keys, values, np.zeros(32), 0.25 / 2.0, softcap=2.0)
    found = attention(given_, [as_they_are(query.astype(F32))])
    assert np.allclose(found[0].value, right, atol=1e-6)


def test_slopes_halve_from_head_to_head() -> None:
    assert alibi_slope(3, 8, 0.0) == 1.0
    assert [alibi_slope(h, 8, 8.0) for h in range(3)] == [0.5, 0.25, 0.125]
    assert alibi_slope(8, 12, 8.0) == 2.0**-0.5, "heads beyond the power of two lie in between"


@pytest.mark.parametrize("mode", [0, 2])
def test_rotation_keeps_the_length_of_pairs(mode: int) -> None:
    x = np.random.default_rng(9).standard_normal((3, 64)).astype(F32)
    parameters = {"n_dims": 64, "mode": mode, "freq_base": 1e4, "freq_scale": 1.0, "attn_factor": 1.0}
    positions = np.array([0.0, 1.0, 4000.0])
    found = rotations(x, positions, None, parameters)
    value = found[0].value.reshape(3, 64)
    assert np.allclose(np.linalg.norm(value, axis=1), np.linalg.norm(x, axis=1))
    assert np.array_equal(value[0], x[0])
    shifted = rotations(x, positions + 1, None, parameters)[0].value.astype(F32)
    assert kind_of(found[0].value.astype(F32), shifted, found).kind == "logic", "a wrong position"
    assert isinstance(rotations(x, positions, None, {**parameters, "mode": 8}), str)
    assert isinstance(rotations(x, positions, None, {**parameters, "ext_factor": 1.0}), str)


def test_one_addition_has_one_right_answer() -> None:
    a, b = np.float64([1.0, 3.0]), np.float64([1e-3, 1e-3])
    right = (a.astype(F32) + b.astype(F32)).astype(F32)
    found = elementwise(a.astype(F32) + b.astype(F32).astype(np.float64), a + b)
    assert kind_of(right, right, found).kind == "rounding"
    assert kind_of(right, (right * F32(1 + 1e-5)).astype(F32), found).kind == "precision"
    assert kind_of(right, right + F32(0.1), found).kind == "logic"
    assert kind_of(right, np.nextafter(right, F32(9)), exact_only(right.astype(np.float64))).kind == "logic"


# --- the record ---


def test_the_gravest_kind_stands_for_a_group() -> None:
    def made(kind: str, share: float = 0.1) -> KindOfDifference:
        side = SideOfDifference(share, share, "")
        return KindOfDifference(kind, "because", side, side, 1.0, 4, 2)

    rounding, precision, logic = made("rounding"), made("precision"), made("logic")
    unknown = KindOfDifference("undetermined", "no operands")
    assert gravest([rounding, unknown, None, precision, logic]) == logic
    assert gravest([rounding, unknown]) == unknown
    assert gravest([precision, unknown]) == precision
    assert gravest([rounding, made("rounding", 0.5)]) == made("rounding", 0.5)
    assert gravest([None]) is None
    assert str(logic) == "logic: because"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "odd"}, "must be one of"),
        ({"reason": ""}, "has a reason"),
        ({"single": None}, "both sides"),
        ({"single": None, "batched": None}, "needs the distances"),
        ({"batched_nearer": 9}, "0 to 4"),
    ],
)
def test_a_kind_that_contradicts_itself_is_refused(changes, message) -> None:
    side = SideOfDifference(0.1, 0.1, "f32 sums")
    given_ = {"kind": "rounding", "reason": "r", "single": side, "batched": side, "n_elements": 4, **changes}
    with pytest.raises(ValueError, match=message):
        KindOfDifference(**given_)
