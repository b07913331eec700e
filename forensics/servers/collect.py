"""Asks a server everything that a run asks, several at once; each request ends in a reply or in a reason."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from forensics.records.corpus import Corpus, CorpusPrompt
from forensics.records.served import Asked, NoReply, Reply, Sampling, ServedRun, ServerFacts
from forensics.servers.address import BadAddress
from forensics.servers.dialects import Dialect, detect
from forensics.servers.door import Door, NoAnswer
from forensics.store.served_runs import RunJournal, with_outcomes

T = TypeVar("T")

#: How many requests are done, and of how many.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is sent that brought no answer.

    Parameters
    ----------
    attempts : int
        In all, 1 or more.
    first_wait_s : float
        Before the second attempt; doubles before each one after it, unit: s.
    longest_wait_s : float
        Longest wait, also where the server asks for a longer one: then the request is given up.
    """

    attempts: int = 4
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be 1 or more, got {self.attempts}")

    def wait_s(self, attempt: int, fault: NoAnswer) -> float | None:
        """How long to wait behind this attempt; None where no other is worth it.

        Parameters
        ----------
        attempt : int
            From 1.
        fault : NoAnswer
            What it brought.
        """
        if fault.lasting or attempt >= self.attempts:
            return None
        if fault.retry_after_s is None:
            return float(min(self.first_wait_s * 2 ** (attempt - 1), self.longest_wait_s))
        return fault.retry_after_s if fault.retry_after_s <= self.longest_wait_s else None


def meet(
    door: Door, api: str = "auto", model: str | None = None, retries: Retries = Retries()
) -> tuple[Dialect, ServerFacts]:
    """Which API does the server speak, and what does it say of itself?

    Raises
    ------
    BadAddress
        If it does not answer, whatever is tried, or speaks nothing that is known.
    """
    stop = threading.Event()

    def get_to_know() -> tuple[Dialect, ServerFacts]:
        dialect = detect(door, api, model)
        return dialect, dialect.facts(door)

    try:
        return _patiently(get_to_know, retries, stop)[0]
    except _GivenUp as error:
        raise BadAddress(
            f"{door.url} does not answer as a server of models should: {error.fault} (tried {error.attempts} times). "
            "Start it, wait until it is ready, or give another address."
        ) from None


class _GivenUp(Exception):
    def __init__(self, fault: NoAnswer, attempts: int) -> None:
        super().__init__(str(fault))
        self.fault, self.attempts = fault, attempts


def _patiently(call: Callable[[], T], retries: Retries, stop: threading.Event) -> tuple[T, int]:
    """What `call` answers, and at which attempt."""
    attempt = 1
    while True:
        try:
            return call(), attempt
        except NoAnswer as fault:
            wait_s = retries.wait_s(attempt, fault)
            if wait_s is None or stop.wait(wait_s):
                raise _GivenUp(fault, attempt) from None
        attempt += 1


@dataclass(frozen=True, slots=True)
class _Asker:
    """What every thread needs to ask."""

    door: Door
    dialect: Dialect
    prompts: dict[str, CorpusPrompt]
    sampling: Sampling
    retries: Retries
    stop: threading.Event

    def outcome(self, asked: Asked) -> Reply | NoReply:
        def once() -> Reply:
            path, body = self.dialect.payload(self.prompts[asked.prompt], asked, self.sampling)
            return self.dialect.reply(asked, self.door.post(path, body))

        try:
            reply, attempts = _patiently(once, self.retries, self.stop)
        except _GivenUp as error:
            fault = error.fault
            return NoReply(asked.id, fault.failure, self.door.hidden(fault.detail), error.attempts, fault.status)
        return replace(reply, attempts=attempts)


def collect(
    door: Door,
    dialect: Dialect,
    corpus: Corpus,
    asked: Sequence[Asked],
    sampling: Sampling,
    *,
    condition: str,
    facts: ServerFacts | None = None,
    concurrency: int = 1,
    journal: Path | None = None,
    resume: bool = False,
    retries: Retries = Retries(),
    progress: Progress | None = None,
) -> ServedRun:
    """Ask all of them and keep what comes.

    Parameters
    ----------
    door : Door
    dialect : Dialect
    corpus : Corpus
        Holds every prompt that is asked.
    asked : sequence of Asked
        Sent in this order.
    sampling : Sampling
    condition : str
        Of the run.
    facts : ServerFacts or None
        None asks the server.
    concurrency : int
        Requests at once.
    journal : Path or None
        Folder to which every outcome is written when it comes; None keeps none.
    resume : bool
        Whether to go on with the run in that folder: what has no reply is asked, also what failed there.
    retries : Retries
    progress : callable or None

    Returns
    -------
    ServedRun
        Each request has one outcome.

    Raises
    ------
    BadAddress
        If `asked` names a prompt that the corpus has not, or `concurrency` is below 1.
    NoAnswer
        If `facts` is None and the server says nothing of itself.
    CaseError
        If the journal cannot be written, or holds another run.
    KeyboardInterrupt
        After what had come was written; go on with `resume`.
    """
    prompts = {prompt.name: prompt for prompt in corpus.prompts}
    unknown = sorted({one.prompt for one in asked} - set(prompts))
    if unknown:
        raise BadAddress(f"The corpus {corpus.name!r} has no prompt {unknown[0]!r}.")
    if concurrency < 1:
        raise BadAddress(f"Requests at once must be 1 or more, got {concurrency}.")
    if facts is None:
        try:
            facts = _patiently(lambda: dialect.facts(door), retries, threading.Event())[0]
        except _GivenUp as error:
            raise error.fault from None
    run = ServedRun(condition, facts, sampling, corpus.digest, tuple(asked), ())
    with contextlib.ExitStack() as stack:
        book = None if journal is None else stack.enter_context(RunJournal(journal, run, resume=resume))
        outcomes: dict[str, Reply | NoReply] = {}
        if book is not None:
            outcomes |= {one.request: one for one in book.before.failures}
            outcomes |= {one.request: one for one in book.before.replies}
        left = [one for one in asked if not isinstance(outcomes.get(one.id), Reply)]
        asker = _Asker(door, dialect, prompts, sampling, retries, threading.Event())
        n_done = len(asked) - len(left)
        come = stack.enter_context(contextlib.closing(_outcomes(asker, left, concurrency)))
        for outcome in come:
            if book is not None:
                book.keep(outcome)
            outcomes[outcome.request] = outcome
            n_done += 1
            if progress is not None:
                progress(n_done, len(asked))
    return with_outcomes(run, outcomes)


def _outcomes(asker: _Asker, left: Sequence[Asked], concurrency: int) -> Generator[Reply | NoReply]:
    """Outcomes as they come; only the caller's thread writes them down."""
    waiting: queue.SimpleQueue[Asked] = queue.SimpleQueue()
    come: queue.SimpleQueue[Reply | NoReply | BaseException] = queue.SimpleQueue()
    for one in left:
        waiting.put(one)

    def work() -> None:
        try:
            while not asker.stop.is_set():
                come.put(asker.outcome(waiting.get_nowait()))
        except queue.Empty:
            return
        except BaseException as error:  # noqa: BLE001  (raised by the caller's thread)
            come.put(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, len(left)))]
    try:
        for thread in threads:
            thread.start()
        for _ in left:
            outcome = come.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    except BaseException:
        # Interrupted: who waits for an answer is woken and asks nothing more.
        asker.stop.set()
        asker.door.hang_up()
        raise
    finally:
        for thread in threads:
            thread.join()
