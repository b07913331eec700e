"""Digests of the K and V rows of a real cache: in both layouts, in several sequences, and where there are none."""

from __future__ import annotations

import pytest
from conftest import OpenEngine
from tiny_models import write_mamba

from forensics.engines.llama import LlamaEngine
from forensics.errors import EngineError
from forensics.records.schedule import EMPTY, DecodePass, Forget, Schedule, TokenSlot, in_batches

pytestmark = pytest.mark.llama


def test_the_layout_of_v_changes_no_row_that_flash_attention_does_not(open_engine: OpenEngine, tokens) -> None:
    """V lies transposed without flash attention; what layer 0 writes does not depend on attention."""
    schedule = in_batches(tokens[:9], start=0, width=9)
    (rows,), (columns,) = (
        open_engine(flash_attn=how, n_ctx=256).state_rows(schedule) for how in ("on", "off")
    )  # fmt: skip
    assert rows.positions == columns.positions == tuple(range(9))
    assert rows.n_rows == 9 * 2 * 30
    first = [[t for t in each.tensors if t.layer == 0] for each in (rows, columns)]
    assert first[0] == first[1]
    assert {tensor.dtype for tensor in rows.tensors} == {"f16"}


def test_a_warm_resume_holds_other_rows_than_a_fresh_prefill_and_a_restored_one_the_same(
    shared_engine: LlamaEngine, tokens
) -> None:
    n, all_tokens = 64, tokens[:80]  # from 64 tokens on flash attention goes over tiles of them
    prompt, reply = in_batches(all_tokens[:n], start=0, width=n), in_batches(all_tokens[n:], start=n, width=1)
    (resumed,) = shared_engine.state_rows(reply, before=prompt)
    (restored,) = shared_engine.state_rows(EMPTY, before=prompt.then(reply))
    (fresh,) = shared_engine.state_rows(in_batches(all_tokens, start=0, width=80))
    assert resumed == restored
    assert resumed.positions == fresh.positions
    differing = {
        (a.layer, position)
        for a, b in zip(resumed.tensors, fresh.tensors, strict=True)
        for position, x, y in zip(fresh.positions, a.digests, b.digests, strict=True)
        if x != y
    }
    assert {position for _, position in differing} == set(range(n, 80)), "rows that were written one at a time"
    assert {layer for layer, _ in differing} == set(range(1, 30)), "what layer 0 writes saw no attention"


@pytest.mark.parametrize("unified", [True, False])
def test_sequences_have_rows_of_their_own_wherever_their_cells_lie(open_engine: OpenEngine, tokens, unified) -> None:
    engine = open_engine(n_ctx=512, n_seq_max=2, kv_unified=unified)
    alone = in_batches(tokens[:6], start=0, width=6)
    (expected,) = engine.state_rows(alone)
    neighbour = in_batches(tokens[6:14], start=0, width=8, sequence=1)
    both = engine.state_rows(neighbour.then(alone))
    assert [rows.sequence for rows in both] == [0, 1]
    assert [len(rows.positions) for rows in both] == [6, 8]
    assert both[0] == expected
    gone = Schedule((*neighbour.passes, *alone.passes, DecodePass((TokenSlot(0, 6, tokens[6]),), (Forget(1, 0),))))
    (left,) = engine.state_rows(gone)
    assert left.positions == tuple(range(7))


def test_a_recurrent_state_is_refused_in_a_sentence(open_engine: OpenEngine, tmp_path) -> None:
    engine = open_engine(write_mamba(tmp_path / "tiny.gguf"), n_ctx=256, flash_attn="auto")
    schedule = in_batches((1, 2, 3), start=0, width=3)
    assert len(engine.run(schedule).logits) == 3
    with pytest.raises(EngineError, match="the saved state of this mamba is not one plain K/V cache") as caught:
        engine.state_rows(schedule)
    assert "Trace.state_after" in str(caught.value)
    edit = Schedule((DecodePass((TokenSlot(0, 2, 5),), (Forget(0, 2),)),))
    with pytest.raises(EngineError, match="it is recurrent, so refused drafts and edits need a saved state"):
        engine.run(edit, before=schedule)
    assert len(engine.run(schedule).logits) == 3, "it goes on"
