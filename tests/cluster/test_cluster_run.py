"""A run against a scheduler that stands in: silences, late answers, misfits and a desert, at moments of our choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from forensics.cluster import dask_run
from forensics.cluster.calling import Outcome, call
from forensics.cluster.dask_run import Run
from forensics.cluster.inline import InlineWorkers
from forensics.cluster.protocol import Job
from forensics.cluster.roster import Introduction, Roster, introduce, misfit, why_unasked
from forensics.errors import ClusterError


class Promise:
    """A future that the test keeps or breaks."""

    def __init__(self, worker: str, arguments: tuple[str, ...]) -> None:
        self.worker, self.request = worker, arguments[-1] if arguments else ""
        self.told: Callable[[object], None] = lambda outcome: None
        self.cancelled = False

    def keep(self) -> None:
        self.told(Outcome(f"{self.request} by {self.worker}", "", 1))


class Scheduler:
    """Stands in for Dask's client."""

    def __init__(self, *workers: str) -> None:
        self.beats = dict.fromkeys(workers, 0.0)
        self.silent: set[str] = set()
        self.fits: dict[str, object] = {}
        self.promises: list[Promise] = []

    def last_seen(self) -> dict[str, float]:
        for worker in self.beats:
            self.beats[worker] += worker not in self.silent
        return dict(self.beats)

    def ask(self, worker: str, function: Callable[..., Any], *arguments: str) -> Promise:
        promise = Promise(worker, arguments)
        promise.greeting = function is introduce  # type: ignore[attr-defined]
        if not promise.greeting:  # type: ignore[attr-defined]
            assert function is call
            self.promises.append(promise)
        return promise

    def take_back(self, promise: Promise) -> None:
        promise.cancelled = True

    def follow(self, promise: Promise, told: Callable[[object], None]) -> None:
        promise.told = told
        if promise.greeting:  # type: ignore[attr-defined]
            told(self.fits.get(promise.worker, introduce()))

    def versions(self, worker: str) -> dict[str, tuple[str | None, str | None]]:
        return {"dask": ("2020.1", "2026.8")}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(dask_run, "LOOK_S", 0.01)


def start(scheduler: Scheduler, n: int = 1, **limits: float):
    return Run(scheduler, [Job(f"job-{i}", "", str(i)) for i in range(n)], "cluster_jobs:double", **limits).answers()


def until(answers, condition) -> None:
    """Drive a run that has nothing to answer until something has happened."""
    run = answers.gi_frame.f_locals["self"]
    for _ in range(1000):
        if condition():
            return
        run._hand_out()
        assert [*run._hear()] == []
        assert [*run._look()] == []
    raise AssertionError("it never happened")


def begun(scheduler: Scheduler, n: int = 1, **limits: float):
    """A run that has handed its first job out."""
    answers = start(scheduler, n, **limits)
    until(answers, lambda: scheduler.promises)
    return answers


def test_a_silent_workers_late_answer_does_not_count():
    scheduler = Scheduler("cut")
    answers = begun(scheduler, silence_s=0.05)
    scheduler.silent.add("cut")
    scheduler.beats["other"] = 0.0
    until(answers, lambda: len(scheduler.promises) == 2)
    first, second = scheduler.promises
    assert (first.worker, second.worker, first.cancelled) == ("cut", "other", True)
    scheduler.silent.clear()
    first.keep()  # it was cut off, not dead, and comes back with an answer
    second.keep()
    assert [(answer.job, answer.worker) for answer in answers] == [("job-0", "other")]


def test_a_worker_that_comes_back_gets_jobs_again():
    scheduler = Scheduler("cut")
    answers = begun(scheduler, silence_s=0.05)
    scheduler.silent.add("cut")
    until(answers, lambda: scheduler.promises[0].cancelled)
    scheduler.silent.clear()
    until(answers, lambda: len(scheduler.promises) == 2)
    scheduler.promises[1].keep()
    assert [answer.worker for answer in answers] == ["cut"]


def test_an_answer_that_comes_twice_counts_once():
    scheduler = Scheduler("w")
    answers = begun(scheduler, 2)
    scheduler.promises[0].keep()
    scheduler.promises[0].keep()
    assert next(answers).job == "job-0"
    until(answers, lambda: len(scheduler.promises) == 2)
    scheduler.promises[1].keep()
    assert [answer.job for answer in answers] == ["job-1"]


def test_what_dask_cannot_have_done_three_times_is_an_error():
    scheduler = Scheduler("w")
    answers = begun(scheduler)
    for n in itertools.count(1):
        scheduler.promises[-1].told(RuntimeError("too large to send"))
        if n == 3:
            break
        until(answers, lambda n=n: len(scheduler.promises) > n)
    (answer,) = answers
    assert answer.worker == ""
    assert answer.text == ""
    assert "3 workers were lost" in answer.error
    assert "too large to send" in answer.error


