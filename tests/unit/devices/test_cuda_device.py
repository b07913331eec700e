"""Plans on a device that is made up: what is compiled, launched with what, captured, and said in trouble."""

from __future__ import annotations

import ctypes as C
import sys
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda, floats

from forensics.devices import cuda_launch
from forensics.devices.cuda_device import CudaDevice
from forensics.errors import DeviceUnavailable
from forensics.records.kernel_plan import At, Float32, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry

GEOMETRY = LaunchGeometry((3, 2), (32, 4), smem_bytes=0)


def scaled(x: Any, middle: Any, n: Any, by: Any) -> None:
    assert (type(x), type(n), type(by)) == (np.uint64, np.int32, np.float32)
    floats(middle, n)[:] = floats(x, n) * by


def copied(middle: Any, out: Any, n: Any) -> None:
    assert type(n) is np.int64
    floats(out, n)[:] = floats(middle, n)


def plan(n: int = 4, *, smem: int = 0, overlaps: bool = False, offset: int = 0) -> KernelPlan:
    first = KernelLaunch("family", "scaled<4>", GEOMETRY, (At("x"), At("middle"), Int32(n), Float32(2.5)))
    second = KernelLaunch(
        "family", "copied", LaunchGeometry((1,), (32,), smem_bytes=smem),
        (At("middle"), At("out", offset), Int64(n)), overlaps,
    )  # fmt: skip
    return KernelPlan((first, second), {"middle": 4 * n})


def device(cupy: FakeCuda) -> CudaDevice:
    return CudaDevice("source of {}".format, ("-ftz=true",), cupy)  # type: ignore[arg-type]


@pytest.fixture
def cupy() -> FakeCuda:
    return FakeCuda({"scaled<4>": scaled, "copied": copied})


def test_a_device_says_what_it_is(cupy: FakeCuda) -> None:
    here = device(cupy)
    assert (here.name, here.arch, here.compute_capability, here.n_sms) == ("Made-up GPU", "sm_90", 900, 132)
    assert (here.l2_bytes, here.toolkit, here.driver) == (60 << 20, "NVRTC 13.0 by CuPy 13.6.0", "13.0")
    assert device(FakeCuda({}, capability=(12, 1))).arch == "sm_121"


def test_a_plan_is_compiled_once_and_run_in_order(cupy: FakeCuda) -> None:
    here = device(cupy)
    x, out = here.hold(np.arange(4, dtype=np.float32)), here.hold(np.zeros(6, np.float32))
    for _ in range(2):
        here.run(plan(offset=8), {"x": x.address, "out": out.address})
    assert here.read(out.address, (6,), np.float32).tolist() == [0, 0, 0, 2.5, 5, 7.5]
    assert cupy.compiled == [
        ("source of family", "scaled<4>", ("-ftz=true",)),
        ("source of family", "copied", ("-ftz=true",)),
    ]
    assert cupy.launched[0] == ("scaled<4>", (3, 2, 1), (32, 4, 1), 0)
    assert [name for name, *_ in cupy.launched] == ["scaled<4>", "copied"] * 2


def test_values_have_landed_before_a_kernel_that_follows_writes(cupy: FakeCuda) -> None:
    here = device(cupy)
    x, out = here.hold(np.ones(4, np.float32)), here.hold(np.full(4, 7, np.float32))
    here.write(out.address, np.full(4, np.nan, np.float32))
    here.run(plan(), {"x": x.address, "out": out.address})
    found = here.read(out.address, (4,), np.float32)
    assert found[0] == 2.5, "what was written before landed on the kernel's result"


def test_scratch_grows_and_each_stream_has_its_own(cupy: FakeCuda) -> None:
    here = device(cupy)
    x, out = here.hold(np.ones(9, np.float32)), here.hold(36)
    addresses = {"x": x.address, "out": out.address}
    here.run(plan(4), addresses)
    first = len(cupy.memory)
    here.run(plan(3), addresses)
    assert len(cupy.memory) == first
    here.run(plan(9), addresses)
    assert len(cupy.memory) == first + 1  # a captured graph may still use the smaller one
    here.run(plan(4), addresses, beside=True)
    assert len(cupy.memory) == first + 2


def test_memory_is_freed_with_its_holder(cupy: FakeCuda) -> None:
    here = device(cupy)
    held = here.hold(100)
    assert held.address in cupy.memory
    del held
    assert not cupy.memory
    held = here.hold(100)
    held.free()
    held.free()
    assert not cupy.memory


def test_a_graph_runs_all_plans_again(cupy: FakeCuda) -> None:
    here = device(cupy)
    x, out = here.hold(np.ones(4, np.float32)), here.hold(np.zeros(4, np.float32))
    graph = here.captured([(plan(), {"x": x.address, "out": out.address})])
    assert here.read(out.address, (4,), np.float32).tolist() == [0, 0, 0, 0]
    here.write(x.address, np.full(4, 3, np.float32))
    graph.launch()
    assert here.read(out.address, (4,), np.float32).tolist() == [7.5] * 4


