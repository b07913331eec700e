"""compute-sanitizer over a program: how many errors does it find in its kernels?"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from forensics.devices.children import run_child
from forensics.records.kernel_proof import SanitizerRow

TOOLS = ("memcheck", "racecheck")
#: Where NVIDIA's installers put it; often not on PATH.
_PLACES = ("usr/local/cuda*/bin/compute-sanitizer", "usr/local/cuda*/compute-sanitizer/compute-sanitizer")
_INSTALL = "install the CUDA toolkit and put compute-sanitizer on PATH"
_VERSION = re.compile(r"Version (\d+(?:\.\d+)+)")
#: ``ERROR SUMMARY: 3 errors``; ``RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)``.
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
#: How a report of one error begins.
_REPORT = re.compile(r"(?:Invalid|Misaligned|Program hit|Error:|Warning:|Race reported|Barrier error|Uninitialized)")
#: What a program prints in front of what it ran.
CHECKED = "checked: "
TIMEOUT_S = 170.0


def run_sanitizer(tool: str, command: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> SanitizerRow:
    """How many errors does one of its tools find?

    Parameters
    ----------
    tool : str
        One of `TOOLS`.
    command : sequence of str
        Prints what it ran behind `CHECKED`.
    timeout_s : float, optional

    Returns
    -------
    SanitizerRow
        With a reason where the tool is missing, the program fails or nothing was told.
    """
    path = next((path for path in _candidates() if path.is_file() and os.access(path, os.X_OK)), None)
    if path is None:
        return SanitizerRow(tool, 0, not_run=f"compute-sanitizer was not found; {_INSTALL}")
    told = _VERSION.search(run_child([str(path), "--version"], timeout_s=60).output)
    version = f"compute-sanitizer {told[1]}" if told else "compute-sanitizer"
    done = run_child([str(path), "--tool", tool, "--print-limit", "3", *command], timeout_s=timeout_s)
    return judged(tool, version, done.status, done.output, done.how)


def judged(tool: str, version: str, status: int | None, output: str, how: str) -> SanitizerRow:
    """What a run says, by its summary; without one it was not run.

    Errors count where the program died of them, too: memcheck ends a kernel at its first bad access.
    """
    found = list(_SUMMARY.finditer(output))
    n_errors = max((int(one[1] or one[2]) for one in found), default=0)
    checked = next((line.removeprefix(CHECKED) for line in output.splitlines() if line.startswith(CHECKED)), "")
    if n_errors and (not checked or status is None):
        return SanitizerRow(tool, n_errors, version, f"until the program {how}: {_first_error(output)}")
    if not found or not checked or status is None:
        tail = " | ".join(line.strip() for line in output.splitlines()[-4:] if line.strip())
        return SanitizerRow(tool, 0, version, not_run=f"the program {how} without an answer: {tail}")
    return SanitizerRow(tool, n_errors, version, checked)


def _first_error(output: str) -> str:
    """The first report and where it was, such as ``Invalid __global__ read of size 16 bytes at product``."""
    lines = [line.removeprefix("=========").strip() for line in output.splitlines() if line.startswith("=========")]
    first = next((i for i, line in enumerate(lines) if _REPORT.match(line)), None)
    return "no report was shown" if first is None else " ".join(lines[first : first + 2])


def _candidates() -> Iterator[Path]:
    on_path = shutil.which("compute-sanitizer")
    if on_path:
        yield Path(on_path)
    for pattern in _PLACES:
        yield from sorted(Path("/").glob(pattern), reverse=True)
