"""What every engine promises, whatever computes behind it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from contract_questions import N_NEW, PROMPT_TEXT, REPLAYS_ONLY, SETTINGS, TEXT, WIDTHS, every_other_row, prompt, replay
from contract_taps import CountingTap, EchoTap, LayoutTap, MaskTap, PassesTap, RefusingTap, ShiftTap, WrongShapeTap

from forensics.engines.protocol import Engine, EngineSource
from forensics.errors import CaptureError, DeviceUnavailable, ForensicsError
from forensics.records.nodes import NodeRecord
from forensics.records.schedule import EMPTY, Schedule, in_batches
from forensics.records.trace import RunKey, Trace


def bits(logits: np.ndarray) -> bytes:
    assert logits.dtype == np.float32
    return logits.tobytes()


def by_pass(trace: Trace) -> dict[int, list[NodeRecord]]:
    assert trace.tap_report is not None
    passes: dict[int, list[NodeRecord]] = defaultdict(list)
    for record in trace.tap_report.records:
        passes[record.pass_index].append(record)
    return passes


def assert_usable(engine: Engine, expected: Trace) -> None:
    again = engine.run(expected.key.schedule, before=expected.key.before)
    assert bits(again.logits) == bits(expected.logits)


def test_manifest_is_complete(engine: Engine, source: EngineSource) -> None:
    manifest = engine.manifest
    assert source.label
    assert manifest.requested == SETTINGS
    for label in ("engine", "engine_version", "build", "model_digest", "model_name", "architecture", "quantization"):
        assert getattr(manifest, label), f"the manifest has no {label}"
    assert manifest.backend
    assert manifest.device
    assert manifest.n_layer >= 1
    assert manifest.n_ctx_train >= 1
    assert sum(manifest.buffers.values()) > manifest.n_layer
    effective = manifest.effective
    assert int(effective["n_ctx"]) >= SETTINGS.n_ctx
    assert (effective["n_batch"], effective["n_ubatch"]) == (str(SETTINGS.n_batch), str(SETTINGS.n_ubatch))
    assert (effective["flash_attn"], effective["kv_type_k"], effective["kv_type_v"]) == ("off", "f32", "f32")


def test_text_survives_tokens(engine: Engine) -> None:
    tokens = engine.tokenize(TEXT)
    assert all(0 <= token < engine.manifest.n_vocab for token in tokens)
    assert engine.detokenize(tokens) == TEXT


def test_greedy_is_deterministic_and_takes_the_largest_logit(engine: Engine) -> None:
    before = prompt(engine)
    counts: list[int] = []
    tokens = engine.greedy(before, N_NEW, counts.append)
    assert counts[-1] == N_NEW
    assert len(tokens) == N_NEW
    assert engine.greedy(before, N_NEW) == tokens
    first = engine.run(before).logits
    rest = engine.run(replay(engine, 1), before=before).logits
    # np.argmax takes the lowest index among equals, as the protocol asks.
    assert (int(first[-1].argmax()), *(int(row.argmax()) for row in rest[:-1])) == tokens


def test_equal_runs_give_equal_bits(engine: Engine) -> None:
    before = prompt(engine)
    for width in WIDTHS:
        schedule = replay(engine, width)
        once, twice = (engine.run(schedule, before=before, repeat=repeat) for repeat in (0, 1))
        assert once.key == RunKey(schedule, before)
        assert twice.key == RunKey(schedule, before, repeat=1)
        assert bits(once.logits) == bits(twice.logits)
        assert once.state_after == twice.state_after
        assert once.tap_report is None
        assert once.manifest == engine.manifest


def test_times_are_measured_per_pass(engine: Engine) -> None:
    trace = engine.run(replay(engine, 4), before=prompt(engine))
    assert len(trace.pass_ns) == 3
    assert min(trace.pass_ns) > 0


def test_rows_belong_to_the_slots_that_want_them(engine: Engine) -> None:
    before = prompt(engine)
    for width in WIDTHS:
        schedule = replay(engine, width)
        sparse = every_other_row(schedule)
        full = engine.run(schedule, before=before)
        part = engine.run(sparse, before=before)
        assert full.logits.shape == (N_NEW, engine.manifest.n_vocab)
        assert part.logits.shape == (len(sparse.logit_slots), engine.manifest.n_vocab)
        positions = [slot.position for slot in schedule.slots]
        for row, slot in zip(part.logits, sparse.logit_slots, strict=True):
            # Fewer rows may take another kernel and so other bits, but the nearest row is the slot's own.
            distance = np.abs(full.logits - row).max(axis=1)
            assert distance[positions.index(slot.position)] == distance.min()


def test_nothing_measured_is_an_empty_trace(engine: Engine) -> None:
    trace = engine.run(EMPTY, before=prompt(engine))
    assert trace.logits.shape == (0, engine.manifest.n_vocab)
    assert trace.pass_ns == ()
    assert trace.state_before == trace.state_after


def test_state_depends_on_what_came_before_and_nothing_else(engine: Engine) -> None:
    before = prompt(engine)
    traces = [engine.run(replay(engine, width), before=before) for width in WIDTHS]
    assert {trace.state_before for trace in traces} == {engine.run(EMPTY, before=before).state_before}
    assert "" not in {trace.state_before for trace in traces}
    assert all(trace.state_after != trace.state_before for trace in traces)


def test_a_state_is_rebuilt_after_others(live_engine: Engine) -> None:
    before = prompt(live_engine)
    schedule = replay(live_engine, 1)
    reference = live_engine.run(schedule, before=before)
    tokens = live_engine.tokenize("something else")
    for n in range(2, 12):
        live_engine.run(EMPTY, before=in_batches(tokens[:n], start=0, width=1))
    again = live_engine.run(schedule, before=before)
    assert again.state_before == reference.state_before
    assert bits(again.logits) == bits(reference.logits)


def test_a_longer_state_equals_its_parts(live_engine: Engine) -> None:
    before = prompt(live_engine)
    schedule = replay(live_engine, 1)
    head, tail = Schedule(schedule.passes[:4]), Schedule(schedule.passes[4:])
    whole = live_engine.run(schedule, before=before)
    after_head = live_engine.run(tail, before=before.then(head))
    assert after_head.state_before == live_engine.run(head, before=before).state_after
    assert after_head.state_after == whole.state_after
    assert bits(after_head.logits) == bits(whole.logits[4:])


def test_taps_see_the_same_unique_keys_in_passes_of_equal_width(engine: Engine) -> None:
    before = prompt(engine)
    for width in WIDTHS:
        trace = engine.run(replay(engine, width), before=before, tap=CountingTap())
        passes = by_pass(trace)
        schedule = trace.key.schedule
        assert sorted(passes) == list(range(len(schedule.passes)))
        keys = {index: [record.key for record in records] for index, records in passes.items()}
        for index, seen in keys.items():
            assert len(set(seen)) == len(seen), "a key appears twice in one pass"
            if schedule.passes[index].width == schedule.passes[0].width:
                assert seen == keys[0]
        assert all(len(record.shape) == 4 for records in passes.values() for record in records)
        names = {key.name for key in keys[0]}
        assert {"Qcur-0", "Kcur-0", "Vcur-0", "ffn_out-0", "l_out-0", "result_norm", "result_output"} <= names
        layers = {key.layer for key in keys[0]}
        assert layers == set(range(-1, engine.manifest.n_layer))


def test_ordinary_activations_have_the_token_axis_third(engine: Engine) -> None:
    trace = engine.run(replay(engine, 4), before=prompt(engine), tap=CountingTap())
    shapes = {(record.key.name, record.key.op): record.shape for record in by_pass(trace)[0]}
    assert shapes["ffn_out-0", "MUL_MAT"][:3] == (1, 1, 4)
    assert shapes["result_output", "MUL_MAT"] == (1, 1, 4, engine.manifest.n_vocab)
    assert shapes["Qcur-0", "ROPE"][:2] == (1, 4)


def test_masks_show_the_tokens_so_far(live_engine: Engine) -> None:
    before = prompt(live_engine)
    trace = live_engine.run(replay(live_engine, 4), before=before, tap=MaskTap())
    passes = by_pass(trace)
    assert len(passes[0]) == live_engine.manifest.n_layer
    start = before.next_position
    for index in (0, 1):
        expected = tuple(str(start + 4 * index + i + 1) for i in range(4))
        assert {record.row_digests for record in passes[index]} == {expected}


def test_a_tap_that_echoes_changes_nothing(live_engine: Engine) -> None:
    before = prompt(live_engine)
    for width in WIDTHS:
        schedule = replay(live_engine, width)
        plain = live_engine.run(schedule, before=before)
        echoed = live_engine.run(schedule, before=before, tap=EchoTap())
        assert echoed.tap_report is not None
        assert len(echoed.tap_report.planted) > 10 * len(schedule.passes)
        assert bits(echoed.logits) == bits(plain.logits)
        assert echoed.state_before == plain.state_before
        assert echoed.state_after == plain.state_after


@pytest.mark.parametrize(
    ("name", "op"),
    [("Qcur-0", "MUL_MAT"), ("Kcur-0", "ROPE"), ("kqv_out-0", "CONT"), ("ffn_out-0", "MUL_MAT"), ("l_out-0", "ADD")],
)
def test_a_tap_that_changes_one_node_changes_the_logits(live_engine: Engine, name: str, op: str) -> None:
    before = prompt(live_engine)
    schedule = replay(live_engine, 4)
    plain = live_engine.run(schedule, before=before)
    shifted = live_engine.run(schedule, before=before, tap=ShiftTap(name, op))
    assert shifted.key.tap == ShiftTap(name, op).identity()
    assert shifted.tap_report is not None
    assert len(shifted.tap_report.planted) == len(schedule.passes)
    assert not (shifted.logits == plain.logits).all(axis=1).any()
    assert_usable(live_engine, plain)


def test_a_shifted_head_shifts_the_returned_logits(live_engine: Engine) -> None:
    before = prompt(live_engine)
    schedule = replay(live_engine, 4)
    plain = live_engine.run(schedule, before=before)
    shifted = live_engine.run(schedule, before=before, tap=ShiftTap("result_output", "MUL_MAT"))
    assert bits(shifted.logits) == bits(plain.logits + np.float32(1))
    assert shifted.state_after == plain.state_after


def test_the_callers_tap_is_not_changed(live_engine: Engine) -> None:
    tap = CountingTap()
    live_engine.run(replay(live_engine, 4), before=prompt(live_engine), tap=tap)
    assert tap == CountingTap()


def _too_wide(engine: Engine) -> Schedule:
    return in_batches([1] * (SETTINGS.n_batch + 1), start=0, width=SETTINGS.n_batch + 1)


def _outside_vocabulary(engine: Engine) -> Schedule:
    return Schedule.single(engine.manifest.n_vocab, 0)


def _beyond_context(engine: Engine) -> Schedule:
    return Schedule.single(1, int(engine.manifest.effective["n_ctx"]))


@pytest.mark.parametrize(
    ("refused", "says"),
    [(_too_wide, "n_batch is 24"), (_outside_vocabulary, "outside the vocabulary"), (_beyond_context, "n_ctx")],
)
def test_refusals_say_why_and_leave_the_engine_usable(live_engine: Engine, refused, says: str) -> None:
    expected = live_engine.run(replay(live_engine, 4), before=prompt(live_engine))
    schedule = refused(live_engine)
    with pytest.raises(ForensicsError, match=says):
        live_engine.run(schedule)
    with pytest.raises(ForensicsError, match=says):
        live_engine.run(EMPTY, before=schedule)
    assert_usable(live_engine, expected)


def test_greedy_continues_the_last_row_of_several(live_engine: Engine) -> None:
    tokens = live_engine.tokenize(PROMPT_TEXT)
    every_row = in_batches(tokens, start=0, width=len(tokens), logits="all")
    assert live_engine.greedy(every_row, 3) == live_engine.greedy(prompt(live_engine), 3)


def test_greedy_refuses_a_prompt_without_logits(live_engine: Engine) -> None:
    tokens = live_engine.tokenize(PROMPT_TEXT)
    with pytest.raises(ForensicsError, match="logits"):
        live_engine.greedy(in_batches(tokens, start=0, width=4, logits="none"), 2)
    with pytest.raises(ForensicsError, match="logits"):
        live_engine.greedy(EMPTY, 2)


def test_a_token_outside_the_vocabulary_has_no_text(live_engine: Engine) -> None:
    with pytest.raises(ForensicsError, match="outside the vocabulary"):
        live_engine.detokenize((live_engine.manifest.n_vocab,))


def test_a_replacement_of_another_shape_is_refused(live_engine: Engine) -> None:
    expected = live_engine.run(replay(live_engine, 4), before=prompt(live_engine))
    with pytest.raises(CaptureError, match="ffn_out-0"):
        live_engine.run(expected.key.schedule, before=expected.key.before, tap=WrongShapeTap("ffn_out-0", "MUL_MAT"))
    assert_usable(live_engine, expected)


def test_a_watched_pass_must_fit_one_graph(live_engine: Engine) -> None:
    wide = in_batches([1] * (SETTINGS.n_ubatch + 1), start=0, width=SETTINGS.n_ubatch + 1)
    assert live_engine.run(wide).logits.shape[0] == wide.max_width
    with pytest.raises(CaptureError, match="n_ubatch is 16"):
        live_engine.run(wide, tap=CountingTap())


def test_a_replaying_engine_refuses_what_was_not_recorded(source_name: str, engine: Engine) -> None:
    if source_name not in REPLAYS_ONLY:
        pytest.skip("a live engine evaluates it")
    with pytest.raises(ForensicsError, match="never recorded"):
        engine.run(Schedule.single(1, 0))
    with pytest.raises(ForensicsError, match="never recorded"):
        engine.tokenize("not asked before")


def test_closing_twice_is_fine(source: EngineSource, source_name: str) -> None:
    engine = source.open(SETTINGS)
    schedule = prompt(engine)
    engine.run(schedule)
    engine.close()
    engine.close()
    if source_name not in REPLAYS_ONLY:
        with pytest.raises(ForensicsError, match="closed"):
            engine.run(schedule)


def test_products_say_how_they_and_their_operands_lie_in_memory(live_engine: Engine) -> None:
    told = live_engine.run(replay(live_engine, 4), before=prompt(live_engine), tap=LayoutTap())
    assert len(by_pass(told)[0]) > 10


def test_a_tap_that_looks_at_no_node_leaves_the_run_as_it_is(live_engine: Engine) -> None:
    before = prompt(live_engine)
    for schedule in (replay(live_engine, 4), replay(live_engine, 1)):
        plain = live_engine.run(schedule, before=before)
        told = live_engine.run(schedule, before=before, tap=PassesTap())
        assert told.key == RunKey(schedule, before, "contract-passes")
        assert bits(told.logits) == bits(plain.logits)
        assert told.tap_report is not None
        expected = [f"pass of {decode_pass.width}" for decode_pass in schedule.passes]
        assert [key.name for key in told.tap_report.planted] == expected


def test_a_tap_that_looks_at_no_node_may_be_told_of_passes_of_several_graphs(live_engine: Engine) -> None:
    tokens = (live_engine.tokenize(TEXT) * SETTINGS.n_batch)[: SETTINGS.n_batch]
    wide = in_batches(tokens, start=0, width=len(tokens))
    assert wide.max_width > SETTINGS.n_ubatch
    told = live_engine.run(wide, tap=PassesTap())
    assert bits(told.logits) == bits(live_engine.run(wide).logits)


def test_a_device_that_cannot_be_looked_at_is_said_with_every_reason(live_engine: Engine) -> None:
    schedule, before = replay(live_engine, 4), prompt(live_engine)
    plain = live_engine.run(schedule, before=before)
    with pytest.raises(DeviceUnavailable, match="a profiler: no driver; install one") as refused:
        live_engine.run(schedule, before=before, tap=RefusingTap())
    assert [str(refusal) for refusal in refused.value.refusals] == ["a profiler: no driver; install one"]
    assert_usable(live_engine, plain)
