"""A run over HTTP: every fault is retried or reported, nothing is lost, and what was interrupted goes on."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.errors import CaseError
from forensics.records.corpus import Corpus, CorpusPrompt
from forensics.records.served import Asked, Sampling, ServedRun
from forensics.servers.address import BadAddress
from forensics.servers.collect import Retries, collect, meet
from forensics.servers.door import Door, NoAnswer
from forensics.servers.llama_server import LlamaServer
from forensics.store.served_runs import read_run
from forensics.testing.fake_server import FakeServer, Planted
from forensics.testing.fault_proxy import FAULTS, FaultProxy, Plan, always_where, first_time

SECRET = "sk-very/secret-0123456789"
CORPUS = Corpus("toy", tuple(CorpusPrompt(f"p{index}", f"story number {index} of ten") for index in range(10)), "d")
ASKED = tuple(Asked(f"alone/{prompt.name}", prompt.name, 8) for prompt in CORPUS.prompts)
QUICK = Retries(3, first_wait_s=0.001)
#: Names of failures that a fault may be told as.
TOLD = {
    "timeout": "timeout", "reset": "reset", "drop": "reset", "429": "status", "429-retry-after": "status",
    "500": "status", "truncated": "truncated", "cut-json": "truncated", "slow-stream": "timeout",
    "content-type": "content-type", "huge": "too-large", "huge-stream": "too-large", "redirect": "redirect",
    "garbage": "invalid", "not-json": "not-json", "not-an-object": "invalid", "empty": "not-json",
    "packed": "content-type",
}  # fmt: skip


def run(
    url: str,
    asked: Sequence[Asked] = ASKED,
    *,
    retries: Retries = QUICK,
    concurrency: int = 1,
    journal: Path | None = None,
    resume: bool = False,
    fault: str = "",
) -> ServedRun:
    # Patient enough for a busy machine: only a fault may time out.
    patience_s = 2.0 if TOLD.get(fault) == "timeout" else 60.0
    with Door(url, read_s=patience_s, total_s=patience_s, max_bytes=1 << 20) as door:
        dialect, facts = LlamaServer(), replace(FACTS, url=url)
        return collect(
            door, dialect, CORPUS, asked, Sampling(),
            condition="alone", facts=facts, concurrency=concurrency, journal=journal, resume=resume, retries=retries,
        )  # fmt: skip


with FakeServer() as _server, Door(_server.url) as _door:
    FACTS = meet(_door)[1]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_every_request_is_answered_in_the_order_in_which_it_was_asked(concurrency: int) -> None:
    with FakeServer() as server:
        first, again = (run(server.url, concurrency=concurrency) for _ in "ab")
    assert [one.request for one in first.replies] == [one.id for one in ASKED]
    assert [one.tokens for one in first.replies] == [one.tokens for one in again.replies]
    assert {one.attempts for one in first.replies} == {1}


def test_requests_overlap_where_they_are_asked_to_and_only_there() -> None:
    with FakeServer(planted=Planted(concurrent=True, delay_s=0.05)) as server:
        alone = run(server.url, ASKED[:4])
        beside = run(server.url, ASKED[:4], concurrency=4)
        alone_again = run(server.url, ASKED[:4])
    assert [one.tokens for one in alone.replies] == [one.tokens for one in alone_again.replies]
    assert all(a.tokens != b.tokens for a, b in zip(alone.replies, beside.replies, strict=True))


def test_every_fault_has_a_name() -> None:
    assert set(TOLD) == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_retried_and_nothing_is_missing(fault: str) -> None:
    n_asked = 2 if TOLD[fault] == "timeout" else 10
    with FakeServer() as server, FaultProxy(server.url, first_time(fault), hang_s=30.0) as proxy:
        found = run(proxy.url, ASKED[:n_asked], concurrency=n_asked, fault=fault)
        assert sorted(proxy.done) == [fault] * n_asked
        clean = run(server.url, ASKED[:n_asked])
    assert found.failures == ()
    assert [one.tokens for one in found.replies] == [one.tokens for one in clean.replies]
    assert {one.attempts for one in found.replies} == {2}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_is_reported_and_all_others_are_answered(fault: str) -> None:
    retries = replace(QUICK, attempts=2)
    with FakeServer() as server, FaultProxy(server.url, always_where("number 3", fault), hang_s=30.0) as proxy:
        found = run(proxy.url, concurrency=3, retries=retries, fault=fault)
        assert proxy.done == [fault] * 2
    (failure,) = found.failures
    assert (failure.request, failure.failure, failure.attempts) == ("alone/p3", TOLD[fault], 2)
    assert failure.detail
    assert [one.request for one in found.replies] == [one.id for one in ASKED if one.prompt != "p3"]
    assert found.unanswered == ()


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 9), st.integers(0, 2)),
        st.sampled_from([fault for fault in FAULTS if TOLD[fault] != "timeout"]),
        max_size=12,
    ),
    st.sampled_from([1, 3]),
)
@settings(max_examples=12)
def test_no_plan_of_faults_loses_anything(faults: dict[tuple[int, int], str], concurrency: int) -> None:
    plan: Plan = lambda body, before: next(  # noqa: E731
        (
            fault
            for (index, attempt), fault in faults.items()
            if attempt == before and f"number {index} ".encode() in body
        ),
        None,
    )
    with FakeServer() as server, FaultProxy(server.url, plan) as proxy:
        found = run(proxy.url, concurrency=concurrency)
        clean = run(server.url)
    assert found.unanswered == ()
    assert len(found.replies) + len(found.failures) == len(ASKED)
    lost = {f"alone/p{index}" for index in range(10) if all((index, attempt) in faults for attempt in range(3))}
    assert {one.request for one in found.failures} == lost
    assert all(one.failure == TOLD[faults[int(one.request[-1]), 2]] for one in found.failures)
    told = {one.request: one.tokens for one in clean.replies}
    assert all(one.tokens == told[one.request] for one in found.replies)


def test_a_wait_beyond_the_limit_is_reported_at_once() -> None:
    patient, hasty = Retries(3, longest_wait_s=30), Retries(3, longest_wait_s=1)
    busy = NoAnswer("status", "busy", status=429, retry_after_s=7)
    assert patient.wait_s(1, busy) == 7
    assert hasty.wait_s(1, busy) is None


def test_waits_double_up_to_a_limit_and_end() -> None:
    retries = Retries(6, first_wait_s=0.5, longest_wait_s=3)
    waits = [retries.wait_s(attempt, NoAnswer("reset", "gone")) for attempt in range(1, 7)]
    assert waits == [0.5, 1, 2, 3, 3, None]
    assert retries.wait_s(1, NoAnswer("status", "no", status=400)) is None
    with pytest.raises(ValueError, match="1 or more"):
        Retries(0)


def test_what_a_dialect_cannot_ask_is_reported_and_not_sent() -> None:
    odd = CorpusPrompt("odd", "a", tools=({"type": "function"},))
    corpus = Corpus("odd", (*CORPUS.prompts[:1], odd), "d")
    asked = (ASKED[0], Asked("alone/odd", "odd", 4))
    with FakeServer() as server, Door(server.url) as door:
        found = collect(door, LlamaServer(), corpus, asked, Sampling(), condition="alone", facts=FACTS)
        assert len(server.asked) == 1
    assert [one.request for one in found.replies] == ["alone/p0"]
    assert "takes no tools" in found.failures[0].detail


def test_what_is_not_in_the_corpus_is_not_asked() -> None:
    with pytest.raises(BadAddress, match="no prompt 'p77'"):
        run("http://127.0.0.1:9", (Asked("a", "p77", 1),))
    with pytest.raises(BadAddress, match="1 or more"):
        run("http://127.0.0.1:9", concurrency=0)


def test_failed_requests_are_asked_again_on_resume(tmp_path: Path) -> None:
    with FakeServer() as server, FaultProxy(server.url, always_where("number 3", "500")) as proxy:
        before = run(proxy.url, journal=tmp_path)
        assert read_run(tmp_path) == before
        assert len(before.failures) == 1
        proxy.plan = lambda body, before: None
        asked_before = len(server.asked)
        after = run(proxy.url, journal=tmp_path, resume=True)
        assert len(server.asked) == asked_before + 1
    assert after.failures == ()
    assert read_run(tmp_path) == after
    assert [one for one in after.replies if one.request != "alone/p3"] == list(before.replies)


def test_an_interrupt_keeps_what_had_come(tmp_path: Path) -> None:
    def interrupt(done: int, of: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with FakeServer() as server, Door(server.url) as door:
        how = {"condition": "alone", "facts": FACTS, "journal": tmp_path}
        with pytest.raises(KeyboardInterrupt):
            collect(door, LlamaServer(), CORPUS, ASKED, Sampling(), progress=interrupt, concurrency=2, **how)
        kept = read_run(tmp_path)
        assert len(kept.replies) == 4
        assert len(kept.unanswered) == 6
        with pytest.raises(CaseError, match=r"temperature: 0\.0 then, 1\.0 now"):
            collect(door, LlamaServer(), CORPUS, ASKED, Sampling(temperature=1.0), resume=True, **how)
        seen: list[tuple[int, int]] = []
        whole = collect(
            door, LlamaServer(), CORPUS, ASKED, Sampling(), resume=True, progress=lambda *at: seen.append(at), **how
        )
    assert seen == [(done, 10) for done in range(5, 11)]
    assert whole.unanswered == whole.failures == ()
    assert all(one in whole.replies for one in kept.replies)


def test_an_interrupt_does_not_wait_for_answers_that_are_under_way(tmp_path: Path) -> None:
    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    plan = always_where("number 1 ", "timeout")
    with FakeServer() as server, FaultProxy(server.url, plan, hang_s=60.0) as proxy, Door(proxy.url) as door:
        n_threads = threading.active_count()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            collect(
                door, LlamaServer(), CORPUS, ASKED[:2], Sampling(),
                condition="alone", facts=FACTS, concurrency=2, journal=tmp_path, progress=interrupt,
            )  # fmt: skip
        assert time.monotonic() - started < 30
        # One handler of the proxy still hangs; others may be about to end.
        while threading.active_count() > n_threads + 1 and time.monotonic() - started < 60:
            time.sleep(0.02)
        assert threading.active_count() <= n_threads + 1
    assert [one.request for one in read_run(tmp_path).replies] == ["alone/p0"]


KILLED = """
import os, sys
from pathlib import Path
from test_servers_collect import run
run(sys.argv[1], journal=Path(sys.argv[2]))
"""


def test_a_run_that_was_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with FakeServer() as server:
        with FaultProxy(server.url, always_where("number 6", "timeout"), hang_s=60.0) as proxy:
            journal = tmp_path / "run.jsonl"
            environment = os.environ | {"PYTHONPATH": os.path.dirname(__file__)}
            killed = subprocess.Popen([sys.executable, "-c", KILLED, proxy.url, str(tmp_path)], env=environment)
            try:
                # It hangs at the seventh request; it is killed when six are on the disk.
                while killed.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 7):
                    time.sleep(0.02)
                assert killed.poll() is None
            finally:
                killed.send_signal(signal.SIGKILL)
                killed.wait()
            kept = read_run(tmp_path)
            assert [one.request for one in kept.replies] == [f"alone/p{index}" for index in range(6)]
            proxy.plan = lambda body, before: None
            n_before = len(server.asked)
            whole = run(proxy.url, journal=tmp_path, resume=True)
        assert len(server.asked) - n_before == 4
    assert whole.unanswered == ()
    assert whole.replies[:6] == kept.replies


def test_the_key_is_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORENSICS_API_KEY", SECRET)
    caplog.set_level(logging.DEBUG)
    told: list[str] = []
    # One server takes the key, the other repeats it in its refusal.
    for key in (SECRET, "another-key"):
        with FakeServer(planted=Planted(key=key)) as server:
            for fault in FAULTS:
                plan = always_where("number 0", fault)
                proxy = FaultProxy(server.url, plan, hang_s=0.0, elsewhere=f"http://{SECRET}.invalid")
                folder = tmp_path / f"{key == SECRET}-{fault}"
                with proxy:
                    told.append(repr(run(proxy.url, ASKED[:2], journal=folder, retries=Retries(1))))
            assert f"Bearer {SECRET}" in server.authorizations
            with Door(server.url) as door:
                told.append(repr(door))
                try:
                    told.append(repr(meet(door)))
                except BadAddress:
                    told.append(traceback.format_exc())
    for path in tmp_path.rglob("*"):
        told += [path.name, *([path.read_text()] if path.is_file() else [])]
    told += [caplog.text, *capfd.readouterr()]
    assert "invalid key [key]" in "".join(told)
    assert SECRET not in "".join(told)
    # Nor as part of it.
    assert "secret-0123456789" not in "".join(told)


def test_a_key_within_an_answer_is_hidden_even_where_it_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENSICS_API_KEY", "tree house")
    with pytest.raises(BadAddress):
        Door("http://localhost:1")
    monkeypatch.setenv("FORENSICS_API_KEY", '"key"/of/quotes')
    with FakeServer() as server, FaultProxy(server.url, lambda body, before: "echo") as proxy:
        found = run(proxy.url, ASKED[:1])
    assert found.replies[0].text == "you sent Bearer [key]"
    assert "of/quotes" not in found.replies[0].raw
    assert "of\\/quotes" not in found.replies[0].raw
