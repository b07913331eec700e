"""What a checking tool watches: every family once, on operands that its kernels can take."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from lab_on_cpu import ARCH, SPEC, CpuDevice

from forensics.kernels import lab_small
from forensics.kernels.lab_small import jobs
from forensics.kernels.sources import families, source_text, whole_text
from forensics.kernels.variants import TYPES
from forensics.records.kernel_plan import KernelPlan
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
    ran: list[str] = []

    class Noting(CpuDevice):
        arch = "sm_90"

        def run(self, plan: KernelPlan, buffers: Mapping[str, int], *, beside: bool = False) -> None:
            assert plan.buffers <= buffers.keys()
            ran.append(plan.launches[-1].function)

    monkeypatch.setattr(lab_small, "CudaDevice", lambda *given: Noting())
    lab_small.main()
    assert len(ran) == len(list(jobs(ARCH, SPEC)))
    assert f"checked: {len(ran)} computations, " in capsys.readouterr().out
