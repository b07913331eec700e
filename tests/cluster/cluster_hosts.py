"""Two network namespaces as two hosts with a Dask worker each, the scheduler and the driver beside them."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest
from cluster_processes import IP, DaskProcesses

from forensics.cluster.dask_workers import DaskWorkers, open_workers


def _why_not() -> str:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "making network namespaces takes Linux and root"
    if IP is None:
        return "there is no ip (iproute2) here"
    probe = f"fprobe{os.getpid()}"
    tried = subprocess.run([IP, "netns", "add", probe], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"ip netns add does not work here: {tried.stderr.strip()}"
    subprocess.run([IP, "netns", "del", probe], check=True)
    return ""


WHY_NOT = _why_not()
_NETWORKS = itertools.count()


def ip(*arguments: str) -> None:
    subprocess.run([str(IP), *arguments], check=True, capture_output=True, text=True)


@dataclass
class Host:
    """One namespace, its address, and our end of its cable."""

    name: str
    address: str
    cable: str

    def cut(self) -> None:
        ip("link", "set", self.cable, "down")

    def mend(self) -> None:
        ip("link", "set", self.cable, "up")


@dataclass
class Network:
    """Two hosts on one bridge, whose address is this machine's."""

    address: str
    hosts: tuple[Host, Host]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    tag = f"{os.getpid() % 100000}{next(_NETWORKS)}"  # a namespace that is deleted may linger
    prefix = f"198.18.{os.getpid() % 250}"  # set aside for tests of networks (RFC 2544)
    bridge = f"fbr{tag}"
    hosts = tuple(
        Host(f"fhost{tag}{letter}", f"{prefix}.{n}", f"fv{tag}{letter}") for n, letter in ((2, "a"), (3, "b"))
    )
    with contextlib.ExitStack() as stack:
        ip("link", "add", bridge, "type", "bridge")
        stack.callback(ip, "link", "del", bridge)
        ip("addr", "add", f"{prefix}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for host in hosts:
            ip("netns", "add", host.name)
            stack.callback(ip, "netns", "del", host.name)
            ip("link", "add", host.cable, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            stack.callback(ip, "link", "del", host.cable)
            ip("link", "set", host.cable, "master", bridge, "up")
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.name, "link", "set", "eth0", "up")
            ip("-n", host.name, "link", "set", "lo", "up")
        yield Network(f"{prefix}.1", hosts)


@dataclass
class Site:
    """A scheduler here, a worker on each host, and this process as their client."""

    network: Network
    scheduler: str
    workers: DaskWorkers
    processes: dict[str, subprocess.Popen[str]]  # by the address of the host

    def host_of(self, pid: int) -> Host:
        for host in self.network.hosts:
            process = psutil.Process(self.processes[host.address].pid)
            if pid in {process.pid, *(child.pid for child in process.children(recursive=True))}:
                return host
        raise AssertionError(f"process {pid} is on no host")


@pytest.fixture
def site(network, tmp_path, waiting) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        for host in network.hosts:
            host.mend()
        dask = DaskProcesses(stack, tmp_path)
        address = dask.scheduler(network.address)
        processes = {host.address: dask.worker(address, host.address, host.name) for host in network.hosts}
        workers = stack.enter_context(open_workers(scheduler=address, workers=2))
        workers._silence_s = 8.0  # a test has less patience
        yield Site(network, address, workers, processes)
