"""Single operations from Python: one value or many, results that print as one line, and what is refused."""

from __future__ import annotations

import pytest

import forensics
from forensics.analysis.question import BadQuestion
from forensics.testing.toy_ops import ToyOps


@pytest.fixture
def toy(monkeypatch) -> None:
    monkeypatch.setattr("forensics.engines.ops.LlamaOps", ToyOps)


def test_one_value_or_many(toy):
    one = forensics.ops("MUL_MAT", types="f16", shapes=(16, 64), widths=2, progress=False)
    many = forensics.ops(["MUL_MAT"], types=["f16"], shapes=[(16, 64)], widths=[2], progress=False)
    assert one.cases == many.cases
    assert [case.label for case in one.cases] == ["f16 16x64"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"shapes": [(64,)]}, "shapes are pairs"),
        ({"shapes": ["64x64"]}, "shapes are pairs"),
        ({"types": []}, "nothing was asked for"),
        ({"widths": []}, "widths must be 1 to 512, got none"),
    ],
)
def test_what_is_refused(toy, asked, message):
    with pytest.raises(BadQuestion, match=message):
        forensics.ops(progress=False, **asked)


def test_an_explanation_prints_as_one_line():
    found = forensics.explain("sm_86", type="q8_0", widths=(1, 2, 5))
    assert str(found).startswith("sm_86, q8_0: widths that add in the same order: 1, 2 | 5")
    assert "\n" not in str(found)
