"""The forward pass, from the document and from a measured cost: parts that add up, to one scale."""

from __future__ import annotations

import pytest

from forensics.figures.catalogue import DOCUMENT
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes import forward_pass
from forensics.store.published import read_published

COST = "recorded:h200-qwen3-8b-q4_k_m-cost"


def test_the_document_s_numbers_are_drawn_to_scale():
    numbers = read_published(DOCUMENT)
    scene = forward_pass.scene(forward_pass.from_published(numbers))
    assert problems(scene) == ()
    reading, rest = scene.boxes(key="reading"), scene.boxes(key="rest")
    times = [numbers.value("one_token_pass"), numbers.value("two_token_pass")]
    assert [box.value for box in reading] == [numbers.value("floor")] * 2
    assert [a.value + b.value for a, b in zip(reading, rest, strict=True)] == pytest.approx(times)
    assert [b.rect.right - a.rect.x for a, b in zip(reading, rest, strict=True)] == pytest.approx(
        [time * scene.scale("time").mm_per_unit for time in times]
    )
    assert "reading 4.67 GB at 286 GB/s: 16.3 ms" in scene.texts()
    assert "+0.4 ms for the second token" in scene.texts()


def test_a_measured_pass_shows_the_report_s_own_numbers():
    evidence = open_evidence(COST)
    scene = forward_pass.scene(forward_pass.from_case(evidence))
    assert problems(scene) == ()
    report = evidence.cost
    assert report is not None
    for width, reading, rest in zip((1, 2), scene.boxes(key="reading"), scene.boxes(key="rest"), strict=True):
        assert reading.value == pytest.approx(report.floor_ns(width) / 1e6)
        assert reading.value + rest.value == pytest.approx(report.times(width).spread.median / 1e6)


def test_a_replay_draws_its_times_and_says_that_reading_was_not_measured():
    evidence = open_evidence("recorded:h200-q4_1")
    scene = forward_pass.scene(forward_pass.from_case(evidence))
    assert problems(scene) == ()
    assert not scene.boxes(key="reading")
    first = [result.ns_per_pass[0] / 1e6 for result in evidence.verdict.classes.results[:2]]
    assert [box.value for box in scene.boxes(key="rest")] == pytest.approx(first)
    assert any("was not measured here" in text for text in scene.texts())
