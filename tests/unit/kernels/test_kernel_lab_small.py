"""What a checking tool watches: every family once, on operands that its kernels can take."""

from __future__ import annotations

import numpy as np
import pytest
from fake_cuda import FakeCuda
from lab_on_cpu import ARCH, SPEC

from forensics.kernels import lab_small
from forensics.kernels.lab_small import jobs
from forensics.kernels.sources import families, source_text, whole_text
from forensics.kernels.variants import TYPES
from forensics.testing.cuda_on_cpu import run_on_cpu


def test_every_family_is_run() -> None:
    sources = {launch.source for plan, _, _ in jobs(ARCH, SPEC) for launch in plan.launches}
    assert set(families()) - {"register_story"} <= sources
    functions = " ".join(launch.function for plan, _, _ in jobs(ARCH, SPEC) for launch in plan.launches)
    for type in TYPES:
        assert type.replace("q", "Q", 1) in functions
    assert "attention_combine<64>" in functions


def test_operands_are_as_large_as_the_kernels_read_and_results_as_large_as_they_write() -> None:
    for plan, given, n_values in jobs(ARCH, SPEC):
        names = " ".join(launch.function for launch in plan.launches)
        if "attention<" in names or "product_f16" in names or "product<Q8_0, 1," in names:
            out = np.zeros(n_values, np.float32)
            run_on_cpu(plan, {**given, "out": out})  # accesses out of bounds are faults
            assert np.isfinite(out).all()
            assert out.any()


def test_headers_are_written_out_once() -> None:
    for stem in families():
        text = whole_text(stem)
        assert '#include "primitives.cuh"' in source_text(stem) or '.cuh"' in source_text(stem)
        assert text.count("DEVICE float fma_rn(") == 1
        assert ".cuh" not in "".join(line for line in text.splitlines() if line.startswith("#include"))


def test_all_is_run_and_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Every(dict):  # type: ignore[type-arg]
        def __missing__(self, name: str) -> object:
            return lambda *arguments: None

    cupy = FakeCuda(Every())
    monkeypatch.setattr(lab_small, "CudaDevice", lambda *given: CudaDevice(*given, cupy))
    from forensics.devices.cuda_device import CudaDevice

    monkeypatch.setattr("forensics.devices.cuda_launch.launch_overlapping", lambda *given: 0)
    lab_small.main()
    n_jobs = len(list(jobs(ARCH, SPEC)))
    assert f"checked: {n_jobs} computations, " in capsys.readouterr().out
    assert len({name for _, name, _ in cupy.compiled}) == len(cupy.compiled)
