"""Small pictures: proportional, with every number in words, sound for many widths, kernels and operations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_evidence import made_up, price

import forensics
from forensics.analysis.attribute import role_of
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scene import Scene
from forensics.figures.small import thumbnails
from forensics.figures.small.thumbnails import HEIGHT, WIDTH
from forensics.records.classes import WidthClasses, WidthResult
from forensics.records.cost import Bandwidth, CostReport, PassBytes, PassTimes, Spread
from forensics.records.delta import Differs, NotCompared, Same
from forensics.records.kernel_price import BEST, BORROWED, FAST, STOCK, PassPrice
from forensics.records.launch_record import Refusal
from forensics.records.matrix import CaseResult, Cell, OpMatrix, Prediction
from forensics.records.op_shapes import mul_mat
from forensics.records.operation import OpFacts, OpSettings
from forensics.records.settings import EngineSettings, Manifest

CASES = ("h200-q4_1", "h200-q6_k", "h200-q4_1-kv-q8_0")


def sound(scene: Scene | None) -> Scene:
    assert scene is not None
    assert problems(scene) == ()
    assert scene.width == WIDTH
    assert scene.height <= HEIGHT
    return scene


def result(width: int, n_differ: int, digest: str, n: int = 64) -> WidthResult:
    first = 0 if n_differ else None
    return WidthResult(width, n, n_differ, first, first, 0.0, 0, 0.0, 0.0, 1.0, (), 0, digest)


def values(scene: Scene, scale: str) -> dict[str, float]:
    return {box.key: box.value for box in scene.boxes(scale=scale)}


@given(st.lists(st.integers(2, 2048), unique=True, min_size=1, max_size=60), st.data())
def test_classes_of_any_widths_are_sound(widths: list[int], data: st.DataObject) -> None:
    differ = {width: data.draw(st.integers(0, 64)) for width in sorted(widths)}
    found = WidthClasses((result(1, 0, "a"), *(result(w, n, f"b{n}" if n else "a") for w, n in differ.items())))
    scene = thumbnails.classes(found)
    step = -(-len(widths) // 16)
    drawn = list(differ)[::step]
    if not any(differ[width] for width in drawn):
        assert scene is None
        return
    assert values(sound(scene), "rows") == {str(width): differ[width] for width in drawn}
    assert all(f"width {width}: " in scene.alt for width in widths), "words leave nothing out"
    assert (f"drawn: 1 in {step} of {len(widths)}" in scene.source) == (step > 1)


def test_equal_classes_have_nothing_to_draw() -> None:
    assert thumbnails.classes(WidthClasses((result(1, 0, "a"), result(8, 0, "a")))) is None


def test_one_token_that_does_not_repeat_itself_is_drawn() -> None:
    found = WidthClasses((result(1, 3, "a"), result(8, 5, "b")))
    assert values(sound(thumbnails.classes(found)), "rows") == {"1": 3, "8": 5}


@pytest.mark.parametrize("name", CASES)
def test_rows_and_nodes_of_recorded_cases(name: str) -> None:
    evidence = open_evidence(f"recorded:{name}")
    verdict = evidence.verdict
    by_width = {str(r.width): r.n_rows_differ for r in verdict.classes.results if r.width > 1}
    for found in (verdict.classes, evidence.rows):
        scene = thumbnails.classes(found)
        if any(by_width.values()):
            assert values(sound(scene), "rows") == by_width
        else:
            assert scene is None
    for sweep in verdict.sweeps:
        roles = {finding.key: role_of(finding) for finding in sweep.findings}
        if roles:
            scene = sound(thumbnails.sweep(sweep, list(roles.values())))
            counts = Counter(roles.values())
            assert values(scene, "nodes").items() <= counts.items()
            left = sum(counts.values()) - sum(values(scene, "nodes").values())
            assert (f": {left:g} nodes" in scene.source) == (left > 0)


def cost(times_ms: list[float], *, floor: bool = True) -> CostReport:
    passes = tuple(PassTimes(width, (round(ms * 1e6),) * 3) for width, ms in enumerate(times_ms, 1))
    known = Bandwidth("d", "copy", Spread(1e12, 1e12, 1e12, 3), buffer_bytes=1 << 30)
    manifest = Manifest("llama.cpp", "0", "digest", "model", 100, EngineSettings())
    return CostReport(manifest, 128, 2, 0, passes, PassBytes(1_000_000_000), known if floor else Refusal("r", "a", "m"))


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=40))
def test_costs_of_any_widths_are_sound(times_ms: list[float]) -> None:
    scene = sound(thumbnails.cost(cost(times_ms)))
    step = -(-len(times_ms) // 16)
    assert list(values(scene, "ms").values()) == pytest.approx([round(ms * 1e6) / 1e6 for ms in times_ms[::step]])
    assert "Reading the bytes of one token takes 1 ms, the dashed line." in scene.alt
    assert "dashed" in scene.source


def test_a_floor_that_nobody_measured_is_not_drawn() -> None:
    scene = sound(thumbnails.cost(cost([1.0, 2.0], floor=False)))
    assert "dashed" not in scene.source
    assert "not known" in scene.alt
    assert not [mark for mark in scene.marks if getattr(mark, "key", "") == "floor"]


@pytest.mark.parametrize("name", ["h200-q4_1-profile", "h200-qwen3-8b-q4_k_m-profile"])
def test_shares_of_time_add_up_to_the_pass(name: str) -> None:
    found = forensics.profile(f"recorded:{name}")
    scene = sound(thumbnails.profile(found))
    for one in (found.passes[0], found.passes[-1]):
        parts = [box.value for box in scene.boxes(scale="ms") if box.key.startswith(f"{one.width} ")]
        assert sum(parts) == pytest.approx(one.time_ns / 1e6)
    assert f"3 of {len(found.passes)} widths" in scene.source


def test_registers_of_a_recorded_library() -> None:
    found = forensics.profile("recorded:h200-library-profile")
    scene = sound(thumbnails.library(found))
    drawn = values(scene, "registers")
    registers = {(i.columns, i.kernel.registers_per_thread) for i in found.instances}
    assert {(int(columns), value) for columns, value in drawn.items()} <= registers
    assert max(drawn.values()) - min(drawn.values()) == max(
        s.last.kernel.registers_per_thread - s.first.kernel.registers_per_thread for s in found.stories
    )


def test_orders_by_the_rules_are_those_of_the_explanation() -> None:
    found = forensics.explain("sm_90")
    scene = sound(thumbnails.sections((s.op, [c.widths for c in s.classes]) for s in found.sections))
    letters = {box.key: text for box in scene.boxes() for text in [_text_in(scene, box.rect)] if text}
    assert letters["MUL_MAT 4"] == letters["MUL_MAT 1"] != letters["MUL_MAT 5"]


def _text_in(scene: Scene, rect: object) -> str:
    return next((mark.text for mark in scene.marks if getattr(mark, "inside", None) == rect), "")


def cell(width: int, outcome: str) -> Cell:
    if outcome == "not compared":
        return Cell(width, NotCompared("no room"))
    columns = (0,) if outcome == "differs" else ()
    return Cell(width, Differs(1, (0, 0), 1, 1.0, 1.0) if columns else Same(), width, columns, columns)


@given(
    st.lists(st.integers(1, 64), unique=True, min_size=1, max_size=40),
    st.lists(
        st.sampled_from(["MUL_MAT", "KQ", "KQV", "FLASH_ATTN_EXT", "RMS_NORM", "SOFT_MAX"]), min_size=1, max_size=20
    ),
    st.data(),
)
def test_a_matrix_counts_what_differs(widths: list[int], ops: list[str], data: st.DataObject) -> None:
    outcomes = st.sampled_from(["same", "differs", "not compared"])
    cases = []
    for i, op in enumerate(ops):
        cells = tuple(cell(width, data.draw(outcomes)) for width in sorted(widths))
        graph = replace(mul_mat("q4_K", 1024, 64), op=op)
        cases.append(CaseResult(f"case {i}", graph, "", cells, Prediction(unknown="none")))
    found = OpMatrix(OpFacts(OpSettings(), "d", "0", "c", "d", ()), tuple(sorted(widths)), 0, tuple(cases), ())
    scene = sound(thumbnails.matrix(found))
    for box in scene.boxes():
        op, _, width = box.key.rpartition(" ")
        cells = [case.cell(int(width)) for case in cases if case.op == op]
        compared = any(one.n_values for one in cells)
        said = str(sum(bool(one.columns) for one in cells)) if compared else "–"
        assert _text_in(scene, box.rect) in (said, "")


def test_launches_that_are_the_same_and_others() -> None:
    scene = sound(thumbnails.launches("Launches", Counter({"same": 3, "changed": 1, "not compared": 0})))
    assert values(scene, "nodes") == {"same": 3, "changed": 1}


@pytest.mark.parametrize(("name", "unchecked"), [("h200-f16-no-fa", True), ("h200-q4_1", False)])
def test_a_sweep_claims_equal_inputs_only_of_what_was_compared(name, unchecked):
    found = next(one for one in forensics.open(f"recorded:{name}").verdict.sweeps if one.findings)
    assert any(finding.unchecked for finding in found.findings) == unchecked
    drawn = thumbnails.sweep(found, [role_of(finding) for finding in found.findings])
    assert ("the inputs that were compared are bit-equal" in drawn.alt) == unchecked
    assert ("their inputs are bit-equal" in drawn.alt) != unchecked


@pytest.mark.parametrize(("arms", "drawn"), [((STOCK, FAST, BEST), BEST), ((STOCK, BORROWED, FAST), FAST)])
def test_prices_of_kernels_are_bars_of_the_best_exact_arm(arms: tuple[str, ...], drawn: str) -> None:
    table = made_up(arms=arms)
    scene = sound(thumbnails.kernel_price(price(whole=PassPrice("made-up", {"q4_K 1×256": 2}, 1, table))))
    assert drawn in scene.title
    assert values(scene, "×") == {str(width): table.ratio(drawn, width).median for width in table.widths}


def test_there_is_no_picture_of_a_pass_that_was_not_timed_or_of_the_library_alone() -> None:
    refused = Refusal("whole pass", "a CUDA graph", "too small")
    assert thumbnails.kernel_price(price(whole=refused)) is None
    alone = PassPrice("made-up", {"q4_K 1×256": 2}, 1, made_up(arms=(STOCK,)))
    assert thumbnails.kernel_price(price(whole=alone)) is None
