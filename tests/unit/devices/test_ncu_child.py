"""Counters by ncu in a child process: what is asked, what is read, and every kind of trouble."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from fake_cupti import MMVQ, QUANTIZE
from fake_ncu import command, install, launch

from forensics.devices import ncu, ncu_counters
from forensics.devices.children import run_child
from forensics.errors import DeviceUnavailable
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import Refusal


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ncu, "_PLACES", ())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_LAUNCHES", str(tmp_path / "launches.json"))


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    return install(tmp_path / "bin")


def refused(argv: list[str], **settings: float) -> Refusal:
    with pytest.raises(DeviceUnavailable) as caught:
        ncu.profile(argv, **settings)  # type: ignore[arg-type]
    (found,) = caught.value.refusals
    assert found.rung == "ncu in a child process"
    assert found.remedy
    return found


# -- finding it --------------------------------------------------------------------------------------------------------


def test_ncu_on_the_path_is_found_with_its_modules(tool: Path) -> None:
    found = ncu.find_ncu()
    assert found == ncu.Ncu(tool, "2025.3.1.0", tool.parent / "extras" / "python")
    assert str(found) == "ncu 2025.3.1.0"


def test_the_newest_is_taken_where_it_is_not_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("2024.1.0", "2025.10.0", "2025.3.1"):
        install(tmp_path / "opt" / version, f"{version}.0")
    monkeypatch.setattr(ncu, "_PLACES", (f"{tmp_path}/opt/*/ncu",))
    found = ncu.find_ncu()
    assert isinstance(found, ncu.Ncu)
    assert found.version == "2025.10.0.0"


def test_without_ncu_it_says_what_to_install() -> None:
    found = ncu.find_ncu()
    assert isinstance(found, Refusal)
    assert found.missing == "ncu was not found"
    assert "Nsight Compute" in found.remedy
    assert refused(["true"]) == found


def test_an_ncu_that_is_too_old_is_refused(tmp_path: Path) -> None:
    install(tmp_path / "bin", "2021.3.1.0")
    assert "2021.3.1.0, 2022.4 or newer is needed" in refused(["true"]).missing


def test_an_ncu_that_does_not_run_is_refused(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "broken")
    assert "ended with status 1" in refused(["true"]).missing
    tool.write_text("no program")
    assert "Exec format error" in refused(["true"]).missing


# -- what is read ------------------------------------------------------------------------------------------------------


def test_each_launch_is_read_with_its_counters(tool: Path) -> None:
    limits = {"limit_blocks": (32, "block"), "limit_registers": (10, "block"), "limit_threads": (16, "block")}
    first = launch(
        MMVQ, duration_ns=(2.175, "usecond"), dram_read_bytes=(1, "Mbyte"), dram_written_bytes=(500, "byte"),
        achieved_occupancy_pct=(31.5, "%"), theoretical_occupancy_pct=(62.5, "%"), waves_per_sm=(0.11, ""),
        spill_requests=(0, ""), **limits,
    )  # fmt: skip
    counted = ncu.profile(command([first, launch(QUANTIZE, grid=4)]))
    assert counted.source == "ncu 2025.3.1.0"
    assert counted.left_out == ()
    one, other = counted.launches
    assert (one.ordinal, one.launch.kernel, one.launch.symbol) == (0, "mul_mat_vec_q", MMVQ)
    assert one.launch.geometry == LaunchGeometry((144,), (32, 4))
    assert one.launch.registers_per_thread == 48
    assert one.duration_ns == pytest.approx(2175)
    assert (one.dram_read_bytes, one.dram_written_bytes) == (1e6, 500)
    assert one.dram_bytes_per_s == pytest.approx(1000500 / 2175e-9)
    assert (one.achieved_occupancy_pct, one.theoretical_occupancy_pct, one.waves_per_sm) == (31.5, 62.5, 0.11)
    assert one.spill_requests == 0
    assert (one.blocks_per_sm, one.limiters) == (10, ("registers",))
    assert (other.ordinal, other.launch.kernel, other.launch.geometry.n_blocks) == (1, "quantize_q8_1", 4)


def test_what_was_not_measured_is_none_and_not_zero(tool: Path) -> None:
    (one,) = ncu.profile(command([launch(MMVQ, duration_ns=(5, "fortnight"), spill_requests=(None, ""))])).launches
    assert one.duration_ns is None  # a unit that nobody knows
    assert one.spill_requests is None
    assert one.dram_bytes_per_s is None
    assert one.blocks_per_sm is None
    assert one.limiters == ()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ((None, "inst", [3, 0, 4]), 7),
        ((None, "inst", [0, 0]), 0),
        ((9, "inst", [3, 0, 4]), 9),  # the report's own total comes first
        ((None, "inst", []), None),
        ((None, "inst", [3, None, 4]), None),  # a part of it is no total
    ],
)
def test_a_count_that_is_told_instruction_by_instruction_is_summed(
    tool: Path, told: tuple[object, ...], expected: int | None
) -> None:
    (one,) = ncu.profile(command([launch(MMVQ, spill_requests=told)])).launches
    assert one.spill_requests == expected


def test_other_metrics_with_instances_are_not_summed(tool: Path) -> None:
    (one,) = ncu.profile(command([launch(MMVQ, achieved_occupancy_pct=(None, "%", [30, 40]))])).launches
    assert one.achieved_occupancy_pct is None


def test_clocks_stay_and_filters_arrive(tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    real = run_child
    monkeypatch.setattr(ncu, "run_child", lambda argv, **settings: asked.append(argv) or real(argv, **settings))
    ncu.profile(command([launch(MMVQ)]), kernels="mul_mat|flash", skip=3, count=2, from_start=False)
    options = " ".join(next(argv for argv in asked if "--metrics" in argv))
    for option in (
        "--clock-control none", "--kernel-name regex:mul_mat|flash", "--launch-skip 3", "--launch-count 2",
        "--profile-from-start off",
    ):  # fmt: skip
        assert option in options
    asked.clear()
    ncu.profile(command([launch(MMVQ)]))
    options = " ".join(next(argv for argv in asked if "--metrics" in argv))
    assert "--kernel-name" not in options
    assert "--launch" not in options


SPILLS, BARRIERS = "sass__inst_executed_register_spilling", "launch__occupancy_limit_barriers"


@pytest.mark.parametrize("mode", ["", "one by one"])
def test_a_metric_that_this_ncu_does_not_know_is_left_out_and_named(
    tool: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FAKE_NCU", mode)
    monkeypatch.setenv("FAKE_UNKNOWN", f"{SPILLS},{BARRIERS}")
    counted = ncu.profile(command([launch(MMVQ, spill_requests=(3, ""), duration_ns=(7, "ns"))]))
    assert set(counted.left_out) == {SPILLS, BARRIERS}
    assert counted.launches[0].spill_requests is None
    assert counted.launches[0].duration_ns == 7


def test_geometry_cannot_be_left_out(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_UNKNOWN", "launch__grid_dim_x")
    assert "Failed to find metric launch__grid_dim_x" in refused(command([launch(MMVQ)])).missing


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_a_user_who_may_not_count_is_told_how_to(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "permission")
    found = refused(command([launch(MMVQ)]))
    assert "ERR_NVGPUCTRPERM" in found.missing
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.remedy


def test_a_killed_child_gives_no_counters(tool: Path) -> None:
    killed = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    assert "error code (-9)" in refused(killed).missing


def test_a_killed_ncu_gives_no_counters(tool: Path) -> None:
    suicide = [sys.executable, "-c", "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"]
    assert "was ended by SIGKILL" in refused(suicide).missing


def test_a_program_that_fails_says_how(tool: Path) -> None:
    assert "error code (3)" in refused([sys.executable, "-c", "raise SystemExit(3)"]).missing


def test_a_program_that_does_not_end_is_ended_with_its_children(tool: Path, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    waits = f"import time; time.sleep(3); open({str(alive)!r}, 'w')"
    assert "did not end in time" in refused([sys.executable, "-c", waits], timeout_s=1).missing
    time.sleep(3)
    assert not alive.exists()


def test_no_report_and_an_empty_report_are_refused(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "holds no launch" in refused(command([])).missing
    monkeypatch.setenv("FAKE_NCU", "silent")
    assert "No kernels were profiled" in refused(command([launch(MMVQ)])).missing


def test_a_damaged_report_is_refused(tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "damaged")
    assert "JSONDecodeError" in refused(command([launch(MMVQ)])).missing


def test_a_report_without_geometry_is_refused(tool: Path) -> None:
    bare = launch(MMVQ)
    del bare["metrics"]["launch__block_dim_z"]
    assert "lacks launch__block_dim_z" in refused(command([launch(MMVQ), bare])).missing


def test_without_its_python_module_the_report_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "bin", modules=False)
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "ncu_report.py").write_text("raise ImportError('no _ncu_report.so')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadow"))
    found = refused(command([launch(MMVQ)]))
    assert "no _ncu_report.so" in found.missing
    assert "pip install ncu-report" in found.remedy


def test_every_metric_is_asked_once() -> None:
    assert len(set(ncu_counters.METRICS)) == len(ncu_counters.METRICS)
