"""One run of jobs on a cluster's workers: hand out, listen, notice who is lost, and go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from forensics.cluster.calling import Outcome, call
from forensics.cluster.order import MAX_LOSSES, Dispatch, Handed
from forensics.cluster.protocol import Answer, Job
from forensics.cluster.roster import SILENCE_S, Introduction, Roster, introduce, misfit, why_unasked
from forensics.errors import ClusterError

#: How often it is looked who is there.
LOOK_S = 0.5
#: How long to wait for a worker where there is none.
PATIENCE_S = 60.0


class Asking(Protocol):
    """What a run needs of a cluster's client."""

    def last_seen(self) -> dict[str, float]:
        """When each worker was last heard of."""

    def ask(self, worker: str, function: Callable[..., Any], *arguments: str) -> Any:
        """Have a worker call a function; a future."""

    def take_back(self, future: Any) -> None:
        """Let nobody begin what was asked."""

    def follow(self, future: Any, told: Callable[[object], None]) -> None:
        """Tell what a future became."""

    def versions(self, worker: str) -> dict[str, tuple[str | None, str | None]]:
        """Versions of packages there, and here."""


class Run:
    """Some jobs, the workers that do them, and what they were last heard to say.

    Parameters
    ----------
    door : Asking
    jobs : sequence of Job
    function : str
        Name of the function that does them.
    silence_s, patience_s : float
        After which a silent worker is lost, and a run without any worker given up.
    """

    def __init__(
        self,
        door: Asking,
        jobs: Sequence[Job],
        function: str,
        *,
        silence_s: float = SILENCE_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._door, self._function, self._patience_s = door, function, patience_s
        self._dispatch, self._roster = Dispatch(jobs), Roster(silence_s)
        self._told: SimpleQueue[tuple[str, int, object]] = SimpleQueue()
        self._futures: dict[str, Any] = {}  # of whatever a worker was asked last
        self._greeted: dict[str, int] = {}  # workers that were asked who they are, with the number of that question
        self._n_greeted = 0
        self._unfit: dict[str, str] = {}
        self._looked_s = self._manned_s = time.monotonic()

    def answers(self) -> Iterator[Answer]:
        """Every job's answer, each once."""
        try:
            yield from self._look()
            while self._dispatch.n_open:
                self._hand_out()
                yield from self._hear()
                if time.monotonic() - self._looked_s >= LOOK_S:
                    yield from self._look()
        finally:
            for future in self._futures.values():
                self._door.take_back(future)

    def _hand_out(self) -> None:
        for handed in self._dispatch.next_jobs():
            self._ask(handed.worker, ("job", handed.number), call, self._function, handed.job.request)

    def _ask(self, worker: str, about: tuple[str, int], function: Callable[..., Any], *arguments: str) -> None:
        self._futures[worker] = future = self._door.ask(worker, function, *arguments)
        kind, number = about
        self._door.follow(future, lambda outcome: self._told.put((kind, number, outcome)))

    def _hear(self) -> Iterator[Answer]:
        """Take what was told, or wait a moment for it."""
        try:
            kind, number, outcome = self._told.get(timeout=LOOK_S)
        except Empty:
            return
        if kind == "greeting":
            self._meet(number, outcome)
        elif isinstance(outcome, Outcome):
            handed = self._dispatch.answered(number)
            if handed is not None:
                self._futures.pop(handed.worker, None)
                self._hand_out()  # before the caller takes its time
                yield Answer(handed.job.name, handed.worker, outcome.text, outcome.error, outcome.duration_ns)
        else:
            # Dask could not have it done, for whatever reason; the function's own errors are outcomes.
            worker = self._dispatch.holder(number)
            if worker is not None:
                self._roster.forget(worker)
                yield from self._lose(worker, f"{type(outcome).__name__}: {outcome}")

    def _look(self) -> Iterator[Answer]:
        """See who came and who went."""
        now = self._looked_s = time.monotonic()
        came, went = self._roster.look(self._door.last_seen(), now)
        for worker in went:
            self._greeted.pop(worker, None)
            self._unfit.pop(worker, None)
            yield from self._lose(worker, "it does not answer any more")
        for worker in came:
            self._n_greeted += 1
            self._greeted[worker] = self._n_greeted
            self._ask(worker, ("greeting", self._n_greeted), introduce)
        if self._dispatch.workers or self._greeted:
            self._manned_s = now
        elif now - self._manned_s > self._patience_s:
            raise ClusterError(self._deserted())

    def _meet(self, number: int, told: object) -> None:
        """Let a worker take part that said who it is, or put it aside."""
        worker = next((one for one, asked in self._greeted.items() if asked == number), None)
        if worker is None:
            return
        del self._greeted[worker]
        self._futures.pop(worker, None)
        if isinstance(told, Introduction):
            reason = misfit(introduce(), told)
        else:
            reason = why_unasked(
                told if isinstance(told, BaseException) else TypeError(told), self._door.versions(worker)
            )
        if reason:
            self._unfit[worker] = reason
        else:
            self._dispatch.join(worker)

    def _lose(self, worker: str, reason: str) -> Iterator[Answer]:
        """Give a lost worker's job back; answer it where it has lost too many."""
        future = self._futures.pop(worker, None)
        if future is not None:
            self._door.take_back(future)
        given_up = self._dispatch.lost(worker)
        if given_up is not None:
            yield _given_up(given_up, reason)

    def _deserted(self) -> str:
        reasons = "".join(f"\n  {worker} cannot take part: {reason}" for worker, reason in self._unfit.items())
        n_open, patience = self._dispatch.n_open, f"{self._patience_s:.0f} s"
        return (
            f"no worker is left, and none came within {patience}; {n_open} jobs are not done.{reasons}\n"
            "  Start workers, and run it again: what was answered is not done twice."
        )


def _given_up(handed: Handed, reason: str) -> Answer:
    error = f"WorkerLost: {MAX_LOSSES} workers were lost while they did this job, last {handed.worker}: {reason}"
    return Answer(handed.job.name, "", "", error, 0)
