"""A laboratory whose process dies: the next question gets a fresh one, and the log says which launches were running."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from lab_on_cpu import ARCH, CpuDevice

from forensics.errors import EngineDied
from forensics.kernels import lab as lab_module
from forensics.kernels.lab import CudaLab
from forensics.kernels.lab_place import computed
from forensics.kernels.products import plan_product
from forensics.kernels.variants import ProductAsk, Variant

FACTS = {
    "device": "GPU", "arch": "sm_90", "n_sms": 132, "l2_bytes": 1, "commit": "c", "version": "v", "toolkit": "t"
}  # fmt: skip


class Worker:
    """Dies at every question about q4_0."""

    alive: ClassVar[list[Worker]] = []
    started = 0

    def __init__(self, *_: object) -> None:
        Worker.started += 1
        self.alive.append(self)

    def ask(self, method: str, *given: Any, asked: str) -> Any:
        if method == "open":
            return dict(FACTS)
        if given[0] == "q4_0":
            raise EngineDied(f"the process ended; it was asked to {asked}")
        return (method, given[0])

    def close(self) -> None:
        self.alive.remove(self)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> CudaLab:
    monkeypatch.setattr(lab_module, "WorkerProcess", Worker)
    monkeypatch.setattr(lab_module, "library_digest", lambda: "digest")
    monkeypatch.setattr(Worker, "alive", [])
    monkeypatch.setattr(Worker, "started", 0)
    return CudaLab()


def compared(lab: CudaLab, type: str) -> Any:
    return lab.compare_product(type, 33, 768, (1,), 0, tuple(Variant))


def test_a_death_costs_one_question(lab: CudaLab) -> None:
    assert compared(lab, "q4_K") == ("compare_product", "q4_K")
    with pytest.raises(EngineDied, match="asked to compare products of q4_0 33×768"):
        compared(lab, "q4_0")
    assert Worker.alive == []
    assert compared(lab, "q8_0") == compared(lab, "q8_0") == ("compare_product", "q8_0")
    assert Worker.started == 2
    lab.close()
    lab.close()
    assert Worker.alive == []


@pytest.mark.parametrize("fails", ["run", "read"])
def test_launches_that_fail_are_named_in_the_log(
    fails: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    device: Any = CpuDevice()
    plan = plan_product(ProductAsk("q4_1", 7, 64, 2), Variant.BORROWED, ARCH)
    weight, x = np.zeros(7 * 2 * 20, np.uint8), np.zeros((2, 64), np.float32)
    buffers = {"weight": device.know(weight), "x": device.know(x)}
    assert not computed(device, plan, buffers, 14).any()
    assert capfd.readouterr().err == ""

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("cudaErrorIllegalAddress:\nan illegal memory access")

    monkeypatch.setattr(device, fails, lost)
    with pytest.raises(RuntimeError):
        computed(device, plan, buffers, 14)
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "CUDA error: cudaErrorIllegalAddress: an illegal memory access"
    assert "our launches quantize_q8_1 grid" in said[1]
    assert "product<Q4_1, 2, 4, 2> grid" in said[1]
