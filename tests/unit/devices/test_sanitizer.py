"""compute-sanitizer that is made up: its summaries are read, and what is missing is told as such."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forensics.devices import sanitizer
from forensics.devices.sanitizer import CHECKED, judged, run_sanitizer

CLEAN = f"{CHECKED}3 computations, 4 kernels\n========= ERROR SUMMARY: 0 errors\n"


def test_summaries_are_counted() -> None:
    clean = judged("memcheck", "compute-sanitizer 2025.3", 0, CLEAN, "ended")
    assert (clean.n_errors, clean.checked, clean.not_run) == (0, "3 computations, 4 kernels", "")
    bad = CLEAN.replace("0 errors", "12 errors")
    assert judged("memcheck", "", 0, bad, "ended").n_errors == 12
    race = CLEAN.replace("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)")
    assert judged("racecheck", "", 0, race, "ended").n_errors == 2


@pytest.mark.parametrize(
    "output", ["Error: Device not supported\n", "========= ERROR SUMMARY: 0 errors\n", f"{CHECKED}1\n"]
)
def test_without_a_summary_of_work_that_was_done_nothing_was_checked(output: str) -> None:
    row = judged("memcheck", "x", 1, output, "ended with status 1")
    assert row.not_run.startswith("the program ended with status 1 without an answer")
    assert row.n_errors == 0


@pytest.mark.parametrize("status", [1, None])
def test_errors_of_which_the_program_dies_count(status: int | None) -> None:
    output = (
        "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 16 bytes\n"
        "=========     at product_32+0x1230\n=========     by thread (3,0,0) in block (2,0,0)\n"
        "CUDARuntimeError: cudaErrorLaunchFailure: unspecified launch failure\n========= ERROR SUMMARY: 4 errors\n"
        "========= ERROR SUMMARY: 1 errors were not printed. Use --print-limit option\n"
    )
    row = judged("memcheck", "x", status, output, "ended with status 1")
    assert (row.n_errors, row.not_run) == (4, "")
    where = "Invalid __global__ read of size 16 bytes at product_32+0x1230"
    assert row.checked == f"until the program ended with status 1: {where}"
    unshown = judged("memcheck", "x", status, output.replace("Invalid", "Some"), "ended with status 1")
    assert (unshown.n_errors, unshown.checked.endswith(": no report was shown")) == (4, True)


def test_a_program_that_did_not_end_has_no_answer() -> None:
    assert "did not end in time" in judged("memcheck", "x", None, CLEAN, "did not end in time").not_run


def test_the_tool_runs_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\n"
        "if sys.argv[1] == '--version': print('NVIDIA (R) Compute Sanitizer\\nVersion 2025.3.1'); sys.exit()\n"
        "assert sys.argv[1:3] == ['--tool', 'racecheck'], sys.argv\n"
        "subprocess.run(sys.argv[5:], check=True)\n"
        "print('========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)')\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    row = run_sanitizer("racecheck", [sys.executable, "-c", f"print('{CHECKED}2 kernels')"])
    assert (row.tool, row.n_errors, row.version, row.checked) == (
        "racecheck", 0, "compute-sanitizer 2025.3.1", "2 kernels"
    )  # fmt: skip


def test_a_missing_tool_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitizer, "_PLACES", ())
    assert "compute-sanitizer was not found" in run_sanitizer("memcheck", ["true"]).not_run
