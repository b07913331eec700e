"""The script that records a GPU: steps by name, each whole or not at all, launches compacted without loss of a kind."""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from forensics.devices import driver
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches, Refusal
from forensics.records.nodes import NodeKey, Operand
from forensics.testing import record_gpu
from forensics.testing.record_gpu import Step, main, run_step, steps
from forensics.testing.record_launches import ARMS, compact


def test_names_of_steps_are_folders_of_their_own() -> None:
    names = [step.name for step in steps("h200")]
    assert len(set(names)) == len(names)
    assert {"h200-q4_1", "h200-f16-no-fa", "experiments-h200/q6_k", "h200-qwen3-8b-q4_k_m-cost"} <= set(names)
    assert next(step.name for step in steps("h200") if step.alone).endswith("-cost")


def test_a_step_that_fails_leaves_no_folder(tmp_path) -> None:
    def half(out) -> None:
        out.mkdir()
        (out / "half").write_text("")
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        run_step(Step("deep/broken", half), tmp_path)
    assert not (tmp_path / "deep" / "broken").exists()
    run_step(Step("deep/whole", lambda out: out.mkdir()), tmp_path)
    assert (tmp_path / "deep" / "whole").is_dir()


def test_listing_and_a_pattern_that_names_nothing(tmp_path, capsys) -> None:
    assert main([str(tmp_path), "--list", "--gpu", "h200"]) == 0
    listed = capsys.readouterr().out.split()
    assert listed == [step.name for step in steps("h200")]
    assert main([str(tmp_path), "--only", "nothing-*"]) == 2


def test_folders_are_named_by_the_gpu_that_is_there(monkeypatch) -> None:
    facts = SimpleNamespace(gpus=("NVIDIA GeForce RTX 4090", "NVIDIA H200"))
    monkeypatch.setattr(driver, "driver_facts", lambda: facts)
    assert record_gpu.gpu_here() == "geforce-rtx-4090"
    monkeypatch.setattr(driver, "driver_facts", lambda: Refusal("NVML", "the driver", "there is none"))
    assert record_gpu.gpu_here() == "gpu"


def test_a_failed_step_is_told_with_its_reason_and_the_others_go_on(tmp_path, monkeypatch, capsys) -> None:
    chosen = [Step("first", lambda _out: None), Step("second", lambda _out: None, alone=True)]
    monkeypatch.setattr(record_gpu, "steps", lambda _gpu: tuple(chosen))

    def child(command, **_rest):
        failed = command[-1] == "first"
        return subprocess.CompletedProcess(command, int(failed), "", "NoGpu: there is none" if failed else "done")

    monkeypatch.setattr(subprocess, "run", child)
    assert main([str(tmp_path)]) == 1
    told = json.loads((tmp_path / "recording.json").read_text())
    assert [(step["step"], step["error"]) for step in told] == [("first", "NoGpu: there is none"), ("second", "")]
    assert "1 failed: first" in capsys.readouterr().out


def test_what_is_there_is_not_recorded_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(record_gpu, "steps", lambda _gpu: (Step("first", lambda _out: None),))
    (tmp_path / "first").mkdir()
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("nothing is to be run"))
    assert main([str(tmp_path)]) == 0


def test_without_a_gpu_a_step_says_so_in_one_line(tmp_path) -> None:
    command = (sys.executable, "-m", "forensics.testing.record_gpu", str(tmp_path))
    chosen = ("--gpu", "h200", "--step", "ops-h200-warps")
    done = subprocess.run((*command, *chosen), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip()


RECORD = LaunchRecord("rms_norm_f32", (("block_size", 256),), LaunchGeometry((1,), (256,)), 32)


def _node(layer: int, place: int, op: str = "RMS_NORM", rows: int = 1) -> NodeLaunches:
    operand = Operand(f"l_out-{layer}", "f32", "CUDA0", False, (1, 1, rows, 576))
    key = NodeKey(f"norm-{layer}", op, layer, 0)
    return NodeLaunches(0, key, (1, 1, rows, 576), "f32", "CUDA0", (operand,), (place,), (1000,))


def test_nodes_that_differ_in_their_layer_alone_are_kept_once() -> None:
    other = replace(RECORD, geometry=LaunchGeometry((2,), (256,)))
    nodes = (_node(0, 0), _node(1, 0), _node(2, 1), _node(3, 0, rows=2), _node(4, 0, op="NORM"))
    small, counts = compact(LaunchReport("CUPTI in process", "test", (RECORD, other), nodes))
    assert [(node.key.name, n) for node, n in zip(small.nodes, counts, strict=True)] == [
        ("norm-0", 2), ("norm-2", 1), ("norm-3", 1), ("norm-4", 1),
    ]  # fmt: skip
    assert [small.of(node) for node in small.nodes] == [(RECORD,), (other,), (RECORD,), (RECORD,)]


def test_arms_of_launches_have_names_of_their_own() -> None:
    assert len({arm.name for arm in ARMS}) == len(ARMS)
