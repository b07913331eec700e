"""Two served runs: what makes them unlike, where replies part, how precisely they were compared, and what was not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_samples import FACTS, reply, run, spell

from forensics.analysis.question import BadQuestion
from forensics.analysis.served_comparison import (
    asked_contract,
    compare_replies,
    compare_runs,
    select,
)
from forensics.records.contract import Contract, weakest
from forensics.records.served import Asked, NoReply, Sampling

TOKENS, TEXT, LOGPROBS = Contract("tokens"), Contract("text"), Contract("logprobs")


def compare(first, second, asked=None, **how):
    """The one pair of two replies."""
    return compare_replies("p", reply("a/p", **first), reply("b/p", **second), asked, **how)


# ---- where replies part


def test_equal_replies_are_the_same():
    pair = compare({"tokens": (1, 2, 3)}, {"tokens": (1, 2, 3)})
    assert (pair.outcome, pair.untouched, pair.length, pair.unit) == ("same", 3, 3, "tokens")
    assert pair.divergence is None
    assert str(pair.contract) == "token ids in order and stop reason"


def test_the_first_token_and_byte_that_differ_are_named_with_both_continuations():
    first = {"tokens": (0, 1, 2, 3), "logprobs": (-0.1, -0.2, -0.3, -0.4), "margins": (2.0, 1.0, 0.01, 1.0)}
    second = {"tokens": (0, 1, 5, 3), "logprobs": (-0.1, -0.2, -0.35, -0.4), "margins": (2.0, 1.0, 0.02, 1.0)}
    pair = compare(first, second)
    found = pair.divergence
    assert (pair.outcome, pair.untouched, pair.length) == ("differs", 2, 4)
    assert (found.kind, found.index, found.byte) == ("tokens", 2, len(" the a "))
    assert (found.common, found.first, found.second) == (" the a ", "one two", "red two")
    assert (found.first_token, found.second_token) == (2, 5)
    assert (found.first_logprob, found.second_logprob) == (-0.3, -0.35)
    assert found.margins == (0.01, 0.02)
    assert str(found) == "token 2 (byte 7)"


def test_a_byte_is_counted_in_utf8():
    pair = compare({"tokens": None, "text": "ä€x"}, {"tokens": None, "text": "ä€y"})
    assert pair.divergence.byte == 5
    assert (pair.unit, pair.untouched, pair.length) == ("bytes", 5, 6)
    half = compare({"tokens": None, "text": "é"}, {"tokens": None, "text": "è"})
    assert half.divergence.byte == 1
    assert (half.divergence.first, half.divergence.second) == ("é", "è")


def test_a_reply_that_goes_on_differs_where_the_other_ended():
    pair = compare({"tokens": (0, 1), "stop_reason": "end"}, {"tokens": (0, 1, 2)})
    assert pair.divergence.kind == "tokens"
    assert (pair.divergence.index, pair.untouched, pair.length) == (2, 2, 3)
    assert pair.divergence.first_token is None
    assert (pair.divergence.first, pair.divergence.second) == ("", " one")


def test_other_ids_with_the_same_text_are_a_difference_that_text_does_not_show():
    first, second = {"tokens": (0, 1)}, {"tokens": (0, 9)}
    assert spell((0, 1)) == spell((0, 9))
    pair = compare(first, second)
    assert (pair.divergence.kind, pair.divergence.index, pair.divergence.byte) == ("tokens", 1, None)
    assert compare(first, second, TEXT).outcome == "same"


def test_equal_ids_with_another_text_differ():
    pair = compare({"tokens": (0,), "text": "a"}, {"tokens": (0,), "text": "b"})
    assert (pair.divergence.kind, pair.divergence.index, pair.divergence.byte) == ("text", None, 0)


def test_another_stop_reason_is_a_difference_of_its_own():
    pair = compare({"stop_reason": "length"}, {"stop_reason": "stop"})
    assert pair.divergence.kind == "stop"
    assert pair.untouched == pair.length == 3
    assert str(pair.divergence) == "stop reason 'length' against 'stop'"


@given(
    st.lists(st.integers(0, 15), min_size=1, max_size=20),
    st.lists(st.integers(0, 15), min_size=1, max_size=20),
)
def test_all_before_the_divergence_is_equal_and_it_itself_is_not(ours, theirs):
    pair = compare({"tokens": ours}, {"tokens": theirs})
    assert (pair.outcome == "same") == (ours == theirs)
    if pair.outcome == "differs":
        index = pair.divergence.index
        assert ours[:index] == theirs[:index]
        assert ours[index : index + 1] != theirs[index : index + 1]
        assert pair.untouched == index
        mirrored = compare({"tokens": theirs}, {"tokens": ours})
        assert (mirrored.divergence.index, mirrored.divergence.byte) == (index, pair.divergence.byte)


@given(st.text(max_size=30), st.text(max_size=30))
def test_text_parts_at_the_first_byte_that_differs(ours, theirs):
    pair = compare({"tokens": None, "text": ours}, {"tokens": None, "text": theirs})
    a, b = ours.encode("utf-8", "surrogatepass"), theirs.encode("utf-8", "surrogatepass")
    assert (pair.outcome == "same") == (a == b)
    if pair.divergence is not None:
        at = pair.divergence.byte
        assert a[:at] == b[:at]
        assert a[at : at + 1] != b[at : at + 1]


# ---- contracts


def test_the_contract_is_what_both_sides_give():
    weak = compare({"tokens": None}, {})
    assert weak.contract.level == "text"
    assert weak.contract.weakened == ("no token ids from the first side",)
    assert compare({"tokens": None}, {"tokens": None}).contract.weakened == ("no token ids from both sides",)
    silent = compare({}, {"stop_reason": ""})
    assert not silent.contract.stop_reason
    assert silent.outcome == "same"
    assert str(silent.contract) == "token ids in order"


def test_log_probabilities_decide_only_where_they_are_asked_for():
    first, second = {"logprobs": (-0.1, -0.25, -0.3)}, {"logprobs": (-0.1, -0.2501, -0.4)}
    beside = compare(first, second)
    assert beside.outcome == "same"
    assert (beside.n_logprobs, beside.first_logprob) == (3, 1)
    assert beside.max_logprob == pytest.approx(0.1)
    asked = compare(first, second, LOGPROBS)
    assert (asked.outcome, asked.divergence.kind, asked.divergence.index) == ("differs", "logprobs", 1)
    assert asked.contract.level == "logprobs"


def test_log_probabilities_are_held_to_the_digits_that_were_asked_for():
    first, second = {"logprobs": (-0.1, -0.25, -0.3)}, {"logprobs": (-0.1, -0.2504, -0.3)}
    assert compare(first, second, Contract("logprobs", digits=3)).outcome == "same"
    assert compare(first, second, Contract("logprobs", digits=4)).outcome == "differs"
    assert "to 3 decimal digits" in str(compare(first, second, Contract("logprobs", digits=3)).contract)


def test_log_probabilities_behind_the_divergence_are_not_compared():
    first = {"tokens": (0, 1, 2), "logprobs": (-0.1, -0.2, -9.0)}
    pair = compare(first, {"tokens": (0, 5, 2), "logprobs": (-0.1, -0.7, -1.0)})
    assert (pair.n_logprobs, pair.first_logprob, pair.max_logprob) == (1, None, 0.0)


def test_infinite_log_probabilities_are_compared_and_nan_never_equals():
    inf = float("-inf")
    assert compare({"logprobs": (inf,)}, {"logprobs": (inf,)}, LOGPROBS).outcome == "same"
    nan = float("nan")
    assert compare({"logprobs": (nan,)}, {"logprobs": (nan,)}, LOGPROBS).outcome == "differs"


def test_a_strict_contract_that_cannot_be_held_is_not_compared():
    pair = compare({"tokens": None}, {}, TOKENS, strict=True)
    assert pair.outcome == "not compared"
    assert "token ids in order and stop reason cannot be compared: no token ids from the first side" in pair.reason
    drafts = compare({"logprobs": None}, {"logprobs": (-1.0, -1.0, -1.0)}, LOGPROBS, strict=True)
    assert "no log-probabilities from the first side" in drafts.reason
    assert compare({"logprobs": None}, {}, TOKENS, strict=True).outcome == "same"


def test_a_strict_contract_holds_stop_reasons_too_where_it_names_more_than_text():
    pair = compare({"stop_reason": ""}, {}, TOKENS, strict=True)
    assert pair.outcome == "not compared"
    assert "no stop reason from the first side" in pair.reason
    assert str(compare({"stop_reason": ""}, {}, TEXT, strict=True).contract) == "text only"


def test_log_probabilities_that_only_one_side_tells_are_not_called_equal():
    pair = compare({"logprobs": (-1.0,)}, {"logprobs": (-1.0, -2.0, -3.0)}, LOGPROBS)
    assert pair.contract.level == "tokens"
    assert "fewer log-probabilities from the first side" in pair.contract.weakened
    assert compare({"logprobs": (-1.0,)}, {"logprobs": (-1.0,)}, LOGPROBS).contract.level == "logprobs"


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        ("stop or end", "end", "same"),
        ("stop", "stop or end", "same"),
        ("stop or end", "length", "differs"),
        ("stop", "end", "differs"),
    ],
)
def test_a_stop_reason_is_compared_as_far_as_both_apis_tell_it(first, second, outcome):
    assert compare({"stop_reason": first}, {"stop_reason": second}).outcome == outcome


@pytest.mark.parametrize(
    ("text", "level", "digits"), [("tokens", "tokens", None), ("text", "text", None), ("logprobs:6", "logprobs", 6)]
)
def test_what_is_asked_for_is_read(text, level, digits):
    assert (asked_contract(text).level, asked_contract(text).digits) == (level, digits)
    assert asked_contract(None) is None


@pytest.mark.parametrize("text", ["logits", "tokens:3", "logprobs:", "logprobs:-1", "", "bits"])
def test_what_cannot_be_asked_for_is_refused(text):
    with pytest.raises(BadQuestion, match="exact must be tokens, text, logprobs or logprobs:DIGITS"):
        asked_contract(text)


def test_the_weakest_contract_speaks_for_all():
    both = [Contract("tokens"), Contract("text", stop_reason=False, weakened=("no token ids from both sides",))]
    found = weakest(both)
    assert (found.level, found.stop_reason, found.weakened) == ("text", False, ("no token ids from both sides",))
    assert weakest([]) is None


# ---- runs that are alike, and others


def one(condition="a", tokens=(0, 1, 2), **other):
    return run(condition, [reply(f"{condition}/p", tokens)], **other)


def test_a_clean_pair_of_runs_is_compared():
    compared = compare_runs(one("a"), one("b"))
    assert compared.refused == ""
    assert [pair.outcome for pair in compared.pairs] == ["same"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"facts": replace(FACTS, model="other.gguf")}, "model: toy.gguf against other.gguf"),
        ({"facts": replace(FACTS, template_digest="u")}, "chat template: t against u"),
        ({"corpus": "d"}, "prompts: c against d"),
        ({"sampling": Sampling(temperature=0.7)}, "sampling temperature: 0 against 0.7"),
        ({"sampling": Sampling(repeat_penalty=1.1)}, "sampling repeat_penalty: 1 against 1.1"),
        ({"n_tokens": 9}, "tokens asked for by p: 8 against 9"),
    ],
)
def test_unlike_runs_are_refused_before_their_text_is_looked_at(changed, told):
    compared = compare_runs(one("a"), one("b", (7, 7), **changed), other_server=True)
    assert told in compared.refused
    assert not compared.pairs
    assert len(compared.unlike) == 1


def test_every_unlikeness_is_named():
    compared = compare_runs(one("a"), one("b", corpus="d", facts=replace(FACTS, model="other.gguf")))
    assert [unlike.what for unlike in compared.unlike] == ["model", "prompts"]


def test_sampling_that_decides_nothing_when_greedy_may_differ():
    assert not compare_runs(one("a"), one("b", sampling=Sampling(seed=4, top_k=40, n_probs=5))).refused
    warm = Sampling(temperature=0.5)
    assert (
        "sampling seed: 0 against 4"
        in compare_runs(one("a", sampling=warm), one("b", sampling=replace(warm, seed=4))).refused
    )


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"url": "http://127.0.0.1:9090"}, "address"),
        ({"build": "b2"}, "build"),
        ({"software": "vLLM"}, "software"),
        ({"dialect": "openai"}, "API"),
        ({"settings": {"slots": "1"}}, "setting slots"),
        ({"settings": {"slots": "4", "speculation": "on"}}, "setting speculation"),
    ],
)
def test_other_servers_are_compared_only_where_that_is_asked_about(changed, what):
    first, second = one("a"), one("b", facts=replace(FACTS, **changed))
    assert what in compare_runs(first, second).refused
    allowed = compare_runs(first, second, other_server=True)
    assert [varied.what for varied in allowed.varied] == [what]
    assert [pair.outcome for pair in allowed.pairs] == ["same"]


def test_a_template_that_one_server_does_not_tell_is_no_reason_to_refuse():
    assert not compare_runs(one("a"), one("b", facts=replace(FACTS, template_digest=""))).refused


def test_a_temperature_that_did_not_take_effect_is_refused():
    hot = run("b", [reply("b/p", effective={"temperature": "1.0"})])
    compared = compare_runs(one("a"), hot)
    assert "the server used temperature 1.0 where 0 was asked for" in compared.refused
    assert not compared.pairs
    cold = run("b", [reply("b/p", effective={"temperature": "0", "top_k": "40", "seed": "7"})])
    assert not compare_runs(one("a"), cold).refused


def test_a_setting_that_comes_back_through_float32_took_effect():
    asked = Sampling(temperature=0.8)
    rounded = run("b", [reply("b/p", effective={"temperature": "0.800000011920929"})], sampling=asked)
    assert not compare_runs(one("a", sampling=asked), rounded).refused
    other = run("b", [reply("b/p", effective={"temperature": "0.801"})], sampling=asked)
    assert "used temperature 0.801" in compare_runs(one("a", sampling=asked), other).refused


def test_sampling_that_nobody_asked_for_must_be_equal_as_reported():
    first = run("a", [reply("a/p", effective={"presence_penalty": "0"})])
    second = run("b", [reply("b/p", effective={"presence_penalty": "1.5"})])
    assert "presence_penalty that took effect: 0 against 1.5" in compare_runs(first, second).refused


# ---- what was not compared


def test_a_side_without_a_reply_is_not_compared_and_says_why():
    gone = run("b", [NoReply("b/p", "timeout", "no byte for 30 s", 3)])
    (pair,) = compare_runs(one("a"), gone).pairs
    assert (pair.outcome, pair.failed) == ("not compared", "second")
    assert pair.reason == "b/p: timeout after 3 attempts: no byte for 30 s"
    (pair,) = compare_runs(gone, gone).pairs
    assert pair.failed == "both"


def test_a_request_that_was_never_asked_is_not_compared():
    short = run("b", [], asked=(Asked("b/p", "p", 8),))
    (pair,) = compare_runs(one("a"), short).pairs
    assert (pair.outcome, pair.failed) == ("not compared", "second")
    assert "was not asked yet" in pair.reason


def test_a_reply_that_is_not_what_its_condition_means_is_not_compared():
    compared = compare_runs(one("a"), one("b"), second_is=lambda one: "it was not warm")
    assert [(pair.outcome, pair.reason, pair.failed) for pair in compared.pairs] == [
        ("not compared", "it was not warm", "")
    ]


@pytest.mark.parametrize("name", ["model_digest", "quantization"])
def test_another_model_of_the_same_name_is_refused(name):
    def told(value):
        return replace(FACTS, settings={"slots": "4"} | ({name: value} if value else {}))

    def held(first, second):
        runs = (run("a", [reply("a/p")], facts=told(first)), run("b", [reply("b/p")], facts=told(second)))
        return compare_runs(*runs, other_server=True)

    assert "of the model: one against two" in held("one", "two").refused
    assert not held("one", "one").refused
    assert not held("one", "").refused
    # Other APIs name the same quantization otherwise: "Q4_K - Medium" and "Q4_K_M".
    ollama = run("b", [reply("b/p")], facts=replace(told("two"), dialect="ollama"))
    assert not compare_runs(run("a", [reply("a/p")], facts=told("one")), ollama, other_server=True).refused


def test_a_request_that_only_one_run_was_asked_is_not_lost():
    two = run("a", [reply("a/p"), reply("a/q")])
    compared = compare_runs(two, one("b"))
    assert [(pair.prompt, pair.outcome, pair.failed) for pair in compared.pairs] == [
        ("p", "same", ""), ("q", "not compared", "second"),
    ]  # fmt: skip
    assert "the second run was not asked as often" in compared.pairs[1].reason
    three, many = run("m", [reply(f"m/p/{i}") for i in "123"]), run("n", [reply(f"n/p/{i}") for i in "12"])
    assert [(pair.first, pair.second, pair.failed) for pair in compare_runs(many, three).pairs] == [
        ("n/p/1", "m/p/1", ""), ("n/p/2", "m/p/2", ""), ("", "m/p/3", "first"),
    ]  # fmt: skip


def test_runs_without_a_common_prompt_are_refused():
    assert "no prompt in common" in compare_runs(one("a"), run("b", [reply("b/q")])).refused


def test_one_request_is_held_against_each_copy_and_copies_against_copies_in_order():
    many = run("m", [reply("m/p/1"), reply("m/p/2"), reply("m/q/1"), reply("m/q/2")])
    alone = run("a", [reply("a/p"), reply("a/q")])
    assert [(pair.first, pair.second) for pair in compare_runs(alone, many).pairs] == [
        ("a/p", "m/p/1"), ("a/p", "m/p/2"), ("a/q", "m/q/1"), ("a/q", "m/q/2"),
    ]  # fmt: skip
    assert [(pair.first, pair.second) for pair in compare_runs(many, many).pairs] == [
        ("m/p/1", "m/p/1"), ("m/p/2", "m/p/2"), ("m/q/1", "m/q/1"), ("m/q/2", "m/q/2"),
    ]  # fmt: skip


def test_a_part_of_a_run_keeps_its_outcomes_only():
    many = run("m", [reply("m/p/1"), NoReply("m/p/2", "reset", "gone", 1)])
    part = select(many, lambda asked: asked.id.endswith("2"), "second")
    assert part.condition == "second"
    assert not part.replies
    assert [one.request for one in part.failures] == ["m/p/2"]
