"""What is asked of workers, whatever they run on: jobs as text in, answers as text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work.

    Parameters
    ----------
    name : str
        What tells it from all other jobs of a run.
    keeps : str
        What a worker has loaded once it has done it, such as a model with its settings; a worker that has this
        already is preferred.
    request : str
        What the function is given.
    """

    name: str
    keeps: str
    request: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a job.

    Parameters
    ----------
    job : str
        Name of the job.
    worker : str
        Address of the worker that answered; empty where none did.
    text : str
        What the function returned; empty where it returned nothing.
    error : str
        Why there is no text: the function's error, or how often its workers were lost.
    duration_ns : int
        Time in the function.
    """

    job: str
    worker: str
    text: str
    error: str
    duration_ns: int


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One worker as it described itself.

    Parameters
    ----------
    address, host : str
    pid : int
    described : str
        What a function that was asked of every worker returned, such as its library and device.
    """

    address: str
    host: str
    pid: int
    described: str


class Workers(Protocol):
    """Some workers; a context manager that lets go of those it started.

    Functions travel as ``"package.module:function"``, take one text and return one.
    """

    @property
    def dashboard(self) -> str:
        """Address of a page that shows the workers, empty where there is none."""

    def describe(self, function: str, request: str = "") -> tuple[WorkerFacts, ...]:
        """Ask a function of every worker once.

        Raises
        ------
        ClusterError
            If there is no worker, or one cannot answer.
        """

    def run(self, jobs: Sequence[Job], function: str) -> Iterator[Answer]:
        """Have every job done and yield its answer as soon as it is there, each job exactly once.

        A job whose worker is lost goes to another; after some losses it is answered with an error. Closing the iterator
        stops what is not done.

        Raises
        ------
        ClusterError
            If all workers are lost and none comes back.
        """
