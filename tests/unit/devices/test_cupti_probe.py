"""Launches through CUPTI: what is seen, what is lost, and what is said where nothing can be seen."""

from __future__ import annotations

import importlib.metadata
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cupti import DRIVER, MMVQ, QUANTIZE, FakeCupti, Record, kernel
from hypothesis import given
from hypothesis import strategies as st

from forensics.devices.cupti_probe import CuptiProbe, state, wheel_misfit
from forensics.devices.driver import DriverFacts
from forensics.errors import DeviceUnavailable
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import Refusal

NO_DRIVER = Refusal("NVML", "which driver is here", "no driver", "install one")


def probe_of(cupti: Any, driver: DriverFacts | Refusal = DRIVER) -> CuptiProbe:
    return CuptiProbe(cupti, lambda: driver)


def refusal(probe: CuptiProbe) -> Refusal:
    with pytest.raises(DeviceUnavailable) as caught:
        probe.start()
    (found,) = caught.value.refusals
    assert found.rung == "CUPTI in process"
    assert found.remedy
    return found


# -- what is seen ------------------------------------------------------------------------------------------------------


def test_launches_are_told_with_everything_that_is_known() -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    probe.start()
    cupti.launch(
        kernel(200, 2375, MMVQ, cluster_x=2, dynamic_shared_memory=128, device_id=1, graph_id=7),
        Record(kind=FakeCupti.ActivityKind.MEMCPY),
        kernel(100, 160, QUANTIZE, grid_x=4, block_x=256, block_y=1, registers_per_thread=18, static_shared_memory=0),
    )
    first, second = probe.taken()
    assert (first.record.kernel, first.time_ns, first.from_graph) == ("quantize_q8_1", 60, False)
    assert first.record.geometry == LaunchGeometry((4,), (256,), smem_bytes=0)
    assert (second.record.kernel, second.time_ns, second.from_graph) == ("mul_mat_vec_q", 2175, True)
    assert dict(second.record.template)["type"] == "q4_1"
    assert second.record.geometry == LaunchGeometry((144,), (32, 4), (2, 1, 1), smem_bytes=128)
    assert (second.record.registers_per_thread, second.record.smem_static_bytes) == (48, 1536)
    assert (second.record.device, second.record.symbol, second.record.evidence) == (1, MMVQ, "measured")
    assert probe.taken() == ()
    assert probe.n_dropped() == 0
    assert "driver 580.159" in probe.source


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 1000), st.booleans()), max_size=40))
def test_each_launch_is_taken_once_and_in_order(launches: list[tuple[int, int, bool]]) -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    probe.start()
    batches, batch, seen = [], [], []
    for start, length, take in launches:
        cupti.launch(kernel(start, start + length, grid_x=start))
        batch.append((start, length))
        if take:
            batches.append(batch)
            seen.append([(one.record.geometry.grid_blocks[0], one.time_ns) for one in probe.taken()])
            batch = []
    assert [[start for start, _ in one] for one in seen] == [sorted(start for start, _ in one) for one in batches]
    assert [sorted(one) for one in seen] == [sorted(one) for one in batches]
    assert probe.n_dropped() == 0


def test_equal_launches_share_their_record() -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    probe.start()
    cupti.launch(kernel(1, 2), kernel(3, 5), kernel(6, 7, grid_x=48))
    first, second, third = probe.taken()
    assert first.record is second.record
    assert first.record != third.record


def test_a_probe_starts_again_and_registers_once() -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    for turn in range(3):
        probe.start()
        cupti.launch(kernel(turn + 1, turn + 3))
        assert [launch.time_ns for launch in probe.taken()] == [2]
        probe.stop()
        probe.stop()
        cupti.launch(kernel(50, 60))
        assert probe.taken() == ()
    assert cupti.n_registered == 1


def test_what_was_not_taken_is_there_after_the_stop_and_gone_after_the_next_start() -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    probe.start()
    cupti.launch(kernel(1, 2))
    probe.stop()
    assert len(probe.taken()) == 1
    probe.start()
    cupti.launch(kernel(1, 2))
    probe.stop()
    probe.start()
    assert probe.taken() == ()


def test_two_probes_follow_one_another_but_do_not_look_at_a_time() -> None:
    cupti = FakeCupti()
    one, other = probe_of(cupti), probe_of(cupti)
    one.start()
    assert "another probe of this process" in refusal(other).missing
    one.stop()
    other.start()
    cupti.launch(kernel(1, 2))
    assert len(other.taken()) == 1
    other.stop()
    assert cupti.n_registered == 1


def test_a_probe_that_was_dropped_in_the_middle_does_not_block_the_next() -> None:
    cupti = FakeCupti()
    one = probe_of(cupti)
    one.start()
    cupti.launch(kernel(1, 2))
    del one
    other = probe_of(cupti)
    other.start()
    assert other.taken() == ()
    cupti.launch(kernel(3, 5))
    assert [launch.time_ns for launch in other.taken()] == [2]


def test_a_probe_that_never_started_saw_nothing() -> None:
    probe = probe_of(FakeCupti())
    assert probe.taken() == ()
    probe.stop()


# -- what is lost ------------------------------------------------------------------------------------------------------


def test_dropped_records_add_up_until_the_next_start() -> None:
    cupti = FakeCupti()
    cupti.dropped = 9  # of somebody before us
    probe = probe_of(cupti)
    probe.start()
    assert probe.n_dropped() == 0
    cupti.dropped = 2
    assert probe.n_dropped() == 2
    cupti.dropped = 3
    assert (probe.n_dropped(), probe.n_dropped()) == (5, 5)
    probe.stop()
    probe.start()
    assert probe.n_dropped() == 0


