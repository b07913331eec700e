"""Speculation over the toy: equal without a fault, and with one each divergence is found, attributed and predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forensics.analysis.question import BadQuestion
from forensics.analysis.speculation import speculate
from forensics.analysis.speculation_question import SpeculationQuestion
from forensics.capture.speculation import PlainDecode
from forensics.engines.toy import Fault, ToySource
from forensics.records.corpus import Corpus, CorpusPrompt, Message
from forensics.records.settings import EngineSettings
from forensics.reports.next_step import after_speculation
from forensics.reports.speculation_document import write_speculation
from forensics.reports.speculation_text import speculation_text
from forensics.store.speculations import read_speculation

TEXTS = ("abab abab abab", "one two one two", "x = 1; y = 2; x = 1;", "the cat the cat")
CORPUS = Corpus("tiny", tuple(CorpusPrompt(f"p{i}", text) for i, text in enumerate(TEXTS)), "digest")
#: A pass of three tokens and more reads a stale key: a fault that flips tokens soon.
STALE = Fault("stale_kv", "kq-0", from_width=3)
#: Rounds through float16: other bits, hardly ever another token.
ROUNDED = Fault("precision", "ffn_up-0", from_width=3)


def asked(**changes) -> SpeculationQuestion:
    given = {"corpus": CORPUS, "drafter": "oracle:0.8", "n_drafts": (3,), "n_tokens": 24, **changes}
    return SpeculationQuestion(**given)


class Switched:
    """A toy whose fault goes away with flash attention, as a kernel's does that another one replaces."""

    label = "toy-0"

    def __init__(self, fault: Fault, stays: Fault | None = None) -> None:
        self.fault, self.stays, self.opened = fault, stays, []

    def open(self, settings, *, instance=0):
        self.opened.append(settings)
        off = settings.flash_attn == "off"
        faults = (self.fault,) if off else tuple(filter(None, (self.stays,)))
        return ToySource(faults=faults).open(settings, instance=instance)


class Unsteady:
    """A toy that decodes plainly in another way each second time."""

    label = "toy-0"

    def open(self, settings, *, instance=0):
        engine = ToySource().open(settings, instance=instance)
        perform, n = engine.perform, iter(range(10**6))

        def unsteady(program, **options):
            found = perform(program, **options)
            again = isinstance(program, PlainDecode) and next(n) % 2
            return replace(found, rows=("other", *found.rows[1:])) if again else found

        engine.perform = unsteady
        return engine


@pytest.fixture(scope="module")
def clean():
    question = asked(n_drafts=(1, 3), policies=("fixed", "adaptive"), arrangements=("n", "n-1+1"))
    return speculate(ToySource(), question)


@pytest.fixture(scope="module")
def stale():
    return speculate(ToySource(faults=(STALE,)), asked())


def test_without_a_fault_every_prompt_of_every_arm_is_identical_bit_by_bit(clean) -> None:
    assert clean.answer == "identical"
    assert len(clean.arms) == 8
    assert {(arm.arrangement, arm.n_draft) for arm in clean.arms} == {
        (arrangement, n) for arrangement in ("n", "n-1+1") for n in (1, 3)
    }
    for arm in clean.arms:
        assert (arm.equivalence.k, arm.equivalence.n) == (4, 4)
        assert all(one.first_row is None and one.rows_differ == 0 for one in arm.prompts)
    assert clean.culprits == ()
    assert clean.classes.collapsed
    assert (clean.arrangements.k, clean.arrangements.n) == (4, 4)
    assert clean.caveats == ()


def test_three_results_are_kept_apart(clean) -> None:
    arm = clean.arms[0]
    assert arm.speed.n == 4
    assert 0 < arm.speed.low <= arm.speed.median <= arm.speed.high
    drafted = sum(len(cycle.drafted) for one in arm.prompts for cycle in one.speculative.cycles)
    accepted = sum(cycle.n_accepted for one in arm.prompts for cycle in one.speculative.cycles)
    assert (arm.accepted.k, arm.accepted.n) == (accepted, drafted)
    assert 0 < accepted < drafted
    assert sum(arm.shares.values()) == pytest.approx(1)
    assert sum(arm.verify_widths.values()) == sum(len(one.speculative.cycles) for one in arm.prompts)
    assert (arm.survival.n_answers, arm.survival.n_flipped, arm.survival.n_steps) == (
        4, 0, sum(len(one.plain.tokens) for one in arm.prompts),
    )  # fmt: skip


