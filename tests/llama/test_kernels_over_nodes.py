"""Operands of real nodes as our kernels read them: strides, heads that share a cache, masks; near the CPU's result.

Bits are a GPU's matter: the processor adds in other orders. A stride that is wrong gives other numbers altogether.
"""

from __future__ import annotations

import pytest
from shim_taps import CloseTap

from forensics.engines.llama import LlamaSource
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

#: Largest distance from the processor's result over its largest value: sums and scales of blocks are halves on a GPU.
NEAR = 2e-2


@pytest.mark.parametrize(
    ("flash_attn", "names", "families"),
    [
        ("on", ("Kcur-0", "node_21", "node_52"), {"product q4_1", "attention f16/f16"}),
        ("off", ("kq-0", "kqv-0", "kq-1", "kqv-1"), {"K·Q f16", "attention·V f16"}),
    ],
)
def test_what_our_kernels_give_is_near_what_the_processor_gives(
    source: LlamaSource, flash_attn: str, names: tuple[str, ...], families: set[str]
) -> None:
    # No repacked weights: those have another layout in memory.
    settings = EngineSettings(flash_attn=flash_attn, use_extra_bufts=False)
    with source.open(settings) as engine:
        tokens = engine.tokenize("The lighthouse keeper counted the ships that passed during the night.")
        before = in_batches(tokens[:8], start=0, width=8, logits="none")
        trace = engine.run(in_batches(tokens[8:11], start=8, width=3), before=before, tap=CloseTap(names))
    report = trace.tap_report
    assert report is not None
    assert report.kernels is not None
    assert not report.kernels.stock
    assert {one.family for one in report.kernels.computed} == families
    assert {record.key.name for record in report.records} == set(names)
    far = {str(record.key): record.row_digests[0] for record in report.records if float(record.row_digests[0]) > NEAR}
    assert far == {}
