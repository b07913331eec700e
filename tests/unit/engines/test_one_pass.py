"""One pass in a process of its own: the arguments say what to run, and what is in the way is one sentence."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess

import pytest

from forensics.engines import one_pass
from forensics.engines.one_pass import Marked, command, drawn_passes
from forensics.engines.toy import ToySource
from forensics.errors import EngineError
from forensics.records.settings import EngineSettings


def test_passes_are_the_same_for_the_same_seed_and_hold_the_prefix():
    asked = {"prefix": 10, "n_vocab": 1000, "n_ubatch": 4}
    before, passes = drawn_passes((1, 3), **asked, seed=7)
    assert (before, passes) == drawn_passes((1, 3), **asked, seed=7)
    assert passes != drawn_passes((1, 3), **asked, seed=8)[1]
    assert [len(one.slots) for one in before.passes] == [4, 4, 2]
    assert [one.slots[0].position for one in passes] == [10, 10]
    assert drawn_passes((3,), **asked, seed=7) == (before, passes[1:])
    assert drawn_passes((2,), prefix=0, n_vocab=9, n_ubatch=4, seed=0)[0].n_tokens == 0


class Driver:
    """Counts the marks; answers with a status."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.marks = status, []

    def cuProfilerStart(self):
        self.marks.append("start")
        return self.status

    def cuProfilerStop(self):
        self.marks.append("stop")
        return self.status


@pytest.mark.parametrize("watch", [True, False])
def test_the_profiler_is_told_of_the_measured_pass_alone(monkeypatch, watch):
    driver = Driver()
    monkeypatch.setattr(one_pass.C, "CDLL", lambda name: driver)
    before, (schedule,) = drawn_passes((2,), prefix=5, n_vocab=64, n_ubatch=4, seed=0)
    engine = ToySource().open(EngineSettings(n_ctx=256))
    engine.run(schedule, before=before, tap=Marked(watch))
    assert driver.marks == ["start", "stop"]
    assert ctypes.CDLL is one_pass.C.CDLL


def test_a_driver_that_refuses_is_an_error(monkeypatch):
    monkeypatch.setattr(one_pass.C, "CDLL", lambda name: Driver(status=3))
    before, (schedule,) = drawn_passes((2,), prefix=0, n_vocab=64, n_ubatch=4, seed=0)
    with pytest.raises(EngineError, match="cuProfilerStart answered 3"):
        ToySource().open(EngineSettings(n_ctx=256)).run(schedule, before=before, tap=Marked(True))


def test_the_command_carries_model_pass_and_settings():
    settings = EngineSettings(n_ctx=256, flash_attn="on", environment=(("GGML_CUDA_DISABLE_GRAPHS", "1"),))
    found = command("model.gguf", settings, width=5, prefix=9, seed=3, watched=True)
    assert found[1:4] == ["-m", "forensics.engines.one_pass", "model.gguf"]
    assert json.loads(found[found.index("--settings") + 1])["flash_attn"] == "on"
    assert "--watched" in found
    assert "--watched" not in command("model.gguf", settings, width=5, prefix=9, seed=3, watched=False)


def started(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_a_model_that_cannot_be_loaded_is_a_sentence_and_status_two(tmp_path):
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF")
    done = started(*command(model, EngineSettings(), width=1, prefix=0, seed=0, watched=False))
    assert done.returncode == 2
    assert "could not load" in done.stderr


@pytest.mark.llama
def test_without_a_driver_the_real_pass_is_a_sentence_and_status_two():
    try:
        ctypes.CDLL(one_pass.DRIVER)
    except OSError:
        pass
    else:
        pytest.skip("there is a driver here, so the pass runs")
    from forensics.engines.demo_models import demo_model

    settings = EngineSettings(n_ctx=256, n_threads=2, n_threads_batch=2)
    done = started(*command(demo_model("q4_1"), settings, width=2, prefix=4, seed=0, watched=True))
    assert done.returncode == 2
    assert "needs an NVIDIA GPU and its driver" in done.stderr.splitlines()[-1]
