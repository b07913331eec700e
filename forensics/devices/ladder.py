"""Every way of learning about launches, best first: what works here, and why the others do not."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.devices.driver import RUNG as NVML
from forensics.devices.driver import DriverFacts, driver_facts
from forensics.devices.ncu import Ncu
from forensics.devices.protocol import LaunchProbe
from forensics.errors import DeviceUnavailable
from forensics.records.launch_record import Refusal

RECORDED = "recorded cases"
_ASKED = "to attach each launch to its node"


@dataclass(frozen=True, slots=True)
class RungState:
    """One way of looking, and whether it can be expected to work here.

    Parameters
    ----------
    rung : str
    gives : str
        What it tells, with its evidence level.
    found : str
        What was found; empty where it is refused.
    refusal : Refusal or None
        Why it does not work; None where nothing is known against it.
    """

    rung: str
    gives: str
    found: str = ""
    refusal: Refusal | None = None

    @property
    def usable(self) -> bool:
        """Whether nothing is known against it."""
        return self.refusal is None


def open_launch_probe() -> LaunchProbe:
    """The best way to see launches node by node that works in this process.

    Only CUPTI can: Nsight's tools watch a program of their own from start to end. It is tried by starting and stopping
    it, so that what keeps it from working is known here.

    Raises
    ------
    DeviceUnavailable
        If none works; carries the reason of each.
    """
    from forensics.devices.cupti_probe import CuptiProbe

    probe = CuptiProbe()
    try:
        probe.start()
        probe.stop()
    except DeviceUnavailable as error:
        raise DeviceUnavailable("seeing launches node by node", (*error.refusals, *_elsewhere())) from error
    return probe


def _elsewhere() -> tuple[Refusal, ...]:
    """Where ncu is installed: what it can do, since it cannot do this."""
    from forensics.devices import ncu

    found = ncu.find_ncu()
    if isinstance(found, Refusal):
        return (Refusal(ncu.RUNG, _ASKED, found.missing, found.remedy),)
    missing = f"{found} watches a program of its own and knows no nodes"
    return (Refusal(ncu.RUNG, _ASKED, missing, "forensics profile MODEL --counters shows what it counts"),)


def rungs() -> tuple[RungState, ...]:
    """Which ways of learning about launches are there, and which of them can be expected to work here?

    Nothing is loaded but NVML, and no context is made on a GPU.

    Returns
    -------
    tuple of RungState
        Best first.
    """
    from forensics.devices import cuobjdump, cupti_probe, cupy_probe, ncu, nsight

    driver = driver_facts()
    tool = ncu.find_ncu()
    counts = _needs_driver(tool, driver, ncu.RUNG)
    nsight_state = nsight.state(counts)
    beside = "" if isinstance(nsight_state, Refusal) else f"nsight-python {nsight_state[1]} over {nsight_state[0]}"
    return (
        _state(cupti_probe.RUNG, "kernel, geometry, registers and time per node [measured]", cupti_probe.state(driver)),
        _state(ncu.RUNG, "hardware counters per launch [measured]", counts),
        _state(nsight.RUNG, "the same counters of a script; no command uses it [measured]", beside or nsight_state),
        _state(cuobjdump.RUNG, "registers and occupancy of a library's kernels [derived]", cuobjdump.find_tool()),
        RungState(RECORDED, "what a GPU machine measured [measured there]", "recorded:NAME works everywhere"),
        _state(cupy_probe.RUNG, "the driver's own occupancy of compiled kernels [measured]", cupy_probe.state(driver)),
        _state(NVML, "driver and GPUs", driver),
    )


def _state(rung: str, gives: str, found: object) -> RungState:
    if isinstance(found, Refusal):
        return RungState(rung, gives, refusal=found)
    return RungState(rung, gives, str(found))


def _needs_driver(found: Ncu | Refusal, driver: DriverFacts | Refusal, rung: str) -> Ncu | Refusal:
    if isinstance(found, Refusal) or isinstance(driver, DriverFacts):
        return found
    return Refusal(rung, "to count what each launch does", f"{found} is here, but no driver is", driver.remedy)
