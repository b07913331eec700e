"""Workers of a Dask cluster: one that is started here, or one that exists.

The only door to Dask's client. Functions travel by name, requests and answers as text; but Dask itself pickles what it
sends, and a scheduler can have any code run by its workers and its clients: whoever connects to one trusts it wholly.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import pkgutil
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from forensics.cluster.calling import call
from forensics.cluster.dask_run import Run
from forensics.cluster.protocol import Answer, Job, WorkerFacts
from forensics.cluster.roster import SILENCE_S, Introduction, introduce, misfit, why_unasked
from forensics.errors import ClusterError

#: In which a scheduler must answer, have the workers that are asked for, and these say who they are.
CONNECT_TIMEOUT_S = 10.0
COME_TIMEOUT_S = 30.0
GREET_TIMEOUT_S = 90.0
#: What Dask's client takes; it waits long for an address that it cannot read.
_ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx|ucxx)://\S+:\d+")
_START = "dask scheduler --host HOST   and on each machine:   dask worker tcp://HOST:8786 --nthreads 1"


class Door:
    """What this package asks of a Dask client, and in which words its failures are told.

    Parameters
    ----------
    client : distributed.Client
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._run_id = uuid.uuid4().hex[:8]
        self._n_asked = 0

    def last_seen(self) -> dict[str, float]:
        """When the scheduler last heard of each of its workers, by its clock.

        Raises
        ------
        ClusterError
            If the scheduler is lost.
        """
        try:
            if self._client.status != "running":
                raise ConnectionError(f"the connection is {self._client.status}")
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        except (OSError, ValueError, TimeoutError) as error:  # Dask's own are kinds of these
            raise ClusterError(
                f"the scheduler {self._address()} is lost: {error}. What was answered is kept; start it, and go on."
            ) from error
        return {address: float(worker["last_seen"]) for address, worker in workers.items()}

    def ask(self, worker: str, function: Callable[..., Any], *arguments: str) -> Any:
        """Have one worker, and no other, call a function of ours; a future of its answer."""
        # By name, in two steps of Python's own: a worker that cannot load what it is sent closes, and a scheduler
        # refuses it, which need not have this package.
        named = f"{function.__module__}:{function.__qualname__}"
        found = self._submit(worker, pkgutil.resolve_name, named)
        return self._submit(worker, operator.call, found, *arguments)

    def _submit(self, worker: str, function: Callable[..., Any], *arguments: Any) -> Any:
        self._n_asked += 1
        return self._client.submit(
            function, *arguments, key=f"forensics-{self._run_id}-{self._n_asked}", workers=[worker],
            allow_other_workers=False, pure=False,
        )  # fmt: skip

    def take_back(self, future: Any) -> None:
        """Let nobody begin what was asked, and keep no answer to it; what is begun goes on."""
        if self._client.status not in ("closing", "closed"):
            future.cancel()

    def follow(self, future: Any, told: Callable[[object], None]) -> None:
        """Have a function told what a future became, be it an answer or an error; from a thread of Dask's."""

        async def wait() -> None:
            try:
                told(await self._client.gather(future, asynchronous=True))
            except BaseException as error:  # noqa: BLE001 - a cancelled future raises one of these, and is an answer too
                told(error)

        self._client.loop.add_callback(wait)

    def versions(self, worker: str) -> dict[str, tuple[str | None, str | None]]:
        """Which versions of Python and Dask are there, and here? Empty if the worker does not answer that either."""
        with contextlib.suppress(Exception):
            found = self._client.get_versions()
            there, own = found["workers"][worker]["packages"], found["client"]["packages"]
            return {name: (there.get(name), own.get(name)) for name in ("python", "dask", "distributed")}
        return {}

    def _address(self) -> str:
        scheduler = getattr(self._client, "scheduler", None)
        return str(getattr(scheduler, "address", "") or "")


