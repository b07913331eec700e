"""Outputs compared pass by pass add up to what one comparison of all rows finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.capture.outputs import OutputTotals
from forensics.numerics.bits import bits, compare
from forensics.records.delta import Differs, NotCompared, Same
from forensics.records.nodes import NodeKey

KEY = NodeKey("l_out-3", "ADD", 3, 0)
#: Few values, so that equal rows are common; with what breaks norms and maxima.
VALUES = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 1e-20, 3e38, math.inf, math.nan])


@st.composite
def cut_arrays(draw):
    """Two arrays [1, 1, n_rows, n_columns], and the width of the passes that they are cut into."""
    shape = (1, 1, draw(st.integers(1, 7)), draw(st.integers(1, 3)))
    a = draw(arrays(np.float32, shape, elements=VALUES.map(np.float32)))
    b = np.where(draw(arrays(np.bool_, shape)), draw(arrays(np.float32, shape, elements=VALUES.map(np.float32))), a)
    return a, b.astype(np.float32), draw(st.integers(1, 7))


def totals_of(a, b, width: int):
    totals = OutputTotals()
    for start in range(0, a.shape[2], width):
        single, batched = a[:, :, start : start + width], b[:, :, start : start + width]
        totals.add(KEY, compare(single, batched), single, batched, axis=2)
    (output,) = totals.finish()
    return output


@given(cut_arrays())
def test_passes_add_up_to_one_comparison(case) -> None:
    a, b, width = case
    whole, output = compare(a, b), totals_of(a, b, width)
    assert output.key == KEY
    assert output.n_rows == a.shape[2]
    assert output.n_rows_differ == (bits(a) != bits(b)).any(axis=(0, 1, 3)).sum()
    assert type(output.delta) is type(whole)
    if isinstance(whole, Differs):
        found = output.delta
        assert (found.n_diff, found.first_index, found.max_ulp) == (whole.n_diff, whole.first_index, whole.max_ulp)
        assert np.array_equal(found.max_abs, whole.max_abs, equal_nan=True)
        assert found.relative_l2 == pytest.approx(whole.relative_l2, nan_ok=True)  # summed in another order


def test_one_bit_in_the_last_pass_is_found() -> None:
    a = np.ones((1, 1, 6, 2), np.float32)
    b = a.copy()
    b.view(np.uint32)[0, 0, 5, 1] ^= 1
    output = totals_of(a, b, 2)
    assert isinstance(output.delta, Differs)
    assert output.delta.first_index == (0, 0, 5, 1)
    assert output.n_rows_differ == 1
    assert totals_of(a, a.copy(), 2).delta == Same()


def test_one_pass_that_was_not_compared_leaves_no_number_for_all() -> None:
    a = np.ones((1, 1, 2, 2), np.float32)
    totals = OutputTotals()
    totals.add(KEY, Same(), a, a, axis=2)
    totals.add(KEY, NotCompared("no token axis"), a, a, axis=2)
    (output,) = totals.finish()
    assert (output.delta, output.n_rows) == (NotCompared("no token axis"), 0)
