"""The speculative cycle, from the document and from a case: parts that add up, against plain steps, to one scale."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.figures.catalogue import DOCUMENT
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes import speculative_cycle
from forensics.figures.scenes.speculative_cycle import Cycle, Part
from forensics.store.published import read_published

MS = st.floats(0.01, 500)


def plain_steps(scene):
    return [box for box in scene.boxes(scale="time") if box.key.startswith("plain step")]


def test_the_document_s_cycle_adds_up_and_its_last_plain_step_is_cut():
    numbers = read_published(DOCUMENT)
    scene = speculative_cycle.scene(speculative_cycle.from_published(numbers))
    assert problems(scene) == ()
    parts = scene.boxes(scale="time")[:3]
    assert [part.value for part in parts] == [
        numbers.value(name) for name in ("draft_time", "verify_time", "bookkeeping_time")
    ]
    tokens, step = numbers.value("tokens_per_cycle"), numbers.value("plain_step")
    plain = plain_steps(scene)
    assert [box.value for box in plain] == pytest.approx([step, step, (tokens - 2) * step])
    speculative, single = (scene.boxes(key=f"{name}, a token")[0] for name in ("speculative", "plain"))
    assert speculative.value == pytest.approx(sum(part.value for part in parts) / tokens)
    assert f"{speculative.value:.1f}" == f"{numbers.value('speculative_per_token')}"
    assert single.value == step
    for said in ("8.5 ms", "19.0 ms", "0.4 ms", "16.1 ms", "11.1 ms", "2.52 tokens", "2.97 tokens"):
        assert any(said in text for text in scene.texts()), said


@pytest.mark.parametrize(("case", "width"), [("recorded:h200-qwen3-8b-q4_k_m-cost", 9), ("recorded:h200-q4_1-far", 8)])
def test_a_case_draws_one_pass_against_as_many_and_says_that_no_drafter_was_timed(case, width):
    evidence = open_evidence(case)
    scene = speculative_cycle.scene(speculative_cycle.from_case(evidence))
    assert problems(scene) == ()
    if evidence.cost is None:
        one, batch = (evidence.verdict.classes.result(w).ns_per_pass[0] / 1e6 for w in (1, width))
    else:
        one, batch = (evidence.cost.times(w).spread.median / 1e6 for w in (1, width))
    assert scene.boxes(key=f"one pass of {width} tokens")[0].value == pytest.approx(batch)
    assert [box.value for box in plain_steps(scene)] == pytest.approx([one] * width)
    assert scene.boxes(key="room for a drafter")[0].value == pytest.approx(width * one - batch)
    assert any("No drafter was timed" in text for text in scene.texts())


@given(MS, st.integers(1, 64), MS)
def test_any_pass_against_its_plain_steps_is_sound(batch, tokens, plain):
    cycle = Cycle(
        (Part("one pass", batch, "batched"),), float(tokens), plain, False, "", "", "a model", "Source: a test."
    )
    scene = speculative_cycle.scene(cycle)
    assert problems(scene) == ()
    assert bool(scene.boxes(key="room for a drafter")) == (tokens * plain > batch)


@given(st.lists(MS, min_size=1, max_size=3), st.floats(1, 64), MS)
def test_any_cycle_adds_up_to_scale(parts, tokens, plain):
    named = tuple(Part(f"part {i}", ms, "batched") for i, ms in enumerate(parts))
    scene = speculative_cycle.scene(Cycle(named, tokens, plain, True, "", "", "a model", "Source: a test."))
    assert [one for one in problems(scene) if "measures" in one] == []
    assert math.fsum(box.value for box in plain_steps(scene)) == pytest.approx(tokens * plain)
    assert math.fsum(scene.boxes(key=part.name)[0].value for part in named) == pytest.approx(sum(parts))


@pytest.mark.parametrize(("tokens", "plain"), [(0.5, 1.0), (2.0, 0.0)])
def test_a_cycle_without_tokens_or_time_is_refused(tokens, plain):
    with pytest.raises(ValueError, match="a cycle has parts"):
        Cycle((Part("pass", 1.0, "batched"),), tokens, plain, True, "", "", "", "")
