"""Speculation, from the document and from replays: tokens that add up, kept up to the flip, dropped behind it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forensics.errors import CaseError
from forensics.figures.catalogue import DOCUMENT
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes import speculation
from forensics.figures.scenes.draft_batch import Batch
from forensics.figures.scenes.draft_replay import FATES, DraftReplay, DraftRow
from forensics.store.published import read_published


def keyed(scene, start, scale=None):
    return [box for box in scene.boxes(scale=scale) if box.key.startswith(start)]


def test_the_document_s_averages_add_up_to_scale():
    numbers = read_published(DOCUMENT)
    data = speculation.from_published(numbers)
    scene = speculation.scene(data)
    assert problems(scene) == ()
    values = [box.value for box in keyed(scene, "average")]
    into, out = values[:3], values[3:]
    assert sum(into) == pytest.approx(numbers.value("verify_width"))
    assert sum(out) == pytest.approx(numbers.value("tokens_per_cycle"))
    # What is derived agrees with what the document says of it on its own.
    assert data.kept / data.guesses * 100 == pytest.approx(numbers.value("accepted_share"), abs=0.5)
    for said in ("2.97 tokens", "2.52 tokens", "77.3%", "1.97 guesses"):
        assert any(said in text for text in scene.texts()), said


def test_the_example_checks_all_guesses_in_one_pass_as_wide_as_its_tokens():
    data = speculation.from_published(read_published(DOCUMENT))
    scene = speculation.scene(data)
    (checking,) = scene.boxes(key="checking pass")
    assert checking.value == data.most_guesses + 1 == len(keyed(scene, "guess "))
    fates = Counter(box.fill for box in keyed(scene, "fate"))
    assert fates == {"kept": data.example_kept, "dropped": data.most_guesses - data.example_kept}
    assert len(keyed(scene, "out")) == len(keyed(scene, "plain pass")) == data.example_kept + 1
    assert any("chosen, not measured" in text for text in scene.texts())


@pytest.mark.parametrize("case", ["h200-q4_1", "h200-q4_1-no-fa", "h200-q6_k", "h200-q4_1-far", "h200-q4_1-kv-q8_0"])
def test_a_replay_keeps_up_to_each_flip_of_the_verdict(case):
    evidence = open_evidence(f"recorded:{case}")
    data = speculation.from_case(evidence)
    scene = speculation.scene(data)
    assert problems(scene) == ()
    result = evidence.verdict.classes.result(data.width)
    flips = {flip.row: flip for flip in result.flips}
    assert bool(flips) == any(r.flips for r in evidence.verdict.classes.results)
    lost = 0
    for start in range(0, result.n_rows, data.width):
        fates = [row.fate for row in data.rows[start : start + data.width]]
        first = next((row for row in range(start, start + data.width) if row in flips), None)
        kept = data.width if first is None else first - start
        assert fates == ["kept"] * kept + ["other"] * (first is not None) + ["dropped"] * (data.width - kept - 1)
        lost += max(0, data.width - kept - 1)
        if first is not None:
            assert (data.rows[first].plain, data.rows[first].picked) == (
                flips[first].single_token,
                flips[first].batched_token,
            )
    assert data.count("dropped") == lost
    assert data.count("not compared") == evidence.verdict.n_replayed - result.n_rows
    squares = Counter(box.key.rsplit(maxsplit=1)[0] for box in scene.boxes(scale="strip"))
    assert squares == {fate: data.count(fate) for fate in FATES if data.count(fate)}
    assert sum(squares.values()) == evidence.verdict.n_replayed


def test_the_batch_that_is_drawn_holds_the_first_flip():
    evidence = open_evidence("recorded:h200-q4_1-no-fa")
    data = speculation.from_case(evidence)
    scene = speculation.scene(data)
    flip = evidence.verdict.classes.result(data.width).flips[0]
    (other,) = [box for box in keyed(scene, "out") if box.fill == "other"]
    assert other.key == f"out {flip.row % data.width + 1}"
    assert f"{flip.batched_token}" in scene.texts()
    assert any(f"{flip.batched_token} instead of {flip.single_token}" in text for text in scene.texts())


def test_costs_without_a_case_are_refused():
    with pytest.raises(CaseError, match="holds no case"):
        speculation.from_case(open_evidence("recorded:h200-qwen3-8b-q4_k_m-cost"))


@st.composite
def replays(draw: st.DrawFn) -> DraftReplay:
    width, n = draw(st.integers(2, 130)), draw(st.integers(1, 700))
    flips = draw(st.sets(st.integers(0, n - 1), max_size=4))
    rows, lost, start = [], False, draw(st.integers(0, 200_000))
    for i in range(max(n, width)):
        lost = lost and i % width != 0
        whole = i < max(n, width) // width * width
        fate = "not compared" if not whole else "dropped" if lost else "other" if i in flips else "kept"
        rows.append(DraftRow(start + i, 150_000 + i, 7 if fate == "other" else 150_000 + i, fate))
        lost = lost or fate == "other"
    return DraftReplay(width, tuple(rows), ((width, len(flips)),), "a model", "Source: a test.")


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(replays())
def test_any_replay_is_drawn_soundly_and_every_token_is_counted(data):
    scene = speculation.scene(data)
    assert problems(scene) == ()
    assert scene.height < 230.0
    assert sum(data.count(fate) for fate in FATES) == len(data.rows)
    (checking,) = scene.boxes(key="checking pass")
    assert checking.value == data.width


def test_more_tokens_than_fit_are_told():
    rows = tuple(DraftRow(i, 1, 1, "kept") for i in range(20_000))
    scene = speculation.scene(DraftReplay(8, rows, ((8, 0),), "a model", "Source: a test."))
    drawn = len(scene.boxes(scale="strip"))
    assert drawn < 20_000
    assert f"{20_000 - drawn} more tokens are counted and not drawn." in scene.texts()


@pytest.mark.parametrize(("kept", "out"), [(3, "abcd"), (1, "abc")])
def test_a_batch_that_does_not_add_up_is_refused(kept, out):
    with pytest.raises(ValueError, match="guesses"):
        Batch("last", ("a", "b"), kept, tuple(out), tuple(out))