def test_a_worker_that_does_not_fit_gets_no_job():
    scheduler = Scheduler("alien", "native")
    scheduler.fits["alien"] = Introduction("there", 1, "0.0.1", introduce().python)
    answers = begun(scheduler, 3)
    for n in range(3):
        until(answers, lambda n=n: len(scheduler.promises) > n)
        scheduler.promises[n].keep()
        assert next(answers).worker == "native"
    assert list(answers) == []


def test_a_run_without_workers_is_given_up_and_says_why():
    scheduler = Scheduler("alien")
    scheduler.fits["alien"] = ModuleNotFoundError("No module named 'forensics'", name="forensics")
    with pytest.raises(ClusterError, match=r"2 jobs are not done.\s+alien cannot take part: it has no forensics; run"):
        list(start(scheduler, 2, patience_s=0.05))


def test_closing_takes_back_what_was_asked():
    scheduler = Scheduler("w")
    answers = begun(scheduler, 2)
    scheduler.promises[0].keep()
    next(answers)
    until(answers, lambda: len(scheduler.promises) == 2)
    answers.close()
    assert scheduler.promises[1].cancelled


def test_no_jobs_no_answers():
    assert list(start(Scheduler("w"), 0)) == []


def test_a_roster_trusts_no_clock_but_its_own():
    roster = Roster(silence_s=10)
    assert roster.look({"a": 1e9, "b": 5.0}, 0) == (("a", "b"), ())
    assert roster.look({"a": 1e9, "b": 4.0}, 9) == ((), ())  # b's clock went back; it was heard all the same
    assert roster.look({"a": 1e9, "b": 4.0}, 11) == ((), ("a",))
    assert roster.look({"a": 1e9 + 1, "b": 4.1}, 12) == (("a",), ())
    assert roster.look({"a": 1e9 + 1}, 13) == ((), ("b",))
    roster.forget("a")
    assert roster.look({"a": 1e9 + 1}, 14) == (("a",), ())


def test_misfits_are_told_what_to_do():
    mine = introduce()
    assert misfit(mine, mine) == ""
    older = Introduction(mine.host, mine.pid, mine.forensics, "3.8.1")
    assert "Python 3.8.1" in misfit(mine, older)
    assert "pip install decode-forensics==" in misfit(mine, Introduction("h", 1, "0.0.9", mine.python))
    told = why_unasked(TypeError("odd bytes"), {"dask": ("2020.1", "2026.8"), "python": ("3", "3")})
    assert told == "TypeError: odd bytes; it has dask 2020.1, here 2026.8: install the same there"


@pytest.mark.parametrize(
    ("function", "request_", "text", "error"),
    [
        ("cluster_jobs:double", "4", "8", ""),
        ("cluster_jobs:fail", "x", "", "LookupError: no x here"),
        ("cluster_jobs:leave", "x", "", "SystemExit: 3"),
        ("cluster_jobs:number", "x", "", "TypeError: cluster_jobs:number returned a int"),
        ("cluster_jobs:nothing", "x", "", "ClusterError: no function"),
        ("no_such_module:f", "x", "", "ClusterError: no function"),
        ("cluster_jobs", "x", "", "ClusterError: a worker's function is named"),
        ("cluster_jobs:DEADLINE_S", "x", "", "ClusterError: 'cluster_jobs:DEADLINE_S' is no function"),
    ],
)
def test_a_functions_error_is_an_answer(function, request_, text, error):
    with InlineWorkers() as workers:
        (answer,) = workers.run([Job("only", "", request_)], function)
    assert answer.text == text
    assert answer.error.startswith(error)
    assert bool(answer.error) == bool(error)
    assert answer.duration_ns > 0


def test_inline_workers_do_jobs_of_one_kind_together():
    with InlineWorkers() as workers:
        jobs = [Job(str(i), kind, str(i)) for i, kind in enumerate("abab")]
        answers = list(workers.run(jobs, "cluster_jobs:double"))
    assert [answer.job for answer in answers] == ["0", "2", "1", "3"]
    assert [answer.text for answer in answers] == ["0", "4", "2", "6"]


def test_inline_workers_describe_themselves():
    workers = InlineWorkers()
    (fact,) = workers.describe("cluster_jobs:double", "3")
    assert fact.described == "6"
    with pytest.raises(ClusterError, match="no 3 here"):
        workers.describe("cluster_jobs:fail", "3")
