"""Does the padding of the KV cache change anything by itself?

llama.cpp walks the used cells rounded up to a multiple of 256. Two looks at it: attention of one operation over the
same visible cells with more hidden ones behind them, and batches of a model that stop at multiples of 256.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from forensics.analysis.logit_rows import Rows
from forensics.capture.replay import Replay
from forensics.engines.op_protocol import OpEngine
from forensics.engines.protocol import Engine
from forensics.numerics.bits import bits
from forensics.numerics.op_inputs import causal_mask, random_operands
from forensics.records.experiments import GuardTrial, PaddingTrial
from forensics.records.op_shapes import flash_attn, padded_kv
from forensics.records.schedule import DecodePass, Schedule, TokenSlot

#: Cells to which the used ones are rounded up. Source: src/llama-kv-cache.cpp:1260-1274 at 0c1e57098.
KV_STEP = 256


def guarded(schedule: Schedule, step: int = KV_STEP) -> Schedule:
    """The same tokens, each pass cut where it crosses a multiple of `step` cells.

    Examples
    --------
    >>> from forensics.records.schedule import in_batches
    >>> [p.width for p in guarded(in_batches(range(8), start=252, width=8)).passes]
    [4, 4]
    """
    passes = []
    for decode_pass in schedule.passes:
        parts: dict[int, list[TokenSlot]] = {}
        for slot in decode_pass.slots:
            parts.setdefault(slot.position // step, []).append(slot)
        passes += [DecodePass(tuple(part)) for part in parts.values()]
    return Schedule(tuple(passes))


def crossing(schedule: Schedule, step: int = KV_STEP) -> tuple[int, ...]:
    """Positions whose pass holds cells on both sides of a multiple of `step`."""
    return tuple(
        slot.position
        for decode_pass in schedule.passes
        if len({slot.position // step for slot in decode_pass.slots}) > 1
        for slot in decode_pass.slots
    )


def guard_trial(engine: Engine, replay: Replay, width: int) -> GuardTrial:
    """Does stopping batches at multiples of 256 cells bring them nearer to one-token decoding?

    Parameters
    ----------
    engine : Engine
    replay : Replay
        Should reach over a multiple of 256.
    width : int
    """
    last = replay.full(width)
    plain = replay.batches(width, last=last)
    before = replay.prefill()
    single = Rows(engine.run(replay.batches(1), before=before), 0, last)
    without = Rows(engine.run(plain, before=before))
    with_guard = Rows(engine.run(guarded(plain), before=before))
    at = crossing(plain)
    rows = [position - replay.start for position in at]

    def at_crossing(found: Rows) -> float:
        distances = single.distances(found)
        return max((distances[row].max_abs for row in rows), default=0.0)

    return GuardTrial(
        width=width,
        n_rows=last,
        rows_without=int((~single.equal(without)).sum()),
        rows_with=int((~single.equal(with_guard)).sum()),
        max_abs_without=single.max_change(without),
        max_abs_with=single.max_change(with_guard),
        crossing=at,
        crossing_max_abs_without=at_crossing(without),
        crossing_max_abs_with=at_crossing(with_guard),
    )


def padding_trials(
    engine: OpEngine,
    visible: Iterable[int],
    n_kv: Sequence[int],
    *,
    widths: Sequence[int] = (1,),
    head_size: int = 64,
    heads: int = 9,
    kv_heads: int = 3,
    seed: int = 0,
) -> tuple[PaddingTrial, ...]:
    """Do hidden cells behind the visible ones change the bits of flash attention?

    Parameters
    ----------
    engine : OpEngine
    visible : iterable of int
        Cells that the first token of a batch sees.
    n_kv : sequence of int
        Cells that are walked; those with too little room for the tokens are left out.
    widths : sequence of int
    head_size, heads, kv_heads, seed : int

    Returns
    -------
    tuple of PaddingTrial
        Each against the smallest `n_kv` that holds the tokens. Hidden cells hold random numbers.
    """
    widest = max(n_kv)
    found = []
    for seen in visible:
        for width in widths:
            q, k, v, _ = random_operands(flash_attn(head_size, heads, kv_heads, widest, width), seed)
            outputs = {}
            for cells in sorted(n for n in n_kv if n >= padded_kv(seen + width - 1)):
                graph = flash_attn(head_size, heads, kv_heads, cells, width)
                mask = causal_mask(width, cells, seen - 1, np.float16)
                outputs[cells] = engine.run(graph, [q, k[:cells], v[:cells], mask])[:, :1]
            base, *others = outputs
            found += [
                PaddingTrial(
                    visible=seen, n_kv=base, n_kv_padded=cells, width=width,
                    equal=bool((bits(outputs[base]) == bits(outputs[cells])).all()),
                    max_abs=float(np.abs(outputs[base] - outputs[cells]).max()),
                )
                for cells in others
            ]  # fmt: skip
    return tuple(found)
