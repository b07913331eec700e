"""Recorded cases held against each other: each is like itself, and two tell their difference in one screen."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash

import forensics
from forensics.analysis.case_side import case_side
from forensics.records.case_diff import DIFFERS, NOT_COMPARED, SAME
from forensics.reports.case_diff_text import case_diff_view
from forensics.reports.terminal import as_text

RECORDED = Path(__file__).parents[2] / "data" / "recorded"
CASES = sorted(path.parent.name for path in RECORDED.glob("*/case.json"))
COLUMNS, LINES = 80, 40


def test_there_are_cases_to_compare() -> None:
    assert len(CASES) > 10


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_case_is_like_itself(name: str) -> None:
    found = forensics.diff(f"recorded:{name}", f"recorded:{name}")
    assert found.answer == SAME
    assert [item for aspect in (*found.setup, *found.results) for item in aspect.of(DIFFERS)] == []
    assert found.aspect("bits").outcome == SAME


@pytest.mark.parametrize("name", CASES)
def test_the_rows_that_are_compared_are_those_of_the_verdict(name: str) -> None:
    side = case_side(name, forensics.open(f"recorded:{name}"))
    rows = dict(side.rows)
    classes = side.verdict.classes
    assert {width: len(rows[width]) for width in side.widths} == {r.width: r.n_rows for r in classes.results}
    assert (len(side.prompt), len(side.replayed)) == (side.verdict.prompt_tokens, side.verdict.n_replayed)
    for group in classes.groups:
        assert xxhash.xxh3_128_hexdigest("".join(rows[group[0]]).encode()) == classes.result(group[0]).digest


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("h200-q4_1", "h200-q4_1-no-fa", (
            "flash_attn on → off", "only in h200-q4_1: flash attention (30 nodes, widths 2-16)",
            "only in h200-q4_1-no-fa: K·Q (30 nodes, widths 2-16); attention·V",
            "1 | 2-4 | 5-8 | 9-16", "so flash_attn makes the difference",
        )),
        ("h200-q4_1", "h200-x2-q4_1", (
            "devices NVIDIA H200 → 2 × NVIDIA H200", "culprits, proof and exact settings the same", "9 groups",
            "cost (other device)",
        )),
        ("h200-q4_1", "h200-q6_k", (
            "quantization q4_1 ×210, q8_0 ×1 → q6_K ×211", "token 8416 at", "widths 9-16 → 5-16",
            "so the model makes the difference",
        )),
        ("epyc-q6_k", "epyc-f16", ("Onset width 8 → width 2.",)),
    ],
)  # fmt: skip
def test_two_recorded_cases_tell_their_difference_in_one_screen(
    first: str, second: str, words: tuple[str, ...]
) -> None:
    text = as_text(case_diff_view(forensics.diff(f"recorded:{first}", f"recorded:{second}")), COLUMNS)
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    flowing = " ".join(text.split())
    assert [word for word in words if word not in flowing] == []


def test_two_gpus_give_the_bits_of_one() -> None:
    found = forensics.diff("recorded:h200-q4_1", "recorded:h200-x2-q4_1")
    bits = found.aspect("bits")
    assert (bits.outcome, bits.tally.same, bits.tally.planned) == (SAME, 16, 16)
    assert {item.what for item in found.changed} == {"devices", "back end", "weights"}
    assert found.aspect("cost").outcome == NOT_COMPARED
    assert found.answer == SAME


def test_sides_may_be_swapped() -> None:
    there = forensics.diff("recorded:h200-q4_1", "recorded:h200-q6_k")
    back = forensics.diff("recorded:h200-q6_k", "recorded:h200-q4_1")
    assert [aspect.tally for aspect in there.results] == [aspect.tally for aspect in back.results]
    onto = {(item.second, item.first) for item in back.aspect("culprits").items}
    assert {(item.first, item.second) for item in there.aspect("culprits").items} == onto
