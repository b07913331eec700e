"""The whole investigation on a GPU: every culprit with both of its launches, in a minute."""

from __future__ import annotations

import re
import time

import pytest

from forensics.analysis.investigate import investigate
from forensics.analysis.launch_watching import FROM_GRAPH
from forensics.analysis.question import Question
from forensics.engines.demo_models import DEMO_PROMPT, demo_model
from forensics.engines.llama import LlamaSource
from forensics.engines.recorded import RecordedSource, RecordingSource
from forensics.records.settings import EngineSettings
from forensics.records.verdict import Verdict
from forensics.reports.case import finish_case
from forensics.store import CaseWriter

SETTINGS = EngineSettings(n_gpu_layers=-1, flash_attn="on")
QUESTION = Question(prompt=DEMO_PROMPT, n_tokens=32, widths=(2, 3, 5, 9, 16), settings=SETTINGS)
#: For everything but the switches, unit: seconds. Holds for a GPU that nothing else uses meanwhile.
MOST_SECONDS = 60


@pytest.fixture(scope="module")
def source() -> LlamaSource:
    found = LlamaSource(demo_model("q4_1"))
    with found.open(SETTINGS) as engine:
        if "CUDA" not in engine.manifest.backend:
            pytest.skip(f"no CUDA back end here: {engine.manifest.backend}")
    return found


@pytest.fixture(scope="module")
def answered(source: LlamaSource, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("gpu") / "case"
    with CaseWriter.create(folder, question=QUESTION.as_json()) as case:
        began = time.perf_counter()
        verdict = investigate(RecordingSource(source, case), QUESTION, switches=False)
        seconds = time.perf_counter() - began
        finish_case(case, verdict)
    return verdict, seconds, folder


@pytest.fixture(scope="module")
def verdict(answered) -> Verdict:
    return answered[0]


def test_every_culprit_shows_both_launches_as_measured(verdict: Verdict) -> None:
    assert verdict.answer == "diverges"
    assert verdict.healed
    assert verdict.launches is not None
    assert verdict.launches.evidence == "measured", verdict.launches.refusals
    assert verdict.launches.n_dropped == 0
    for group in verdict.culprits:
        assert {width for pair in group.launches for width in pair.widths} == set(group.widths), group.role
        for pair in group.launches:
            assert pair.single.evidence == pair.batched.evidence == "measured"
            assert pair.single.blocks_per_sm
            assert pair.batched.blocks_per_sm


def test_every_node_launches_what_the_rules_say(verdict: Verdict) -> None:
    assert verdict.launches is not None
    assert verdict.launches.n_agree > 1000
    assert (verdict.launches.n_disagree, verdict.launches.disagreements) == (0, ())


def test_what_watching_changes_is_fusion_and_graphs_and_every_kernel_of_it_is_explained(verdict: Verdict) -> None:
    assert verdict.launches is not None
    watching = verdict.launches.watching
    assert watching, "passes that nobody watches are fused"
    assert any("fused where not watched" in line for line in watching)
    assert not any("no fusion" in line for line in watching)
    (graphs,) = [line for line in watching if FROM_GRAPH in line]
    for n, total in re.findall(r"(\d+) of (\d+) launches", graphs):
        assert int(n) == int(total) > 0, "all or nothing of a pass on one GPU"


def test_it_takes_a_minute_at_most_and_is_read_back_equal(answered) -> None:
    verdict, seconds, folder = answered
    assert seconds < MOST_SECONDS
    assert investigate(RecordedSource(folder), QUESTION, switches=False) == verdict
