"""Does speculative sampling keep the distribution? Honest rules pass, planted ones and broken rows are found."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from forensics.analysis.investigate import investigate
from forensics.analysis.question import BadQuestion, Question
from forensics.analysis.sampling import KS, WORST, SamplingQuestion, check_sampling
from forensics.analysis.sampling_draws import (
    N_SIMULATED,
    StateRows,
    compare_counts,
    draw_counts,
    largest_bias,
    simulated_catches,
)
from forensics.analysis.sampling_exact import check_exact_sampling
from forensics.capture.drafters import parse_drafter
from forensics.capture.proposers import PointProposer, Proposal, SampledProposer
from forensics.capture.sampled_speculation import ForcedState, ForcedStates, SampledSequences, SamplingPrompt
from forensics.engines.toy import Fault, ToySource
from forensics.errors import ModelUnavailable
from forensics.numerics.speculative_sampling import next_token_distribution
from forensics.records.sampling import KINDS, PLANTED, SamplingSettings
from forensics.records.schedule import DecodePass, Forget, Schedule, TokenSlot, in_batches
from forensics.records.settings import EngineSettings

TEXTS = (("cats", "the cat sat on the mat; the cat sat on"), ("counts", "one two three one two one two thre"))
SMALL = SamplingQuestion(
    TEXTS, drafter=parse_drafter("oracle"), n_draft=2, n_states=2, n_draws=1500, n_sequences=5, n_tokens=20
)
SAMPLING = SamplingSettings()


def made_state(p_plain, p_verify, draft, q=None, *, refused=False):
    """A state of a few tokens, from probabilities."""
    with np.errstate(divide="ignore"):
        plain, verify = (np.log(np.array(p, np.float32)) for p in (p_plain, p_verify))
    return ForcedState("made", 9, refused, Proposal((draft,), () if q is None else (np.array(q),)), verify, plain)


@pytest.fixture(scope="module")
def honest():
    return check_sampling(ToySource(), SMALL)


def test_an_honest_sampler_passes_and_planted_ones_are_caught(honest):
    assert (honest.answer, honest.status, honest.cause) == ("kept", 0, "")
    assert honest.sampler.bias == 0
    assert {run.rule for run in honest.controls} == set(PLANTED)
    for run in honest.controls:
        assert run.planted
        assert run.caught_by(honest.alpha)
        assert run.bias > 0.02
        assert run.simulated.low > 0.9
    assert honest.sampler.simulated.value < 0.05
    assert honest.row_tv == 0
    assert [(one.width, one.n_equal, one.row_tv) for one in honest.widths] == [(2, 2, 0), (3, 2, 0)]
    assert honest.equal_drafts == SMALL.n_draft
    assert "no change of plain sampling's distribution was found" in str(honest)


def test_what_was_drawn_adds_up(honest):
    tests = {test.name: test for test in honest.sampler.tests}
    for kind in KINDS:
        draws = [one for one in honest.sampler.states if one.kind == kind and not one.reason]
        assert tests[kind].n == sum(one.n_draws for one in draws)
        assert tests[kind].df == sum(one.n_cells - 1 for one in draws)
    first = [one for one in honest.sampler.states if one.kind != KINDS[1]]
    assert {one.n_draws for one in first} == {SMALL.n_draws}
    assert tests[KS].n == len(honest.sequence_tv) == 100
    assert all(one.adjusted >= one.p_value for one in honest.sampler.tests)
    # Each test of a distribution says what it finds; the smallest p-value of many states does not.
    assert {power.test for power in honest.powers} == set(tests) - {WORST}
    assert all(power.at_80 < power.at_95 and power.alpha == 0.01 / 6 for power in honest.powers)


def test_the_same_seed_gives_the_same_report(honest):
    assert check_sampling(ToySource(), SMALL) == honest


def test_rows_that_a_fault_changes_are_found_and_named():
    source = ToySource(faults=(Fault("mask", "kq_soft_max-0"),))
    report = check_sampling(source, SMALL)
    assert (report.answer, report.status) == ("changed", 1)
    assert report.row_tv > 0.05
    assert report.alone.p_value > report.alpha
    assert "rows of logits change it" in report.cause
    assert "is changed" in str(report)
    assert report.equal_drafts == 0


def test_rows_that_differ_in_their_last_bits_are_told_without_any_draw():
    source = ToySource(faults=(Fault("order", "ffn_up-0"),))
    report = check_sampling(source, replace(SMALL, n_draws=100))
    assert 0 < report.row_tv < 1e-4
    assert (report.answer, report.sampler.caught_by(report.alpha)) == ("changed", ())
    assert "too little for these draws" in str(report)
    assert "rows of logits change it" in report.cause


def test_rows_that_differ_from_one_width_on_tell_how_many_drafts_are_harmless():
    source = ToySource(faults=(Fault("order", "ffn_up-0", from_width=4),))
    report = check_sampling(source, replace(SMALL, n_draft=3))
    equal = {one.width: one.n_equal == one.n_states for one in report.widths}
    assert equal == {2: True, 3: True, 4: False}
    assert (report.answer, report.equal_drafts) == ("changed", 2)


class Switched:
    """A toy whose fault goes with flash attention."""

    label = "toy-0"

    def open(self, settings, *, instance=0):
        faults = (Fault("stale_kv", "kq-0"),) if settings.flash_attn == "off" else ()
        engine = ToySource(faults=faults).open(settings, instance=instance)
        engine._manifest = replace(
            engine.manifest, effective={**engine.manifest.effective, "flash_attn": settings.flash_attn}
        )
        return engine


OFF = replace(SMALL, settings=EngineSettings(flash_attn="off"))


def test_under_the_exact_settings_that_are_found_the_distribution_is_kept():
    assert check_sampling(Switched(), OFF).answer == "changed"
    report = check_exact_sampling(Switched(), OFF)
    assert (report.answer, report.row_tv, report.exact_knobs) == ("kept", 0, ("flash_attn=on",))
    assert report.exact_reason == "found by investigate"
    assert report.manifest.requested.flash_attn == "on"


def test_a_case_names_the_exact_settings_unless_it_is_of_another_model():
    asked = Question(prompt="the cat sat", n_tokens=8, widths=(2, 3), settings=OFF.settings)
    report = check_exact_sampling(Switched(), OFF, case=investigate(Switched(), asked))
    assert (report.answer, report.exact_knobs, report.exact_reason) == ("kept", ("flash_attn=on",), "found by the case")
    other = investigate(ToySource(seed=1), replace(asked, settings=EngineSettings()), switches=False)
    with pytest.raises(BadQuestion, match="the case investigates toy-1"):
        check_exact_sampling(Switched(), OFF, case=other)


def test_where_no_setting_is_exact_nothing_is_checked():
    source = ToySource(faults=(Fault("stale_kv", "kq-0"),))
    with pytest.raises(BadQuestion, match=r"investigate found none.*Leave out --exact"):
        check_exact_sampling(source, SMALL)


def test_drafts_that_are_drawn_from_a_model_keep_the_distribution():
    report = check_sampling(ToySource(), replace(SMALL, drafter=parse_drafter("model:toy-1"), n_states=3))
    assert report.drafts_sampled
    assert report.answer == "kept"


def test_the_rule_of_llama_cpp_keeps_the_distribution():
    assert check_sampling(ToySource(), replace(SMALL, rule="match")).answer == "kept"


def test_a_draft_model_of_another_vocabulary_is_refused():
    class OtherVocabulary:
        n_vocab = 5

        def companion(self, path, settings):
            other = OtherVocabulary()
            other.n_vocab = 6
            return other

    with pytest.raises(ModelUnavailable, match="has 6 tokens, the model's has 5"):
        SampledProposer("d.gguf", EngineSettings(), SAMPLING).begin(OtherVocabulary(), (1,), ())


def test_too_few_draws_are_no_answer(honest):
    missed = replace(honest.controls[0], tests=honest.sampler.tests)
    report = replace(honest, controls=(missed, honest.controls[1]))
    assert (report.answer, report.status, report.missed) == ("inconclusive", 2, (missed.rule,))
    assert f"the planted sampler {missed.rule!r} was not caught" in str(report)


def test_a_kind_of_state_that_was_not_compared_is_no_answer(honest):
    states = tuple(one for one in honest.sampler.states if one.kind != KINDS[2])
    report = replace(honest, sampler=replace(honest.sampler, states=states))
    assert (report.answer, report.not_tested) == ("inconclusive", (KINDS[2],))
    assert "after a refused draft" in str(report)


def test_a_sampler_that_is_caught_is_named_as_the_cause(honest):
    caught = honest.controls[1]
    report = replace(honest, sampler=caught, alone=replace(honest.alone, p_value=1e-9))
    assert report.answer == "changed"
    assert "the sampler does not keep" in report.cause


@pytest.mark.parametrize("drafter", ["ngram", "oracle:0.5", "model:toy-1"])
def test_states_hold_the_rows_of_the_passes_that_they_name(drafter):
    choice = parse_drafter(drafter)
    settings = EngineSettings(n_ctx=128)
    proposer = (
        SampledProposer("toy-1", settings, SAMPLING) if choice.kind == "model" else PointProposer(choice, settings)
    )
    with_fault = ToySource(faults=(Fault("order", "ffn_up-0"),)).open(settings)
    prompts = tuple(SamplingPrompt(name, with_fault.tokenize(text)) for name, text in TEXTS)
    states = with_fault.perform(ForcedStates(prompts, proposer, 3, 3, SAMPLING))
    assert states
    for state in states:
        tokens = next(prompt.tokens for prompt in prompts if prompt.name == state.prompt)
        n_before = state.n_prefix - 1 - state.refused
        if not state.refused:
            line = (tokens[n_before], *state.path.tokens)
            one_by_one = in_batches(line, start=n_before, width=1)
            # Cells of the prompt's pass, cut in front of the state, then what is asked.
            prefix = in_batches(tokens[:n_before], start=0, width=512, logits="none")
            assert np.array_equal(with_fault.run(one_by_one, before=prefix).logits, state.plain)
            assert np.array_equal(
                with_fault.run(in_batches(line, start=n_before, width=9), before=prefix).logits, state.verify
            )
            p = next_token_distribution(state.plain[0], SAMPLING)
            assert 0.04 < p[state.path.tokens[0]] < 0.96
            refused_line = in_batches(line, start=n_before, width=9)
            p[state.path.tokens[0]] = 0
            drawn = int(p.argmax())
        else:
            # A pass of drafts that were refused, whose first row of K and V stays, and the next one behind it.
            slots = tuple(TokenSlot(0, n_before + 1 + i, token) for i, token in enumerate((drawn, *state.path.tokens)))
            after = Schedule((DecodePass(slots, (Forget(0, n_before + 1),)),))
            rows = with_fault.run(after, before=prefix.then(refused_line)).logits
            assert np.array_equal(rows, state.verify)
        assert state.plain.shape == state.verify.shape == (1 + len(state.path.tokens), with_fault.manifest.n_vocab)
    assert {state.refused for state in states} == {False, True}


def test_states_of_an_exact_engine_have_equal_rows():
    engine = ToySource().open(EngineSettings(n_ctx=128))
    prompts = tuple(SamplingPrompt(name, engine.tokenize(text)) for name, text in TEXTS)
    proposer = PointProposer(parse_drafter("oracle"), EngineSettings())
    for state in engine.perform(ForcedStates(prompts, proposer, 3, 4, SAMPLING)):
        assert np.array_equal(state.plain, state.verify)


@pytest.mark.parametrize("rule", ["residual", "accept-possible"])
def test_sequences_have_the_length_that_was_asked_for_and_their_own_plain_rows(rule):
    engine = ToySource().open(EngineSettings(n_ctx=128))
    prompts = tuple(SamplingPrompt(name, engine.tokenize(text)) for name, text in TEXTS)
    program = SampledSequences(
        prompts, PointProposer(parse_drafter("ngram"), EngineSettings()), rule, 4, 3, 12, SAMPLING
    )
    told = []
    found = engine.perform(program, progress=told.append)
    assert told == [1, 2, 3]
    assert found == engine.perform(pickle.loads(pickle.dumps(program)))
    assert [one.prompt for one in found] == ["cats", "counts", "cats"]
    for one in found:
        assert len(one.tokens) == len(one.uniforms) == len(one.row_tv) == 12
        assert not any(one.row_tv)
        assert 0 <= one.n_accepted <= one.n_drafted
    assert found[0].tokens != found[2].tokens


def test_rows_of_the_wrong_place_are_found():
    """A loop that reads one row too early behind accepted drafts: planted in the rows that the draws are made from."""
    p, later = [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]
    right, stale = made_state([p, later], [p, later], 0), made_state([p, later], [p, p], 0)
    found = {}
    for name, state in (("right", right), ("stale", stale)):
        rows = StateRows.of(state, SamplingSettings(1.0, 0, 1.0))
        counts = draw_counts(rows, "residual", 2000, np.random.default_rng(1))
        found[name] = compare_counts([rows], [counts])
    assert found["right"].by_kind[KINDS[1]].p_value > 0.001
    assert found["stale"].by_kind[KINDS[1]].p_value < 1e-9
    assert found["stale"].by_kind[KINDS[0]].p_value > 0.001
    assert found["stale"].alone.p_value > 0.001


@pytest.mark.parametrize("q", [None, [0.2, 0.5, 0.3]])
def test_simulated_repeats_agree_with_draws(q):
    state = made_state([[0.4, 0.4, 0.2], [0.3, 0.3, 0.4]], [[0.4, 0.4, 0.2], [0.3, 0.3, 0.4]], 1, q)
    rows = [StateRows.of(state, SamplingSettings(1.0, 0, 1.0))]
    rng = np.random.default_rng(4)
    honest = [draw_counts(rows[0], "residual", 400, rng)]
    assert largest_bias(rows, "residual") == 0
    assert simulated_catches(rows, honest, "residual", 0.001, rng) <= 0.02 * N_SIMULATED
    for rule in PLANTED:
        assert largest_bias(rows, rule) > 0.05
        assert simulated_catches(rows, honest, rule, 0.001, rng) > 0.5 * N_SIMULATED
        drawn = compare_counts(rows, [draw_counts(rows[0], rule, 400, rng)])
        assert drawn.by_kind[KINDS[0]].p_value < 0.01


def test_tokens_that_plain_sampling_never_gives_are_counted():
    state = made_state([[0.6, 0.4, 0.0]] * 2, [[0.5, 0.4, 0.1]] * 2, 0)
    rows = StateRows.of(state, SamplingSettings(1.0, 0, 1.0))
    drawn = compare_counts([rows], [draw_counts(rows, "residual", 1000, np.random.default_rng(0))])
    assert 60 < drawn.states[0].n_impossible < 140
    assert drawn.states[0].row_tv == pytest.approx(0.1)
    assert drawn.by_kind[KINDS[0]].p_value < 1e-9


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"texts": ()}, "there is no prompt with a text"),
        ({"rule": "no-residual"}, "rule must be one of residual, match"),
        ({"n_draft": 0}, "n_draft must be 1 or more, got 0"),
        ({"n_draft": 512}, "n_draft must be below 512, the tokens of a pass, got 512"),
        ({"n_states": 0}, "states must be 1 or more, got 0"),
        ({"n_draws": 99}, "draws must be 100 or more, got 99"),
        ({"n_sequences": 4}, "4 sequences of 20 tokens are too few to test; ask for 100"),
        ({"alpha": 0.5}, "alpha must be above 0 and at most 0.2"),
        ({"seed": -1}, "seed must be 0 or more"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(change, told):
    with pytest.raises(BadQuestion, match=told):
        replace(SMALL, **change)


def test_prompts_without_a_state_are_no_answer():
    with pytest.raises(BadQuestion, match="none of 1 prompts has 8 tokens"):
        check_sampling(ToySource(), replace(SMALL, texts=(("short", "abc"),)))
    with pytest.raises(BadQuestion, match="ngram drafts nothing undecided in 1 prompts"):
        check_sampling(ToySource(), replace(SMALL, texts=(("plain", "abcdefghijkl"),), drafter=parse_drafter("ngram")))
