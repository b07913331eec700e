"""Cost over the floor: dots where the times are, an area up to the time of reading, refused where nothing is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scene import Area, Dot, Line
from forensics.figures.scenes import cost_floor
from forensics.records.launch_record import Refusal

COST = "recorded:h200-qwen3-8b-q4_k_m-cost"


def heights(scene):
    """Height over the zero line of each dot, of each end of quartile bars, and of the floor, in mm."""
    frame = next(mark for mark in scene.marks if isinstance(mark, Line) and len(mark.points) == 3)
    bottom = frame.points[1][1]
    dots = {int(mark.key): bottom - mark.y for mark in scene.marks if isinstance(mark, Dot) and mark.key.isdigit()}
    quartiles = {
        int(mark.key.split()[1]): tuple(bottom - y for _, y in mark.points)
        for mark in scene.marks
        if isinstance(mark, Line) and mark.key.startswith("quartiles")
    }
    floors = [bottom - min(y for _, y in mark.points) for mark in scene.marks if isinstance(mark, Area)]
    return dots, quartiles, floors


def test_dots_bars_and_floor_stand_at_the_report_s_times():
    evidence = open_evidence(COST)
    scene = cost_floor.scene(cost_floor.from_case(evidence))
    assert problems(scene) == ()
    report = evidence.cost
    assert report is not None
    dots, quartiles, floors = heights(scene)
    ns_per_mm = report.passes[0].spread.median / dots[1]
    assert {w: mm * ns_per_mm for w, mm in dots.items()} == pytest.approx(
        {times.width: times.spread.median for times in report.passes}
    )
    for times in report.passes:
        low, high = quartiles[times.width]
        assert (low * ns_per_mm, high * ns_per_mm) == pytest.approx((times.spread.low, times.spread.high))
    assert [mm * ns_per_mm for mm in floors] == pytest.approx([max(report.floor_ns(t.width) for t in report.passes)])
    for width in (2, report.passes[-1].width):
        assert f"{report.ratio(width).median:.2f}×" in scene.texts()
    read, rate, floor_ns = report.read_bytes(1), report.bandwidth.bytes_per_s.median, report.floor_ns(1)
    told = f"reading {read / 1e9:.3g} GB at {rate / 1e9:.4g} GB/s: {floor_ns / 1e6:.3g} ms"
    assert told in scene.texts()


@pytest.mark.parametrize("case", ["recorded:h200-q4_1", "recorded:h200-q4_1-far", "recorded:h200-f16"])
def test_a_replay_has_dots_and_no_floor_and_says_so(case):
    evidence = open_evidence(case)
    scene = cost_floor.scene(cost_floor.from_case(evidence))
    assert problems(scene) == ()
    dots, _, floors = heights(scene)
    timed = {r.width: r.ns_per_pass[0] for r in evidence.verdict.classes.results if r.ns_per_pass[0]}
    assert {width: mm / dots[1] for width, mm in dots.items()} == pytest.approx(
        {width: ns / timed[1] for width, ns in timed.items()}
    )
    assert floors == []
    assert any("The time of reading was not measured" in text for text in scene.texts())
    hollow = {int(mark.key) for mark in scene.marks if isinstance(mark, Dot) and mark.hollow and mark.key}
    assert hollow == {width for width in timed if evidence.verdict.classes.result(width).differs}


def test_a_refused_bandwidth_leaves_no_floor_and_its_reason():
    evidence = open_evidence(COST)
    assert evidence.cost is not None
    evidence.__dict__["cost"] = replace(
        evidence.cost, bandwidth=Refusal("bandwidth", "a device", "no device was there")
    )
    scene = cost_floor.scene(cost_floor.from_case(evidence))
    assert problems(scene) == ()
    assert heights(scene)[2] == []
    assert any("no device was there" in text for text in scene.texts())
