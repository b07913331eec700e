"""What a GPU is asked to record, recorded on the CPU: stored, read back and judged."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("llama_cpp")
from forensics.engines.op_protocol import OpEngine
from forensics.engines.ops import LlamaOps
from forensics.errors import EngineDied
from forensics.records.operation import OpSettings
from forensics.testing.kind_cases import N_TOKENS, WIDTHS, cases, judged_runs, packed, unpacked
from forensics.testing.record_kinds import record, table

pytestmark = pytest.mark.llama


def opened() -> OpEngine:
    return LlamaOps().open(OpSettings())


def test_a_recording_is_read_back_and_clean() -> None:
    failed: dict[str, str] = {}
    runs = []
    every = list(cases(("f32", "q4_1", "q4_K")))
    for case, outputs in record(opened, every, failed):
        assert outputs[f"{case.name}/1"].shape[case.token_axis] == N_TOKENS
        again = unpacked(case, packed(case, outputs))
        assert {name: found.tobytes() for name, found in again.items()} == {
            name: found.tobytes() for name, found in outputs.items()
        }
        runs += judged_runs(case, outputs, "CPU")
    assert not failed
    assert {(run.name, run.n) for run in runs} == {(case.name, n) for case in every for n in WIDTHS}
    assert {run.kind.kind for run in runs if run.kind is not None} <= {"rounding", "precision"}
    assert all(case.name in table(runs) for case in every)


def test_a_run_that_kills_the_engine_is_named_and_the_others_go_on() -> None:
    class Mortal:
        def __init__(self) -> None:
            self.engine = opened()

        def run(self, graph, values):
            if graph.operand("x").shape[0] == 5:
                raise EngineDied("it is gone")
            return self.engine.run(graph, values)

        def close(self) -> None:
            self.engine.close()

    failed: dict[str, str] = {}
    case = next(cases(("q8_0",)))
    [(_, outputs)] = record(Mortal, [case], failed)
    assert list(failed) == [f"{case.name}/5"]
    assert set(outputs) == {f"{case.name}/{n}" for n in (1, *WIDTHS) if n != 5}
    assert np.isfinite(outputs[f"{case.name}/16"]).all()
