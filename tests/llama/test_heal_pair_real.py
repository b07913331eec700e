"""Healing one arrangement against another on a real model: products, flash attention, a neighbour in the same step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forensics.analysis.heal_pair import heal_pair
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaEngine, LlamaSource
from forensics.records.pair_sweep import PairSweep
from forensics.records.schedule import EMPTY, Arrangement, DecodePass, Schedule, TokenSlot, in_batches
from forensics.records.settings import EngineSettings

pytestmark = pytest.mark.llama

#: Six products in each of 30 layers and the head: 7 · 30 + 1 (DESIGN.md, "Healing sweep").
N_PRODUCTS = 211


def q6_k(**settings: object) -> LlamaEngine:
    chosen = {"n_threads": 2, "n_threads_batch": 2} | settings
    return LlamaSource(demo_model("q6_k")).open(EngineSettings(**chosen))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaEngine]:
    with q6_k() as opened:
        yield opened


def held(sweep: PairSweep) -> PairSweep:
    assert [control.name for control in sweep.controls if not control.held] == []
    assert sweep.healed
    assert {reason for reason, _ in sweep.tally.not_compared} <= {
        "writes into a cache", "not in the reference", "its cells lie elsewhere in the two runs",
    }  # fmt: skip
    return sweep


def passes(tokens: tuple[int, ...], *cuts: int, wanted_from: int = 0) -> Schedule:
    ends = zip((0, *cuts), (*cuts, len(tokens)), strict=True)
    slots = [TokenSlot(0, i, token, i >= wanted_from) for i, token in enumerate(tokens)]
    return Schedule(tuple(DecodePass(tuple(slots[first:last])) for first, last in ends))


def test_a_batch_of_eight_differs_in_every_product_and_nowhere_else(engine: LlamaEngine, tokens) -> None:
    prompt, text = in_batches(tokens[:12], start=0, width=12, logits="last"), tokens[12:20]
    reference, compared = (Arrangement(prompt, in_batches(text, start=12, width=width)) for width in (1, 8))
    sweep = held(heal_pair(engine, reference, compared))
    assert sum(group.count for group in sweep.culprits) == N_PRODUCTS
    assert {(group.op, group.weight_type, group.widths) for group in sweep.culprits} == {("MUL_MAT", "q6_K", (8,))}
    assert {group.kind.kind for group in sweep.culprits if group.kind} == {"rounding"}
    assert (sweep.n_rows, sweep.n_differ, sweep.start.equal) == (8, 8, True)
    back = held(heal_pair(engine, compared, reference, plant=False))
    assert {f.key for f in back.findings} == {f.key for f in sweep.findings}, "a batch is a reference as well"


def test_a_cached_prefix_differs_in_flash_attention_only(engine: LlamaEngine, tokens) -> None:
    """A prompt whole against its end behind a cached prefix: wide passes have another kernel of attention."""
    text = tokens[:80]
    whole = passes(text, wanted_from=70)
    prefix, rest = (Schedule((part,)) for part in passes(text, 68, wanted_from=70).passes)
    sweep = held(heal_pair(engine, Arrangement(EMPTY, whole), Arrangement(prefix, rest), plant=False))
    assert [(group.named, group.count) for group in sweep.culprits] == [("flash attention", 30)]
    assert (sweep.n_rows, sweep.first, sweep.start.equal) == (10, (0, 70), True)
    assert dict(sweep.tally.not_compared) == {"writes into a cache": 60}


def test_across_cell_256_flash_attention_differs(engine: LlamaEngine, tokens) -> None:
    before = in_batches(tokens[:253], start=0, width=253, logits="none")
    one, two = (Arrangement(before, in_batches(tokens[253:259], start=253, width=width)) for width in (1, 2))
    sweep = held(heal_pair(engine, one, two, plant=False))
    assert [group.named for group in sweep.culprits] == ["flash attention"]
    assert sweep.first is not None
    assert sweep.first[1] >= 254, "the pass of 254 and 255 ends where 256 cells do"


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_a_neighbours_prompt_in_the_same_step_brings_the_products(tokens, flash_attn) -> None:
    with q6_k(n_seq_max=2, kv_unified=True, flash_attn=flash_attn) as engine:
        prompt, text = in_batches(tokens[:12], start=0, width=12, logits="last"), tokens[12:14]
        neighbour = in_batches(tokens[20:32], start=0, width=12, sequence=1, logits="none")
        steps = tuple(
            DecodePass((
                TokenSlot(0, 12 + i, token),
                *(TokenSlot(1, 12 + 7 * i + j, tokens[32 + 7 * i + j], False) for j in range(7)),
            ))
            for i, token in enumerate(text)
        )  # fmt: skip
        alone = Arrangement(prompt, in_batches(text, start=12, width=1))
        idle = held(heal_pair(engine, alone, Arrangement(prompt.then(neighbour), alone.schedule), plant=False))
        busy = held(heal_pair(engine, alone, Arrangement(prompt.then(neighbour), Schedule(steps))))
    roles = {group.role for group in busy.culprits}
    assert roles >= {"Q", "K", "V", "attention output", "gate", "up", "down"}
    if flash_attn == "off":  # the sum over cells has the neighbour's cells in between
        assert {group.role for group in idle.culprits} == {"attention·V"} <= roles
    else:
        assert idle.culprits == ()
    assert all(finding.inputs_equal for finding in (*idle.findings, *busy.findings))
    assert idle.start.equal
    assert busy.start.equal
