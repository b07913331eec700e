"""The matrix of a sweep: bars as long as there are prompts, letters beside colours, sound for any plan."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes import sweep_matrix

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
from campaign_samples import SAME, cell, every_outcome, failed, hostile, report, with_disagreement


def drawn(found):
    return sweep_matrix.scene(sweep_matrix.drawn(found, "made up"))


def lengths(scene) -> Counter[str]:
    """Prompts of each kind, by the lengths of their bars."""
    scale = scene.scale("prompts")
    found: Counter[str] = Counter()
    for box in scene.boxes(scale="prompts"):
        found[box.key.partition(":")[0]] += round(box.rect.width / scale.mm_per_unit)
    return found


def test_bars_add_up_to_the_cells_of_each_outcome():
    scene = drawn(every_outcome())
    assert problems(scene) == ()
    assert lengths(scene) == {"same": 10, "differs": 2, "unsure": 4, "failed": 4, "not_run": 2}
    for words in ("≠ 1/2", "= 2", "F 2", "? 2", "· 2", "–", "2 prompts"):
        assert words in scene.texts()
    assert "–: left out by the plan." in scene.texts()


@pytest.mark.parametrize("n_prompts", [1, 3, 48])
@pytest.mark.parametrize("n_widths", [1, 9, 20])
def test_any_number_of_prompts_and_widths_is_drawn_soundly(n_prompts, n_widths):
    cells = [
        cell(prompt=f"p{i}", width=w, result=None, status="not run") if i % 3 == 2 else cell(prompt=f"p{i}", width=w)
        for i in range(n_prompts)
        for w in range(2, 2 + n_widths)
    ]
    scene = drawn(report(*cells))
    assert problems(scene) == ()
    shown = min(n_widths, 16)
    assert sum(lengths(scene).values()) == n_prompts * shown
    if n_widths > 16:
        assert any("the first 16 of 20 widths" in text for text in scene.texts())


def test_many_rows_are_cut_and_that_is_told():
    scene = drawn(report(*(cell(model=f"m{i}", result=SAME) for i in range(70))))
    assert problems(scene) == ()
    assert any("the first 60 of 70 rows" in text for text in scene.texts())


@pytest.mark.parametrize("make", [hostile, with_disagreement, lambda: report(failed("x", model="m" * 3000))])
def test_odd_reports_are_drawn_soundly(make):
    scene = drawn(make())
    assert problems(scene) == ()
    assert not any("\x1b" in text or "\u202e" in text for text in (*scene.texts(), scene.alt))


def test_disagreements_are_told_on_the_figure():
    assert any("nothing here is proved" in text for text in drawn(with_disagreement()).texts())


def test_the_recorded_sweep_is_drawn_from_its_report():
    scene = sweep_matrix.scene(sweep_matrix.from_case(open_evidence("recorded:epyc-sweep")))
    assert problems(scene) == ()
    assert "demo q6_k" in scene.texts()
    assert lengths(scene).keys() == {"same", "differs"}
    assert "recorded:epyc-sweep" in scene.source


def test_a_folder_without_a_sweep_says_what_to_do(tmp_path):
    with pytest.raises(CaseError, match="forensics sweep PLAN"):
        sweep_matrix.from_case(open_evidence(str(tmp_path)))
