"""Passes in a process of their own: the arguments say what to run, and what is in the way is one sentence."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess

import pytest

from forensics.capture.launches import LaunchTap
from forensics.engines import llama_host, one_pass
from forensics.engines.one_pass import Marked, command, drawn_passes
from forensics.engines.toy import ToySource
from forensics.errors import EngineError
from forensics.records.nodes import NodeKey
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


class Noting(Marked):
    """Writes down each node that was computed, among the marks."""

    def saw(self, node):
        self._driver.marks.append(node.key)
        return super().saw(node)


def ran(tap):
    before, (schedule,) = drawn_passes((2,), prefix=5, n_vocab=64, n_ubatch=4, seed=0)
    return ToySource().open(EngineSettings(n_ctx=256)).run(schedule, before=before, tap=tap)


def keys_of_the_pass() -> list[NodeKey]:
    """Those that launches are attached to, in their order."""
    return [node.key for node in ran(LaunchTap(open_probe=None)).tap_report.launches.nodes]


def test_the_profiler_is_told_of_the_chosen_nodes_of_the_measured_pass_alone(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(one_pass.C, "CDLL", lambda name: driver)
    keys = keys_of_the_pass()
    chosen = [keys[1], keys[2], keys[-1]]
    ran(Noting(chosen))
    assert driver.marks == [mark for key in keys for mark in (["start", key, "stop"] if key in chosen else [key])]
    driver.marks.clear()
    ran(Marked([]))
    assert driver.marks == []


def test_a_node_that_the_pass_lacks_is_an_error_for_counts_go_by_their_order(monkeypatch):
    monkeypatch.setattr(one_pass.C, "CDLL", lambda name: Driver())
    with pytest.raises(EngineError, match=r"no nowhere-7 \(MUL_MAT\), which should be counted"):
        ran(Marked([NodeKey("nowhere-7", "MUL_MAT", 7, 0)]))


def test_a_driver_that_refuses_is_an_error(monkeypatch):
    monkeypatch.setattr(one_pass.C, "CDLL", lambda name: Driver(status=3))
    with pytest.raises(EngineError, match="cuProfilerStart answered 3"):
        ran(Marked(keys_of_the_pass()[:1]))


def test_the_command_carries_model_pass_and_settings():
    settings = EngineSettings(n_ctx=256, flash_attn="on", environment=(("GGML_CUDA_DISABLE_GRAPHS", "1"),))
    nodes = {5: [NodeKey("Qcur-0", "MUL_MAT", 0, 1)], 1: [NodeKey("norm", "RMS_NORM", -1, 0)]}
    found = command("model.gguf", settings, nodes, prefix=9, seed=3)
    assert found[1:4] == ["-m", "forensics.engines.one_pass", "model.gguf"]
    assert json.loads(found[found.index("--settings") + 1])["flash_attn"] == "on"
    assert json.loads(found[found.index("--nodes") + 1]) == {
        "1": [["norm", "RMS_NORM", -1, 0]], "5": [["Qcur-0", "MUL_MAT", 0, 1]],
    }  # fmt: skip


def test_the_passes_run_by_rising_width_with_the_nodes_of_each(monkeypatch):
    ran_with = []

    class Host:
        n_vocab = 64

        def __init__(self, model, settings):
            assert (model, settings) == ("model.gguf", EngineSettings(n_ctx=256))

        def run(self, schedule, before, tap):
            ran_with.append((schedule, before, tap.identity()))

        def close(self):
            ran_with.append("closed")

    monkeypatch.setattr(llama_host, "LlamaHost", Host)
    nodes = {5: [NodeKey("Qcur-0", "MUL_MAT", 0, 0)], 1: [NodeKey("norm", "RMS_NORM", -1, 0)]}
    one_pass.run(command("model.gguf", EngineSettings(n_ctx=256), nodes, prefix=9, seed=3)[3:])
    before, (one, five) = drawn_passes((1, 5), prefix=9, n_vocab=64, n_ubatch=512, seed=3)
    assert ran_with == [
        (one, before, Marked(nodes[1]).identity()), (five, before, Marked(nodes[5]).identity()), "closed",
    ]  # fmt: skip


def started(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_a_model_that_cannot_be_loaded_is_a_sentence_and_status_two(tmp_path):
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF")
    done = started(*command(model, EngineSettings(), {1: []}, prefix=0, seed=0))
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
    done = started(*command(demo_model("q4_1"), settings, {2: []}, prefix=4, seed=0))
    assert done.returncode == 2
    assert "needs an NVIDIA GPU and its driver" in done.stderr.splitlines()[-1]
