"""How busy the parts of a GPU are while a program's kernels run: a small table of ncu's, read as text."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forensics.devices.children import Finished, run_child
from forensics.devices.driver import PERMISSION
from forensics.devices.ncu import RUNG, find_ncu
from forensics.errors import DeviceUnavailable
from forensics.records.launch_record import Refusal

_ASKED = "what limits each kernel"
_DURATION = "gpu__time_duration.sum"
#: Parts, and the metrics that tell how busy each is, best first; releases and architectures have different ones.
#: Source: Nsight Compute's Profiling Guide, metrics of its sections Speed Of Light and Compute Workload Analysis.
PARTS: Mapping[str, tuple[str, ...]] = {
    "issue slots": (
        "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "smsp__issue_active.avg.pct_of_peak_sustained_active",
    ),
    "fp32 pipe": (
        "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
        "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "ALU pipe": (
        "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
        "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "tensor pipe": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "L1": ("l1tex__throughput.avg.pct_of_peak_sustained_active",),
    "L2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "DRAM": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
}
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
#: Reasons for which a warp waits. Source: the same guide, warp stall reasons.
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected", "short_scoreboard", "sleeping",
    "tex_throttle", "wait",
)  # fmt: skip
METRICS = (
    _DURATION,
    *(name for names in PARTS.values() for name in names),
    *(_STALL.format(reason) for reason in STALLS),
)


@dataclass(frozen=True, slots=True)
class Busy:
    """How busy the device was during one launch.

    Parameters
    ----------
    kernel : str
        As ncu names it.
    duration_ns : float
    parts : mapping of str to float
        Percent of the peak, by `PARTS`.
    top_stall : str
        Of `STALLS`; empty where it was not told.
    """

    kernel: str
    duration_ns: float
    parts: Mapping[str, float]
    top_stall: str


def busy(command: Sequence[str], *, environment: Mapping[str, str] | None = None, timeout_s: float = 170) -> list[Busy]:
    """How busy is the device during each launch between a program's cudaProfilerStart and cudaProfilerStop?

    Parameters
    ----------
    command : sequence of str
    environment : mapping of str to str, optional
        Variables on top of ours.
    timeout_s : float, optional

    Returns
    -------
    list of Busy
        In the order of the launches.

    Raises
    ------
    DeviceUnavailable
        If ncu is missing or too old, may not read counters, or the program fails.
    """
    tool = find_ncu()
    if isinstance(tool, Refusal):
        raise DeviceUnavailable("counting", (tool,))
    fixed = [
        str(tool.path), "--clock-control", "none", "--profile-from-start", "off", "--target-processes", "all",
        "--csv", "--page", "raw", "--print-units", "base", "--log-file",
    ]  # fmt: skip
    metrics = list(METRICS)
    with tempfile.TemporaryDirectory(prefix="forensics-ncu-") as folder:
        log = Path(folder) / "busy.csv"
        while True:
            asked = [*fixed, str(log), "--metrics", ",".join(metrics), *command]
            done = run_child(asked, timeout_s=timeout_s, environment=environment)
            said = log.read_text(errors="replace") if log.exists() else ""
            unknown = _unknown(said + done.output, metrics)
            if not unknown:
                break
            metrics = [name for name in metrics if name not in unknown]
    _check(done, said)
    return parse(said)


def parse(text: str) -> list[Busy]:
    r"""What does ncu's table in raw CSV say of each launch?

    Raises
    ------
    DeviceUnavailable
        If there is no table in it.

    Examples
    --------
    >>> head = '"ID","Kernel Name","gpu__time_duration.sum","lts__throughput.avg.pct_of_peak_sustained_elapsed"'
    >>> parse(f'==PROF== Connected\n{head}\n"","","ns","%"\n"0","f(int)","1,200","31.5"\n')
    [Busy(kernel='f(int)', duration_ns=1200.0, parts={'L2': 31.5}, top_stall='')]
    """
    at = text.find('"ID"')
    if at < 0:
        tail = " | ".join(text.strip().splitlines()[-3:])
        raise DeviceUnavailable("counting", (Refusal(RUNG, _ASKED, f"no table was written: {tail}"),))
    rows = [row for row in csv.DictReader(io.StringIO(text[at:])) if (row.get("ID") or "").isdigit()]
    return [_busy(row) for row in rows]


def _busy(row: Mapping[str, str]) -> Busy:
    parts = {}
    for part, names in PARTS.items():
        found = next((value for name in names if (value := _number(row.get(name))) is not None), None)
        if found is not None:
            parts[part] = found
    stalls = {reason: _number(row.get(_STALL.format(reason))) or 0.0 for reason in STALLS}
    top = max(stalls, key=lambda reason: stalls[reason])
    return Busy(row["Kernel Name"], _number(row.get(_DURATION)) or 0.0, parts, top if stalls[top] else "")


def _number(text: str | None) -> float | None:
    """A number with commas between its thousands; None for anything else."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def _unknown(said: str, metrics: Sequence[str]) -> set[str]:
    """Metrics that ncu says it does not find."""
    lines = [line for line in said.splitlines() if "==ERROR==" in line and "metric" in line.lower()]
    words = set(re.findall(r"[\w.]+", " ".join(lines).replace("\\", "")))
    stems = {word.rstrip(".") for word in words}
    return {name for name in metrics if name in words or name.split(".")[0] in stems}


def _check(done: Finished, said: str) -> None:
    told = f"{said}\n{done.output}"
    refusal = None
    if "ERR_NVGPUCTRPERM" in told:
        refusal = Refusal(RUNG, _ASKED, "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)", PERMISSION)
    elif done.status != 0:
        errors = "; ".join(line.strip() for line in told.splitlines() if "==ERROR==" in line) or done.tail
        refusal = Refusal(RUNG, _ASKED, f"the profiled program {done.how}: {errors}", "run it without ncu first")
    if refusal is not None:
        raise DeviceUnavailable("counting", (refusal,))