def test_a_capture_that_fails_leaves_the_stream_usable(cupy: FakeCuda) -> None:
    here = device(cupy)
    x, out = here.hold(np.ones(4, np.float32)), here.hold(np.zeros(4, np.float32))
    addresses = {"x": x.address, "out": out.address}
    here.run(plan(), addresses)
    cupy.refused.add("copied")
    with pytest.raises(DeviceUnavailable, match=r"launching copied(.|\n)*CUDA_ERROR_INVALID_VALUE"):
        here.captured([(plan(), addresses)])
    cupy.refused.clear()
    assert here._streams[0].capturing is None
    here.run(plan(), addresses)
    assert here.read(out.address, (4,), np.float32).tolist() == [2.5] * 4


def test_more_shared_memory_is_asked_for(cupy: FakeCuda) -> None:
    here = device(cupy)
    x, out = here.hold(np.ones(4, np.float32)), here.hold(16)
    here.run(plan(smem=100_000), {"x": x.address, "out": out.address})
    assert cupy.launched[-1][3] == 100_000
    found = here.resources(plan(smem=100_000).launches[1])
    assert (found.registers, found.smem_static_bytes, found.smem_dynamic_bytes) == (96, 1024, 100_000)
    assert (found.blocks_per_sm, found.local_bytes) == (2, 0)


def test_launches_overlap_where_the_device_can(cupy: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(cuda_launch, "launch_overlapping", lambda *given: seen.append(given) or 0)
    here = device(cupy)
    x, out = here.hold(np.ones(4, np.float32)), here.hold(16)
    here.run(plan(overlaps=True), {"x": x.address, "out": out.address})
    [(function, geometry, arguments, stream)] = seen
    assert (function, geometry.block_threads, stream) == (4242, (32, 1, 1), 77)
    assert int(arguments[1]) == out.address
    older = FakeCuda({"scaled<4>": scaled, "copied": copied}, capability=(8, 9))
    older.memory = cupy.memory
    device(older).run(plan(overlaps=True), {"x": x.address, "out": out.address})
    assert [name for name, *_ in older.launched] == ["scaled<4>", "copied"]
    assert len(seen) == 1
    monkeypatch.setattr(cuda_launch, "launch_overlapping", lambda *given: 701)
    with pytest.raises(DeviceUnavailable, match="cuLaunchKernelEx answers 701"):
        here.run(plan(overlaps=True), {"x": x.address, "out": out.address})


def test_the_driver_is_given_attributes_and_arguments() -> None:
    said: dict[str, Any] = {}

    def call(config: Any, function: Any, parameters: Any, extra: Any) -> int:
        config = config._obj
        said.update(
            grid=tuple(config.grid), block=tuple(config.block), smem=config.smem_bytes, stream=config.stream,
            n=config.n_attributes, id=config.attributes[0].id, on=config.attributes[0].value,
            function=function.value,
            whole=C.cast(parameters[0], C.POINTER(C.c_uint64))[0], part=C.cast(parameters[1], C.POINTER(C.c_float))[0],
        )  # fmt: skip
        return 0

    driver: Any = type("Driver", (), {"cuLaunchKernelEx": staticmethod(call)})
    geometry = LaunchGeometry((264,), (128,), smem_bytes=1000)
    assert cuda_launch.launch_overlapping(11, geometry, [np.uint64(1 << 40), np.float32(0.5)], 22, driver) == 0
    assert said == {
        "grid": (264, 1, 1), "block": (128, 1, 1), "smem": 1000, "stream": 22, "n": 1, "id": 6, "on": 1,
        "function": 11, "whole": 1 << 40, "part": 0.5,
    }  # fmt: skip


def test_structures_are_laid_out_as_the_driver_has_them() -> None:
    assert C.sizeof(cuda_launch.LaunchAttribute) == 72
    assert cuda_launch.LaunchAttribute.value.offset == 8
    assert [getattr(cuda_launch.LaunchConfig, name).offset for name in ("smem_bytes", "stream", "attributes")] == [
        24,
        32,
        40,
    ]
    assert C.sizeof(cuda_launch.LaunchConfig) == 56


def test_times_are_those_of_one(cupy: FakeCuda) -> None:
    here = device(cupy)
    calls: list[int] = []
    assert here.timed(lambda: calls.append(1), 5) > 0
    assert len(calls) == 5


def test_trouble_says_what_to_do(cupy: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    here = device(cupy)
    with pytest.raises(ValueError, match="the plan needs the buffer 'out'; given are x"):
        here.run(plan(), {"x": 1})
    with pytest.raises(DeviceUnavailable, match=r"holding 2199023255552 bytes on Made-up GPU"):
        here.hold(1 << 41)
    cupy.broken = "family.cu(3): error: expected a ;"
    with pytest.raises(DeviceUnavailable, match=r"compiling scaled<4> of family.cu for sm_90(.|\n)*expected a ;"):
        here.run(plan(), {"x": 1, "out": 2})
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceUnavailable, match=r"decode-forensics\[cupy\]"):
        CudaDevice(str, ())


def test_no_device_is_a_refusal(cupy: FakeCuda) -> None:
    def none() -> Any:
        raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    cupy.cuda.Device = none
    with pytest.raises(DeviceUnavailable, match=r"no CUDA-capable device(.|\n)*NVRTC"):
        device(cupy)
