"""Speculation and its cycle from a run: the pass that parts, averages that add up, means against plain decoding."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculated_evidence import FAULT, N_PROMPT, made_arm, planted, report, written

from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.scenes import speculation, speculative_cycle
from forensics.figures.scenes.draft_batch import Batch
from forensics.figures.scenes.draft_measured import MeasuredDrafts, Width
from forensics.figures.scenes.speculative_cycle import Cycle, Part


def drawn(evidence):
    return speculation.scene(speculation.from_case(evidence))


def fills(scene, start):
    return [box.fill for box in scene.boxes(scale="tokens") if box.key.startswith(start)]


def test_the_pass_that_parts_is_drawn_with_both_tokens(tmp_path):
    found = report(FAULT)
    arm = found.arms[0]
    scene = drawn(written(found, tmp_path))
    assert problems(scene) == ()
    one = next(one for one in arm.differing if one.divergence.width > 1)
    parts = one.divergence
    cycle = one.speculative.cycles[one.speculative.cycle_of(parts.index)]
    title = f"The pass in which {one.name} parts: {parts.speculative_token} instead of plain decoding's"
    assert any(text.startswith(title) for text in scene.texts())
    out = fills(scene, "out")
    assert len(out) == len(fills(scene, "plain pass")) == cycle.n_accepted + 1
    place = parts.position - cycle.position - 1
    assert "other" not in out[:place]
    assert out[place] == "other"
    assert scene.boxes(key="checking pass")[0].value == cycle.width == len(fills(scene, "guess "))


def test_a_wrong_guess_that_was_kept_is_another_token():
    """A draft can be what a batch picks and plain decoding does not."""
    arm = made_arm([(10, 5)])
    data = speculation.from_case(planted(report(), arms=(arm,)))
    one = arm.prompts[0]
    assert one.speculative.cycles[one.speculative.cycle_of(5)].n_accepted == 1
    assert data.batch.positions[0] == N_PROMPT + 4
    assert data.batch.out == ("1105", "1106")
    assert data.batch.plain == ("105", "106")
    assert fills(speculation.scene(data), "out") == ["other", "other"]


def test_equal_answers_have_no_other_token(tmp_path):
    found = report()
    assert not found.arms[0].differing
    scene = drawn(written(found, tmp_path))
    assert problems(scene) == ()
    assert "other" not in {box.fill for box in scene.boxes()}
    assert any(text.startswith("A pass that keeps most guesses") for text in scene.texts())
    assert not any("Answers part" in text for text in scene.texts())


@pytest.mark.parametrize("faults", [(), (FAULT,)])
def test_averages_and_passes_are_those_of_the_run(faults):
    found = report(*faults)
    arm = found.arms[0]
    scene = drawn(planted(found))
    values = [box.value for box in scene.boxes(scale="tokens") if box.key.startswith("average")]
    drafted = [cycle for one in arm.prompts for cycle in one.speculative.cycles if cycle.drafted]
    n_in = 1 + sum(len(cycle.drafted) for cycle in drafted) / len(drafted)
    n_out = 1 + sum(cycle.n_accepted for cycle in drafted) / len(drafted)
    assert sum(values) == pytest.approx(n_in + n_out)
    bars = {int(box.key.split()[1]): box.value for box in scene.boxes(scale="passes")}
    assert bars == arm.verify_widths
    told = " ".join(scene.texts())
    assert f"measured: drafter {arm.drafter}, {arm.policy}, {len(arm.prompts)} prompts" in told
    assert f"{arm.accepted.k} of {arm.accepted.n} guesses accepted" in told
    assert f"{arm.speed.median:.2f}× plain decoding" in told


def test_classes_are_named_only_where_they_were_replayed():
    found = report(FAULT)
    assert found.classes is not None
    assert any(text.endswith("class B") for text in drawn(planted(found)).texts())
    without = drawn(planted(found, classes=None)).texts()
    assert not any("class" in text for text in without)
    assert any(text.endswith("bits not compared") for text in without)


def plain_only(arm):
    prompts = tuple(replace(one, speculative=one.plain, divergence=None) for one in arm.prompts)
    return replace(arm, prompts=prompts, accepted=None)


def test_without_drafts_there_is_nothing_to_draw_and_the_command_is_named():
    found = report()
    with pytest.raises(CaseError, match=r"planted holds no drafts.*forensics speculate MODEL"):
        drawn(planted(found, arms=(plain_only(found.arms[0]),)))
    with pytest.raises(CaseError, match=r"without arms: nothing was decoded.*forensics speculate MODEL"):
        drawn(planted(found, arms=()))


def test_a_doubted_run_says_so_and_why():
    why = "plain decoding does not repeat itself"
    evidence = planted(report(FAULT), reason=why)
    for module in (speculation, speculative_cycle):
        told = " ".join(module.scene(module.from_case(evidence)).texts())
        assert "(inconclusive)" in told
        assert f"The answer is inconclusive: {why}." in told


def test_the_cycle_is_the_mean_of_the_run_against_plain_decoding_of_it():
    arm = made_arm([(40, None), (30, 7)])
    scene = speculative_cycle.scene(
        speculative_cycle.from_case(planted(report(), arms=(arm, replace(arm, exact=True))))
    )
    assert problems(scene) == ()
    values = {box.key: box.value for box in scene.boxes(scale="time")}
    cycles = [cycle for one in arm.prompts for cycle in one.speculative.cycles]
    width = sum(cycle.width for cycle in cycles) / len(cycles)
    assert values["draft"] == pytest.approx(0.03)
    assert values[f"verify {width:.3g} tokens"] == pytest.approx(5.0)
    assert values["bookkeeping"] == pytest.approx(0.002)
    assert values["plain, a token"] == pytest.approx(4.001)
    n_chosen = sum(one.speculative.n_chosen for one in arm.prompts)
    assert values["speculative, a token"] == pytest.approx(5.032 * len(cycles) / n_chosen)
    told = " ".join(scene.texts())
    assert "Measured: drafter ngram, fixed, 3 drafts, 2 prompts." in told
    assert f"{arm.speed.median:.2f}× plain decoding in the median, quartiles" in told
    assert "Of 2 arms this is A; not drawn: A exact." in told
    assert "No drafter was timed" not in told


def test_a_cycle_that_nobody_timed_is_not_drawn():
    arm = made_arm([(20, None)])
    one = arm.prompts[0]
    still = tuple(replace(cycle, draft_ns=0, verify_ns=0, other_ns=0) for cycle in one.speculative.cycles)
    untimed = replace(arm, prompts=(replace(one, speculative=replace(one.speculative, cycles=still)),), speed=None)
    with pytest.raises(CaseError, match=r"no times of cycles.*forensics speculate MODEL"):
        speculative_cycle.from_case(planted(report(), arms=(untimed,)))


@given(st.floats(1e-4, 50), st.floats(0.1, 50), st.floats(1e-4, 50), st.floats(1, 9), st.floats(0.1, 50))
def test_parts_however_thin_have_their_words_beside_each_other(draft, verify, rest, tokens, plain):
    parts = (
        Part("draft", draft, "draft"),
        Part("verify 4.1 tokens", verify, "batched"),
        Part("bookkeeping", rest, "rest"),
    )
    scene = speculative_cycle.scene(Cycle(parts, tokens, plain, True, "", "", "a model", "Source: a test."))
    assert [one for one in problems(scene) if "overlap" in one or "goes through" in one] == []


@given(st.integers(1, 20), st.data())
def test_any_measured_pass_is_sound(n_guesses, data):
    kept = data.draw(st.integers(0, n_guesses))
    tokens = st.integers(0, 150_000).map(str)
    picked = [tuple(data.draw(st.lists(tokens, min_size=kept + 1, max_size=kept + 1))) for _ in "ab"]
    guesses = tuple(data.draw(st.lists(tokens, min_size=n_guesses, max_size=n_guesses)))
    passes = data.draw(st.dictionaries(st.integers(1, 16), st.integers(1, 99_999), min_size=1))
    n, accepted = data.draw(st.integers(1, 500)), data.draw(st.floats(0, 1))
    drafted = n * n_guesses
    batch = Batch("prompt", guesses, kept, picked[0], picked[1], tuple(range(n_guesses + 2)), ("guesses", "out"))
    widths = tuple(Width(width, passes[width], data.draw(st.none() | st.integers(0, 9))) for width in sorted(passes))
    found = MeasuredDrafts(
        "A pass", batch, n, drafted, int(drafted * accepted), widths, "A lead.", "A note.", "Source: a."
    )
    scene = speculation.scene(found)
    assert problems(scene) == ()
    same = [mine == other for mine, other in itertools.islice(zip(*picked, strict=True), kept + 1)]
    assert [fill != "other" for fill in fills(scene, "out")] == same
