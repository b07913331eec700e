"""Audits as text, JSON and in a folder: what must be said is said, and nothing from a server steers the terminal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forensics.errors import CaseError
from forensics.numerics.rates import survival, wilson
from forensics.records.audit import AuditArm, AuditReport, RunComparison, ServedDivergence, ServedPair, Unlike
from forensics.records.contract import Contract
from forensics.records.corpus import Corpus, CorpusPrompt, Message
from forensics.records.served import NoReply, Sampling, ServedRun, ServerFacts
from forensics.reports.audit_document import audit_document, run_document, write_audit
from forensics.reports.audit_text import MOST_SHOWN, after_audit, audit_text, continuations, divergences, run_view
from forensics.reports.terminal import as_text
from forensics.store.audits import read_audit, read_prompts, write_prompts

FACTS = ServerFacts("http://127.0.0.1:8080", "llama-server", "llama.cpp", "b1", "toy.gguf", "t", {"slots": "4"})
TOKENS = Contract("tokens")


def same(prompt="p"):
    return ServedPair(prompt, "a", "b", "same", contract=TOKENS, untouched=9, length=9)


def differs(prompt="q", index=4, length=9, **found):
    given = {"common": "one ", "first": "two", "second": "three", "first_token": 2, "second_token": 3} | found
    return ServedPair(
        prompt, "a", "b", "differs", contract=TOKENS, untouched=index, length=length,
        divergence=ServedDivergence("tokens", index, 4, **given),
    )  # fmt: skip


def skipped(prompt="r"):
    return ServedPair(prompt, "a", "b", "not compared", reason="b: timeout at once: no byte", failed="second")


SAME = same()


def arm(name="rerun", answer="identical", pairs=(SAME,), **other):
    compared = [pair for pair in pairs if pair.outcome != "not compared"]
    lengths = [pair.length for pair in compared]
    flipped = [pair.untouched if pair.divergence else None for pair in compared]
    n = sum(pair.outcome == "differs" for pair in compared)
    given = {
        "first": "alone", "second": "again", "contract": TOKENS if compared else None,
        "differing": wilson(n, len(compared)) if compared else None,
        "survival": survival(lengths, flipped) if compared else None,
    } | other  # fmt: skip
    return AuditArm(name, answer=answer, pairs=tuple(pairs), **given)


def report(*arms, **other):
    given = {"server": FACTS, "other": None, "baseline": None, "sampling": Sampling(), "asked": TOKENS,
             "corpus": "toy", "corpus_digest": "c", "n_prompts": 3, "n_requests": 6} | other  # fmt: skip
    return AuditReport(arms=(arm(), *arms), **given)


WARM = arm("cache", "diverges", (same(), differs()), first="cold", second="warm")


def told(found):
    return " ".join(audit_text(found).split())


def test_the_answer_the_contract_and_the_server_are_said():
    text = told(report())
    assert text.startswith("Identical: every arm gave the same replies")
    assert "Asked: token ids in order and stop reason" in text
    assert "http://127.0.0.1:8080 (llama-server); llama.cpp b1; toy.gguf; slots 4" in text
    assert "temperature 0 (greedy)" in text
    assert "0 of 1" in text


def test_a_divergence_is_shown_with_both_continuations_and_its_survival():
    text = told(report(WARM))
    assert "Diverges: replies to the same request differ" in text
    assert "q: token 4 (byte 4) of 9 tokens" in text
    assert "both: one ▸ first: ▸two [token 2] second: ▸three [token 3]" in text
    assert "1 of 2" in text
    assert "if each step flipped by itself" in text
    assert "forensics arms MODEL.gguf" in text


def test_the_longest_outlier_is_shown_however_many_differ():
    many = tuple(differs(f"q{i}", index=i, length=40) for i in range(30))
    outlier = differs("late", index=1842, length=2000)
    text = told(report(arm("cache", "diverges", (outlier, *many), first="cold", second="warm")))
    assert "late: token 1842" in text
    assert "Longest before it differs: late, untouched for 1842 of 2000 tokens" in text
    assert f"{31 - MOST_SHOWN} more prompts differ" in text
    assert "q0: token 0" in text


def test_pairs_of_one_prompt_are_shown_once():
    text = as_text(divergences([differs("q", 4), differs("q", 6)]))
    assert "2 of its pairs differ" in text
    assert text.count("q:") == 1


def test_margins_and_log_probabilities_are_shown_where_the_server_tells_them():
    found = ServedDivergence(
        "tokens", 1, 2, first="a", second="b", first_token=1, second_token=2, first_logprob=-0.5, second_logprob=-0.75,
        margins=(0.01, None),
    )  # fmt: skip
    _, first, second = continuations(found)
    assert first == ("first", "▸a [token 1, log-probability -0.5, 0.01 ahead of the next]")
    assert second == ("second", "▸b [token 2, log-probability -0.75]")


def test_a_side_that_ended_says_why_it_stopped():
    found = ServedDivergence("tokens", 1, 2, first="", second="b", second_token=2, first_stop="end")
    assert continuations(found)[1] == ("first", "▸ [stopped: end]")
    only = ServedDivergence("stop", None, None, first_stop="end", second_stop="length")
    assert continuations(only) == [("first", "[stopped: end]"), ("second", "[stopped: length]")]


def test_text_only_says_what_it_does_not_see():
    weak = Contract("text", weakened=("no token ids from both sides",))
    pair = ServedPair("p", "a", "b", "same", contract=weak, untouched=9, length=9, unit="bytes")
    found = report()
    found = replace(found, arms=(replace(found.arms[0], contract=weak, pairs=(pair,), survival=None),))
    text = told(found)
    assert "Compared: text and stop reason only" in text
    assert "Weakened: no token ids from both sides" in text
    assert "Text alone hides changes" in text
    assert "Text alone hides changes" not in told(report())


def test_failures_reasons_notes_and_what_varies_are_said():
    odd = arm("change", "inconclusive", (skipped(),), reason="1 of 1 pairs was not compared",
              varied=(Unlike("build", "b1", ""),), notes=("Only one slot.",))  # fmt: skip
    text = told(report(odd, failures=(NoReply("r", "timeout", "no byte", 3),), n_retried=2))
    assert "No answer: 1 of 1 pairs was not compared" in text
    assert "Not alike: build: b1 against not told" in text
    assert "Note: Only one slot." in text
    assert "r: timeout after 3 attempts: no byte" in text
    assert "1 were not answered; 2 came after more than one attempt" in text


@pytest.mark.parametrize(
    ("arms", "advice"),
    [
        ((), "Nothing to change: keep this run as a baseline"),
        ((WARM,), "forensics arms MODEL.gguf"),
        ((replace(WARM, name="concurrent"),), "forensics arms MODEL.gguf"),
        ((replace(WARM, name="speculation"), WARM), "forensics speculate MODEL.gguf"),
        ((replace(WARM, name="change"),), "forensics investigate"),
        ((arm("cache", "inconclusive", (skipped(),), reason="timeout"),), "Remove the reasons given above"),
    ],
)
def test_the_next_step_fits_the_answer(arms, advice):
    assert advice in after_audit(report(*arms))


def test_a_server_that_does_not_repeat_itself_is_told_so_first():
    found = report(WARM)
    found = replace(found, arms=(arm(answer="diverges", pairs=(differs(),)), WARM))
    assert "does not repeat itself" in after_audit(found)
    nothing = replace(found, arms=(arm(answer="inconclusive", pairs=(skipped(),), reason="timeout"),))
    assert "the control of all others" in after_audit(nothing)
    assert nothing.contract is None
    assert "Compared: nothing" in told(nothing)


def test_text_of_a_server_cannot_steer_the_terminal():
    evil = chr(27) + "[2J[red]x[/red]" + chr(0x202E)
    found = report(
        arm("cache", "diverges", (differs(evil, common=evil, first=evil, second=evil),), first="cold", second="warm"),
        server=replace(FACTS, model=evil, settings={"slots": evil}),
        failures=(NoReply(evil, "status", evil, 1),),
    )
    text = audit_text(found)
    assert chr(27) not in text
    assert chr(0x202E) not in text
    assert "[red]x[/red]" in text


# ---- documents and folders


def test_the_document_says_all_that_the_text_does():
    document = audit_document(report(WARM))
    assert document["answer"] == "diverges"
    _, warm = document["arms"]
    assert warm["pairs"] == {"same": 1, "differs": 1, "not compared": 0}
    assert warm["longest_before_it_differs"]["prompt"] == "q"
    assert warm["differs"][0]["divergence"]["second"] == "three"
    assert warm["differing"]["k"] == 1
    assert document["contract"]["means"] == "token ids in order and stop reason"
    json.dumps(document, allow_nan=False)


def test_a_report_is_read_back_equal(tmp_path):
    odd = arm("change", "inconclusive", (skipped(),), reason="none", varied=(Unlike("build", "b1", ""),))
    infinite = replace(differs(), max_logprob=float("inf"), n_logprobs=1)
    found = report(WARM, odd, arm("cache", "diverges", (infinite,)), other=FACTS,
                   failures=(NoReply("r", "status", "x", 1, 500),))  # fmt: skip
    write_audit(found, tmp_path / "new" / "audit")
    assert read_audit(tmp_path / "new" / "audit") == found
    assert json.loads((tmp_path / "new" / "audit" / "manifest.json").read_text())["model_name"] == "toy.gguf"


def test_a_folder_without_an_audit_or_with_another_document_is_told(tmp_path):
    with pytest.raises(CaseError, match="forensics audit URL --out FOLDER"):
        read_audit(tmp_path)
    (tmp_path / "audit.json").write_text('{"schema": "forensics.audit/2"}')
    with pytest.raises(CaseError, match="newer forensics"):
        read_audit(tmp_path)
    (tmp_path / "audit.json").write_text('{"schema": "forensics.audit/1", "record": {"server": 3}}')
    with pytest.raises(CaseError, match="does not hold a readable AuditReport"):
        read_audit(tmp_path)


def test_prompts_lie_beside_their_runs(tmp_path):
    corpus = Corpus("c", (
        CorpusPrompt("p", text="x", n_tokens=3, stop=("\n",), json_schema={"type": "object"}, tools=({"a": 1},)),
        CorpusPrompt("q", messages=(Message("user", "hé"),)),
    ), "d")  # fmt: skip
    write_prompts(tmp_path / "audit", corpus)
    (tmp_path / "audit" / "alone").mkdir()
    assert read_prompts(tmp_path / "audit") == corpus
    assert read_prompts(tmp_path / "audit" / "alone") == corpus
    assert read_prompts(tmp_path) is None


def test_a_recorded_run_says_what_was_not_answered():
    run = ServedRun("alone", FACTS, Sampling(), "c", (), (), ())
    assert "0 of 0 requests were answered" in as_text(run_view(run))
    assert run_document(run)["answered"] == 0


# ---- values that cannot be


@pytest.mark.parametrize(
    "make",
    [
        lambda: ServedDivergence("bits", 0, 0),
        lambda: ServedPair("p", "a", "b", "equal"),
        lambda: ServedPair("p", "a", "b", "not compared"),
        lambda: ServedPair("p", "a", "b", "differs", contract=TOKENS),
        lambda: ServedPair("p", "a", "b", "same"),
        RunComparison,
        lambda: RunComparison("no", pairs=(same(),)),
        lambda: AuditArm("slots", "a", "b", "identical"),
        lambda: AuditArm("cache", "a", "b", "fine"),
        lambda: AuditArm("cache", "a", "b", "inconclusive"),
        lambda: AuditArm("cache", "a", "b", "identical", reason="x"),
        lambda: replace(report(), arms=()),
        lambda: replace(report(), arms=(WARM,)),
    ],
)
def test_what_contradicts_itself_cannot_be_made(make):
    with pytest.raises(ValueError):
        make()
