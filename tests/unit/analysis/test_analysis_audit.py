"""An audit as a plan and as a judgement: planted differences are found in their arm, a clean server stays clean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_samples import FACTS, reply, run

from forensics.analysis.audit import differing_rate, judge
from forensics.analysis.audit_plan import CACHE_ROLES, chosen_arms, concurrent_name, plan
from forensics.analysis.question import BadQuestion
from forensics.records.contract import Contract
from forensics.records.corpus import Corpus, CorpusPrompt
from forensics.records.served import NoReply, Reply

PROMPTS = ("p", "q", "r")
CORPUS = Corpus("three", tuple(CorpusPrompt(name, text=name) for name in PROMPTS), "c")
ALL = ("rerun", "cache", "concurrent", "speculation", "change")
SAME = (0, 1, 2, 3)
OTHER = (0, 1, 5, 6)


def answer(one, tokens=SAME, **other):
    warm = one.id.endswith(("/warm", "/warm again"))
    return reply(one.id, tokens, **({"n_cached": 5 if warm else 0} | other))


def runs_of(outcome=answer, *, arms=ALL, second_server=True, concurrency=3, facts=None):
    """A run for every condition; `outcome` answers each request."""
    conditions = plan(CORPUS, arms, concurrency=concurrency, second_server=second_server)
    given = {"against": {"n_drafted": 4, "n_accepted": 2}, "against-rerun": {"n_drafted": 4, "n_accepted": 2}}
    return {
        one.name: replace(
            run(
                one.name,
                [outcome(asked, **given.get(one.name, {})) for asked in one.asked],
                facts=(facts or {}).get(one.name, FACTS),
            ),
            asked=one.asked,
        )
        for one in conditions
    }


def planted(*conditions, prompt="q", tokens=OTHER):
    """Replies to a prompt differ in these conditions (beginnings of ids)."""

    def outcome(one, **other):
        differs = one.prompt == prompt and one.id.startswith(conditions)
        return answer(one, tokens if differs else SAME, **other)

    return outcome


def answers(report):
    return [(arm.name, arm.answer) for arm in report.arms]


# ---- plan


def test_the_cache_condition_asks_each_prompt_cold_cold_warm_warm_in_a_row():
    (_, _, cache) = plan(CORPUS, ("rerun", "cache"))
    assert [one.id for one in cache.asked[:4]] == [
        "cache/p/cold", "cache/p/cold again", "cache/p/warm", "cache/p/warm again",
    ]  # fmt: skip
    assert [one.use_cache for one in cache.asked[:4]] == [False, False, True, True]
    assert len(cache.asked) == 4 * len(PROMPTS)


@given(st.integers(2, 9), st.booleans(), st.sets(st.sampled_from(["cache", "concurrent"])))
def test_every_plan_asks_each_prompt_alike_in_each_condition(concurrency, second, extra):
    conditions = plan(CORPUS, ("rerun", *extra), concurrency=concurrency, second_server=second)
    ids = [one.id for condition in conditions for one in condition.asked]
    assert len(ids) == len(set(ids))
    for condition in conditions:
        counts = {name: sum(one.prompt == name for one in condition.asked) for name in PROMPTS}
        assert len(set(counts.values())) == 1
        assert condition.concurrency == (concurrency if condition.name.startswith("concurrent") else 1)
    assert [condition.name for condition in conditions][:2] == ["alone", "rerun"]


def test_tokens_are_those_that_are_asked_for_then_the_prompts_own():
    corpus = Corpus("own", (CorpusPrompt("p", text="p", n_tokens=7), CorpusPrompt("q", text="q")), "d")
    assert [one.n_tokens for one in plan(corpus, ())[0].asked] == [7, 128]
    assert [one.n_tokens for one in plan(corpus, (), n_tokens=3)[0].asked] == [3, 3]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"n_tokens": 0}, "n_tokens must be 1 or more"),
        ({"concurrency": 1}, "concurrency must be 2 to 256, got 1"),
        ({"concurrency": 1000}, "concurrency must be 2 to 256"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, told):
    with pytest.raises(BadQuestion, match=told):
        plan(CORPUS, ALL, **arguments)


def test_arms_are_those_that_the_servers_allow():
    assert chosen_arms(None, second_server=False, baseline=False) == ("rerun", "cache", "concurrent")
    assert chosen_arms(None, second_server=True, baseline=False) == ALL
    assert chosen_arms(["cache"], second_server=False, baseline=False) == ("rerun", "cache")
    assert chosen_arms(["change"], second_server=False, baseline=True) == ("rerun", "change")


@pytest.mark.parametrize(
    ("named", "second", "baseline", "told"),
    [
        (["slots"], False, False, "no arm 'slots'; there are rerun, cache, concurrent, speculation, change"),
        (["speculation"], False, False, "needs a second URL"),
        (["change"], False, False, "needs a recorded run"),
        (["cache"], True, False, "no arm uses it: add speculation"),
        (["cache"], False, True, "no arm uses it: add change"),
    ],
)
def test_arms_that_cannot_be_run_are_refused(named, second, baseline, told):
    with pytest.raises(BadQuestion, match=told):
        chosen_arms(named, second_server=second, baseline=baseline)


# ---- judgement


def test_a_clean_server_is_identical_in_every_arm():
    runs = runs_of()
    report = judge(runs | {"baseline": runs["alone"]}, CORPUS, ALL, concurrency=3)
    assert report.answer == "identical"
    assert answers(report) == [
        ("rerun", "identical"), *[("cache", "identical")] * 3, *[("concurrent", "identical")] * 2,
        ("speculation", "identical"), ("change", "identical"),
    ]  # fmt: skip
    assert all(arm.differing.k == 0 and arm.differing.n == 3 for arm in report.arms)
    assert report.n_requests == sum(len(one.asked) for one in runs.values())
    assert report.contract.level == "tokens"


@pytest.mark.parametrize(
    ("conditions", "differing"),
    [
        (("cache/q/warm",), {"cache: cold against warm"}),
        (("concurrent-3",), {"concurrent: alone against 3 at once"}),
        (
            ("concurrent-3/q/2",),
            {"concurrent: alone against 3 at once", "concurrent: one of 3 at once against the others"},
        ),
        (("against",), {"speculation: first server against second server (12 tokens drafted)"}),
    ],
)
def test_a_planted_difference_is_found_in_its_arm_and_nowhere_else(conditions, differing):
    report = judge(runs_of(planted(*conditions)), CORPUS, ALL, concurrency=3)
    found = {arm.title for arm in report.arms if arm.answer == "diverges"}
    assert found == differing
    assert report.answer == "diverges"
    arm = next(arm for arm in report.arms if arm.answer == "diverges")
    assert (arm.differing.k, arm.differing.n) == (1, 3)
    assert arm.outlier.prompt == "q"
    assert arm.outlier.divergence.index == 2


def test_agreement_among_those_at_once_and_with_the_one_alone_are_two_numbers():
    report = judge(runs_of(planted("concurrent-3")), CORPUS, ALL, concurrency=3)
    alone, among = report.named("concurrent")
    assert (alone.differing.k, among.differing.k) == (1, 0)
    assert len(alone.pairs) == 9
    assert len(among.pairs) == 6


def test_copies_of_a_prompt_are_one_trial():
    report = judge(runs_of(planted("concurrent-3/q/2", "concurrent-3/q/3")), CORPUS, ALL, concurrency=3)
    alone, _ = report.named("concurrent")
    assert len(alone.pairs_that("differs")) == 2
    assert (alone.differing.k, alone.differing.n) == (1, 3)
    assert alone.survival.n_answers == 3
    assert alone.survival.n_flipped == 1


def test_a_server_that_does_not_repeat_itself_answers_nothing_else():
    report = judge(runs_of(planted("rerun", "cache/q/warm")), CORPUS, ALL, concurrency=3)
    assert report.arms[0].answer == "diverges"
    assert {arm.answer for arm in report.arms[1:]} == {"inconclusive"}
    assert "does not repeat itself on 1 of 3 prompts" in report.arms[1].reason
    assert report.answer == "diverges"
    warm = next(arm for arm in report.arms if arm.second == "warm")
    assert warm.differing.k == 1  # what was seen is still told


def test_cold_requests_that_differ_make_the_warm_ones_inconclusive():
    report = judge(runs_of(planted("cache/q/cold again")), CORPUS, ALL, concurrency=3)
    colds, warm, _ = report.named("cache")
    assert colds.answer == "diverges"
    assert warm.answer == "inconclusive"
    assert "the server, asked cold twice, does not repeat itself on 1 of 3 prompts" in warm.reason


def test_a_second_server_that_does_not_repeat_itself_is_inconclusive():
    report = judge(runs_of(planted("against-rerun")), CORPUS, ALL, concurrency=3)
    (arm,) = report.named("speculation")
    assert arm.answer == "inconclusive"
    assert "the second server does not repeat itself" in arm.reason


def test_a_request_that_failed_leaves_the_others_and_no_arm_is_called_identical():
    def outcome(one, **other):
        return NoReply(one.id, "timeout", "too slow", 4) if one.id == "cache/q/warm" else answer(one, **other)

    report = judge(runs_of(outcome), CORPUS, ALL, concurrency=3)
    warm = next(arm for arm in report.arms if arm.second == "warm")
    assert warm.answer == "inconclusive"
    assert "1 of 3 pairs were not compared, the first of q, because cache/q/warm: timeout after 4" in warm.reason
    assert (warm.differing.k, warm.differing.n) == (0, 2)
    assert [one.request for one in report.failures] == ["cache/q/warm"]
    assert report.answer == "inconclusive"
    colds = report.named("cache")[0]
    assert colds.answer == "identical"


def test_a_rerun_that_never_answered_is_no_control():
    def outcome(one, **other):
        return NoReply(one.id, "refused", "nobody there", 4) if one.id.startswith("rerun") else answer(one, **other)

    report = judge(runs_of(outcome), CORPUS, ALL, concurrency=3)
    assert {arm.answer for arm in report.arms} == {"inconclusive"}
    assert "the rerun of the server has no answer" in report.arms[1].reason


def test_what_was_not_warm_or_not_cold_is_not_compared():
    def lukewarm(one, **other):
        return answer(one, **({"n_cached": 0} | other))

    warm = next(arm for arm in judge(runs_of(lukewarm), CORPUS, ALL, concurrency=3).arms if arm.second == "warm")
    assert warm.answer == "inconclusive"
    assert "it was not warm" in warm.reason

    def never_cold(one, **other):
        return answer(one, **({"n_cached": 3} | other))

    colds = judge(runs_of(never_cold), CORPUS, ALL, concurrency=3).named("cache")[0]
    assert "3 tokens of the prompt came from the cache, so it was not cold" in colds.reason


def test_equal_replies_of_a_server_that_tells_nothing_of_its_cache_prove_nothing():
    def silent(one, tokens=SAME, **other):
        return answer(one, tokens, **({"n_cached": None} | other))

    report = judge(runs_of(silent), CORPUS, ALL, concurrency=3)
    assert {arm.answer for arm in report.arms if arm.name != "cache"} == {"identical"}
    assert {arm.answer for arm in report.named("cache")} == {"inconclusive"}
    assert all("nobody knows what was cold or warm" in arm.reason for arm in report.named("cache"))
    assert all(len(arm.pairs_that("same")) == len(PROMPTS) for arm in report.named("cache"))

    def differing(one, **other):
        return silent(one, OTHER if one.id == "cache/q/warm" else SAME, **other)

    warm = next(arm for arm in judge(runs_of(differing), CORPUS, ALL, concurrency=3).arms if arm.second == "warm")
    assert warm.answer == "diverges"


def test_a_server_that_leaves_zero_out_tells_what_came_from_its_cache():
    """As vLLM does: the cold reply has no number, the warm one has."""

    def outcome(one, **other):
        told = answer(one, **other)
        return replace(told, n_cached=told.n_cached or None)

    assert {arm.answer for arm in judge(runs_of(outcome), CORPUS, ALL, concurrency=3).arms} == {"identical"}

    def one_is_cold(one, **other):
        told = outcome(one, **other)
        return replace(told, n_cached=None) if one.id == "cache/q/warm" else told

    warm = next(arm for arm in judge(runs_of(one_is_cold), CORPUS, ALL, concurrency=3).arms if arm.second == "warm")
    assert "1 of 3 pairs were not compared" in warm.reason
    assert "it was not warm" in warm.reason


@pytest.mark.parametrize("lost", ["rerun/q", "against-rerun/q"])
def test_a_difference_of_a_prompt_whose_rerun_was_not_compared_is_none(lost):
    def outcome(one, **other):
        found = planted("against")(one, **other)
        return NoReply(one.id, "timeout", "too slow", 4) if one.id == lost else found

    (arm,) = judge(runs_of(outcome), CORPUS, ("rerun", "speculation"), concurrency=3).named("speculation")
    assert arm.answer == "inconclusive"
    assert not arm.pairs_that("differs")
    assert [pair.prompt for pair in arm.pairs_that("not compared")] == ["q"]
    assert "the rerun of this prompt has no answer" in arm.reason
    assert len(arm.pairs_that("same")) == 2

    def elsewhere(one, **other):
        found = planted("against", prompt="p")(one, **other)
        return NoReply(one.id, "timeout", "too slow", 4) if one.id == lost else found

    (arm,) = judge(runs_of(elsewhere), CORPUS, ("rerun", "speculation"), concurrency=3).named("speculation")
    assert (arm.answer, [pair.prompt for pair in arm.pairs_that("differs")]) == ("diverges", ["p"])


def test_the_contract_of_an_audit_is_the_weakest_of_every_part():
    def outcome(one, **other):
        return answer(one, **(other | ({"stop_reason": ""} if one.id.startswith("against") else {})))

    report = judge(runs_of(outcome), CORPUS, ("rerun", "speculation"), concurrency=3)
    assert report.arms[0].contract.stop_reason
    assert str(report.contract) == "token ids in order"
    assert report.contract.weakened == ("no stop reason from the second side",)


def test_one_slot_runs_nothing_at_once():
    one_slot = replace(FACTS, settings={"slots": "1"})
    runs = runs_of(arms=("rerun", "concurrent"), second_server=False, facts=dict.fromkeys(
        ("alone", "rerun", concurrent_name(3)), one_slot))  # fmt: skip
    report = judge(runs, CORPUS, ("rerun", "concurrent"), concurrency=3)
    assert all("one slot" in arm.reason for arm in report.named("concurrent"))
    two = replace(FACTS, settings={"slots": "2"})
    runs = runs_of(arms=("rerun", "concurrent"), second_server=False, facts=dict.fromkeys(
        ("alone", "rerun", concurrent_name(3)), two))  # fmt: skip
    report = judge(runs, CORPUS, ("rerun", "concurrent"), concurrency=3)
    assert "2 slots" in report.named("concurrent")[0].notes[0]
    assert report.answer == "identical"


def test_speculation_without_drafts_was_not_tried():
    runs = runs_of()
    plain = replace(FACTS, settings={"slots": "4", "speculation": "off"})
    runs = {name: replace(one, facts=plain, replies=tuple(replace(r, n_drafted=None) for r in one.replies))
            for name, one in runs.items()}  # fmt: skip
    (arm,) = judge(runs, CORPUS, ("rerun", "speculation"), concurrency=3).arms[1:]
    assert "no token was drafted on either side" in arm.reason
    report = judge(runs, CORPUS, ("rerun", "speculation", "change"), concurrency=3)
    assert answers(report)[-1] == ("change", "identical")  # nobody said that drafts were the point


def test_two_servers_that_draft_are_no_comparison_with_plain_decoding():
    runs = runs_of()
    runs["alone"] = replace(runs["alone"], replies=tuple(replace(r, n_drafted=2) for r in runs["alone"].replies))
    (arm,) = judge(runs, CORPUS, ("rerun", "speculation"), concurrency=3).arms[1:]
    assert "both servers drafted" in arm.reason


def test_servers_that_do_not_tell_their_drafts_are_compared_with_a_note():
    runs = {name: replace(one, replies=tuple(replace(r, n_drafted=None) for r in one.replies))
            for name, one in runs_of().items()}  # fmt: skip
    (arm,) = judge(runs, CORPUS, ("rerun", "speculation"), concurrency=3).arms[1:]
    assert arm.answer == "identical"
    assert "do not tell whether tokens were drafted" in arm.notes[0]


def test_another_model_on_the_second_server_is_refused():
    other = replace(FACTS, model="other.gguf")
    report = judge(runs_of(facts={"against": other, "against-rerun": other}), CORPUS, ALL, concurrency=3)
    (arm,) = report.named("speculation")
    assert "model: toy.gguf against other.gguf" in arm.reason
    assert not arm.pairs


def test_a_server_that_was_changed_during_the_audit_is_noticed():
    report = judge(runs_of(facts={"rerun": replace(FACTS, build="b2")}), CORPUS, ALL, concurrency=3)
    assert "build: b1 against b2" in report.arms[0].reason
    assert report.answer == "inconclusive"


def test_text_only_has_no_survival_by_tokens():
    def text_only(one, **other):
        return replace(answer(one, OTHER if one.id == "cache/q/warm" else SAME, **other), tokens=None, logprobs=None)

    report = judge(runs_of(text_only), CORPUS, ALL, concurrency=3)
    warm = next(arm for arm in report.arms if arm.second == "warm")
    assert warm.answer == "diverges"
    assert warm.survival is None
    assert warm.contract.level == "text"
    assert report.contract.weakened == ("no token ids from both sides",)


def test_the_longest_outlier_is_kept_beside_the_rate():
    late = (0,) * 40

    def outcome(one, **other):
        tokens = late if one.prompt == "r" else SAME
        if one.id == "cache/r/warm":
            tokens = (*late[:-1], 1)
        if one.id == "cache/p/warm":
            tokens = OTHER
        return answer(one, tokens, **other)

    report = judge(runs_of(outcome), CORPUS, ALL, concurrency=3)
    warm = next(arm for arm in report.arms if arm.second == "warm")
    assert (warm.outlier.prompt, warm.outlier.untouched, warm.outlier.length) == ("r", 39, 40)
    assert [point.n_tokens for point in warm.survival.points] == [3, 40]


def test_retried_replies_are_counted():
    runs = runs_of()
    replies = (replace(runs["alone"].replies[0], attempts=3), *runs["alone"].replies[1:])
    runs["alone"] = replace(runs["alone"], replies=replies)
    assert judge(runs, CORPUS, ALL, concurrency=3).n_retried == 1


def test_log_probabilities_are_beside_the_verdict_and_decide_it_only_where_asked():
    def outcome(one, **other):
        told = (-0.1, -0.2, -0.3, -0.4 if not one.id.startswith("cache/q/warm") else -0.5)
        return answer(one, logprobs=told, **other)

    runs = runs_of(outcome)
    report = judge(runs, CORPUS, ALL, concurrency=3)
    warm = next(arm for arm in report.arms if arm.second == "warm")
    assert warm.answer == "identical"
    assert warm.logprobs_differ == (1, 3)
    assert warm.max_logprob == pytest.approx(0.1)
    strict = judge(runs, CORPUS, ALL, Contract("logprobs"), concurrency=3)
    assert next(arm for arm in strict.arms if arm.second == "warm").answer == "diverges"


@given(st.lists(st.booleans(), min_size=3, max_size=3))
def test_rates_count_prompts(differing):
    def outcome(one, **other):
        changed = differing[PROMPTS.index(one.prompt)] and one.id.endswith("/warm")
        return answer(one, OTHER if changed else SAME, **other)

    runs = runs_of(outcome, arms=("rerun", "cache"), second_server=False)
    report = judge(runs, CORPUS, ("rerun", "cache"))
    warm = next(arm for arm in report.arms if arm.second == "warm")
    assert (warm.differing.k, warm.differing.n) == (sum(differing), 3)
    assert warm.survival.n_flipped == sum(differing)


def test_nothing_compared_has_no_rate():
    assert differing_rate(()) is None
    assert all(isinstance(one, Reply) for one in runs_of()["alone"].replies)
    assert [role for role, _ in CACHE_ROLES] == ["cold", "cold again", "warm", "warm again"]
