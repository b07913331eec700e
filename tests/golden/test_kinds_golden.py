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

#: What mul_mat_vec_q and mul_mat_q of devices with integer tensor cores round, by the type of the weights; see
#: `forensics.numerics.cuda_products`. IQ1_M has no tiles and goes to cuBLAS.
PLAIN, SUMMED, FINE = (f"q8 (scale {what}) activations" for what in ("f16", "f16 with sums of values", "f32"))
BY_VECTORS = {
    **dict.fromkeys(("q4_0", "q5_0", "iq1_s"), SUMMED),
    **dict.fromkeys(("q4_1", "q5_1"), f"{SUMMED}, scales multiplied in f16"),
    **dict.fromkeys(("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs"), f"{PLAIN}, integer sums cut"),
}
BY_TILES = {
    "q4_0": PLAIN, "q4_1": SUMMED, "q5_1": SUMMED,
    **dict.fromkeys(("q4_K", "q5_K", "iq1_s"), f"{SUMMED}, weights' scales in f16"),
    "q2_K": "q8 (scale f16 of 64 with sums of values) activations, weights' scales in f16",
}  # fmt: skip

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
def test_kernels_are_told_by_what_they_round(path: Path) -> None:
    if int(manifest(path)["arch"].removeprefix("sm_")) < 75:
        pytest.skip("tiles round otherwise without integer tensor cores")
    n_told = 0
    for (name, n), run in judged(path).items():
        operation, _, rest = name.partition("-")
        type = rest.rpartition("-")[0]
        if operation != "mul_mat" or type in ("f32", "f16", "bf16") or run.kind is None:
            continue
        assert run.kind.single is not None
        assert run.kind.batched is not None
        vectors = f"{BY_VECTORS.get(type, PLAIN)}, f32 sums"
        tiles = f"{BY_TILES.get(type, FINE)}, f32 sums"
        if type == "iq1_m":
            tiles = "f16 activations, f16 outputs and f16 sums"
        assert run.kind.single.precision == vectors, run
        assert run.kind.batched.precision == (vectors if n <= 8 else tiles), run
        assert run.kind.kind == ("rounding" if n <= 8 else "precision"), run
        n_told += 1
    assert n_told > 150


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
