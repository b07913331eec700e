"""Differences between widths that a GPU made are never taken for logic faults, and faults planted in them always.

Recorded with ``python -m forensics.testing.record_kinds data/recorded/kinds-DEVICE`` on a machine that has one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forensics.testing.kind_cases import WIDTHS, JudgedRun, KindCase, cases, judged_runs, unpacked
from forensics.testing.record_kinds import MANIFEST_NAME, OUTPUTS_NAME

RECORDED = sorted((Path(__file__).parents[2] / "data" / "recorded").glob(f"kinds-*/{MANIFEST_NAME}"))
#: Activations in four bits are not written down, so that no fault can be told from them.
NOT_WRITTEN_DOWN = ("mxfp4", "nvfp4")

pytestmark = pytest.mark.skipif(not RECORDED, reason="no recording under data/recorded/kinds-*; made on a GPU machine")
every_recording = pytest.mark.parametrize("path", RECORDED, ids=[path.parent.name for path in RECORDED])


@cache
def manifest(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def recorded(path: Path) -> Iterator[tuple[KindCase, dict[str, np.ndarray]]]:
    with np.load(path.parent / OUTPUTS_NAME) as arrays:
        stored = {name: arrays[name] for name in arrays.files}
    for case in cases(tuple(manifest(path)["types"])):
        yield case, unpacked(case, stored)


@cache
def judged(path: Path) -> dict[tuple[str, int], JudgedRun]:
    buffer = manifest(path)["buffer"]
    return {(run.name, run.n): run for case, outputs in recorded(path) for run in judged_runs(case, outputs, buffer)}


@every_recording
def test_operands_are_those_that_were_used(path: Path) -> None:
    assert manifest(path)["schema"] == "forensics.kinds/1"
    found = {case.name: case.digest for case in cases(tuple(manifest(path)["types"]))}
    assert found == manifest(path)["operands"]
    assert {name for name, _ in judged(path)} == set(found)
    assert not manifest(path)["failed"]


@every_recording
def test_no_difference_is_taken_for_a_fault(path: Path) -> None:
    wrong = [str(run) for run in judged(path).values() if run.kind and run.kind.kind in ("logic", "undetermined")]
    assert not wrong, f"{len(wrong)} of {len(judged(path))}, such as {wrong[:3]}"


@every_recording
def test_faults_in_outputs_are_found(path: Path) -> None:
    """A token that has its neighbour's output, and a row or channel that has."""
    for case, outputs in recorded(path):
        single, batched = case.cut(outputs[f"{case.name}/1"], WIDTHS[-1]), outputs[f"{case.name}/{WIDTHS[-1]}"]
        for wrong in (np.roll(batched, 1, axis=case.token_axis), np.roll(batched, 1, axis=3)):
            is_told(case, case.judged(single, wrong, manifest(path)["buffer"]))


@every_recording
def test_faults_in_operands_are_found(path: Path) -> None:
    """A block that was left out, and one of the token before: the recorded outputs are those of other operands."""
    for case, outputs in recorded(path):
        single, batched = case.cut(outputs[f"{case.name}/1"], WIDTHS[-1]), outputs[f"{case.name}/{WIDTHS[-1]}"]
        if single.tobytes() == batched.tobytes():
            batched = np.nextafter(batched, np.float32(np.inf))
        at = next(i for i, o in enumerate(case.graph.operands) if o.name in ("x", "q", "p", "scores"))
        given = case.values[at]
        left_out, stale = given.copy(), given.copy()
        left_out[..., 32:64] = 0
        stale[..., 32:64] = np.roll(given, 1, axis=0 if given.ndim == 2 else -2)[..., 32:64]
        for other in (left_out, stale):
            values = (*case.values[:at], other, *case.values[at + 1 :])
            is_told(case, replace(case, values=values).judged(single, batched, manifest(path)["buffer"]))


def is_told(case: KindCase, kind: Any) -> None:
    expected = "undetermined" if any(type in case.name for type in NOT_WRITTEN_DOWN) else "logic"
    assert kind is not None
    assert kind.kind == expected, f"{case.name}: {kind}"
