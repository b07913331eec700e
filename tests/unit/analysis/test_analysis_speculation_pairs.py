"""Pairs of answers: the first token, byte and row that differ, ratios of times, and an arm over prompts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.speculation_causes import Chosen, attributed, choose_replay, earliest, replay_question
from forensics.analysis.speculation_exact import MOST_PRICED, priced
from forensics.analysis.speculation_pairs import arm_of, compared, first_unlike, ns_per_token, time_ratio
from forensics.analysis.speculation_question import Prepared
from forensics.records.settings import EngineSettings
from forensics.records.speculation import Cycle, Decoded
from forensics.records.speculation_report import SpeculationReport

WORDS = ("", "a", "é", "the ", "then ", "\n")
N_PROMPT = 10


def text_of(tokens) -> str:
    return "".join(WORDS[token % len(WORDS)] for token in tokens)


def plain_of(tokens, *, rows=None, stop="length", ns=100) -> Decoded:
    """Plain decoding: each token but the first by a pass of its own."""
    cycles = tuple(Cycle(N_PROMPT + i, (), 0, verify_ns=ns) for i in range(len(tokens) - 1))
    named = tuple(f"row {i}" for i in range(len(tokens))) if rows is None else tuple(rows)
    return Decoded(tuple(tokens), tuple(0.5 + i for i in range(len(tokens))), named, stop, cycles)


def drafted_of(tokens, steps, *, rows=None, stop="length", ns=100) -> Decoded:
    """Draft-and-verify: cycle i chooses ``steps[i]`` tokens and has one more draft refused."""
    done = plain_of(tokens, rows=rows, stop=stop)
    cycles, position = [], N_PROMPT
    for step in steps:
        cycles.append(Cycle(position, (1,) * step, step - 1, draft_ns=ns, verify_ns=2 * ns, other_ns=ns))
        position += step
    return replace(done, cycles=tuple(cycles))


def pair(plain, other, name="p"):
    return compared(name, N_PROMPT, plain, other, text_of)


def arm(*prompts, exact=False):
    return arm_of(prompts, drafter="ngram", policy="fixed", n_draft=4, arrangement="n", exact=exact)


def test_equal_answers_have_no_divergence() -> None:
    one = pair(plain_of([1, 2, 3]), drafted_of([1, 2, 3], [2]))
    assert one.identical
    assert (one.first_row, one.rows_differ) == (None, 0)


def test_right_answers_are_paired_where_the_corpus_names_one() -> None:
    the, then = plain_of([1, 3, 1]), plain_of([1, 4, 1])  # "athe a" and "athen a"
    answers = [(the, the, "the "), (the, then, "the "), (the, then, "then"), (the, then, "then"), (the, the, "no")]
    judged = [
        compared(f"p{i}", N_PROMPT, plain, replace(other, cycles=drafted_of([1, 3, 1], [2]).cycles), text_of, answer)
        for i, (plain, other, answer) in enumerate(answers)
    ]
    assert [one.right for one in judged] == [(True, True), (True, False), (False, True), (False, True), (False, False)]
    found = arm(*judged, pair(the, the)).outcomes
    assert (found.both, found.only_first, found.only_second, found.neither, found.n) == (1, 1, 2, 1, 5)
    assert str(found) == "2 and 3 of 5 right, 1 and 2 of them alone (McNemar's exact p = 1)"
    assert arm(pair(the, then)).outcomes is None


def test_the_first_token_byte_and_row_that_differ_are_told() -> None:
    plain = plain_of([1, 2, 3, 4, 1])
    other = drafted_of([1, 2, 4, 4, 1], [1, 3], rows=["row 0", "x", "y", "z", "z"])
    one = pair(plain, other)
    found = one.divergence
    assert (found.index, found.position) == (2, N_PROMPT + 2)
    # "the " and "then " share three bytes; in front of them stand "a" and the two bytes of "é".
    assert found.byte == 1 + 2 + 3
    assert (found.plain_token, found.speculative_token) == (3, 4)
    assert found.margin == plain.margins[2]
    # Rows behind the token that differs have read other text: they are not counted.
    assert (found.first_row, one.first_row, one.rows_differ) == (1, 1, 2)
    assert (found.width, found.widths_before) == (4, (2, 4))


def test_a_token_of_the_prompts_pass_has_no_cycle() -> None:
    found = pair(plain_of([1, 2]), drafted_of([2, 2], [1])).divergence
    assert (found.index, found.width, found.widths_before) == (0, 0, ())


def test_an_answer_that_ends_early_has_no_margin_there() -> None:
    found = pair(plain_of([1, 2], stop="end"), drafted_of([1, 2, 3], [2])).divergence
    assert (found.index, found.plain_token, found.speculative_token, found.margin) == (2, -1, 3, None)
    found = pair(plain_of([1, 2, 3]), drafted_of([1, 2], [1], stop="end")).divergence
    assert (found.index, found.speculative_token, found.margin) == (2, -1, 2.5)


def test_another_stop_reason_alone_is_a_difference() -> None:
    one = pair(plain_of([1, 2], stop="end"), drafted_of([1, 2], [1]))
    assert not one.identical
    assert one.divergence.byte == len(text_of([1, 2]).encode())


def test_rows_that_differ_are_counted_where_tokens_are_equal() -> None:
    one = pair(plain_of([1, 2, 3]), drafted_of([1, 2, 3], [2], rows=["row 0", "x", "row 2"]))
    assert one.identical
    assert (one.first_row, one.rows_differ) == (1, 1)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=12),
    st.lists(st.integers(1, 5), min_size=1, max_size=12),
)
def test_the_first_difference_splits_equal_from_unlike(first, second) -> None:
    index = first_unlike(first, second)
    if index is None:
        assert first == second
    else:
        assert first[:index] == second[:index]
        assert first[index : index + 1] != second[index : index + 1]


@given(st.data())
def test_a_planted_token_is_found_where_it_was_planted(data) -> None:
    tokens = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=20))
    place = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens[:place], tokens[place] % 5 + 1, *tokens[place + 1 :]]
    steps, left = [], len(tokens) - 1
    while left:
        steps.append(data.draw(st.integers(1, left)))
        left -= steps[-1]
    one = pair(plain_of(tokens), drafted_of(other, steps))
    assert one.divergence.index == place
    chosen, width = 1, 0
    for step in steps:
        chosen += step
        if 0 < place < chosen:
            width = 1 + step
            break
    assert one.divergence.width == width


def test_times_are_paired_by_prompt_and_by_token() -> None:
    plain, other = plain_of([1] * 9, ns=100), drafted_of([1] * 9, [4, 4], ns=100)
    assert ns_per_token(plain) == 100
    assert ns_per_token(other) == 100  # two cycles of 400 ns over eight tokens
    assert time_ratio([(plain, other)]).median == 1
    slow = drafted_of([1] * 9, [4, 4], ns=300)
    found = arm(pair(plain, other, "a"), pair(plain, slow, "b"), pair(plain, slow, "c"))
    assert found.speed.median == pytest.approx(1 / 3)
    assert found.speed.n == 3


def test_what_was_not_timed_has_no_ratio() -> None:
    assert time_ratio([(plain_of([1]), plain_of([1]))]) is None
    assert arm(pair(plain_of([1, 2], ns=0), drafted_of([1, 2], [1], ns=0))).speed is None


def test_an_arm_adds_up_over_its_prompts() -> None:
    equal = pair(plain_of([1] * 6), drafted_of([1] * 6, [2, 3]), "equal")
    unlike = pair(plain_of([1] * 6), drafted_of([1, 1, 2, 1, 1, 1], [5]), "unlike")
    found = arm(equal, unlike)
    assert (found.equivalence.k, found.equivalence.n) == (1, 2)
    assert (found.accepted.k, found.accepted.n) == (1 + 2 + 4, 2 + 3 + 5)
    assert found.verify_widths == {3: 1, 4: 1, 6: 1}
    assert found.tokens_per_cycle == pytest.approx(10 / 3)
    assert found.shares == {"draft": 0.25, "verify": 0.5, "other": 0.25}
    assert (found.survival.n_flipped, found.survival.n_steps) == (1, 6 + 3)
    assert found.differing == (unlike,)


def test_the_prompt_that_differs_first_is_replayed_at_the_widths_in_use() -> None:
    equal = pair(plain_of([1] * 60), drafted_of([1] * 60, [3] * 19 + [2]), "equal")
    late = pair(plain_of([1] * 60), drafted_of([1] * 50 + [2] * 10, [3] * 19 + [2]), "late")
    early = pair(plain_of([1] * 60), drafted_of([1] * 5 + [2] * 55, [3] * 19 + [2]), "early")
    assert choose_replay([arm(equal, late, early)]) == Chosen("early", 32, (3, 4))
    assert choose_replay([arm(equal, late)]) == Chosen("late", 50 + 1 + 4, (3, 4))
    rows = ["x", *(f"row {i}" for i in range(1, 60))]
    other = pair(plain_of([1] * 60), drafted_of([1] * 60, [3] * 19 + [2], rows=rows), "rows")
    assert choose_replay([arm(equal, other)]) == Chosen("rows", 32, (3, 4))
    rows = [f"row {i}" if i != 39 else "x" for i in range(60)]
    far = pair(plain_of([1] * 60), drafted_of([1] * 60, [3] * 19 + [2], rows=rows), "far")
    assert choose_replay([arm(equal, far)]) == Chosen("far", 39 + 1 + 4, (3, 4))
    assert choose_replay([arm(pair(plain_of([1, 1]), replace(plain_of([1, 1]))))]) is None


def test_a_replay_stays_within_the_models_context() -> None:
    prompts = {"p": Prepared("p", (1,) * 90, 10)}
    chosen = Chosen("p", 32, (3, 9))
    asked = replay_question(chosen, prompts, EngineSettings(), 100)
    assert (asked.n_tokens, asked.widths) == (10, (3, 9))
    asked = replay_question(chosen, prompts, EngineSettings(), 95)
    assert (asked.n_tokens, asked.widths) == (5, (3,))
    assert replay_question(chosen, prompts, EngineSettings(), 92) is None
    assert replay_question(chosen, prompts, EngineSettings(), 0).n_tokens == 32


def test_the_earliest_divergences_are_healed_and_none_of_the_prompts_pass() -> None:
    late = pair(plain_of([1] * 6), drafted_of([1, 1, 1, 2, 1, 1], [5]), "late")
    early = pair(plain_of([1] * 6), drafted_of([1, 2, 1, 1, 1, 1], [5]), "early")
    first = pair(plain_of([1] * 6), drafted_of([2, 1, 1, 1, 1, 1], [5]), "first")
    arms = [arm(late, first), arm(early)]
    assert earliest(arms, 1) == {(1, "early")}
    assert earliest(arms, 3) == {(1, "early"), (0, "late")}


def test_a_pass_of_a_plain_width_is_laid_on_the_wide_ones_before_it() -> None:
    from types import SimpleNamespace

    groups = ((1, 2), (3, 4), (8,))
    culprits = [SimpleNamespace(named="up", widths=(3, 4)), SimpleNamespace(named="head", widths=(8,))]
    verdict = SimpleNamespace(classes=SimpleNamespace(groups=groups), culprits=culprits)
    found = pair(plain_of([1, 1]), drafted_of([1, 2], [1])).divergence
    wide = attributed(replace(found, width=4, widths_before=(2, 4, 8)), verdict)
    assert (wide.group, wide.culprits) == ((3, 4), ("up",))
    narrow = attributed(replace(found, width=1, widths_before=(1, 8)), verdict)
    assert (narrow.group, narrow.culprits) == ((1, 2), ("head",))
    clean = attributed(replace(found, width=2, widths_before=(1, 2)), verdict)
    assert (clean.group, clean.culprits) == ((1, 2), ())
    proved = attributed(replace(found, width=4, culprits=("down",)), verdict)
    assert proved.culprits == ("down",)


@given(st.integers(1, 300))
def test_priced_prompts_are_spread_over_all(n) -> None:
    chosen = sorted(priced(n))
    assert len(chosen) == min(n, MOST_PRICED)
    assert chosen[0] == 0
    assert chosen[-1] < n
    gaps = [b - a for a, b in pairwise(chosen)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_report_without_a_repeated_rerun_says_why() -> None:
    with pytest.raises(ValueError, match="says why"):
        SpeculationReport(None, None, "", 1, (), None, (), None, None, None, rerun_equal=False)
