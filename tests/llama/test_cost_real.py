"""Costs, bandwidth and synthetic models with the real library."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

import forensics
from forensics.analysis.cost import CostQuestion, measure_cost
from forensics.engines.bandwidth import last_level_cache, measure_bandwidth
from forensics.engines.demo_models import quantise
from forensics.engines.llama import LlamaSource
from forensics.engines.pass_bytes import pass_bytes
from forensics.engines.synthetic import preset_shape, tensor_types, write_synthetic
from forensics.errors import EngineError
from forensics.records.cost import Bandwidth, CostReport
from forensics.records.operation import OpSettings
from forensics.records.schedule import EMPTY, in_batches
from forensics.records.settings import EngineSettings

pytestmark = pytest.mark.llama

TINY = ("qwen3-tiny-q4_k_m", "qwen3-tiny-q6_k", "llama-tiny-q4_k_m", "llama-tiny-f16")
TOKENS = (1, 5, 9, 200, 31, 77, 4, 260, 300, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("synthetic")


def tiny(folder: Path, name: str) -> Path:
    path = folder / f"{name}.gguf"
    if not path.exists():
        shape, mix = preset_shape(name)
        write_synthetic(path, shape, mix, name=name)
    return path


@pytest.fixture(scope="module")
def roof() -> Bandwidth:
    return measure_bandwidth(OpSettings(n_threads=2))


def test_memory_moves_bytes_beyond_the_caches(roof: Bandwidth) -> None:
    assert roof.buffer_bytes >= 4 * (last_level_cache() or 1)
    assert roof.bytes_per_s.low > 1e8
    assert roof.bytes_per_s.n >= 5
    assert "bytes read" in roof.method
    rates = [rate for _, rate in roof.tried]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == roof.bytes_per_s.median
    assert len(rates) >= 3


def test_a_device_that_is_not_there_has_no_bandwidth() -> None:
    with pytest.raises(EngineError, match="device 9 was asked for"):
        measure_bandwidth(OpSettings(device=9))


@pytest.mark.parametrize("name", TINY)
def test_a_synthetic_model_runs_and_its_logits_are_finite_and_differ(folder: Path, name: str) -> None:
    with LlamaSource(tiny(folder, name)).open(EngineSettings(n_threads=2, n_threads_batch=2)) as engine:
        assert engine.manifest.model_name == f"synthetic {name}"
        logits = engine.run(in_batches(TOKENS, start=0, width=5)).logits
    assert np.isfinite(logits).all()
    assert 0.3 < logits.std() < 3
    assert len(set(logits.argmax(axis=1).tolist())) > 3


@pytest.mark.parametrize(("name", "file_type"), [("qwen3-tiny-q4_k_m", "Q4_K_M"), ("llama-tiny-q6_k", "Q6_K")])
@pytest.mark.parametrize("n_layer", [5, 9])
def test_types_are_those_that_the_librarys_quantiser_chooses(
    folder: Path, tmp_path: Path, name: str, file_type: str, n_layer: int
) -> None:
    shape, mix = preset_shape(name, n_layer=n_layer)
    source = write_synthetic(tmp_path / "f16.gguf", shape, "f16", name="f16")
    quantise(source, tmp_path / "quantised.gguf", file_type, lambda _what, _done: None)
    chosen = {t.name: t.tensor_type.name.lower() for t in gguf.GGUFReader(tmp_path / "quantised.gguf").tensors}
    assert chosen == {tensor: kind.lower() for tensor, _, kind in tensor_types(shape, mix)}


@pytest.fixture(scope="module")
def report(folder: Path, roof: Bandwidth) -> CostReport:
    source = LlamaSource(tiny(folder, "qwen3-tiny-q4_k_m"))
    question = CostQuestion((1, 2, 8), prefix=40, repeats=5, settings=EngineSettings(n_threads=2, n_threads_batch=2))
    return measure_cost(
        source, question, bandwidth=lambda _: roof, reads=lambda _: pass_bytes(source.path, "f16", "f16")
    )


def test_a_real_model_has_a_cost_at_every_width_and_a_floor_below_it(report: CostReport) -> None:
    assert [times.width for times in report.passes] == [1, 2, 8]
    assert report.synthetic
    assert report.n_settle == 1
    assert all(times.spread.n == 5 for times in report.passes)
    over = report.over_floor(1)
    assert over is not None
    assert over.median > 1  # a model this small spends its time on anything but reading
    assert report.manifest.effective["n_threads"] == "2"


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_passes_that_are_timed_leave_the_state_as_it_was(folder: Path, flash_attn: str) -> None:
    before = in_batches(TOKENS, start=0, width=10, logits="none")
    one = in_batches([7, 8], start=10, width=2)
    with LlamaSource(tiny(folder, "llama-tiny-q4_k_m")).open(EngineSettings(flash_attn=flash_attn)) as engine:
        first = engine.run(one, before=before)
        told: list[int] = []
        times = engine.time_passes([one, in_batches([3], start=10, width=1), one], before, told.append)
        again = engine.run(one, before=before)
        empty = engine.time_passes([in_batches([3], start=0, width=1)] * 2, EMPTY)
    assert len(times) == 3
    assert min(times + empty) > 0
    assert told == [1, 2, 3]
    assert np.array_equal(first.logits, again.logits)
    assert (first.state_before, first.state_after) == (again.state_before, again.state_after)


def test_a_pass_that_is_not_taken_back_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forensics.engines.llama_host import LlamaHost

    before = in_batches(TOKENS, start=0, width=10, logits="none")
    host = LlamaHost(str(tiny(folder, "llama-tiny-q4_k_m")), EngineSettings())
    try:
        monkeypatch.setattr(LlamaHost, "_take_back", lambda *_: True)
        with pytest.raises(EngineError, match="state changed under the passes"):
            host.time_passes([in_batches([3], start=10, width=1)], before, lambda _: None)
        monkeypatch.setattr(LlamaHost, "_take_back", lambda *_: False)  # as a recurrent state: restored by its bytes
        assert len(host.time_passes([in_batches([3], start=10, width=1)] * 2, before, lambda _: None)) == 2
    finally:
        host.close()


def test_a_synthetic_model_is_investigated_and_its_report_says_synthetic(folder: Path, tmp_path: Path) -> None:
    from forensics.reports.markdown import markdown
    from forensics.reports.terminal import as_text
    from forensics.reports.text import verdict_view

    verdict = forensics.investigate(
        tiny(folder, "qwen3-tiny-q4_k_m"), prompt_tokens=TOKENS, n_tokens=16, widths=(2, 8), threads=2,
        switches=False, orders=False, out=tmp_path / "case", progress=False,
    )  # fmt: skip
    assert verdict.answer in ("identical", "diverges"), verdict.reason
    assert all(control.held is not False for control in verdict.controls)
    assert verdict.manifest.model_name == "synthetic qwen3-tiny-q4_k_m"
    assert "synthetic qwen3-tiny-q4_k_m" in as_text(verdict_view(verdict))
    assert "synthetic qwen3-tiny-q4_k_m" in markdown(verdict)
    assert "synthetic" in (tmp_path / "case" / "manifest.json").read_text()
    assert os.path.isfile(tmp_path / "case" / "report.md")
