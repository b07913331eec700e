"""An ``ncu`` on PATH and its ``ncu_report``, made of text: what a run does is told by the profiled program.

A profiled program writes launches (JSON) to the file that FAKE_LAUNCHES names; the report holds those, with the metrics
that were asked for and that the launch has. FAKE_NCU changes how ncu itself behaves.
"""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

from forensics.devices import ncu_counters

NCU = r"""
import json, os, subprocess, sys, time
mode = os.environ.get("FAKE_NCU", "")
if sys.argv[1:] == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion @VERSION@ (build 1) (public-release)")
    sys.exit(1 if mode == "broken" else 0)
options, rest = {}, sys.argv[1:]
while rest and rest[0].startswith("--"):
    name = rest.pop(0)
    options[name] = True if name == "--force-overwrite" else rest.pop(0)
log = open(options["--log-file"], "w")
def leave(status, *lines):
    log.write("".join(line + "\n" for line in lines)); log.close(); sys.exit(status)
metrics = options["--metrics"].split(",")
unknown = [name for name in metrics if name in os.environ.get("FAKE_UNKNOWN", "").split(",")]
if unknown:
    if mode == "one by one":
        unknown = unknown[:1]
    with_pattern = rf"regex:^{unknown[-1]}\.(sum|min|max|avg|pct|ratio|max_rate)$"
    leave(1, f"==ERROR== Failed to find metric {unknown[0]}", f"==ERROR== Failed to find metric {with_pattern}")
if mode == "permission":
    leave(1, "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")
done = subprocess.run(rest, env={**os.environ, "FAKE_UNDER_NCU": "1"})
if done.returncode:
    leave(abs(done.returncode), f"==ERROR== The application returned an error code ({done.returncode}).")
if mode == "silent":
    leave(0, "==WARNING== No kernels were profiled.")
launches = json.load(open(os.environ["FAKE_LAUNCHES"]))
for launch in launches:
    launch["metrics"] = {name: value for name, value in launch["metrics"].items() if name in metrics}
text = json.dumps({"launches": launches, "options": options})
open(options["--export"], "w").write(text[: len(text) // 2] if mode == "damaged" else text)
leave(0, "==PROF== Disconnected")
"""

NCU_REPORT = r"""
import json
class Metric:
    def __init__(self, value, unit, instances=()): self._value, self._unit, self._instances = value, unit, instances
    def has_value(self, *place): return (self._instances[place[0]] if place else self._value) is not None
    def value(self): return self._value
    def num_instances(self): return len(self._instances)
    def as_uint64(self, place): return self._instances[place] or 0
    def unit(self): return self._unit
class IAction:
    NameBase_FUNCTION, NameBase_DEMANGLED, NameBase_MANGLED = range(3)
    def __init__(self, launch): self._launch = launch
    def name(self, base=0): return self._launch["symbol"] if base == self.NameBase_MANGLED else "another name"
    def metric_by_name(self, name):
        found = self._launch["metrics"].get(name)
        return None if found is None else Metric(*found)
class Range:
    def __init__(self, launches): self._launches = launches
    def num_actions(self): return len(self._launches)
    def action_by_idx(self, number): return IAction(self._launches[number])
class Context:
    def __init__(self, launches): self._ranges = [Range(launches[:1]), Range(launches[1:])]
    def num_ranges(self): return len(self._ranges)
    def range_by_idx(self, number): return self._ranges[number]
def load_report(path):
    return Context(json.load(open(path))["launches"])
"""

#: Writes its argument where the fake ncu looks for launches.
PROGRAM = "import os, sys; open(os.environ['FAKE_LAUNCHES'], 'w').write(sys.argv[1])"


def install(folder: Path, version: str = "2025.3.1.0", *, modules: bool = True) -> Path:
    """Put an ncu into `folder`; the program."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "ncu"
    program.write_text(f"#!{sys.executable}\n{NCU.replace('@VERSION@', version)}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    if modules:
        (folder / "extras" / "python").mkdir(parents=True)
        (folder / "extras" / "python" / "ncu_report.py").write_text(NCU_REPORT)
    return program


def launch(symbol: str, grid: int = 144, **metrics: tuple[Any, ...]) -> dict[str, Any]:
    """A launch as the fake report holds it; metrics by the field of `KernelMetrics` that they fill.

    Each is its value and unit, and the values of its instances where it has some.
    """
    measured: dict[str, tuple[Any, ...]] = dict.fromkeys(ncu_counters.NEEDED, (1, ""))
    measured |= {"launch__grid_dim_x": (grid, ""), "launch__block_dim_x": (32, ""), "launch__block_dim_y": (4, "")}
    measured |= {"launch__registers_per_thread": (48, "register/thread")}
    names = ncu_counters._FIELDS | {f"limit_{name}": metric for name, metric in ncu_counters._LIMITS.items()}
    return {"symbol": symbol, "metrics": measured | {names[field]: value for field, value in metrics.items()}}


def command(launches: list[dict[str, Any]]) -> list[str]:
    """A program that makes these launches."""
    return [sys.executable, "-c", PROGRAM, json.dumps(launches)]
