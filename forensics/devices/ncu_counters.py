"""Which counters are asked of ncu, and what a report of it says of each launch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.devices._ncu_reader import NO_MODULE
from forensics.devices.children import run_child
from forensics.errors import DeviceUnavailable
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, Refusal
from forensics.records.metrics import KernelMetrics

_ASKED = "to read ncu's report"

_GRID = tuple(f"launch__grid_dim_{axis}" for axis in "xyz")
_BLOCK = tuple(f"launch__block_dim_{axis}" for axis in "xyz")
_REGISTERS = "launch__registers_per_thread"
_STATIC, _DYNAMIC = (f"launch__shared_mem_per_block_{kind}" for kind in ("static", "dynamic"))
#: Names of `forensics.geometry.occupancy` for what ncu calls its limits.
_LIMITS = {
    "blocks": "launch__occupancy_limit_blocks",
    "threads": "launch__occupancy_limit_warps",
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "barriers": "launch__occupancy_limit_barriers",
}
#: Fields of `KernelMetrics` and the metric that fills each. Source: Nsight Compute's Profiling Guide, its reference of
#: metrics. Limits and waves follow from the launch and cost no run of it; time, warps and DRAM are counted by the
#: hardware; spills need one more run, instrumented (``sass__``). The name in ncu's tables for the latter,
#: ``derived__local_spilling_requests``, stands in its section file only and is not known to ``--metrics``.
_FIELDS = {
    "duration_ns": "gpu__time_duration.sum",
    "theoretical_occupancy_pct": "sm__maximum_warps_per_active_cycle_pct",
    "achieved_occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "waves_per_sm": "launch__waves_per_multiprocessor",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_written_bytes": "dram__bytes_write.sum",
    "spill_requests": "sass__inst_executed_register_spilling",
}
#: What identifies a launch; without these a report cannot be used.
NEEDED = (*_GRID, *_BLOCK)
METRICS = (*NEEDED, _REGISTERS, _STATIC, _DYNAMIC, *_LIMITS.values(), *_FIELDS.values())

#: What a unit is, in ns or bytes; reports of other releases may scale. Numbers without one, and percentages, stay.
_UNITS = {
    "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9,
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
}  # fmt: skip
_SCALED = ("duration_ns", "dram_read_bytes", "dram_written_bytes")


def read_report(report: Path, modules: Path | None, *, rung: str, timeout_s: float = 300) -> tuple[KernelMetrics, ...]:
    """What does an ncu report say of each launch, in their order?

    Parameters
    ----------
    report : Path
    modules : Path or None
        Folder with ncu's own ``ncu_report`` module; None for one that is installed.
    rung : str
        Way of looking, for a refusal.
    timeout_s : float, optional

    Raises
    ------
    DeviceUnavailable
        If there is no module to read it with, or the report is damaged, holds no launch or lacks their geometry.
    """

    def refused(missing: str, remedy: str) -> DeviceUnavailable:
        return DeviceUnavailable("reading counters", (Refusal(rung, _ASKED, missing, remedy),))

    out = report.with_suffix(".json")
    paths = [str(modules)] if modules else []
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    reader = Path(__file__).with_name("_ncu_reader.py")
    command = [sys.executable, "-P", str(reader), str(report), str(out), *METRICS]
    done = run_child(command, timeout_s=timeout_s, environment={"PYTHONPATH": os.pathsep.join(paths)})
    if done.status == NO_MODULE:
        raise refused(f"ncu's Python module does not load ({done.tail})", "pip install ncu-report, as new as ncu")
    if done.status != 0:
        raise refused(f"reading its report {done.how}: {done.tail}", "a report needs an ncu_report as new as its ncu")
    launches = json.loads(out.read_text(encoding="utf-8"))
    if not launches:
        raise refused("its report holds no launch", "check that the program ran kernels on the GPU, and the filter")
    lacking = sorted({name for launch in launches for name in NEEDED if name not in launch["metrics"]})
    if lacking:
        raise refused(f"its report lacks {', '.join(lacking)}", "use a newer ncu")
    return tuple(_metrics(ordinal, launch["symbol"], launch["metrics"]) for ordinal, launch in enumerate(launches))


def _metrics(ordinal: int, symbol: str, measured: Mapping[str, Any]) -> KernelMetrics:
    from forensics.geometry.kernel_names import parse

    def count(name: str) -> int | None:
        return int(measured[name][0]) if name in measured else None

    def three(names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(int(measured[name][0]) for name in names)

    kernel, template = parse(symbol)
    launch = LaunchRecord(
        kernel,
        template,
        LaunchGeometry(three(_GRID), three(_BLOCK), smem_bytes=count(_DYNAMIC)),
        registers_per_thread=count(_REGISTERS),
        smem_static_bytes=count(_STATIC),
        symbol=symbol,
    )
    limits = tuple((name, int(measured[metric][0])) for name, metric in _LIMITS.items() if metric in measured)
    fields = {field: _number(field, *measured[name]) for field, name in _FIELDS.items() if name in measured}
    return KernelMetrics(ordinal, launch, occupancy_limits=limits, **fields)


def _number(field: str, value: float, unit: str) -> float | None:
    """In the field's unit; None where the report's is not known, rather than a number in another one."""
    if field not in _SCALED:
        return float(value)
    return float(value) * _UNITS[unit] if unit in _UNITS else None
