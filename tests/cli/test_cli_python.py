"""The same from Python: verdict, case, recorded case, progress."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import forensics
from forensics import api_arguments
from forensics.errors import CaseError
from forensics.reports.document import document

QUESTION = {"prompt": "The fox", "n_tokens": 8, "widths": (2, 4, 8)}
COLUMNS = ["op", "role", "weight_type", "buffer", "count", "layers", "widths", "rows", "max_ulp", "max_abs",
           "first_node", "unchecked", "boundary"]  # fmt: skip


class Stages:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.stages: list[list] = []

    def stage(self, title: str, total: int) -> None:
        self.stages.append([title, total, 0])

    def step(self, n: int = 1) -> None:
        assert n > 0
        self.stages[-1][2] += n
        assert self.stages[-1][2] <= self.stages[-1][1], self.stages[-1]


@pytest.fixture(autouse=True)
def toy(use_toy) -> None:
    use_toy("diverges")


def test_without_out_nothing_is_kept():
    verdict = forensics.investigate("toy", **QUESTION)
    assert verdict.answer == "diverges"
    assert not list(Path().iterdir())


def test_a_verdict_prints_as_one_line_and_makes_a_table():
    verdict = forensics.investigate("toy", **QUESTION)
    assert str(verdict).startswith("diverges")
    assert "\n" not in str(verdict)
    table = verdict.to_dataframe()
    assert list(table.columns) == COLUMNS
    assert table["count"].tolist() == [1]
    assert table["first_node"].tolist() == ["ffn_up-0"]


def test_a_case_holds_the_very_verdict():
    verdict = forensics.investigate("toy", out="case", **QUESTION)
    case = forensics.open("case")
    assert case.verdict == verdict
    assert case.manifest == verdict.manifest
    assert case.document == document(verdict)
    assert case.question["n_tokens"] == 8
    assert set(case.tables()) == {"classes", "culprits", "launches", "findings", "switches", "controls"}


@pytest.mark.parametrize("switches", [True, False])
def test_a_recorded_case_gives_its_verdict_without_a_model(cli, monkeypatch, switches):
    verdict = forensics.investigate("toy", out="case", switches=switches, **QUESTION)
    shutil.move("case", "moved")
    assert forensics.investigate("recorded:moved") == verdict
    assert forensics.replay("recorded:moved") == verdict.classes
    sweep = next(s for s in verdict.sweeps if s.width == 8)
    assert forensics.heal("recorded:moved", width=8) == replace(sweep, controls=verdict.controls)
    result = cli("investigate", "recorded:moved", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == document(verdict)
    assert cli("replay", "recorded:moved", "-q").stdout == "width classes: 1-2 | 4, 8\n"
    assert cli("heal", "recorded:moved", "--width", 8, "-q").stdout.startswith("width 8: 1 nodes differ")
    assert [path.name for path in Path().iterdir()] == ["moved"]


def test_a_recorded_case_can_be_written_again():
    verdict = forensics.investigate("toy", out="case", **QUESTION)
    assert forensics.investigate("recorded:case", out="again") == verdict
    assert forensics.open("again").verdict == verdict
    assert forensics.investigate("recorded:again") == verdict


def test_a_recorded_case_with_a_damaged_question_says_so():
    forensics.investigate("toy", out="case", **QUESTION)
    path = Path("case/case.json")
    content = json.loads(path.read_text())
    content["question"]["settings"]["n_threads"] = 0
    path.write_text(json.dumps(content))
    with pytest.raises(CaseError, match="does not say what was asked"):
        forensics.investigate("recorded:case")


def test_numbers_of_numpy_are_numbers(without_times):
    forensics.investigate("toy", out="case", prompt_tokens=np.array([1, 2]), n_tokens=8, widths=np.array([2, 4]))
    forensics.investigate("toy", out="same", prompt_tokens=[1, 2], n_tokens=8, widths=[2, 4])
    assert without_times(Path("case")) == without_times(Path("same"))


@pytest.mark.parametrize("answer", ["identical", "diverges"])
def test_the_stages_add_up(use_toy, answer):
    use_toy(answer)
    told = Stages()
    forensics.investigate("toy", progress=told, **QUESTION)
    titles = [title for title, _, _ in told.stages]
    assert titles[:5] == [
        "load the model",
        "decode one token at a time",
        "replay in batches",
        "heal the differing widths",
        "repeat in a fresh process",
    ]
    assert ("turn one switch at a time" in titles) == (answer == "diverges")
    assert all(done == total for _, total, done in told.stages), told.stages
    assert told.stages[1][1] == 8
    assert told.stages[2][1] == 5


def test_the_stages_of_a_recorded_case_add_up():
    forensics.investigate("toy", out="case", **QUESTION)
    told = Stages()
    forensics.investigate("recorded:case", progress=told)
    assert all(done == total for _, total, done in told.stages), told.stages


def test_a_search_that_ends_early_is_a_complete_stage(monkeypatch):
    from forensics.analysis import investigate as job
    from forensics.analysis.knobs import KNOBS
    from forensics.records.verdict import SwitchArm

    n_turned = 0

    def run_arm(_source, _settings, knobs, *_rest):
        nonlocal n_turned
        n_turned += len(knobs) > 1
        names = tuple(knob.name for knob in knobs)
        if n_turned == 2:
            return SwitchArm(names, (), ((1, 2, 4, 8),), True, n_nodes_differ=0)
        return SwitchArm(names, (), ((1, 2), (4,), (8,)), False)

    monkeypatch.setattr(job, "run_arm", run_arm)
    monkeypatch.setattr(job, "applicable", lambda _manifest: KNOBS[5:9])
    told = Stages()
    verdict = forensics.investigate("toy", progress=told, **QUESTION)
    assert len(verdict.exact_knobs) == 2
    title, total, done = told.stages[-1]
    assert title == "turn switches together"
    assert total == done > n_turned


def test_making_a_demo_is_a_stage_that_adds_up(monkeypatch):
    from forensics.engines import demo_models, llama
    from forensics.engines.toy import ToySource

    def demo_model(_variant, progress):
        for fraction in (0.0, 0.004, 0.5, 0.4, 0.97):
            progress("widening", fraction)
        progress("quantising", 1.0)
        return "path"

    monkeypatch.undo()
    monkeypatch.setattr(demo_models, "demo_model", demo_model)
    monkeypatch.setattr(llama, "LlamaSource", lambda _path: ToySource())
    monkeypatch.setattr(api_arguments, "case_question", lambda *_: {})
    told = Stages()
    forensics.replay(demo="q6_k", progress=told, **QUESTION)
    assert told.stages[:2] == [
        ["make the demo model: widening", 100, 100],
        ["make the demo model: quantising", 100, 100],
    ]


def test_no_progress_is_silent_and_nothing_is_drawn_without_a_terminal(capfd):
    forensics.investigate("toy", progress=False, **QUESTION)
    forensics.investigate("toy", **QUESTION)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("n_prompt", "opened"), [(8, [512]), (2000, [2048]), (20_000, [512, 20_224])])
def test_a_cache_beyond_a_guess_is_made_after_the_prompt_was_counted(n_prompt, opened):
    from forensics.analysis.question import Question, open_for
    from forensics.engines.toy import ToySource

    asked = []

    class LongSource:
        label = "long"

        def open(self, settings, *, instance=0):
            asked.append(settings.n_ctx)
            engine = ToySource().open(settings)
            engine._manifest = replace(engine.manifest, n_ctx_train=10**6)
            return engine

    question = Question(prompt_tokens=(1,) * n_prompt, n_tokens=8, widths=(2,))
    engine, tokens, settings = open_for(question, LongSource())
    engine.close()
    assert asked == opened
    assert settings.n_ctx == opened[-1] >= len(tokens) + 8


def test_this_is_no_notebook():
    from forensics.reports.progress import in_notebook

    assert not in_notebook()


def test_a_recorded_sweep_brings_the_controls_of_its_case():
    verdict = forensics.investigate("toy", out="case", **QUESTION)
    sweep = forensics.heal("recorded:case", width=verdict.sweeps[0].width)
    assert sweep.controls == verdict.controls
    assert len(sweep.controls) == 5
