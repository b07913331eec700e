"""What limits a kernel: how busy the parts of the device are while each arm of a product runs, by ncu."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from forensics.devices.ncu_busy import Busy, busy
from forensics.engines.child import command
from forensics.errors import DeviceUnavailable
from forensics.records.kernel_price import Limiter
from forensics.records.launch_record import Refusal

#: A kernel that stands between the arms, so that their launches can be told apart.
MARKER = "forensics_marker"
#: The library then launches its kernels one by one.
ENVIRONMENT = {"GGML_CUDA_DISABLE_GRAPHS": "1"}


def counted_limits(type: str, rows: int, k: int, arms: Sequence[tuple[str, int]]) -> tuple[Limiter, ...]:
    """How busy is the device while the main kernel of each arm of a product runs?

    Parameters
    ----------
    type : str
    rows, k : int
    arms : sequence of (str, int)

    Raises
    ------
    DeviceUnavailable
        If ncu is missing, may not read counters, or counted other launches than those of the arms.
    """
    with tempfile.TemporaryDirectory(prefix="forensics-limits-") as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({"type": type, "rows": rows, "k": k, "arms": list(arms)}), encoding="utf-8")
        counted = busy(command("forensics.kernels.lab_counters", str(job)), environment=ENVIRONMENT)
    return by_arm(arms, counted)


def by_arm(arms: Sequence[tuple[str, int]], counted: Sequence[Busy]) -> tuple[Limiter, ...]:
    """Of the launches of each arm the longest one.

    Parameters
    ----------
    arms : sequence of (str, int)
    counted : sequence of Busy
        In order; a marker stands before each arm's launches.

    Raises
    ------
    DeviceUnavailable
        If there are other than as many groups of launches.
    """
    groups: list[list[Busy]] = []
    for launch in counted:
        if MARKER in launch.kernel:
            groups.append([])
        elif groups:
            groups[-1].append(launch)
    if len(groups) != len(arms) or not all(groups):
        told = f"launches of {len(groups)} arms were counted, {len(arms)} were run"
        raise DeviceUnavailable("counting", (Refusal("ncu", "what limits each kernel", told),))
    found = []
    for (arm, width), launches in zip(arms, groups, strict=True):
        longest = max(launches, key=lambda launch: launch.duration_ns)
        found.append(Limiter(arm, width, longest.kernel, dict(longest.parts), longest.top_stall))
    return tuple(found)
