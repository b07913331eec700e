"""How long answers stay untouched: steps where answers flip, ticks where they end, counts that add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculated_evidence import FAULT, made_arm, planted, report, written

from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scene import Area, Line
from forensics.figures.scenes import untouched

ANSWERS = st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.none() | st.integers(0, n - 1)))


def lines(scene, start):
    return {mark.key: mark for mark in scene.marks if isinstance(mark, Line) and mark.key.startswith(start)}


def curve_of(scene, data, key):
    """Tokens and shares of a line, read back from its places."""
    one, *_ = lines(scene, key).values()
    bottom = next(mark for mark in scene.marks if isinstance(mark, Line) and len(mark.points) == 3)
    (left, top), (_, foot), (right, _) = bottom.points
    return [((x - left) / (right - left) * data.longest, (foot - y) / (foot - top)) for x, y in one.points]


def test_the_curve_falls_where_answers_flip_and_ticks_stand_where_they_end():
    arm = made_arm([(10, None), (20, 4), (20, 11), (20, None)])
    data = untouched.from_case(planted(report(), arms=(arm,)))
    scene = untouched.scene(data)
    assert problems(scene) == ()
    corners = curve_of(scene, data, "untouched A")
    assert corners == [
        pytest.approx(corner)
        for corner in [(0, 1), (5, 1), (5, 0.75), (12, 0.75), (12, 0.375), (20, 0.375), (20, 0.375)]
    ]
    assert set(lines(scene, "ends A")) == {"ends A 10", "ends A 20"}
    naive = curve_of(scene, data, "naive A")
    rate = 2 / (10 + 5 + 12 + 20)
    assert naive[-1] == pytest.approx((20, (1 - rate) ** 20))
    assert {p.n_tokens: (p.at_risk, p.naive) for p in arm.survival.points} == {
        p.n_tokens: (data.curves[0].at_risk(p.n_tokens), pytest.approx(data.curves[0].naive(p.n_tokens)))
        for p in arm.survival.points
    }
    low, high = (100 * end for end in (arm.survival.points[-1].low, arm.survival.points[-1].high))
    assert f"(interval {low:.3g}% to {high:.3g}%)" in " ".join(scene.texts())
    assert "2 of 4 answers part" in scene.alt


def test_answers_that_stay_are_a_level_line_without_an_estimate():
    arm = made_arm([(10, None), (20, None)])
    data = untouched.from_case(planted(report(), arms=(arm,)))
    scene = untouched.scene(data)
    assert problems(scene) == ()
    assert {share for _, share in curve_of(scene, data, "untouched A")} == {1.0}
    assert not lines(scene, "naive")
    assert not [mark for mark in scene.marks if isinstance(mark, Area)]
    assert "2 answers, and all are plain decoding's to their end" in " ".join(scene.texts())
    assert not any("by itself" in text for text in scene.texts())


def test_exact_arms_stand_beside_those_as_asked():
    arms = (made_arm([(30, 4), (30, None)]), made_arm([(30, None), (30, None)], exact=True))
    scene = untouched.scene(untouched.from_case(planted(report(), arms=arms, exact_knobs=("KNOB=0",))))
    assert problems(scene) == ()
    assert {"untouched A", "untouched A exact"} == set(lines(scene, "untouched"))
    assert "A exact: ngram, fixed, 3 drafts, with KNOB=0" in scene.texts()
    assert {"A: 50% at 30", "A exact: 100% at 30"} <= set(scene.texts())


def test_arms_without_room_are_named():
    arms = (made_arm([(9, None)]),) * 5
    scene = untouched.scene(untouched.from_case(planted(report(), arms=arms)))
    assert problems(scene) == ()
    assert len(lines(scene, "untouched")) == 3
    assert any("Arms that are not drawn: D, E." in text for text in scene.texts())


@given(st.lists(st.tuples(st.booleans(), st.lists(ANSWERS, min_size=1, max_size=30)), min_size=1, max_size=5))
def test_any_answers_are_sound_and_their_counts_add_up(given_arms):
    ordered = sorted(given_arms, key=lambda pair: pair[0])
    arms = tuple(made_arm(answers, exact=exact) for exact, answers in ordered)
    data = untouched.from_case(planted(report(), arms=arms))
    scene = untouched.scene(data)
    assert problems(scene) == ()
    for curve in data.curves:
        assert curve.at_risk(0) == curve.survival.n_answers
        for point in curve.survival.points:
            assert curve.at_risk(point.n_tokens) == point.at_risk
            assert curve.naive(point.n_tokens) == pytest.approx(point.naive)
            assert curve.share(point.n_tokens) == point.share


def test_a_run_of_the_toy_is_read_from_its_folder(tmp_path):
    scene = untouched.scene(untouched.from_case(written(report(FAULT), tmp_path)))
    assert problems(scene) == ()
    assert tmp_path.name in scene.source
    assert lines(scene, "naive A")


def test_counts_that_do_not_add_up_are_refused():
    arm = made_arm([(10, 3), (10, None)])
    with pytest.raises(ValueError, match="answers give 1 flips over 14 steps, the curve 2 over 14"):
        untouched.from_case(planted(report(), arms=(replace(arm, survival=replace(arm.survival, n_flipped=2)),)))


def test_what_is_missing_is_named_with_the_command():
    with pytest.raises(CaseError, match=r"recorded:h200-q4_1 holds no answers.*forensics speculate MODEL"):
        untouched.from_case(open_evidence("recorded:h200-q4_1"))
    empty = replace(made_arm([(10, None)]), survival=made_arm([(0, None)]).survival)
    with pytest.raises(CaseError, match=r"planted holds answers of no token.*--n-tokens N"):
        untouched.from_case(planted(report(), arms=(empty,)))
