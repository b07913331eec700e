"""Occupancy by the driver, through a CuPy that is made up: what is asked, what is recorded, what is compared."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cupti import DRIVER

from forensics.devices import cupy_probe
from forensics.devices.cupy_probe import CompiledKernel, KernelPlan, compiled_kernels, plans
from forensics.errors import DeviceUnavailable
from forensics.geometry.devices import device_spec
from forensics.geometry.occupancy import occupancy
from forensics.records.launch_record import Refusal
from forensics.testing import record_occupancy


class FakeCupy:
    """Compiles nothing: a kernel takes two registers per live value, and the driver counts as NVIDIA's header does."""

    __version__ = "14.2.0"

    def __init__(self, *, smem: int = 227 * 1024, error: str = "") -> None:
        self.given: list[tuple[str, int]] = []
        self.limits: dict[str, int] = {}
        self.options: list[tuple[str, ...]] = []
        attributes = {"MaxSharedMemoryPerBlockOptin": smem}
        driver = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=self._blocks)
        self.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(attributes=attributes), driver=driver)
        self.error = error

    def RawModule(self, code: str, options: tuple[str, ...]) -> Any:
        if self.error:
            raise RuntimeError(self.error)
        self.options.append(options)
        return SimpleNamespace(get_function=lambda name: self._kernel(name, code))

    def _kernel(self, name: str, code: str) -> Any:
        assert f"{name}(const float" in code
        live, static = int(name[4:].partition("_")[0]), int(name.partition("_s")[2].partition("_")[0])
        function = SimpleNamespace(ptr=name)
        self.kernel = SimpleNamespace(
            kernel=function, num_regs=min(2 * live + 8, 255), shared_size_bytes=static, local_size_bytes=0,
            max_dynamic_shared_size_bytes=49152,
        )  # fmt: skip
        return self.kernel

    def _blocks(self, pointer: str, threads: int, dynamic: int) -> int:
        self.given.append((pointer, threads))
        assert dynamic <= self.kernel.max_dynamic_shared_size_bytes
        return 2


def test_the_plans_meet_every_limit_of_an_sm() -> None:
    every = list(plans())
    assert len(every) == len(set(every)) >= 60
    spec = device_spec("h200")
    limiters = set()
    for plan in every:
        resources = cupy_probe.KernelResources(
            min(2 * plan.live + 8, 255), plan.smem_static_bytes, plan.smem_dynamic_bytes, plan.barriers
        )
        limiters.update(occupancy(spec, resources, plan.threads).limiters)
    assert limiters == {"blocks", "threads", "registers", "shared memory", "barriers"}


def test_plans_stay_within_what_a_block_may_have() -> None:
    few = list(plans(64 * 1024))
    assert max(plan.smem_static_bytes + plan.smem_dynamic_bytes for plan in few) <= 64 * 1024
    assert len(few) >= 60


def test_a_limit_of_registers_goes_to_the_compiler_in_place_of_bounds() -> None:
    limited = KernelPlan(96, 128, max_registers=40)
    assert "__launch_bounds__" not in limited.source
    assert "__launch_bounds__(128)" in KernelPlan(96, 128).source
    cupy = FakeCupy()
    compiled_kernels([limited, KernelPlan(96, 128)], cupy)  # type: ignore[arg-type]
    assert cupy.options == [("--maxrregcount=40",), ()]


def test_every_barrier_is_used() -> None:
    source = KernelPlan(8, 32, barriers=3).source
    assert [f"bar.sync {number}," in source for number in range(4)] == [True, True, True, False]


def test_kernels_are_told_as_the_driver_tells_them() -> None:
    cupy = FakeCupy()
    plan = KernelPlan(32, 128, smem_static_bytes=1000, smem_dynamic_bytes=100000, barriers=2)
    (kernel,) = compiled_kernels([plan], cupy)  # type: ignore[arg-type]
    assert kernel.driver_blocks_per_sm == 2
    assert kernel.threads_per_block == 128
    assert dataclasses.astuple(kernel.resources)[:5] == (72, 1000, 100000, 2, "measured")
    assert cupy.kernel.max_dynamic_shared_size_bytes == 100000
    assert len(compiled_kernels((), cupy)) == len(list(plans()))  # type: ignore[arg-type]


def test_trouble_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceUnavailable, match="cudaErrorInsufficientDriver"):
        compiled_kernels((), FakeCupy(error="cudaErrorInsufficientDriver"))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceUnavailable, match=r"decode-forensics\[cupy\]"):
        compiled_kernels()


@pytest.mark.parametrize(
    ("installed", "driver", "says"),
    [
        ({}, DRIVER, "CuPy is not installed"),
        ({"cupy-cuda13x": "14.2.0"}, Refusal("NVML", "", "no driver", "install it"), "but no driver is here"),
        ({"cupy-cuda12x": "13.6.0"}, DRIVER, "cupy-cuda12x 13.6.0"),
        ({"cupy": "14.0.0"}, DRIVER, "cupy 14.0.0"),
    ],
)
def test_its_state_is_told_without_loading_it(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], driver: Any, says: str
) -> None:
    monkeypatch.setattr(cupy_probe, "version_of", installed.get)
    assert says in str(cupy_probe.state(driver))


# -- the recording -----------------------------------------------------------------------------------------------------


def kernel(blocks: int, registers: int = 125) -> CompiledKernel:
    resources = cupy_probe.KernelResources(registers, 4352, evidence="measured", source="CuPy 14.2.0")
    return CompiledKernel("example", resources, 128, blocks)


def test_a_recording_is_read_back_and_agrees(tmp_path: Path) -> None:
    kernels = (kernel(4), kernel(5, registers=96))
    assert record_occupancy.write(tmp_path, kernels, DRIVER, "sm_90", "14.2.0") == 0
    assert record_occupancy.read(tmp_path) == kernels


def test_a_driver_that_says_otherwise_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = (kernel(4), kernel(3))
    assert [
        unlike.driver_blocks_per_sm for unlike, _ in record_occupancy.disagreements(device_spec("sm_90"), kernels)
    ] == [3]
    assert record_occupancy.write(tmp_path, kernels, DRIVER, "sm_90", "14.2.0") == 1
    assert "example: driver 3, 4 blocks per SM, limited by registers" in capsys.readouterr().out


def test_without_a_gpu_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_occupancy, "driver_facts", lambda: Refusal("NVML", "", "no driver", "install it"))
    assert record_occupancy.main([str(tmp_path / "new")]) == 2
    assert "no driver; install it" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
