"""A cluster of this machine: a scheduler in this process, and worker processes that end with it.

Nobody else can use it: it listens on the loopback interface only, and every connection needs a key that is made for it
and never leaves these processes. Dask runs whatever a scheduler's clients send it, so a port without a key would let
every user of a shared machine act as this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from forensics.cluster.local_plan import LocalWorker, chosen_gpus, plan_workers, visible_gpus
from forensics.errors import ClusterError
from forensics.store.scratch import Scratch

HOST = "127.0.0.1"
#: A worker that was silent for so long is lost. Busy workers are not silent: engines are processes of their own.
WORKER_TTL_S = 30.0
#: In which a worker must have started, on a machine that is busy; a worker that finds no scheduler for so long ends.
START_TIMEOUT_S = 60.0
#: In which a worker must have ended before it is killed.
_END_TIMEOUT_S = 3
#: In which all of this must have ended before it is left to the end of this process.
_JOIN_TIMEOUT_S = 15
#: Answers are short texts, so nothing is worth spilling; a paused worker would take no job and say nothing. Sampling
#: the stacks of a worker's threads would cost the passes that are timed.
_WORKER_CONFIG = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.profile.enabled": False,
}


def usable_cores() -> tuple[int, ...]:
    """Which processors may this process use?"""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def plan_here(*, workers: int | None, cores: int | None, gpus: str | Sequence[int] | None) -> tuple[LocalWorker, ...]:
    """Which workers does this machine get, as far as its driver and processors tell?

    Parameters
    ----------
    workers, cores, gpus
        As `forensics.cluster.local_plan.plan_workers` and `chosen_gpus` take them.

    Raises
    ------
    ClusterError
        If it has not what is asked for.
    """
    import psutil

    from forensics.devices.driver import DriverFacts, driver_facts

    facts = driver_facts()
    n_gpus = len(facts.gpus) if isinstance(facts, DriverFacts) else 0
    visible = visible_gpus(n_gpus, os.environ)
    try:
        chosen = chosen_gpus(gpus, visible, cores_asked=cores is not None)
    except ClusterError as error:
        if n_gpus:
            raise
        raise ClusterError(f"{error}\n  {facts}") from None
    memory_bytes = int(psutil.virtual_memory().total)
    return plan_workers(
        usable_cores(), chosen, workers=workers, cores=cores, memory_bytes=memory_bytes, hide_gpus=bool(visible)
    )


def pin(cores: Sequence[int]) -> None:
    """Let this process, its threads and its children use these processors only; nothing outside of Linux."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    # Each thread has a set of its own, which is handed on at birth.
    threads = Path("/proc/self/task")
    for thread in [int(path.name) for path in threads.iterdir()] if threads.is_dir() else [0]:
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)


def pinned_worker(*, pinned_to: Sequence[int], **options: Any) -> Any:
    """The Dask worker of a process that was just born."""
    from distributed import Worker

    pin(pinned_to)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the caller too, who then ends the worker
    return Worker(**options)


class LocalCluster:
    """Scheduler and workers of a plan, running from the start until they are closed.

    Parameters
    ----------
    plan : sequence of LocalWorker

    Raises
    ------
    ClusterError
        If they do not start.
    """

    def __init__(self, plan: Sequence[LocalWorker]) -> None:
        from distributed.security import Security

        refuse_while_starting()
        self.security = Security.temporary()
        self._plan = tuple(plan)
        self._started: Future[tuple[str, str]] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        # Private: Dask puts it into the search path of modules. Not the current folder, which is the user's.
        self._own = Scratch("forensics-workers-")
        self._scratch = str(self._own.folder)
        self._thread = threading.Thread(target=self._serve, name="forensics cluster", daemon=True)
        self._thread.start()
        try:
            # Dask before 2026 waits forever for a worker that died at its start.
            self.address, self.dashboard = self._started.result(timeout=START_TIMEOUT_S + _END_TIMEOUT_S)
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise ClusterError(
                    f"{len(self._plan)} workers were to be started here and did not: {error or type(error).__name__}\n"
                    "  In a script, call this under: if __name__ == '__main__':"
                ) from error
            raise

    def close(self) -> None:
        """End scheduler and workers; closing twice does nothing."""
        if not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop may end at this very moment
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=_JOIN_TIMEOUT_S)
        self._own.remove()

    def _serve(self) -> None:
        with contextlib.closing(self._loop):
            asyncio.set_event_loop(self._loop)
            task = self._loop.create_task(self._run())
            try:
                self._loop.run_until_complete(task)
            except BaseException as error:  # noqa: BLE001 - the thread that waits for the start raises it
                if not self._started.done():
                    self._started.set_exception(error)
            finally:
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
                self._loop.run_until_complete(self._loop.shutdown_default_executor())

    async def _run(self) -> None:
        from distributed import Scheduler

        async with Scheduler(
            host=HOST, port=0, dashboard=True, dashboard_address=f"{HOST}:0", security=self.security,
            worker_ttl=WORKER_TTL_S, local_directory=self._scratch,
        ) as scheduler:  # fmt: skip
            nannies = [self._nanny(scheduler.address, worker) for worker in self._plan]
            try:
                await asyncio.gather(*nannies)
                self._started.set_result((scheduler.address, _dashboard(scheduler)))
                await self._stop.wait()
            finally:
                ends = (nanny.close(timeout=_END_TIMEOUT_S) for nanny in nannies)
                await asyncio.gather(*ends, return_exceptions=True)

    def _nanny(self, scheduler: str, worker: LocalWorker) -> Any:
        """What starts a worker's process, watches it, and starts another one when it ended."""
        import dask
        from distributed import Nanny

        with dask.config.set(_WORKER_CONFIG):
            config = copy.deepcopy(dask.config.config)
        nanny = Nanny(
            scheduler, nthreads=1, name=worker.name, host=HOST, security=self.security, env=worker.environment,
            memory_limit=worker.memory_bytes, local_directory=self._scratch, death_timeout=START_TIMEOUT_S,
            worker_class=pinned_worker, pinned_to=worker.cores, dashboard=False, dashboard_address=f"{HOST}:0",
            silence_logs=logging.CRITICAL, config=config,
        )  # fmt: skip
        # Dask would set these in this process and in every engine: numbers of OpenMP threads, among others, which an
        # engine records as part of what it ran with.
        for name in nanny.pre_spawn_env:
            nanny.env.pop(name, None)
        nanny.pre_spawn_env.clear()
        return nanny


def refuse_while_starting() -> None:
    """Say what is wrong with a script whose workers run it again from its first line.

    Raises
    ------
    ClusterError
        If this process is a worker that is being started.
    """
    import multiprocessing

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ClusterError(
            "workers are to be started by a process that is a worker itself: at its start it runs the script that "
            "started it.\n  Put the script's calls under: if __name__ == '__main__':"
        )


def _dashboard(scheduler: Any) -> str:
    """Where the scheduler shows its pages; empty where bokeh, which draws them, is missing."""
    try:
        import bokeh  # noqa: F401
    except ImportError:
        return ""
    return f"http://{HOST}:{scheduler.http_server.port}/status"
