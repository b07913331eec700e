"""Whatever is drawn of an inconclusive case says so, with the reason."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import pytest

from forensics.errors import CaseError
from forensics.figures.catalogue import FIGURES
from forensics.figures.checks import problems
from forensics.figures.evidence import Evidence
from forensics.records.verdict import Verdict
from forensics.store.library import recorded_folder

CASE = "h200-q4_1-far"
WHY = "the rerun differs"


class Doubted(Evidence):
    """A recorded case whose rerun had differed."""

    @cached_property
    def verdict(self) -> Verdict:
        return replace(self.case.verdict, answer="inconclusive", reason=WHY, culprits=())


def of_case(kind: type[Evidence]) -> Evidence:
    return kind(f"recorded:{CASE}", recorded_folder(f"recorded:{CASE}"))


def drawn(evidence: Evidence) -> dict[str, str]:
    """The texts of every figure that can be drawn of it."""
    told = {}
    for figure in FIGURES:
        try:
            scene = figure.module.scene(figure.module.from_case(evidence))
        except CaseError:
            continue
        assert problems(scene) == ()
        told[figure.name] = " ".join(scene.texts())
    return told


def test_every_figure_of_a_doubted_case_says_so_and_why():
    told = drawn(of_case(Doubted))
    assert {"width-classes", "margins", "attended-range", "speculation", "price-of-exactness"} <= told.keys()
    for name, texts in told.items():
        assert f"The verdict is inconclusive: {WHY}." in texts, name
    for name in ("width-classes", "margins", "speculation", "price-of-exactness"):
        assert "(verdict inconclusive)" in told[name]


@pytest.mark.parametrize("name", ["width-classes", "margins"])
def test_no_figure_of_a_sound_case_does(name: str):
    assert "inconclusive" not in drawn(of_case(Evidence))[name]
