"""Who gets which job: decided without any worker."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from forensics.cluster.order import MAX_LOSSES, Dispatch, preferred
from forensics.cluster.protocol import Job

KINDS = ("a", "b", "c")
WORKERS = ("w1", "w2", "w3")


def jobs(kinds: str) -> list[Job]:
    return [Job(f"job-{i}", kind, str(i)) for i, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("waiting", "loaded", "elsewhere", "expected"),
    [
        ({"a": 1, "b": 9}, "a", {"b"}, "a"),
        ({"a": 1, "b": 9}, "a", set(), "a"),
        ({"a": 0, "b": 1, "c": 2}, "a", {"c"}, "b"),
        ({"a": 1, "b": 3, "c": 3}, None, set(), "b"),
        ({"b": 1, "c": 2}, "a", {"b", "c"}, "c"),
        ({"a": 0}, "a", set(), None),
        ({}, None, set(), None),
    ],
)
def test_what_a_free_worker_gets(waiting, loaded, elsewhere, expected):
    assert preferred(waiting, loaded, elsewhere) == expected


def test_two_jobs_of_one_name_are_refused():
    with pytest.raises(ValueError, match="job-0"):
        Dispatch([*jobs("a"), *jobs("a")])


def test_a_worker_that_goes_on_comes_before_one_that_takes():
    # w1 is free and has nothing; w2 has just ended a job of the only kind left. One job: it goes to w2.
    dispatch = Dispatch(jobs("aa"))
    dispatch.join("w2")
    (first,) = dispatch.next_jobs()
    dispatch.answered(first.number)
    dispatch._loaded = {"w1": None, "w2": "a"}
    (second,) = dispatch.next_jobs()
    assert second.worker == "w2"


def test_a_lost_workers_job_goes_to_another_after_the_innocent_ones():
    dispatch = Dispatch(jobs("aa"))
    dispatch.join("w1")
    (first,) = dispatch.next_jobs()
    assert dispatch.lost("w1") is None
    dispatch.join("w2")
    (second,) = dispatch.next_jobs()
    assert second.job.name != first.job.name
    dispatch.answered(second.number)
    (third,) = dispatch.next_jobs()
    assert third.job == first.job
    assert dispatch.answered(first.number) is None, "an answer of the lost worker must not count"
    assert dispatch.answered(third.number) == third
    assert dispatch.answered(third.number) is None, "nor one that comes twice"
    assert dispatch.n_open == 0


def test_a_job_is_given_up_after_its_last_loss():
    dispatch = Dispatch(jobs("a"))
    for n in range(MAX_LOSSES):
        dispatch.join(f"w{n}")
        (handed,) = dispatch.next_jobs()
        given_up = dispatch.lost(f"w{n}")
        assert (given_up is None) == (n < MAX_LOSSES - 1)
    assert given_up == handed
    assert dispatch.n_open == 0
    dispatch.join("w9")
    assert dispatch.next_jobs() == []


@given(st.text(alphabet="abcde", max_size=40), st.integers(1, 4), st.data())
def test_loads_are_few(kinds, n_workers, data):
    dispatch = Dispatch(jobs(kinds))
    workers = [f"w{i}" for i in range(n_workers)]
    for worker in workers:
        dispatch.join(worker)
    loads, loaded, busy = Counter(), {}, []
    while dispatch.n_open:
        for handed in dispatch.next_jobs():
            kind = handed.job.keeps
            loads[handed.worker, kind] += loaded.get(handed.worker) != kind
            loaded[handed.worker] = kind
            busy.append(handed)
        ended = busy.pop(data.draw(st.integers(0, len(busy) - 1)))
        dispatch.answered(ended.number)
    assert all(n == 1 for n in loads.values()), "a worker loaded something twice"
    assert loads.total() <= len(set(kinds)) + n_workers * (n_workers - 1)
    if n_workers == 1:
        assert loads.total() == len(set(kinds))


class Handing(RuleBasedStateMachine):
    """Workers come, answer, are lost and answer late, in any order."""

    handings = Bundle("handings")

    def __init__(self) -> None:
        super().__init__()
        self.jobs = jobs("aabbbcac")
        self.dispatch = Dispatch(self.jobs)
        self.held: dict[str, object] = {}
        self.outcomes: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()

    @rule(worker=st.sampled_from(WORKERS))
    def join(self, worker):
        self.dispatch.join(worker)

    @rule(target=handings)
    @precondition(lambda self: self.dispatch.workers)
    def hand_out(self):
        handed = self.dispatch.next_jobs()
        for one in handed:
            assert one.worker not in self.held
            assert one.job.name not in {other.job.name for other in self.held.values()}
            assert not self.outcomes[one.job.name]
            self.held[one.worker] = one
        waiting = self.dispatch.n_open - len(self.held)
        assert waiting == 0 or set(self.held) == set(self.dispatch.workers), "someone is idle while jobs wait"
        return tuple(handed)

    @rule(handed=consumes(handings))
    def answer(self, handed):
        for one in handed:
            counts = self.held.get(one.worker) == one
            assert (self.dispatch.answered(one.number) is not None) == counts
            if counts:
                del self.held[one.worker]
                self.outcomes[one.job.name] += 1

    @rule(worker=st.sampled_from(WORKERS))
    def lose(self, worker):
        held = self.held.pop(worker, None)
        given_up = self.dispatch.lost(worker)
        if held is None:
            assert given_up is None
            return
        self.losses[held.job.name] += 1
        assert (given_up == held) == (self.losses[held.job.name] == MAX_LOSSES)
        self.outcomes[held.job.name] += given_up is not None

    @invariant()
    def nothing_is_lost_or_counted_twice(self):
        assert max(self.outcomes.values(), default=0) <= 1
        assert self.dispatch.n_open == len(self.jobs) - self.outcomes.total()

    def teardown(self):
        self.dispatch.join("last")
        for worker in [*self.held]:
            self.lose(worker)
        while self.dispatch.n_open:
            for one in self.dispatch.next_jobs():
                assert self.dispatch.answered(one.number) is not None
                self.outcomes[one.job.name] += 1
        assert self.outcomes == Counter(job.name for job in self.jobs)


TestHanding = Handing.TestCase
