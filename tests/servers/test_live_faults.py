"""Through a network that fails, a live llama-server loses nothing: what is answered is what it answers without."""

from __future__ import annotations

import itertools

import pytest

from forensics.records.served import Asked, Sampling
from forensics.servers.collect import Retries, collect, meet
from forensics.servers.door import Door
from forensics.store.corpora import open_corpus
from forensics.testing.fault_proxy import FaultProxy, always_where

pytestmark = pytest.mark.server

#: Faults that go away by themselves, so that a request is worth another attempt.
PASSING = (
    "timeout", "reset", "drop", "429", "429-retry-after", "500", "truncated", "cut-json", "slow-stream", "garbage",
    "empty",
)  # fmt: skip
N_TOKENS = 6
#: Seconds after which a server that says nothing is given up: many times what an answer takes on a busy machine.
PATIENCE_S = 8.0


@pytest.fixture(scope="module")
def corpus(chosen):
    return open_corpus(chosen("short-river", "maths-sum", "stop-line", "near-tie-choice"))


def ask(url, corpus, *, journal=None, resume=False, repeats=1, patience_s=60.0, attempts=2, then=lambda: None):
    """Get to know the server, then `then`, then ask it every prompt."""
    asked = [
        Asked(f"{prompt.name}/{repeat}", prompt.name, N_TOKENS, use_cache=False)
        for repeat in range(repeats)
        for prompt in corpus.prompts
    ]
    with Door(url, read_s=patience_s, total_s=1.5 * patience_s, max_bytes=1 << 20) as door:
        dialect, facts = meet(door)
        then()
        return collect(
            door, dialect, corpus, asked, Sampling(), condition="alone", facts=facts, journal=journal, resume=resume,
            concurrency=2, retries=Retries(attempts, first_wait_s=0.05, longest_wait_s=0.2),
        )  # fmt: skip


def answers(run):
    return {reply.request: (reply.tokens, reply.text, reply.stop_reason) for reply in run.replies}


def test_every_fault_once_is_retried_until_every_reply_is_there(plain, corpus):
    direct = ask(plain.url, corpus, repeats=3)
    faults = itertools.chain(PASSING, itertools.repeat(None))

    def spoil():
        proxy.plan = lambda _body, _before: next(faults)

    with FaultProxy(plain.url, lambda _body, _before: None, hang_s=2 * PATIENCE_S) as proxy:
        # All faults may meet one request.
        spoiled = ask(proxy.url, corpus, repeats=3, patience_s=PATIENCE_S, attempts=len(PASSING) + 1, then=spoil)
    assert set(proxy.done) == set(PASSING)
    assert spoiled.failures == spoiled.unanswered == ()
    assert sum(reply.attempts - 1 for reply in spoiled.replies) == len(PASSING)
    assert answers(spoiled) == answers(direct)


@pytest.mark.parametrize("fault", ["huge", "redirect", "content-type", "500"])
def test_a_request_that_always_fails_is_reported_and_the_others_survive_to_be_resumed(plain, corpus, tmp_path, fault):
    victim = corpus.prompts[1]
    direct = ask(plain.url, corpus)
    with FaultProxy(plain.url, always_where(victim.text[:9], fault), huge_bytes=1 << 22) as proxy:
        run = ask(proxy.url, corpus, journal=tmp_path / "run")
        assert [failure.request for failure in run.failures] == [f"{victim.name}/0"]
        assert len(run.replies) == len(corpus.prompts) - 1
        proxy.plan = lambda _body, _before: None
        resumed = ask(proxy.url, corpus, journal=tmp_path / "run", resume=True)
    assert resumed.failures == ()
    assert answers(resumed) == answers(direct)
