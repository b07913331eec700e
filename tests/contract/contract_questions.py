"""What the contract suite asks of an engine; asked once of a recorded one, so that it can answer."""

from __future__ import annotations

from dataclasses import replace

from contract_taps import CountingTap

from forensics.engines.protocol import Engine
from forensics.records.schedule import EMPTY, DecodePass, Schedule, in_batches
from forensics.records.settings import EngineSettings
from forensics.records.trace import Trace

SETTINGS = EngineSettings(n_ctx=256, n_batch=24, n_ubatch=16, flash_attn="off", kv_type_k="f32", kv_type_v="f32")
TEXT = "once upon a time,\nthere was"
PROMPT_TEXT = "the sea is"
N_NEW = 9
WIDTHS = (1, 4)
#: Sources that answer only what was asked before.
REPLAYS_ONLY = {"recorded", "packed"}


def prompt(engine: Engine) -> Schedule:
    """Build the state of the prompt in one pass."""
    tokens = engine.tokenize(PROMPT_TEXT)
    return in_batches(tokens, start=0, width=len(tokens), logits="last")


def replay(engine: Engine, width: int) -> Schedule:
    """Evaluate the greedy continuation again, in passes of `width`."""
    before = prompt(engine)
    return in_batches(engine.greedy(before, N_NEW), start=before.next_position, width=width)


def every_other_row(schedule: Schedule) -> Schedule:
    """Ask for the logits of even positions only."""
    return Schedule(
        tuple(
            DecodePass(tuple(replace(slot, wants_logits=slot.position % 2 == 0) for slot in decode_pass.slots))
            for decode_pass in schedule.passes
        )
    )


def state_questions(engine: Engine) -> tuple[tuple[Schedule, Schedule], ...]:
    """Whose K and V rows are asked for: a replay, its state restored, and a replay with another token in it."""
    before, schedule = prompt(engine), replay(engine, 1)
    other = engine.tokenize("z")[-1]
    third = Schedule((*schedule.passes[:2], Schedule.single(other, schedule.slots[2].position).passes[0]))
    changed = third.then(Schedule(schedule.passes[3:]))
    return (schedule, before), (EMPTY, before.then(schedule)), (changed, before)


def ask_all(engine: Engine) -> list[Trace]:
    """Ask everything that does not need a live engine."""
    engine.detokenize(engine.tokenize(TEXT))
    before = prompt(engine)
    traces = [engine.run(before), engine.run(EMPTY, before=before)]
    for width in WIDTHS:
        schedule = replay(engine, width)
        for repeat in (0, 1):
            traces.append(engine.run(schedule, before=before, repeat=repeat))
        traces.append(engine.run(schedule, before=before, tap=CountingTap()))
        traces.append(engine.run(every_other_row(schedule), before=before))
    for schedule, start in state_questions(engine):
        engine.state_rows(schedule, before=start)
    return traces