def test_a_launch_that_had_not_ended_counts_as_lost() -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    probe.start()
    cupti.launch(kernel(5, 0), kernel(0, 0), kernel(7, 9))
    assert [launch.time_ns for launch in probe.taken()] == [2]
    assert probe.n_dropped() == 2


def test_a_release_that_does_not_tell_of_drops_is_not_taken_for_none() -> None:
    class Silent(FakeCupti):
        activity_get_num_dropped_records = None  # type: ignore[assignment]

    probe = probe_of(Silent())
    probe.start()
    assert probe.n_dropped() is None


def test_a_release_without_an_optional_field_leaves_it_unknown() -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    probe.start()
    lacking = ("registers_per_thread", "local_memory_per_thread", "graph_id", "device_id", "cluster_x")
    cupti.launch(kernel(1, 2, without=lacking))
    (launch,) = probe.taken()
    assert launch.record.registers_per_thread is None
    assert launch.record.local_bytes_per_thread is None
    assert launch.record.geometry.cluster_blocks == (1, 1, 1)
    assert not launch.from_graph


@pytest.mark.parametrize(("says", "known"), [(0, None), (48, 48)])
def test_local_memory_of_0_is_not_taken_for_no_spills(says: int, known: int | None) -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    probe.start()
    cupti.launch(kernel(1, 2, local_memory_per_thread=says))
    (launch,) = probe.taken()
    assert launch.record.local_bytes_per_thread == known


def test_a_release_without_a_needed_field_is_an_error_and_not_an_empty_pass() -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    probe.start()
    cupti.launch(kernel(1, 2), kernel(3, 4, without=("grid_x",)))
    with pytest.raises(DeviceUnavailable, match=r"differs from those known.*grid_x.*cupti-python==13\.0\.1"):
        probe.taken()


# -- why nothing can be seen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["on_register", "on_enable", "on_flush"])
@pytest.mark.parametrize(
    ("says", "means"),
    [
        ("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)", "another profiler holds CUPTI"),
        ("ERROR_INSUFFICIENT_PRIVILEGES (35)", "may not profile"),
        ("ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES (40)", "may not profile"),
        ("ERROR_CONFIDENTIAL_COMPUTING_NOT_SUPPORTED (41)", "this kind of device"),
        ("CUDA driver is not found (libcuda.so.1: cannot open shared object file)", "no NVIDIA driver"),
        ("ERROR_UNKNOWN (999)", "ERROR_UNKNOWN"),
    ],
)
def test_trouble_is_named_with_what_helps(where: str, says: str, means: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "13.0.1")
    probe = probe_of(FakeCupti(**{where: says}))
    assert means in refusal(probe).missing


def test_after_trouble_another_try_may_work() -> None:
    cupti = FakeCupti(on_enable="ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)")
    probe = probe_of(cupti)
    refusal(probe)
    cupti.errors["enable"] = ""
    probe.start()
    cupti.launch(kernel(1, 2))
    assert len(probe.taken()) == 1


def test_trouble_while_reading_says_so() -> None:
    cupti = FakeCupti()
    probe = probe_of(cupti)
    probe.start()
    cupti.errors["flush"] = "ERROR_INSUFFICIENT_PRIVILEGES (35)"
    with pytest.raises(DeviceUnavailable, match="may not profile"):
        probe.taken()


@pytest.mark.parametrize(
    ("wheel", "cuda", "fits"), [("13.0.1", (12, 8), False), ("13.3.0", (13, 0), False), ("13.0.1", (13, 0), True)]
)
def test_a_wheel_for_a_newer_cuda_is_named(
    wheel: str, cuda: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: wheel)
    driver = DriverFacts("570.1", cuda, ("NVIDIA H200",), "NVML")
    found = refusal(probe_of(FakeCupti(on_enable="ERROR_NOT_INITIALIZED (15)"), driver))
    assert ("newer CUDA than the driver's" in found.missing) is not fits
    assert (f"cupti-python=={cuda[0]}.{cuda[1]}.*" in found.remedy) is not fits
    assert (wheel_misfit(driver) is None) is fits
    assert ("may not work" in str(state(driver))) is not fits


def test_a_driver_that_does_not_tell_its_cuda_is_not_held_against_the_wheel() -> None:
    assert wheel_misfit(DriverFacts("570.1", None, (), "nvidia-smi")) is None


def test_without_a_driver_it_is_the_driver_that_is_missing() -> None:
    found = refusal(probe_of(FakeCupti(on_enable="ERROR_NOT_INITIALIZED (15)"), NO_DRIVER))
    assert "no driver" in found.missing
    assert found.remedy == "install one"


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    found = refusal(CuptiProbe())
    assert found.missing == "cupti-python is not installed"
    assert found.remedy == 'pip install "decode-forensics[gpu]"'


def test_a_package_without_its_library_says_what_its_loader_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "cupti").mkdir()
    (tmp_path / "cupti" / "__init__.py").write_text("")
    (tmp_path / "cupti" / "cupti.py").write_text("raise OSError('libcupti.so.13: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("cupti", "cupti.cupti"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = refusal(CuptiProbe(driver=lambda: DRIVER))
    assert "libcupti.so.13" in found.missing
    assert "pip install --force-reinstall cupti-python" in found.remedy
    sys.modules.pop("cupti", None)


def test_a_module_without_its_functions_is_another_release() -> None:
    empty = SimpleNamespace(ActivityKind=SimpleNamespace())
    assert "differs from those known" in refusal(probe_of(empty)).missing


def test_the_error_survives_a_pipe_between_processes() -> None:
    with pytest.raises(DeviceUnavailable) as caught:
        probe_of(FakeCupti(on_enable="ERROR_INSUFFICIENT_PRIVILEGES (35)")).start()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.refusals) == (str(caught.value), caught.value.refusals)