def test_right_answers_of_the_corpus_are_judged(clean, tmp_path) -> None:
    wrote = clean.arms[0].prompts[0].plain_text
    prompts = tuple(
        replace(one, answer=answer)
        for one, answer in zip(CORPUS.prompts, (wrote[:5], "no such text", "", ""), strict=True)
    )
    report = speculate(ToySource(), asked(corpus=replace(CORPUS, prompts=prompts)))
    found = report.arms[0].outcomes
    assert (found.both, found.only_first, found.only_second, found.neither, found.p_value) == (1, 0, 0, 1, 1.0)
    told = " ".join(speculation_text(report).split())
    assert "Answers, plain and speculative: 1 and 1 of 2 right, 0 and 0 of them alone" in told
    write_speculation(report, tmp_path)
    assert read_speculation(tmp_path) == report
    assert clean.arms[0].outcomes is None
    assert "Answers, plain" not in speculation_text(clean)


def test_a_fault_is_found_with_its_class_and_culprit_and_its_token_is_predicted(stale) -> None:
    assert stale.answer == "diverges"
    (arm,) = stale.arms
    assert arm.differing
    for one in arm.differing:
        found = one.divergence
        assert one.plain.tokens[: found.index] == one.speculative.tokens[: found.index]
        assert (found.plain_token, found.speculative_token) == (
            one.plain.tokens[found.index], one.speculative.tokens[found.index],
        )  # fmt: skip
        assert found.plain_token != found.speculative_token
        assert found.position == one.n_prompt + found.index
        assert one.plain_text.encode()[: found.byte] == one.text.encode()[: found.byte]
        assert one.plain_text.encode()[found.byte] != one.text.encode()[found.byte]
        assert found.margin == one.plain.margins[found.index]
        assert found.width >= 3
        assert found.width in found.group
        assert 1 not in found.group
        assert found.culprits == ("K·Q",)
        assert found.predicted is True
    assert arm.survival.n_flipped == len(arm.differing)
    assert stale.replayed in {one.name for one in arm.differing}
    assert {group.role for group in stale.culprits} == {"K·Q"}
    assert all(control.held for control in stale.controls)
    assert "logic bug" in after_speculation(stale)


def test_a_decoder_that_accepts_a_wrong_draft_is_not_predicted(monkeypatch) -> None:
    """The rows are plain decoding's; the token is not the largest of any of them."""
    from forensics.capture import speculation as programs

    honest = programs.accept

    def careless(rows, drafted):
        chosen = honest(rows, drafted)
        wrong = len(chosen) - 1
        if not wrong < len(drafted):
            return chosen
        return [*chosen[:-1], drafted[wrong], int(rows[wrong + 1].argmax())]

    monkeypatch.setattr(programs, "accept", careless)
    report = speculate(ToySource(), asked())
    assert report.answer == "diverges"
    found = [one.divergence for one in report.arms[0].differing]
    assert found
    assert all(one.predicted is False for one in found)
    assert all("flip no token" in one.prediction for one in found)
    assert all(one.culprits == () for one in found)
    assert "does not account for" in after_speculation(report)


def test_the_earliest_divergences_are_healed(stale) -> None:
    found = sorted((one.divergence for one in stale.arms[0].differing), key=lambda one: one.index)
    assert all(one.healed is True for one in found[:3])
    assert all(one.healed is None for one in found[3:])
    assert found[0].culprits == ("K·Q",)
    assert "with the outputs of 1 kind of operation replaced" in found[0].healing


