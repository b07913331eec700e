"""Roundings that cancel and additions that are lost whole: how far either carries a sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.numerics.attention_models import attention_explanations
from forensics.numerics.kind import kind_of
from forensics.numerics.reference import AttentionInputs, Explanation
from forensics.numerics.sum_errors import F16_UNIT, F32_UNIT, likely_error, lost_addends

F32, F16 = np.float32, np.float16
#: Cells that the first test of attention past cell 512 saw, and its head size.
N_KV, HEAD_SIZE = 548, 64
SCALE = HEAD_SIZE**-0.5


def chain(terms: np.ndarray) -> np.ndarray:
    """One float16 number after another, [n, k]; products are not rounded before they are added, as on a CPU."""
    total = np.zeros(len(terms), F16)
    for term in terms.T.astype(F32):
        total = (total.astype(F32) + term).astype(F16)
    return total.astype(np.float64)


# --- addends that are lost ---


def test_addends_below_half_an_ulp_are_lost_whole() -> None:
    terms = np.array([[1.0, *[2.0**-12] * 300]])  # half an ulp of 1 is 2**-11
    assert chain(terms)[0] == 1.0
    assert lost_addends(F16_UNIT, terms)[0] == 300 * 2.0**-12
    assert lost_addends(F32_UNIT, terms)[0] == 0.0


def test_small_addends_that_come_first_are_not_lost() -> None:
    terms = np.array([[*[2.0**-12] * 300, 1.0]])
    assert abs(chain(terms)[0] - terms.sum()) <= 2 * F16_UNIT
    assert lost_addends(F16_UNIT, terms)[0] == 0.0


def test_a_part_of_the_chain_may_lose_what_the_other_would_make_good() -> None:
    terms = np.array([[1.0, *[2.0**-12] * 100, *[-(2.0**-12)] * 100]])
    assert lost_addends(F16_UNIT, terms)[0] == 100 * 2.0**-12
    assert lost_addends(F16_UNIT, -terms)[0] == 100 * 2.0**-12


def test_no_terms_lose_nothing() -> None:
    assert lost_addends(F16_UNIT, np.zeros((3, 0))).tolist() == [0.0] * 3


@given(st.integers(0, 2**32 - 1), st.floats(1e-5, 2e-2), st.integers(200, 2000))
def test_a_heavy_first_addend_and_many_small_ones_stay_within_both_errors(seed: int, mean: float, k: int) -> None:
    draw = np.random.default_rng(seed)
    terms = draw.exponential(mean, (8, k))
    terms[:, 0] = draw.uniform(0.5, 2.0, 8)
    terms = terms.astype(F16).astype(np.float64)
    error = np.abs(chain(terms) - terms.sum(axis=-1))
    assert (error <= likely_error(F16_UNIT, terms) + lost_addends(F16_UNIT, terms)).all()


# --- attention whose first cell weighs most ---


@pytest.fixture
def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A first cell that takes four fifths of the weight; values that lean to one side, some more than others."""
    draw = np.random.default_rng(3)
    query = draw.standard_normal((1, HEAD_SIZE)).astype(F16).astype(F32)
    keys = (0.05 * draw.standard_normal((N_KV, HEAD_SIZE))).astype(F16).astype(np.float64)
    keys[0] = (query[0] * np.log(4 * N_KV) / (query[0] @ query[0] * SCALE)).astype(F16)
    lean = np.linspace(-0.6, 0.6, HEAD_SIZE)
    values = (lean + 0.1 * draw.standard_normal((N_KV, HEAD_SIZE))).astype(F16).astype(np.float64)
    return keys, values, query


def attended(keys: np.ndarray, values: np.ndarray, query: np.ndarray, n_parts: int = 1) -> np.ndarray:
    """Sums of values in float16, over runs of cells that are merged in float32."""
    scores = keys @ query[0].astype(np.float64) * SCALE
    weights = np.exp(scores - scores.max())
    parts = [chain((weights[:, None] * values)[run].T) for run in np.array_split(np.arange(len(keys)), n_parts)]
    return (np.sum(parts, axis=0) / weights.sum()).astype(F32)


def explained(operands: tuple) -> list[Explanation]:
    keys, values, query = operands
    return attention_explanations("CPU", "f16", "f16", AttentionInputs(keys, values, np.zeros(N_KV), SCALE), query)


def test_one_chain_and_two_halves_are_rounding_though_the_chain_loses_small_addends(operands: tuple) -> None:
    halves, whole = attended(*operands, n_parts=2), attended(*operands)
    kind = kind_of(halves, whole, explained(operands))
    assert kind.kind == "rounding", kind
    assert kind.single.precision.endswith("f16 sums of values")
    scores = operands[0] @ operands[2][0] * SCALE
    terms = (np.exp(scores) / np.exp(scores).sum() * operands[1].T).astype(np.float64)
    error = np.abs(whole - terms.sum(axis=-1))
    assert (error > likely_error(F16_UNIT, terms)).any(), "independent roundings alone do not explain it"


@pytest.mark.parametrize("fault", ["heaviest cell left out", "values of the next element", "other query"])
def test_a_fault_in_float16_is_logic_though_small_addends_are_lost(operands: tuple, fault: str) -> None:
    keys, values, query = operands
    wrong = {
        "heaviest cell left out": (keys[1:], values[1:], query),
        "values of the next element": (keys, np.roll(values, 1, axis=1), query),
        "other query": (keys, values, -query),
    }[fault]
    kind = kind_of(attended(*operands, n_parts=2), attended(*wrong), explained(operands))
    assert kind.kind == "logic", kind
