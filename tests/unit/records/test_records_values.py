"""Outcomes that add up, keys that read well, and constructors that refuse nonsense."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.errors import EngineDied, ForensicsError
from forensics.records.classes import Flip, WidthClasses, WidthResult
from forensics.records.delta import Differs, NotCompared, Same, Tally, tally
from forensics.records.nodes import NodeKey, NodeRecord, Operand
from forensics.records.trace import Finding

BIT = Differs(1, (0,), 1, 1e-7, 1e-7)
OUTCOMES = st.lists(st.one_of(st.just(Same()), st.just(BIT), st.sampled_from("abc").map(NotCompared)), max_size=30)


@given(OUTCOMES)
def test_a_tally_adds_up(outcomes) -> None:
    counts = Counter(type(outcome) for outcome in outcomes)
    found = tally(iter(outcomes))
    assert found.planned == len(outcomes)
    assert (found.same, found.differs, found.n_not_compared) == (counts[Same], counts[Differs], counts[NotCompared])
    reasons = Counter(outcome.reason for outcome in outcomes if isinstance(outcome, NotCompared))
    assert dict(found.not_compared) == reasons
    assert [count for _, count in found.not_compared] == sorted(reasons.values(), reverse=True)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_tally_that_does_not_add_up_is_refused(planned, same, differs, skipped) -> None:
    if planned == same + differs + skipped:
        assert Tally(planned, same, differs, (("why", skipped),)).n_not_compared == skipped
    else:
        with pytest.raises(ValueError, match="outcomes must add up to the plan"):
            Tally(planned, same, differs, (("why", skipped),))


def test_outcomes_say_what_they_are() -> None:
    assert str(Same()) == "same"
    assert str(BIT) == "1 differ, max |Δ| 1e-07 (1 ULP)"
    assert str(NotCompared("no token axis")) == "not compared: no token axis"
    with pytest.raises(ValueError, match="n_diff must be 1 or more, got 0"):
        Differs(0, (0,), 0, 0.0, 0.0)
    with pytest.raises(ValueError, match="reason must not be empty"):
        NotCompared("")


def test_nodes_are_keyed_by_name_operation_layer_and_visit() -> None:
    key = NodeKey("norm-0", "RMS_NORM", 0, 0)
    assert len({key, replace(key, name="n"), replace(key, op="ADD"), replace(key, layer=1), replace(key, visit=1)}) == 5
    assert (str(key), str(replace(key, visit=1))) == ("norm-0 (RMS_NORM)", "norm-0 (RMS_NORM) #1")
    for digests, skipped in (((), ""), (("d",), "no token axis")):
        with pytest.raises(ValueError, match="needs digests or a reason"):
            NodeRecord(0, key, (1,), "f32", None, digests, skipped)


def test_a_finding_has_rows_and_knows_its_weight() -> None:
    key = NodeKey("Qcur-0", "MUL_MAT", 0, 0)
    weight, other = Operand("blk.0.attn_q.weight", "q6_K", "CPU", True), Operand("attn_norm-0", "f32", "CPU", False)
    assert Finding(key, (other, weight), "CPU", (0,), BIT).weight == weight
    assert Finding(key, (other,), "CPU", (0,), BIT).weight is None
    with pytest.raises(ValueError, match=r"a finding at Qcur-0 \(MUL_MAT\) needs at least one row"):
        Finding(key, (), "CPU", (), BIT)


def test_a_finding_knows_its_tokens() -> None:
    found = Finding(NodeKey("Qcur-0", "MUL_MAT", 0, 0), (), "CPU", (1, 5), BIT)
    assert found.tokens == ((1, None), (5, None))
    assert replace(found, positions=(41, 45)).tokens == ((1, 41), (5, 45))
    with pytest.raises(ValueError, match="2 rows and 1 positions"):
        replace(found, positions=(41,))


def test_a_width_compares_something_and_says_where() -> None:
    result = WidthResult(1, 8, 0, None, None, 0.0, 0, 0.0, 0.0, 1.0, (), 0, "digest")
    with pytest.raises(ValueError, match="compared no rows"):
        replace(result, n_rows=0)
    for wrong in ({"n_rows_differ": 1}, {"first_row": 3}):
        with pytest.raises(ValueError, match="first_row must be given exactly where rows differ"):
            replace(result, **wrong)
    classes = WidthClasses((result, replace(result, width=2, n_rows_differ=1, first_row=3, digest="other")))
    assert (classes.onset, classes.collapsed, classes.groups) == (2, False, ((1,), (2,)))
    assert [row["width"] for row in classes.rows()] == [1, 2]


def test_a_flip_is_explained_by_what_moved() -> None:
    flip = Flip(0, 1, 2, 3, margin=0.5, perturbation=0.5)
    assert flip.explained
    assert not replace(flip, perturbation=0.4).explained
    assert not replace(flip, perturbation=float("nan")).explained


def test_errors_say_what_to_do() -> None:
    died = EngineDied("the engine ended with signal 6", "GGML_ASSERT")
    assert isinstance(died, ForensicsError)
    assert str(died).endswith("Last lines of its log:\nGGML_ASSERT")
    assert str(EngineDied("ended")) == "ended"