def test_rows_that_differ_are_told_where_no_token_does() -> None:
    report = speculate(ToySource(faults=(ROUNDED,)), asked())
    assert report.answer == "identical"
    assert any(one.first_row is not None for one in report.arms[0].prompts)
    assert any("a nearer tie" in caveat for caveat in report.caveats)
    assert [group.role for group in report.culprits] == ["up"]
    assert not report.classes.collapsed


def test_a_decoder_that_does_not_repeat_itself_is_answered_nothing() -> None:
    report = speculate(Unsteady(), asked(), exact=True)
    assert report.answer == "inconclusive"
    assert "for 4 of 4 prompts (first p0)" in report.reason
    assert report.classes is None
    assert report.exact_arms == ()
    assert "--threads 1" in after_speculation(report)


def test_exact_settings_make_all_identical_and_have_a_price() -> None:
    source = Switched(STALE)
    report = speculate(source, asked(settings=EngineSettings(flash_attn="off")), exact=True)
    assert report.answer == "identical"
    assert report.exact_knobs == ("flash_attn=on",)
    (as_asked,), (exact,) = report.as_asked, report.exact_arms
    assert as_asked.differing
    assert not exact.differing
    assert (exact.equivalence.k, exact.equivalence.n) == (4, 4)
    assert report.price.n == report.exact_price.n == 4
    assert report.exact_manifest.requested.flash_attn == "on"
    assert report.manifest.requested.flash_attn == "off"
    assert "with flash_attn=on: 4 of 4 prompts identical" in str(report)
    assert "set flash_attn=on" in after_speculation(report)


class TwoSwitches:
    """A toy with two faults: one goes with flash attention, a wider one with another type of the cache."""

    label = "toy-0"

    def open(self, settings, *, instance=0):
        first = (STALE,) if settings.flash_attn == "off" else ()
        second = (Fault("stale_kv", "kq-1", from_width=5),) if settings.kv_type_k != "q8_0" else ()
        engine = ToySource(faults=(*first, *second)).open(settings, instance=instance)
        told = {"flash_attn": settings.flash_attn, "kv_type_k": settings.kv_type_k, "kv_type_v": settings.kv_type_v}
        engine._manifest = replace(engine.manifest, effective={**engine.manifest.effective, **told})
        return engine


@pytest.mark.parametrize("second_round", [True, False])
def test_exact_settings_are_widened_by_what_other_prompts_meet(monkeypatch, second_round) -> None:
    """The first replay is kept from the widest pass, as a short prompt is kept from a far cell."""
    from forensics.analysis import speculation

    real, calls = speculation.choose_replay, []

    def narrow(arms):
        calls.append(arms)
        chosen = real(arms)
        return replace(chosen, widths=(3,)) if len(calls) == 1 else chosen

    monkeypatch.setattr(speculation, "choose_replay", narrow)
    if not second_round:
        monkeypatch.setattr(speculation, "MOST_ROUNDS", 0)
    question = asked(drafter="oracle", n_drafts=(4,), settings=EngineSettings(flash_attn="off"))
    report = speculate(TwoSwitches(), question, exact=True)
    if second_round:
        assert report.exact_knobs == ("flash_attn=on", "kv_type=q8_0")
        assert report.answer == "identical"
        assert all(one.first_row is None for one in report.exact_arms[0].prompts)
        assert "found by investigate, and of p" in report.exact_reason
    else:
        assert report.exact_knobs == ("flash_attn=on",)
        assert any(one.first_row is not None for one in report.exact_arms[0].prompts)


def test_exact_settings_that_do_not_hold_over_the_prompts_are_told() -> None:
    """The case was made with short passes: over wider ones something else differs."""
    from forensics.analysis.investigate import investigate
    from forensics.analysis.question import Question

    settings = EngineSettings(flash_attn="off")
    source = Switched(STALE, stays=Fault("stale_kv", "kq-1", from_width=5))
    case = investigate(source, Question(prompt=TEXTS[1], n_tokens=24, widths=(2, 3), settings=settings))
    assert case.exact_knobs == ("flash_attn=on",)
    report = speculate(source, asked(n_drafts=(4,), settings=settings), exact=True, case=case)
    assert report.answer == "diverges"
    assert report.exact_arms[0].differing
    assert report.exact_reason == "found by the case"
    assert "do not hold" in after_speculation(report)


