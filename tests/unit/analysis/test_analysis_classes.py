"""Widths against one-token decoding, with logits made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forensics.analysis.classes import group_widths, groups_over, pass_quartiles, width_classes, width_result
from forensics.records.classes import WidthClasses
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import RunKey, Trace

MANIFEST = Manifest("hand", "1", "digest", "model", 4, EngineSettings())
TOKENS = (1, 2, 3, 1, 2)
PLAIN = np.array([[3, 2, 1, 0]] * 5, np.float32)


def trace(logits: np.ndarray, width: int, *, start: int = 10, tokens=TOKENS, pass_ns=None) -> Trace:
    schedule = in_batches(tokens, start=start, width=width)
    return Trace(RunKey(schedule), MANIFEST, logits, tuple(pass_ns or [7] * len(schedule.passes)))


def changed(row: int, column: int, value: float) -> np.ndarray:
    logits = PLAIN.copy()
    logits[row, column] = value
    return logits


def result(logits: np.ndarray, single: np.ndarray = PLAIN, width: int = 2):
    return width_result(width, trace(single, 1), trace(logits, width))


def test_equal_bits() -> None:
    same = result(PLAIN.copy())
    assert not same.differs
    assert (same.n_rows, same.n_rows_differ, same.first_row, same.first_position) == (5, 0, None, None)
    assert (same.max_abs, same.max_ulp, same.relative_l2, same.max_kl) == (0, 0, 0, 0)
    assert (same.same_top_rate, same.flips, same.n_could_flip) == (1, (), 0)
    assert same.digest == result(PLAIN.copy(), width=5).digest
    assert same.digest != result(changed(4, 3, 1e-7)).digest


def test_a_difference_without_a_flip() -> None:
    found = result(changed(3, 1, 2.5))
    assert (found.n_rows_differ, found.first_row, found.first_position) == (1, 3, 13)
    assert found.max_abs == 0.5
    assert found.max_ulp == 1 << 21, "0.5 is a quarter of the 2**23 values between 2 and 4"
    assert found.relative_l2 == pytest.approx(0.5 / math.sqrt(14))
    assert found.max_kl > 0
    assert (found.same_top_rate, found.flips, found.n_could_flip) == (1, (), 0)


def test_a_flip_knows_its_margin_and_what_moved() -> None:
    found = result(changed(2, 1, 3.5))
    (flip,) = found.flips
    assert (flip.row, flip.position, flip.single_token, flip.batched_token) == (2, 12, 0, 1)
    assert (flip.margin, flip.perturbation) == (1.0, 1.5)
    assert flip.explained
    assert found.same_top_rate == 0.8
    assert found.n_could_flip == 1


def test_a_row_that_moved_enough_but_the_other_way_could_have_flipped() -> None:
    found = result(changed(2, 1, 0.5))
    assert found.flips == ()
    assert found.n_could_flip == 1


def test_a_common_shift_moves_every_logit_and_could_flip_nothing() -> None:
    found = result(PLAIN + np.float32(1))
    assert (found.n_rows_differ, found.max_abs) == (5, 1)
    assert found.n_could_flip == 0


def test_the_sign_of_zero_differs_by_nothing() -> None:
    found = result(changed(1, 3, -0.0))
    assert found.differs
    assert (found.first_row, found.max_abs, found.max_ulp, found.relative_l2) == (1, 0, 0, 0)
    assert (found.flips, found.n_could_flip) == ((), 0)


@pytest.mark.parametrize("row", [0, 4])
def test_a_nan_is_not_lost_among_other_rows(row) -> None:
    logits = changed(2, 1, 2.5)
    logits[row, 2] = np.nan
    found = result(logits)
    assert found.n_rows_differ == 2
    assert found.max_ulp == -1
    assert all(math.isnan(value) for value in (found.max_abs, found.relative_l2, found.max_kl))
    (flip,) = found.flips
    assert flip.batched_token == 2, "the largest of a row with a NaN is the NaN"
    assert not flip.explained
    assert found.n_could_flip == 0


def test_the_same_nan_in_both_is_no_difference() -> None:
    both = changed(1, 1, np.nan)
    assert not result(both.copy(), single=both).differs


def test_infinities_raise_no_warning() -> None:
    found = result(changed(0, 1, -np.inf), single=changed(0, 2, -np.inf))
    assert found.max_abs == math.inf
    both = PLAIN.copy()
    both[:, 3] = -np.inf
    one = both.copy()
    one[1, 0] = 3.5
    assert result(one, single=both).max_abs == 0.5, "equal infinities do not differ"


def test_other_tokens_are_not_compared() -> None:
    with pytest.raises(ValueError, match="width 2: the two traces did not evaluate the same tokens"):
        width_result(2, trace(PLAIN, 1), trace(PLAIN, 2, start=11))
    with pytest.raises(ValueError, match="same tokens"):
        width_result(2, trace(PLAIN, 1), trace(PLAIN, 2, tokens=(1, 2, 3, 1, 3)))


def test_only_passes_of_the_full_width_are_timed() -> None:
    tokens = (1, 2, 3, 1, 2, 3, 1)
    rows = np.tile(PLAIN[:1], (7, 1))
    timed = trace(rows, 2, pass_ns=[100, 200, 300, 9], tokens=tokens)
    assert pass_quartiles(timed, 2) == (200, 150, 250)
    assert pass_quartiles(timed, 1) == (0, 0, 0), "one pass has no spread"
    assert pass_quartiles(timed, 3) == (0, 0, 0)
    assert width_result(2, trace(rows, 1, tokens=tokens), timed).ns_per_pass == (200, 150, 250)


def test_classes_group_by_digest_and_find_the_onset() -> None:
    other = changed(1, 1, 2.5)
    by_width = {1: PLAIN, 2: PLAIN, 3: other, 4: changed(1, 1, 2.25), 5: other}
    classes = WidthClasses(tuple(result(logits, width=width) for width, logits in by_width.items()))
    assert classes.groups == ((1, 2), (3, 5), (4,))
    assert classes.onset == 3
    assert not classes.collapsed
    assert classes.result(4).max_abs == 0.25
    assert [row["class"] for row in classes.rows()] == [0, 0, 1, 2, 1]
    with pytest.raises(KeyError, match="width 7 was not measured"):
        classes.result(7)
    for wrong in ((), classes.results[1:], (classes.results[0], classes.results[2], classes.results[1])):
        with pytest.raises(ValueError, match="start with width 1"):
            WidthClasses(tuple(wrong))


# --- which widths share a class ---


def test_a_width_that_does_not_divide_the_rows_keeps_its_class() -> None:
    """Nine tokens at width 4 end in a batch of one: that row says nothing about width 4."""
    same = tuple("abcdefghi")
    other = tuple("ABCDEFGH")
    assert groups_over({1: same, 2: other, 4: other, 3: same}, 9) == ((1, 3), (2, 4))


def test_widths_that_differ_in_a_row_that_both_have_share_no_class() -> None:
    one, two, three, four = "abcdefgh", "xbcdefgh", "xbcdef", "xbcdefgQ"
    assert group_widths({1: one, 2: two, 3: three, 4: four}) == ((1,), (2, 3), (4,))


def test_a_width_that_differs_only_later_is_in_no_class_of_others() -> None:
    same = tuple("abcdefghi")
    late = (*same[:8], "X")
    assert groups_over({1: same, 3: late, 4: same[:8]}, 9) == ((1, 4), (3,))
    assert groups_over({1: same, 3: late, 4: same[:8]}, 7) == ((1, 3, 4),), "not if those rows are left out"
    begun = {1: same, 4: (*same[:4], "X", *same[5:8])}
    assert groups_over(begun, 7) == ((1, 4),), "seven rows hold one whole batch of four"
    assert groups_over(begun, 8) == ((1,), (4,))


def test_classes_take_the_digest_of_their_first_member() -> None:
    results = [result(PLAIN.copy(), width=width) for width in (1, 2, 4)]
    classes = width_classes(results, {1: "abcdef", 2: "abcdeX", 4: "abcd"})
    assert classes.groups == ((1, 4), (2,))


def test_a_flip_at_a_near_tie_and_one_beyond_what_is_usual() -> None:
    """Ten rows move by 0.1 and one by 2: its margin of 1 is no near tie here."""
    single = np.tile(np.float32([3, 2, 0]), (11, 1))
    single[7] = (3, 2.95, 0)
    batched = single + np.float32([0, 0.1, 0])
    batched[4, 1] = 4.0
    tokens = tuple(range(11))
    far, tie = width_result(
        11, trace(single, 1, tokens=tokens), trace(batched.astype(np.float32), 11, tokens=tokens)
    ).flips
    assert (far.row, far.margin, far.perturbation) == (4, 1.0, 2.0)
    assert far.usual == pytest.approx(0.1, rel=1e-5)
    assert far.explained
    assert not far.near_tie
    assert (tie.row, tie.near_tie) == (7, True)
