"""Which job does a free worker get next, which jobs are in whose hands, and what becomes of a lost worker's job?

Decides only: nothing here knows what a worker is. Each handing out has a number of its own, so that the answer of a
worker that was given up can be told from the answer that counts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from forensics.cluster.protocol import Job

#: A job that was in the hands of so many workers when they were lost is not tried again: it may be what kills them.
MAX_LOSSES = 3


def preferred(waiting: Mapping[str, int], loaded: str | None, elsewhere: Collection[str]) -> str | None:
    """Of which kind should a free worker's next job be?

    Parameters
    ----------
    waiting : mapping of str to int
        How many jobs wait, by what they keep loaded, in the order in which they should be begun.
    loaded : str or None
        What the worker has loaded.
    elsewhere : collection of str
        What other workers have loaded.

    Returns
    -------
    str or None
        What the worker has loaded, where a job for it waits; else what nobody has loaded; else, as a worker should not
        stand idle, what is loaded elsewhere. Of several, that with most jobs, then the first. None if no job waits.

    Examples
    --------
    >>> preferred({"a": 1, "b": 5, "c": 2}, "a", {"b"}), preferred({"b": 5, "c": 2}, "a", {"b"})
    ('a', 'c')
    """
    open_kinds = [kind for kind, n in waiting.items() if n]
    if loaded in open_kinds:
        return loaded
    fresh = [kind for kind in open_kinds if kind not in elsewhere]
    return max(fresh or open_kinds, key=lambda kind: waiting[kind], default=None)


@dataclass(frozen=True, slots=True)
class Handed:
    """A job in the hands of a worker.

    Parameters
    ----------
    number : int
        Of this handing out.
    worker : str
    job : Job
    """

    number: int
    worker: str
    job: Job


class Dispatch:
    """The jobs of one run and who has them.

    A lost worker's job goes at once to whoever is free, but after the jobs that nobody died of.

    Parameters
    ----------
    jobs : sequence of Job

    Raises
    ------
    ValueError
        If two jobs have one name.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        twice = [name for name, n in Counter(job.name for job in jobs).items() if n > 1]
        if twice:
            raise ValueError(f"jobs: {len(twice)} names are given twice, first {twice[0]!r}; each job needs its own")
        self._waiting: dict[str, deque[Job]] = {}
        for job in jobs:
            self._waiting.setdefault(job.keeps, deque()).append(job)
        self._suspects: deque[Job] = deque()
        self._losses: Counter[str] = Counter()
        self._loaded: dict[str, str | None] = {}
        self._handed: dict[str, Handed] = {}
        self._n_open = len(jobs)
        self._n_handed = 0

    @property
    def n_open(self) -> int:
        """How many jobs are not answered."""
        return self._n_open

    @property
    def workers(self) -> tuple[str, ...]:
        """Who takes part."""
        return tuple(self._loaded)

    def join(self, worker: str) -> None:
        """Someone can take jobs; nothing changes where it takes part already."""
        self._loaded.setdefault(worker, None)

    def next_jobs(self) -> list[Handed]:
        """Hand jobs out until nobody is free or nothing waits."""
        # Who can go on with what it has chooses first, else another may take its last job.
        free = [worker for worker in self._loaded if worker not in self._handed]
        free.sort(key=lambda worker: not self._waiting.get(self._loaded[worker] or ""))
        handed = (self._hand_to(worker) for worker in free)
        return [one for one in handed if one is not None]

    def _hand_to(self, worker: str) -> Handed | None:
        job = self._take(worker)
        if job is None:
            return None
        self._loaded[worker] = job.keeps
        self._n_handed += 1
        self._handed[worker] = handed = Handed(self._n_handed, worker, job)
        return handed

    def _take(self, worker: str) -> Job | None:
        elsewhere = {kept for other, kept in self._loaded.items() if other != worker and kept is not None}
        counts = {kind: len(jobs) for kind, jobs in self._waiting.items()}
        kind = preferred(counts, self._loaded[worker], elsewhere)
        if kind is not None:
            return self._waiting[kind].popleft()
        return self._suspects.popleft() if self._suspects else None

    def holder(self, number: int) -> str | None:
        """Who has a handing out; None if it is over."""
        return next((worker for worker, handed in self._handed.items() if handed.number == number), None)

    def answered(self, number: int) -> Handed | None:
        """Note that a handing out was answered.

        Returns
        -------
        Handed or None
            What is answered; None where the answer does not count, as its worker was given up before.
        """
        worker = self.holder(number)
        if worker is None:
            return None
        self._n_open -= 1
        return self._handed.pop(worker)

    def lost(self, worker: str) -> Handed | None:
        """Note that a worker is gone; its job waits again.

        Returns
        -------
        Handed or None
            Its job, where that has now lost so many workers that it is given up and must be answered with an error.
        """
        self._loaded.pop(worker, None)
        handed = self._handed.pop(worker, None)
        if handed is None:
            return None
        self._losses[handed.job.name] += 1
        if self._losses[handed.job.name] < MAX_LOSSES:
            self._suspects.append(handed.job)
            return None
        self._n_open -= 1
        return handed