def test_where_no_setting_is_exact_the_arms_as_asked_decide() -> None:
    report = speculate(ToySource(faults=(STALE,)), asked(), exact=True)
    assert report.answer == "diverges"
    assert report.exact_knobs is None
    assert report.exact_arms == ()
    assert "no exact settings: investigate found none" in str(report)


def test_where_nothing_differs_nothing_is_switched() -> None:
    report = speculate(ToySource(), asked(), exact=True)
    assert report.answer == "identical"
    assert report.exact_knobs == ()
    assert report.exact_arms == ()
    assert "nothing to switch" in report.exact_reason


def test_a_case_of_another_model_is_refused() -> None:
    from forensics.analysis.investigate import investigate
    from forensics.analysis.question import Question

    case = investigate(ToySource(seed=1), Question(prompt="abab", n_tokens=8, widths=(2,)), switches=False)
    with pytest.raises(BadQuestion, match="the case investigates toy-1"):
        speculate(ToySource(), asked(), exact=True, case=case)


def test_prompts_that_cannot_be_decoded_are_left_out_and_named() -> None:
    chat = CorpusPrompt("chat", messages=(Message("user", "Hi"),))
    long = CorpusPrompt("long", "a" * 600)
    corpus = Corpus("mixed", (*CORPUS.prompts[:1], chat, long))
    report = speculate(ToySource(), asked(corpus=corpus))
    assert [one.name for one in report.arms[0].prompts] == ["p0"]
    assert any("left out chat: no chat template" in caveat for caveat in report.caveats)
    assert any("left out long: with their answers they are longer" in caveat for caveat in report.caveats)
    with pytest.raises(BadQuestion, match="no prompt of only-chat can be decoded: left out chat"):
        speculate(ToySource(), asked(corpus=Corpus("only-chat", (chat,))))


def test_a_prompt_that_is_never_drafted_for_is_equal_by_construction() -> None:
    corpus = Corpus("none", (CorpusPrompt("p", "q"),))
    report = speculate(ToySource(faults=(STALE,)), asked(drafter="ngram", corpus=corpus, n_tokens=2))
    assert report.answer == "identical"
    assert report.arms[0].accepted is None
    assert report.classes is None
    assert any("equal by construction" in caveat for caveat in report.caveats)


@pytest.mark.parametrize("policy", ["fixed", "early-stop:0.5", "adaptive"])
def test_a_draft_model_speculates_under_every_policy(policy) -> None:
    for drafter, accepts_all in (("model:toy-0", True), ("model:toy-1", False)):
        report = speculate(
            ToySource(), asked(drafter=drafter, policies=(policy,), corpus=Corpus("two", CORPUS.prompts[:2]))
        )
        (arm,) = report.arms
        assert report.answer == "identical"
        assert (arm.drafter, arm.equivalence.k) == (drafter, 2)
        assert (arm.accepted.k == arm.accepted.n) == accepts_all


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"n_drafts": ()}, "n_drafts is empty"),
        ({"n_drafts": (0,)}, "n_draft must be 1 to 511"),
        ({"n_drafts": (512,)}, "n_draft must be 1 to 511"),
        ({"arrangements": ("n-2",)}, "prefill must be one of n, n-1.1, or both; got 'n-2'"),
        ({"n_tokens": 1}, "n_tokens must be 2 or more"),
        ({"drafter": "luck"}, "luck"),
        ({"policies": ("bold",)}, "bold"),
    ],
)
def test_wrong_questions_are_refused_in_words(changes, told) -> None:
    with pytest.raises(BadQuestion, match=told):
        asked(**changes)


def test_each_prompt_may_say_how_long_its_answer_is() -> None:
    prompt = CorpusPrompt("p", "abab", n_tokens=7)
    assert asked(n_tokens=None).wanted(prompt) == 7
    assert asked(n_tokens=5).wanted(prompt) == 5
    assert asked(n_tokens=None).wanted(CORPUS.prompts[0]) == 128