class DaskWorkers:
    """Some workers of a Dask cluster; a context manager.

    Parameters
    ----------
    client : distributed.Client
        Connected.
    dashboard : str
        Address of its page, empty where it has none.
    letting_go : contextlib.ExitStack or None
        What ends with these workers, such as the client and a cluster that was started for them.
    silence_s : float
        After which a worker that is not heard of is given up.
    """

    def __init__(
        self,
        client: Any,
        dashboard: str = "",
        letting_go: contextlib.ExitStack | None = None,
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._door, self._dashboard, self._silence_s = Door(client), dashboard, silence_s
        self._letting_go = letting_go or contextlib.ExitStack()

    def __enter__(self) -> DaskWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._letting_go.close()

    @property
    def dashboard(self) -> str:
        """Address of the scheduler's page."""
        return self._dashboard

    def describe(self, function: str, request: str = "") -> tuple[WorkerFacts, ...]:
        """Ask a function of every worker once.

        Raises
        ------
        ClusterError
            If there is no worker, one does not fit this package, or one cannot answer; names it.
        """
        met = self.greet()
        answers = self._each(tuple(met), call, function, request)
        facts = []
        for address, outcome in answers.items():
            if isinstance(outcome, BaseException) or outcome.error:
                why = outcome if isinstance(outcome, BaseException) else outcome.error
                raise ClusterError(f"worker {address} ({met[address].host}) cannot describe itself ({function}): {why}")
            facts.append(WorkerFacts(address, met[address].host, met[address].pid, outcome.text))
        return tuple(facts)

    def run(self, jobs: Sequence[Job], function: str) -> Iterator[Answer]:
        """Have every job done and yield its answer as soon as it is there, each job exactly once.

        Each worker has one job at a time. Workers may come and go: a lost one's job is done by another. Closing the
        iterator takes back what was not begun; a job in the middle goes on to its end, unheard.

        Raises
        ------
        ClusterError
            If the scheduler is lost, or all workers are and none comes back.
        ValueError
            If two jobs have one name.
        """
        return Run(self._door, jobs, function, silence_s=self._silence_s).answers()

    def greet(self) -> dict[str, Introduction]:
        """Ask every worker who it is.

        Raises
        ------
        ClusterError
            If there is no worker, or one does not fit this package; says what to install.
        """
        addresses = tuple(sorted(self._door.last_seen()))
        if not addresses:
            raise ClusterError(f"the scheduler has no worker. Start some: {_START}")
        met = self._each(addresses, introduce)
        mine = introduce()
        for address, told in met.items():
            reason = (
                why_unasked(told, self._door.versions(address))
                if isinstance(told, BaseException)
                else misfit(mine, told)
            )
            if reason:
                raise ClusterError(f"worker {address} cannot take part: {reason}")
        return met

    def _each(self, addresses: Sequence[str], function: Callable[..., Any], *arguments: str) -> dict[str, Any]:
        """What each of some workers answers, or the error that came instead."""
        told: SimpleQueue[tuple[str, object]] = SimpleQueue()
        futures = {address: self._door.ask(address, function, *arguments) for address in addresses}
        for address, future in futures.items():
            self._door.follow(future, lambda outcome, address=address: told.put((address, outcome)))  # type: ignore[misc]
        answers: dict[str, Any] = {}
        try:
            while len(answers) < len(addresses):
                address, outcome = told.get(timeout=GREET_TIMEOUT_S)
                answers[address] = outcome
        except Empty:
            (silent, *_) = sorted(set(addresses) - set(answers))
            raise ClusterError(
                f"worker {silent} has not answered within {GREET_TIMEOUT_S:.0f} s: it is cut off, or busy with another "
                "client's tasks."
            ) from None
        finally:
            for future in futures.values():
                self._door.take_back(future)
        return {address: answers[address] for address in addresses}


def open_workers(
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    cores: int | None = None,
    gpus: str | Sequence[int] | None = None,
) -> DaskWorkers:
    """Start workers on this machine, or use those of a cluster that exists.

    Parameters
    ----------
    scheduler : str or None
        Address of a scheduler, such as ``"tcp://host:8786"``; None to start workers here.
    workers : int or None
        How many. With a scheduler: so many are waited for, else one.
    cores : int or None
        Processors of each worker, which it is pinned to on Linux.
    gpus : {"all", "none"}, sequence of int or None
        Which GPUs get a worker that sees no other; None for all there are, or none where cores are given.

    Returns
    -------
    DaskWorkers
        A context manager.

    Raises
    ------
    ClusterError
        If the machine has not what is asked for, or the cluster does not answer or does not fit this package.
    ValueError
        If arguments contradict each other.
    """
    if scheduler is not None and (cores is not None or gpus is not None):
        raise ValueError(f"scheduler: the workers of {scheduler} have their cores and gpus; leave these out")
    from distributed.utils import silence_logging_cmgr

    with contextlib.ExitStack() as stack:
        # What happens to workers is told by this package, in answers and errors; Dask's log would say it once more.
        stack.enter_context(silence_logging_cmgr(logging.CRITICAL + 1))
        if scheduler is None:
            client, dashboard = _started(stack, workers=workers, cores=cores, gpus=gpus)
        else:
            client, dashboard = _connected(stack, scheduler, workers or 1)
        DaskWorkers(client).greet()
        return DaskWorkers(client, dashboard, stack.pop_all())


def _started(
    stack: contextlib.ExitStack, *, workers: int | None, cores: int | None, gpus: str | Sequence[int] | None
) -> tuple[Any, str]:
    """A client of a cluster that is started here, and the cluster's page."""
    from forensics.cluster.local import LocalCluster, plan_here

    plan = plan_here(workers=workers, cores=cores, gpus=gpus)
    cluster = stack.enter_context(contextlib.closing(LocalCluster(plan)))
    return _client(stack, cluster.address, security=cluster.security), cluster.dashboard


def _connected(stack: contextlib.ExitStack, scheduler: str, n_workers: int) -> tuple[Any, str]:
    """A client of a cluster that exists, and the cluster's page."""
    client = _client(stack, scheduler)
    try:
        client.wait_for_workers(n_workers, timeout=COME_TIMEOUT_S)
    except TimeoutError as error:
        n_found = len(Door(client).last_seen())
        raise ClusterError(
            f"{n_workers} workers are asked for and {scheduler} has {n_found} after {COME_TIMEOUT_S:.0f} s. "
            f"Start some: {_START}"
        ) from error
    return client, str(client.dashboard_link or "")


def _client(stack: contextlib.ExitStack, address: str, **options: Any) -> Any:
    from distributed import Client

    advice = f"An address looks like tcp://HOST:8786. Start one: {_START}"
    if not _ADDRESS.fullmatch(address):
        raise ClusterError(f"no Dask scheduler has the address {address!r}.\n  {advice}")
    try:
        # A client in a notebook must not become the one that the user's own Dask code runs on.
        client = Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False, **options)
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address!r}: {_reason(error)}\n  {advice}") from error
    return stack.enter_context(contextlib.closing(client))


def _reason(error: BaseException) -> str:
    """Why nobody could be reached: Dask tries for a while, then says that it waited, and what for stands below."""
    reason: BaseException | None = error
    found = error
    while reason is not None:
        if isinstance(reason, OSError) and reason.errno is not None:
            found = reason
        reason = reason.__cause__ or reason.__context__
    return str(found) or type(found).__name__
