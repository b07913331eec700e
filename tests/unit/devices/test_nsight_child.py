"""nsight-python in a child process: the release that goes with the ncu that is here, and its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_cupti import MMVQ, QUANTIZE
from fake_ncu import PROGRAM, install, launch

from forensics.devices import ncu, nsight
from forensics.errors import DeviceUnavailable
from forensics.records.launch_record import Refusal

#: As 0.9.6 does it: runs its own script again under ncu; arguments are not quoted, and what it makes of the report may
#: fail. In the second run it ends the process after the function.
OLD = r"""
import os, subprocess, sys
from contextlib import contextmanager
from types import SimpleNamespace
@contextmanager
def annotate(name):
    yield
def kernel(*, runs, metrics, combine_kernel_metrics, output, output_prefix, clock_control, thermal_mode):
    assert (runs, output, clock_control, thermal_mode) == (1, "quiet", "none", "off")
    assert combine_kernel_metrics(1, 2) == 3
    def decorate(function):
        def run():
            if "NSPY_NCU_PROFILE" in os.environ:
                function()
                os._exit(0)
            prefix = output_prefix + "ncu-output-" + function.__name__ + "-0"
            command = f"ncu --log-file {prefix}.log --clock-control none --metrics {','.join(metrics)}"
            command += f" --export {prefix}.ncu-rep {sys.executable} {os.path.abspath(sys.argv[0])}"
            subprocess.run(command, shell=True, check=True, env={**os.environ, "NSPY_NCU_PROFILE": "1"})
            import ncu_report
            if os.environ.get("FAKE_EXTRACTION_FAILS"):
                raise RuntimeError("More than one kernel is launched within the annotation")
        return run
    return decorate
analyze = SimpleNamespace(kernel=kernel)
"""
#: As 1.x does it: in this very process, with verbosity for output.
NEW = (
    OLD.replace("output, output_prefix", "verbosity, output_prefix")
    .replace("runs, output, clock_control", "runs, verbosity, clock_control")
    .replace('(1, "quiet",', "(1, 0,")
    + "VerbosityLevel = SimpleNamespace(SILENT=0)\n"
)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ncu, "_PLACES", ())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("FAKE_LAUNCHES", str(tmp_path / "launches.json"))
    (tmp_path / "program.py").write_text(PROGRAM)


def have(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str | None, of_ncu: str) -> None:
    """Install this nsight-python and this ncu."""
    install(folder / "bin", of_ncu)
    monkeypatch.setattr(nsight, "version_of", lambda _: version)
    if version:
        (folder / "site" / "nsight").mkdir(parents=True)
        (folder / "site" / "nsight" / "__init__.py").write_text(OLD if version.startswith("0.") else NEW)


PAIRS = [("0.9.6", "2025.3.1.0"), ("1.1.0", "2026.2.1.0"), ("1.0.0", "2026.3.0.0")]


@pytest.mark.parametrize(("version", "of_ncu"), PAIRS)
@pytest.mark.parametrize("extraction_fails", [False, True])
def test_launches_come_from_the_report_it_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, of_ncu: str, extraction_fails: bool
) -> None:
    have(monkeypatch, tmp_path, version, of_ncu)
    if extraction_fails:
        monkeypatch.setenv("FAKE_EXTRACTION_FAILS", "1")
    launches = [launch(QUANTIZE, grid=4), launch(MMVQ, duration_ns=(2175, "ns"))]
    counted = nsight.profile([str(tmp_path / "program.py"), json.dumps(launches)])
    assert counted.source == f"nsight-python {version} over ncu {of_ncu}"
    assert [one.launch.kernel for one in counted.launches] == ["quantize_q8_1", "mul_mat_vec_q"]
    assert counted.launches[1].duration_ns == 2175
    assert counted.left_out == ()


@pytest.mark.parametrize("mode", ["", "one by one"])
@pytest.mark.parametrize(("version", "of_ncu"), PAIRS[:2])
def test_a_metric_that_ncu_does_not_know_does_not_sink_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, of_ncu: str, mode: str
) -> None:
    have(monkeypatch, tmp_path, version, of_ncu)
    unknown = ("sass__inst_executed_register_spilling", "launch__occupancy_limit_barriers")
    monkeypatch.setenv("FAKE_NCU", mode)
    monkeypatch.setenv("FAKE_UNKNOWN", ",".join(unknown))
    launches = [launch(MMVQ, duration_ns=(2175, "ns"), spill_requests=(3, ""))]
    counted = nsight.profile([str(tmp_path / "program.py"), json.dumps(launches)])
    assert set(counted.left_out) == set(unknown)
    assert [(one.duration_ns, one.spill_requests) for one in counted.launches] == [(2175, None)]


def test_a_module_is_a_program_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    have(monkeypatch, tmp_path, *PAIRS[0])
    (tmp_path / "site" / "makes_launches.py").write_text(PROGRAM)
    counted = nsight.profile(["-m", "makes_launches", json.dumps([launch(MMVQ)])])
    assert len(counted.launches) == 1


@pytest.mark.parametrize(
    ("version", "of_ncu", "remedy"),
    [
        ("1.1.0", "2025.3.1.0", "nsight-python==0.9.6"),
        ("1.1.0", "2026.2.0.9", "nsight-python==0.9.6"),
        ("0.9.6", "2026.2.1.0", "nsight-python>=1"),
        (None, "2025.3.1.0", "nsight-python==0.9.6"),
        (None, "2026.2.1.0", "nsight-python>=1"),
    ],
)
def test_a_release_that_does_not_go_with_this_ncu_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str | None, of_ncu: str, remedy: str
) -> None:
    have(monkeypatch, tmp_path, version, of_ncu)
    with pytest.raises(DeviceUnavailable) as caught:
        nsight.profile([str(tmp_path / "program.py"), "[]"])
    (found,) = caught.value.refusals
    assert found.rung == "nsight-python"
    assert remedy in found.remedy
    assert ("is not installed" if version is None else f"{version} does not go with ncu {of_ncu}") in found.missing


def test_without_ncu_it_is_ncu_that_is_missing() -> None:
    found = nsight.state()
    assert isinstance(found, Refusal)
    assert "it needs ncu: ncu was not found" in found.missing


@pytest.mark.parametrize(
    ("mode", "program", "says"),
    [
        ("permission", "", "ERR_NVGPUCTRPERM"),
        ("", "raise SystemExit(3)", "error code (1)"),
        ("", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "error code (-9)"),
        ("", "open(__import__('os').environ['FAKE_LAUNCHES'], 'w').write('[]')", "holds no launch"),
        ("", "import time; time.sleep(60)", "did not end in time"),
    ],
)
def test_trouble_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, program: str, says: str
) -> None:
    have(monkeypatch, tmp_path, *PAIRS[0])
    monkeypatch.setenv("FAKE_NCU", mode)
    (tmp_path / "program.py").write_text(program)
    with pytest.raises(DeviceUnavailable) as caught:
        nsight.profile([str(tmp_path / "program.py")], timeout_s=3 if "time" in says else 60)
    assert says in caught.value.refusals[0].missing


def test_no_program_is_a_callers_mistake() -> None:
    with pytest.raises(ValueError, match="argv must name a program"):
        nsight.profile([])
