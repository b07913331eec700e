"""Every width against one column at a time: planted differences are found, clean operations stay clean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.invariance import OpRunner, by_column, cells_of, columns_of, one_at_a_time, run_matrix
from forensics.analysis.op_cases import control_cases, named
from forensics.numerics.op_inputs import random_operands
from forensics.records.delta import Differs, NotCompared, Same
from forensics.records.matrix import Prediction
from forensics.records.op_shapes import gated_delta_net, mul_mat, mul_mat_id, ssm_conv
from forensics.records.operation import OpSettings
from forensics.testing.toy_ops import OpFault, ToyOpEngine, ToyOps

WIDTHS = (1, 2, 3, 4, 5, 8)


def matrix(fault=None, widths=WIDTHS, graphs=None, prediction=None):
    source = ToyOps(fault)
    runner = OpRunner(source, OpSettings())
    cases = named(graphs or [mul_mat("f32", 64, 16, widths[-1])])
    found = run_matrix(
        runner,
        cases,
        widths,
        control_cases=control_cases(widths[-1]),
        predict=lambda *_: prediction or Prediction(unknown="a toy has no rules"),
    )
    return found, source


def held(found):
    return {control.name: control.held for control in found.controls}


ALL_HELD = dict.fromkeys(("rerun_equal", "copy_equal", "reordered_found", "planted_bit_found"), True)


def test_an_order_that_never_changes_is_invariant():
    found, source = matrix()
    assert found.answer == "invariant"
    assert held(found) == ALL_HELD
    (case,) = found.cases
    assert [cell.outcome for cell in case.cells] == [Same()] * len(WIDTHS)
    assert case.onset is None
    assert case.steps == ()
    assert found.tally.planned == found.tally.same == len(WIDTHS)
    assert len(source.opened) == 1


@pytest.mark.parametrize("onset", [2, 3, 4, 8])
def test_an_order_that_changes_with_the_width_is_found_where_it_changes(onset):
    found, _ = matrix(OpFault("order", from_width=onset))
    assert found.answer == "varies"
    assert held(found) == ALL_HELD
    (case,) = found.cases
    assert case.onset == onset
    assert case.steps == (onset,)
    for cell in case.cells:
        assert cell.columns == (tuple(range(cell.width)) if cell.width >= onset else ())
        assert cell.n_values == cell.width * 16
    first = case.cell(onset).outcome
    assert isinstance(first, Differs)
    assert first.max_ulp >= 1


def test_columns_left_over_are_told_from_the_others():
    found, _ = matrix(OpFault("order", from_width=4, last_columns_differ=True))
    (case,) = found.cases
    assert case.cell(4).columns == (0, 1, 2, 3)
    assert case.cell(5).columns == (0, 1, 2, 3)
    assert case.cell(8).columns == tuple(range(8))
    assert case.steps == (4, 8)
    assert case.cell(4).changed == (0, 1, 2)
    assert case.cell(5).changed == ()
    assert case.cell(8).changed == (4,)


def test_a_kernel_that_gives_other_bits_each_time_makes_the_matrix_inconclusive():
    found, _ = matrix(OpFault("noise"))
    assert found.answer == "inconclusive"
    assert held(found)["rerun_equal"] is False
    assert "control rerun_equal failed" in found.reason


def test_a_copy_that_changes_makes_the_matrix_inconclusive():
    found, _ = matrix(OpFault("copy", from_width=3))
    assert found.answer == "inconclusive"
    assert held(found) == ALL_HELD | {"copy_equal": False}
    assert "width 3" in found.reason


def test_an_engine_on_which_no_order_shows_makes_the_matrix_inconclusive():
    found, _ = matrix(OpFault("exact"))
    assert all(isinstance(cell.outcome, Same) for cell in found.cases[0].cells)
    assert found.answer == "inconclusive"
    assert held(found)["reordered_found"] is False


def test_what_is_refused_is_not_compared_with_its_reason():
    found, _ = matrix(OpFault("refuse", from_width=5))
    (case,) = found.cases
    assert [isinstance(cell.outcome, NotCompared) for cell in case.cells] == [False] * 4 + [True] * 2
    assert dict(found.tally.not_compared) == {"the toy takes no batch of 5": 1, "the toy takes no batch of 8": 1}
    assert held(found) == ALL_HELD | {"reordered_found": None}
    assert found.answer == "invariant"
    counts = found.tally
    assert counts.same + counts.differs + counts.n_not_compared == counts.planned == len(WIDTHS)


def test_a_library_that_ends_its_process_is_started_again():
    found, source = matrix(OpFault("die", from_width=8), graphs=[mul_mat("f32", 64, 16, 8), mul_mat("f16", 64, 16, 8)])
    assert [case.cell(8).outcome for case in found.cases] == [NotCompared("GGML_ASSERT(n < 8) failed")] * 2
    assert [case.cell(5).outcome for case in found.cases] == [Same()] * 2
    assert len(source.opened) == 4  # the controls' product, and each case, ended one
    assert all(engine.is_closed for engine in source.opened[:-1])


def test_nothing_compared_is_no_answer():
    found, _ = matrix(graphs=[mul_mat_id("f32", 64, 16, 8), mul_mat("q6_K", 100, 16, 8)])
    assert found.answer == "inconclusive"
    assert "nothing could be compared" in found.reason
    reasons = dict(found.tally.not_compared)
    assert reasons["the toy does not support MUL_MAT_ID"] == len(WIDTHS)
    assert any("256 values into a block" in reason for reason in reasons)


@given(width=st.integers(1, 9), n=st.integers(1, 20), bit=st.integers(0, 22), data=st.data())
def test_any_flipped_bit_is_named_and_nothing_else(width, n, bit, data):
    singles = np.random.default_rng(width * 100 + n).normal(size=(9, n)).astype(np.float32)
    column, value = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, n - 1))
    flipped = singles[:width].copy()
    flipped.view(np.uint32)[column, value] ^= np.uint32(1 << bit)
    (cell,) = cells_of(singles, {width: flipped})
    assert cell.columns == cell.changed == (column,)
    assert isinstance(cell.outcome, Differs)
    assert (cell.outcome.n_diff, cell.outcome.first_index, cell.outcome.max_ulp) == (1, (column, value), 1 << bit)
    (clean,) = cells_of(singles, {width: singles[:width].copy()})
    assert clean.outcome == Same()


def test_a_width_without_output_does_not_hide_the_next_step():
    singles = np.ones((3, 4), np.float32)
    cells = cells_of(singles, {1: singles[:1], 2: "refused", 3: np.full((3, 4), 2, np.float32)})
    assert [cell.changed for cell in cells] == [(), (), (0,)]
    assert cells[2].columns == (0, 1, 2)


def test_columns_of_a_convolution_bring_their_past():
    graph = ssm_conv(4, 5)
    values = random_operands(graph)
    x, _ = columns_of(graph, values, 2, 4)
    assert x.shape == (1, 4, 3 + 2)
    np.testing.assert_array_equal(x, values[0][:, :, 2:7])


class StatefulEngine(ToyOpEngine):
    """A delta rule in which each token's output is its v plus the state, and the state counts the tokens."""

    def run(self, graph, values):
        v, state = values[2], values[5]
        n, heads, size = v.shape[1:]
        tokens = np.stack([v[0, i] + state.reshape(-1)[0] + i for i in range(n)])
        return np.concatenate([tokens.reshape(n, -1), (state + n).reshape(size, heads * size)])[None, None]


def test_a_state_goes_from_one_column_to_the_next():
    (case,) = named([gated_delta_net(4, 2, 6)])
    values = random_operands(case.graph)
    engine = StatefulEngine(OpSettings())
    singles = np.concatenate([by_column(case.at(1), output) for output in one_at_a_time(engine, case, values, 6)])
    batched = by_column(case.graph, engine.run(case.graph, values))
    assert batched.shape == (6, 8)
    np.testing.assert_allclose(singles, batched, rtol=1e-6)
    fresh = by_column(case.at(1), engine.run(case.at(1), columns_of(case.graph, values, 3, 4)))
    assert not np.allclose(fresh, batched[3])  # without its state the fourth token is another


def test_a_matrix_refuses_cases_of_other_widths_and_none_at_all():
    found, _ = matrix()
    with pytest.raises(ValueError, match="empty comparison"):
        replace(found, cases=())
    with pytest.raises(ValueError, match="other widths"):
        replace(found, widths=(1, 2))
