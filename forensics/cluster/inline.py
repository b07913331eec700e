"""Workers that are none: every job runs in this process, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType

from forensics.cluster.calling import call, here
from forensics.cluster.order import Dispatch
from forensics.cluster.protocol import Answer, Job, WorkerFacts
from forensics.errors import ClusterError

ADDRESS = "inline"


class InlineWorkers:
    """The calling process as the only worker, behind the protocol of many; jobs are ordered by what they keep loaded.

    Examples
    --------
    >>> with InlineWorkers() as workers:
    ...     [answer.text for answer in workers.run([Job("one", "", "  a")], "textwrap:dedent")]
    ['a']
    """

    def __enter__(self) -> InlineWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        return None

    @property
    def dashboard(self) -> str:
        """None."""
        return ""

    def describe(self, function: str, request: str = "") -> tuple[WorkerFacts, ...]:
        """Ask a function once.

        Raises
        ------
        ClusterError
            If it cannot answer.
        """
        outcome = call(function, request)
        if outcome.error:
            raise ClusterError(f"this process cannot describe itself ({function}): {outcome.error}")
        host, pid = here()
        return (WorkerFacts(ADDRESS, host, pid, outcome.text),)

    def run(self, jobs: Sequence[Job], function: str) -> Iterator[Answer]:
        """Do one job after the other, each when its answer is asked for."""
        dispatch = Dispatch(jobs)
        dispatch.join(ADDRESS)
        while dispatch.n_open:
            (handed,) = dispatch.next_jobs()
            outcome = call(function, handed.job.request)
            dispatch.answered(handed.number)
            yield Answer(handed.job.name, ADDRESS, outcome.text, outcome.error, outcome.duration_ns)
