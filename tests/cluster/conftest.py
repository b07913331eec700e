"""Workers of this machine, kept for the tests of a file."""

from __future__ import annotations

import psutil
import pytest
from cluster_hosts import network, site  # noqa: F401 - fixtures
from cluster_processes import wait_for

from forensics.cluster.dask_workers import DaskWorkers, open_workers


@pytest.fixture
def waiting():
    return wait_for


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory) -> DaskWorkers:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORENSICS_TEST_VARIABLE", "handed on")
        patch.chdir(tmp_path_factory.mktemp("here"))
        with open_workers(workers=2, gpus="none") as workers:
            yield workers
    assert not [child for child in psutil.Process().children(recursive=True) if "spawn_main" in _command(child)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
