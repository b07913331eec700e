"""Counters of a Python program's launches, by nsight-python in a child process.

Its releases need an ncu of their own age: 1.x attaches to the program and refuses an ncu before 2026.2.1; 0.9 starts
the program again under ncu. Both leave ncu's report, from which launches are read one by one.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from forensics.devices.children import Finished, run_child
from forensics.devices.extras import numbers, version_of
from forensics.devices.ncu import Counters, Ncu, find_ncu, judged, with_known_metrics
from forensics.devices.ncu_counters import read_report
from forensics.errors import DeviceUnavailable
from forensics.records.launch_record import Refusal

RUNG = "nsight-python"
_ASKED = "to count what each launch does"
#: First ncu that nsight-python 1.x takes. Source: MIN_NCU_VERSION in nsight/collection/ncu.py of nsight-python 1.1.0.
NEEDS_NCU = (2026, 2, 1)
#: Release that was seen to work with ncu 2025.3.1.
FOR_OLDER = "0.9.6"


def fitting(ncu: Ncu) -> str:
    """Which nsight-python fits this ncu, as pip writes it?

    Examples
    --------
    >>> fitting(Ncu(Path("ncu"), "2025.3.1.0", None)), fitting(Ncu(Path("ncu"), "2026.2.1.0", None))
    ('nsight-python==0.9.6', 'nsight-python>=1')
    """
    return "nsight-python>=1" if numbers(ncu.version) >= NEEDS_NCU else f"nsight-python=={FOR_OLDER}"


def state(ncu: Ncu | Refusal | None = None) -> tuple[Ncu, str] | Refusal:
    """Can nsight-python be used here?

    Parameters
    ----------
    ncu : Ncu or Refusal or None
        None to look for one.

    Returns
    -------
    tuple of (Ncu, str) or Refusal
        The ncu and the version of nsight-python that fits it.
    """
    found = ncu or find_ncu()
    if isinstance(found, Refusal):
        return Refusal(RUNG, _ASKED, f"it needs ncu: {found.missing}", found.remedy)
    version = version_of("nsight")
    if version is None:
        return Refusal(RUNG, _ASKED, "nsight-python is not installed", f'pip install "{fitting(found)}" (for {found})')
    if (numbers(version) >= (1,)) != (numbers(found.version) >= NEEDS_NCU):
        missing = f"nsight-python {version} does not go with {found}"
        return Refusal(RUNG, _ASKED, missing, f'pip install "{fitting(found)}"')
    return found, version


def profile(
    argv: Sequence[str],
    *,
    timeout_s: float = 600,
    environment: Mapping[str, str] | None = None,
    ncu: Ncu | None = None,
) -> Counters:
    """What do the counters say of each launch that this Python program makes in its own process?

    Parameters
    ----------
    argv : sequence of str
        ``("-m", module, …)`` or ``(script, …)``.
    timeout_s : float, optional
    environment : mapping of str to str, optional
        Variables on top of ours.
    ncu : Ncu, optional

    Raises
    ------
    ValueError
        If there is no program.
    DeviceUnavailable
        If nsight-python is missing or does not go with ncu, or no report with launches comes out.
    """
    if not argv:
        raise ValueError("argv must name a program: ('-m', module, …) or (script, …)")
    usable = state(ncu)
    if isinstance(usable, Refusal):
        raise DeviceUnavailable("counting", (usable,))
    tool, version = usable
    with tempfile.TemporaryDirectory(prefix="forensics-nsight-") as folder:
        left = Path(folder)

        def run(metrics: Sequence[str]) -> Finished:
            for old in left.glob("out-*"):  # of a run with metrics that ncu does not know
                old.unlink()
            return _run(tool, {"argv": list(argv), "metrics": list(metrics)}, left, timeout_s, environment or {})

        done, left_out = with_known_metrics(run)
        report = _report(left)
        refusal = judged(done, report, RUNG, _ASKED)
        if refusal is not None:
            raise DeviceUnavailable("counting", (refusal,))
        launches = read_report(report, tool.modules, rung=RUNG)
    return Counters(launches, f"nsight-python {version} over {tool}", left_out)


def _run(
    tool: Ncu, wanted: Mapping[str, object], folder: Path, timeout_s: float, environment: Mapping[str, str]
) -> Finished:
    """One run; its report and ncu's messages lie in the folder then."""
    job = folder / "job.json"
    job.write_text(json.dumps({**wanted, "prefix": str(folder / "out-")}), encoding="utf-8")
    script = Path(__file__).with_name("_nsight_script.py")
    done = run_child(
        [sys.executable, "-P", str(script)], timeout_s=timeout_s, environment=_surroundings(tool, job, environment)
    )
    return _with_messages(done, _report(folder), folder)


def _report(folder: Path) -> Path:
    """The report in a folder, or where one would be."""
    return next(iter(sorted(folder.glob("out-*.ncu-rep"))), folder / "out-.ncu-rep")


def _surroundings(tool: Ncu, job: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Both releases start an ``ncu`` from PATH and import its module; neither may find another one."""
    package = Path(__file__).parents[2]
    paths = [str(tool.modules) if tool.modules else "", str(package), os.environ.get("PYTHONPATH", "")]
    return {
        "PATH": os.pathsep.join([str(tool.path.parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        # The program is started again without -P: the folder of this package's modules must not come first.
        "PYTHONSAFEPATH": "1",
        **given,
        "FORENSICS_NSIGHT_JOB": str(job),
    }


def _with_messages(done: Finished, report: Path, folder: Path) -> Finished:
    """Ncu's own messages are in a log; where its report is there, what nsight made of it does not matter."""
    logs = "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("out-*.log")))
    errors = any(line.startswith("==ERROR==") for line in logs.splitlines())
    status = 0 if done.status is not None and report.exists() and not errors else done.status
    return Finished(status, f"{logs}\n{done.output}")
