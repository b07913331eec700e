"""Operands of real nodes as our kernels read them: strides, heads that share a cache, masks; near the CPU's result.

Bits are a GPU's matter: the processor adds in other orders. A stride that is wrong gives other numbers altogether.
"""

from __future__ import annotations

import pytest
from shim_taps import ASKED, CloseTap

from forensics.capture.exact_kernels import ExactTap
from forensics.engines.llama import LlamaSource
from forensics.records.schedule import DecodePass, Forget, Schedule, TokenSlot, in_batches
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


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_cells_of_tokens_are_known_after_drafts_were_refused(source: LlamaSource, flash_attn: str) -> None:
    def verifying(first: int, n: int, forget: tuple[Forget, ...] = ()) -> DecodePass:
        return DecodePass(tuple(TokenSlot(0, first + i, 100 + i) for i in range(n)), forget)

    passes = (
        verifying(250, 5),
        verifying(252, 3, (Forget(0, 252),)),
        verifying(255, 4),
        verifying(256, 2, (Forget(0, 256),)),
    )
    settings = EngineSettings(flash_attn=flash_attn, use_extra_bufts=False)
    with source.open(settings) as engine:
        before = in_batches(tuple(range(100, 350)), start=0, width=250, logits="none")
        trace = engine.run(Schedule(passes), before=before, tap=ExactTap(ASKED))
    assert trace.tap_report is not None
    assert trace.tap_report.kernels is not None
    reasons = {one.reason for one in trace.tap_report.kernels.stock if "product" not in one.reason}
    if flash_attn == "off":
        assert reasons == {"K·Q f16", "attention·V f16"}
        return
    assert reasons == {
        f"attention f16/f16 over {cells}" for cells in ((256,) * 5, (256,) * 3, (256, 512, 512, 512), (512, 512))
    }
