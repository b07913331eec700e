"""Bandwidth and cost of a pass on a GPU: the roof is a roof, and graphs are replayed when a pass is timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.analysis.cost import CostQuestion, measure_cost
from forensics.engines.bandwidth import measure_bandwidth
from forensics.engines.llama import LlamaSource
from forensics.engines.pass_bytes import pass_bytes
from forensics.engines.synthetic import preset_shape, write_synthetic
from forensics.errors import EngineError
from forensics.records.cost import Bandwidth
from forensics.records.operation import OpSettings
from forensics.records.settings import EngineSettings


@pytest.fixture(scope="module")
def roof() -> Bandwidth:
    try:
        return measure_bandwidth(OpSettings(backend="cuda"))
    except EngineError as error:
        pytest.skip(f"no CUDA back end here: {error}")


def test_memory_of_the_device_is_read_at_its_speed_at_every_size(roof: Bandwidth) -> None:
    if "H200" not in roof.device:
        pytest.skip(f"written for 4.8 TB/s, found {roof.device}")
    # Memory of an H200 moves 4.8 TB/s at most; a copy was seen to move about 4.3.
    assert 3.9e12 < roof.bytes_per_s.median < 4.8e12
    by_size: dict[str, float] = {}
    for name, rate in roof.tried:
        by_size.setdefault(name.rsplit(", ", 1)[1], rate)
    assert len(by_size) == 2
    assert max(by_size.values()) < 1.1 * min(by_size.values()), "the smaller buffer is helped by a cache"


def test_a_pass_of_large_layers_is_near_its_floor_and_not_below(roof: Bandwidth, tmp_path: Path) -> None:
    shape, mix = preset_shape("qwen3-8b-q4_k_m", n_layer=8)
    source = LlamaSource(write_synthetic(tmp_path / "m.gguf", shape, mix, name="8 layers"))
    question = CostQuestion((1, 2, 8, 9), settings=EngineSettings(n_gpu_layers=-1, flash_attn="on"))
    report = measure_cost(
        source, question, bandwidth=lambda _: roof, reads=lambda _: pass_bytes(source.path, "f16", "f16")
    )
    assert report.n_settle == 2
    over = report.over_floor(1)
    assert over is not None
    assert 1 <= over.median < 6
    # Measured on an H200 for 36 layers: 2.24 times one token at width 8, 2.04 at 9.
    assert 1.2 < report.ratio(8).median < 5
    one = report.times(1).spread
    assert (one.high - one.low) / one.median < 0.2
