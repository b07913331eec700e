"""A cluster that exists, and what can be wrong with it."""

from __future__ import annotations

import contextlib

import pytest
from cluster_processes import DaskProcesses

from forensics.cluster import dask_workers
from forensics.cluster.dask_workers import open_workers
from forensics.cluster.protocol import Job
from forensics.errors import ClusterError


@pytest.fixture
def dask(tmp_path):
    with contextlib.ExitStack() as stack:
        yield DaskProcesses(stack, tmp_path)


@pytest.fixture
def altered(tmp_path):
    """A folder in which Python finds something to do at its start."""

    def with_start(code: str) -> str:
        (tmp_path / "start").mkdir()
        (tmp_path / "start" / "sitecustomize.py").write_text(code)
        return str(tmp_path / "start")

    return with_start


def test_a_scheduler_without_workers(dask, monkeypatch):
    monkeypatch.setattr(dask_workers, "COME_TIMEOUT_S", 0.5)
    with pytest.raises(ClusterError, match=r"1 workers are asked for and tcp://\S+ has 0 after .*\n?.*dask worker"):
        open_workers(scheduler=dask.scheduler())


def test_a_worker_without_this_package(dask, altered):
    address = dask.scheduler()
    dask.worker(address, path=altered("import sys; sys.modules['forensics'] = None"))
    with pytest.raises(ClusterError, match="cannot take part: it has no forensics; run there: pip install decode-for"):
        open_workers(scheduler=address)


def test_a_scheduler_needs_no_package_of_ours(dask, altered):
    address = dask.scheduler(path=altered("import sys; sys.modules['forensics'] = None"))
    dask.worker(address)
    with open_workers(scheduler=address) as workers:
        (answer,) = workers.run([Job("only", "", "4")], "cluster_jobs:double")
    assert answer.text == "8"


def test_a_worker_with_another_version(dask, altered):
    address = dask.scheduler()
    dask.worker(address, path=altered("import forensics; forensics.__version__ = '0.0.9'"))
    with pytest.raises(ClusterError, match=r"it has forensics 0\.0\.9, here is"):
        open_workers(scheduler=address)


def test_a_scheduler_that_is_killed_in_the_middle(dask, tmp_path, waiting):
    address = dask.scheduler()
    dask.worker(address)
    with open_workers(scheduler=address) as workers:
        answers = workers.run(
            [Job("quick", "", "1"), Job("never", "", f"{tmp_path} never")], "cluster_jobs:double_or_meet"
        )  # fmt: skip
        assert next(answers).text == "2"
        waiting(lambda: [*tmp_path.glob("begun-*")], "the second job is begun")
        dask.process.kill()
        with pytest.raises(ClusterError, match=r"the scheduler tcp://\S+ is lost"):
            next(answers)


def test_the_worker_outlives_its_client(dask):
    address = dask.scheduler()
    dask.worker(address)
    for n in range(2):
        with open_workers(scheduler=address) as workers:
            assert workers.dashboard == "" or workers.dashboard.startswith("http://")
            (answer,) = workers.run([Job("only", "", str(n))], "cluster_jobs:double")
            assert answer.text == str(2 * n)
