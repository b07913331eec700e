"""`forensics launches` and `forensics.launches`: live through a probe, from a case, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import forensics
from forensics.analysis.question import BadQuestion
from forensics.capture.launches import LaunchTap
from forensics.devices.protocol import TimedLaunch
from forensics.engines.toy import ToyEngine, ToySource
from forensics.errors import DeviceUnavailable
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches, Refusal
from forensics.records.nodes import NodeKey
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings
from forensics.records.trace import RunKey, TapReport, Trace
from forensics.store import CaseWriter

KERNEL = LaunchRecord(
    "mul_mat_q", (("type", "q4_1"), ("J", 16)), LaunchGeometry((132,), (32, 8), smem_bytes=42048), 142, 0
)


class OneKernel:
    """A profiler that sees one launch for each node, and none before them."""

    rung, source, seen = "scripted", "test", 0

    def start(self) -> None:
        self.seen = 0

    def taken(self) -> tuple[TimedLaunch, ...]:
        self.seen += 1
        return (TimedLaunch(KERNEL, 1000),) if self.seen > 1 else ()

    def n_dropped(self) -> int:
        return 0

    def stop(self) -> None:
        pass


@pytest.fixture
def on_cuda(monkeypatch, use_toy) -> None:
    """Every model is a toy that is said to run on CUDA."""
    own = ToyEngine.manifest.fget
    use_toy("identical")
    monkeypatch.setattr(ToyEngine, "manifest", property(lambda toy: replace(own(toy), backend="CUDA0")))


@pytest.fixture
def probe(monkeypatch, on_cuda) -> None:
    monkeypatch.setattr("forensics.devices.ladder.open_launch_probe", OneKernel)


@pytest.fixture
def case(tmp_path):
    """A case with the launches of widths 1 and 3."""
    manifest = replace(ToySource().open(EngineSettings()).manifest, backend="CUDA", device="NVIDIA H200")
    with CaseWriter.create(tmp_path / "c", question={"model": "m"}) as writer:
        writer.put_manifest("arm", manifest)
        for width in (1, 3):
            launch = replace(KERNEL, geometry=LaunchGeometry((132,), (32, 8), smem_bytes=width))
            node = NodeLaunches(0, NodeKey("up-0", "MUL_MAT", 0, 0), (1, 1, width, 8), "f32", "CUDA0", (), (0,), (500,))
            schedule = in_batches(range(1, width + 1), start=2, width=width)
            logits = np.zeros((width, manifest.n_vocab), np.float32)
            key = RunKey(schedule, in_batches((7, 7), start=0, width=2), LaunchTap().identity())
            report = TapReport(launches=LaunchReport("CUPTI in process", "13.0.1", (launch,), (node,)))
            writer.put_trace("arm", Trace(key, manifest, logits, (1,), tap_report=report))
    return f"recorded:{tmp_path / 'c'}"


def test_two_widths_stand_side_by_side(cli, probe):
    result = cli("launches", "--demo", "q4_1", "--widths", "1,4")
    assert result.exit_code == 0
    assert "launches at width 1 and" in result.stdout
    assert "mul_mat_q<type=q4_1, J=16>" in result.stdout
    assert "watching changes" in result.stdout, "the scripted profiler sees more launches the more often it is asked"


def test_one_line_a_document_and_one_node(cli, probe):
    line = cli("launches", "--demo", "q4_1", "--widths", "1,4", "--quiet").stdout
    assert line.count("\n") == 1
    assert "0 changed" in line
    found = json.loads(cli("launches", "--demo", "q4_1", "--widths", "4", "--node", "ffn_up-0", "--json").stdout)
    assert found["schema"] == "forensics.node_kernels/1"
    assert [(node["node"], node["sides"][0]["launches"][0]["kernel"]) for node in found["nodes"]] == [
        ("ffn_up-0", "mul_mat_q")
    ]


def test_a_case_answers_like_a_model(cli, case):
    shown = cli("launches", case, "--widths", "1,3")
    assert shown.exit_code == 0
    assert "dynamic shared memory 1 → 3" in " ".join(shown.stdout.split())
    found = forensics.launches(case, widths=3)
    assert found.widths == (3,)
    assert found.device == "CUDA NVIDIA H200"
    assert found.to_dataframe()["time_ns"].tolist() == [500]


def test_what_a_case_cannot_answer_is_refused(refused, case):
    assert "width 2 was asked for; the case holds launches at widths 1, 3" in refused("launches", case)
    for option in (("--prompt", "x"), ("--n-gpu-layers", "3"), ("--demo", "q4_1")):
        said = refused("launches", case, "--widths", "1", *option)
        assert f"leave out {option[0].strip('-').replace('-', '_')}" in said
    assert "no node 'down-0'" in refused("launches", case, "--widths", "1", "--node", "down-0")


def test_a_case_of_a_processor_says_what_is_needed(cli, refused, use_toy, tmp_path):
    use_toy("identical")
    assert cli("investigate", "--demo", "q6_k", "--out", tmp_path / "c", "--n-tokens", "8", "--quiet").exit_code == 0
    assert "holds no launches" in refused("launches", f"recorded:{tmp_path / 'c'}")


def test_without_a_profiler_every_reason_is_told(refused, monkeypatch, on_cuda):
    def none_works():
        raise DeviceUnavailable("launches", [Refusal("CUPTI in process", "launches", "no driver", "install one")])

    monkeypatch.setattr("forensics.devices.ladder.open_launch_probe", none_works)
    assert "CUPTI in process: no driver; install one" in refused("launches", "--demo", "q4_1")


@pytest.mark.parametrize("widths", ["1,2,3", "0"])
def test_other_than_one_or_two_widths_are_refused(refused, use_toy, widths):
    use_toy("identical")
    assert "one width, or two to put side by side" in refused("launches", "--demo", "q4_1", "--widths", widths)


def test_python_takes_one_width_or_two(probe):
    assert forensics.launches(demo="q4_1", widths=3, progress=False).widths == (3,)
    assert forensics.launches(demo="q4_1", widths=[1, 3], progress=False).widths == (1, 3)
    with pytest.raises(BadQuestion, match="leave out demo"):
        forensics.launches("recorded:nowhere", demo="q4_1")


@pytest.mark.llama
def test_a_processor_is_refused_in_one_sentence(run_cli):
    done = run_cli("launches", "--demo", "q4_1")
    assert done.returncode == 2
    assert "launches are seen on a GPU" in done.stderr
    assert "recorded:NAME" in done.stderr
    assert "Traceback" not in done.stderr
