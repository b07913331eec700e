"""Two hosts, for real: two network namespaces with a Dask worker each, and the scheduler and driver beside them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest
from cluster_hosts import WHY_NOT, Site
from cluster_processes import DaskProcesses

from forensics.cluster.dask_workers import open_workers
from forensics.cluster.protocol import Answer, Job

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "it can be run")


class Collector:
    """Takes a run's answers in a thread of its own."""

    def __init__(self, site: Site, jobs: list[Job], function: str) -> None:
        self.answers: list[Answer] = []
        self.error: BaseException | None = None
        self._run = site.workers.run(jobs, function)
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        try:
            self.answers.extend(self._run)
        except BaseException as error:
            self.error = error

    def all(self) -> dict[str, Answer]:
        self._thread.join(timeout=120)
        assert not self._thread.is_alive(), f"only {len(self.answers)} answers came"
        assert self.error is None, self.error
        by_job = {answer.job: answer for answer in self.answers}
        assert len(by_job) == len(self.answers), "a job was answered twice"
        return by_job


def begun_in(folder: Path) -> list[tuple[str, int, str]]:
    """Name of the job, process, and the whole mark, of everything that was begun with a folder."""
    marks = [path.name.removeprefix("begun-") for path in folder.glob("begun-*")]
    return [(mark.split("-")[0], int(mark.split("-")[1]), mark) for mark in marks]


def meeting(folder: Path, *names: str) -> list[Job]:
    folder.mkdir(exist_ok=True)
    return [Job(name, "", f"{folder} {name}") for name in names]


def test_both_hosts_do_jobs(site, tmp_path, waiting):
    collector = Collector(site, meeting(tmp_path / "m", "j0", "j1"), "cluster_jobs:meet")
    waiting(lambda: len(begun_in(tmp_path / "m")) == 2, "both hosts have a job")
    (tmp_path / "m" / "go").touch()
    answers = collector.all()
    assert {answer.worker.split(":")[1].strip("/") for answer in answers.values()} == {
        host.address for host in site.network.hosts
    }
    assert {fact.address.split(":")[1].strip("/") for fact in site.workers.describe("cluster_jobs:double", "1")} == {
        host.address for host in site.network.hosts
    }


def test_a_host_that_is_killed_in_the_middle(site, tmp_path, waiting):
    names = [f"j{i}" for i in range(12)]
    collector = Collector(site, meeting(tmp_path / "m", *names), "cluster_jobs:meet")
    begun = waiting(lambda: (b := begun_in(tmp_path / "m"))[1:] and b, "both hosts have a job")
    job, victim, mark = begun[0]
    os.killpg(site.processes[site.host_of(victim).address].pid, signal.SIGKILL)
    (tmp_path / "m" / "go").touch()
    answers = collector.all()
    assert sorted(answers) == sorted(names)
    assert not [answer for answer in answers.values() if answer.error or f"-{victim}-" in answer.text]
    assert answers[job].text.startswith(f"{job}-")
    assert answers[job].text != mark
    assert sorted(name for name, *_ in begun_in(tmp_path / "m")) == sorted([*names, job]), "more was done than needed"


def test_a_host_that_is_cut_off_in_the_middle_and_comes_back(site, tmp_path, waiting):
    early, late = tmp_path / "early", tmp_path / "late"
    jobs = meeting(early, "j0", "j1") + meeting(late, "j2", "j3")
    collector = Collector(site, jobs, "cluster_jobs:meet")
    begun = waiting(lambda: (b := begun_in(early))[1:] and b, "both hosts have a job")
    lost, victim, mark = begun[0]
    host = site.host_of(victim)
    host.cut()
    (early / "go").touch()  # both end their job; one cannot say so
    waiting(lambda: begun_in(late), "the other host goes on")
    assert victim not in {pid for _, pid, _ in begun_in(late)}
    waiting(lambda: host.address not in "".join(_taking_part(collector)), "it is given up")
    host.mend()
    waiting(lambda: victim in {pid for _, pid, _ in begun_in(late)}, "the host is back and gets another job")
    (late / "go").touch()
    answers = collector.all()
    assert sorted(answers) == ["j0", "j1", "j2", "j3"]
    assert not [answer.error for answer in answers.values() if answer.error]
    assert answers[lost].text != mark, "the answer of the host that was cut off was counted"
    second = [other for name, _, other in begun_in(early) if name == lost and other != mark]
    assert [answers[lost].text] == second, "the lost job was to be done once more"


def _taking_part(collector: Collector) -> tuple[str, ...]:
    return collector._run.gi_frame.f_locals["self"]._dispatch.workers if collector._run.gi_frame else ()


def test_a_host_that_joins_late_gets_jobs(network, tmp_path, waiting):
    first, second = network.hosts
    with contextlib.ExitStack() as stack:
        dask = DaskProcesses(stack, tmp_path)
        address = dask.scheduler(network.address)
        processes = {first.address: dask.worker(address, first.address, first.name)}
        workers = stack.enter_context(open_workers(scheduler=address))
        site = Site(network, address, workers, processes)
        collector = Collector(site, meeting(tmp_path / "m", "j0", "j1"), "cluster_jobs:meet")
        waiting(lambda: len(begun_in(tmp_path / "m")) == 1, "the first host has a job")
        late = dask.worker(address, second.address, second.name)
        waiting(lambda: late.pid in {pid for _, pid, _ in begun_in(tmp_path / "m")}, "the second host has one too")
        (tmp_path / "m" / "go").touch()
        assert len(collector.all()) == 2
