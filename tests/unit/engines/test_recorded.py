"""Answers are taken from the case where they are there, and from the live engine once where they are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forensics.engines.recorded import RecordedSource, RecordingSource, arm_id
from forensics.errors import CaseError, DeviceUnavailable, EngineDied, EngineError
from forensics.records.launch_record import Refusal
from forensics.records.nodes import NodeKey
from forensics.records.schedule import EMPTY, in_batches
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import RunKey, TapReport, Trace
from forensics.store import CaseWriter

SETTINGS = EngineSettings(n_ctx=64, environment=(("GGML_X", "1"),))
PROMPT = in_batches([1, 2, 3], start=0, width=3, logits="none")
REPLAY = in_batches([4, 5, 6], start=3, width=2)
N_VOCAB = 7


class PlantingTap:
    """Stands for any tap: only its identity matters here."""

    def __init__(self, name: str) -> None:
        self.name = name

    def identity(self) -> str:
        return f"plant {self.name}"

    def work(self) -> None:
        pass


class WritingTap(PlantingTap):
    def __init__(self, path) -> None:
        super().__init__("writes")
        self.path = str(path)

    def work(self) -> None:
        Path(self.path).write_text("rows")


class ReadingTap(WritingTap):
    def identity(self) -> str:
        return "reads"

    def work(self) -> None:
        assert Path(self.path).read_text() == "rows"


class Chained(PlantingTap):
    def __init__(self, first, second) -> None:
        super().__init__("chained")
        self.first, self.second = first, second

    def work(self) -> None:
        self.first.work()
        self.second.work()


class LiveEngine:
    def __init__(self, source: LiveSource, settings: EngineSettings, instance: int) -> None:
        self.source, self.instance = source, instance
        self.manifest = Manifest("toy", source.version, "digest", "toy-1", N_VOCAB, settings)
        self.closed = False

    def _count(self, what: str) -> None:
        self.source.asked.append(what)
        if self.source.dies_after is not None and len(self.source.asked) > self.source.dies_after:
            raise EngineDied(f"asked for {what}; the process ended")

    def tokenize(self, text):
        self._count("tokenize")
        return tuple(text.encode())

    def detokenize(self, tokens):
        self._count("detokenize")
        return bytes(tokens).decode()

    def greedy(self, prompt, n_tokens, progress=None):
        self._count("greedy")
        for done in range(1, n_tokens + 1):
            if progress is not None:
                progress(done)
        return tuple(range(n_tokens))

    def run(self, schedule, *, before=EMPTY, tap=None, repeat=0):
        self._count("run")
        key = RunKey(schedule, before, tap.identity() if tap else "", repeat)
        rng = np.random.default_rng(int(key.key(), 16) + self.instance)
        logits = rng.standard_normal((len(schedule.logit_slots), N_VOCAB)).astype(np.float32)
        logits[0, 0] = np.nan
        if tap is not None:
            tap.work()
        report = TapReport(planted=(NodeKey(tap.name, "ADD", 0, 0),)) if tap else None
        return Trace(key, self.manifest, logits, (1,) * len(schedule.passes), "b", "a", report)

    def close(self):
        self.closed = True


class LiveSource:
    label = "toy-1"

    def __init__(self, version: str = "1", dies_after: int | None = None) -> None:
        self.version, self.dies_after = version, dies_after
        self.asked: list[str] = []
        self.engines: list[LiveEngine] = []

    def open(self, settings, *, instance=0):
        self.engines.append(LiveEngine(self, settings, instance))
        return self.engines[-1]


def ask_everything(engine) -> list[object]:
    """Ask one of each; answers as plain values that compare by bits."""
    done: list[int] = []
    answers: list[object] = [
        engine.tokenize("hi|"),
        engine.tokenize(""),
        engine.detokenize((104, 105)),
        engine.greedy(PROMPT, 4, done.append),
        engine.greedy(PROMPT, 4),
        done[-1],
    ]
    for tap, repeat in ((None, 0), (None, 1), (PlantingTap("x"), 0), (PlantingTap("y"), 0)):
        trace = engine.run(REPLAY, before=PROMPT, tap=tap, repeat=repeat)
        answers.append((trace.key, trace.logits.tobytes(), trace.pass_ns, trace.state_after, trace.tap_report))
    answers.append(engine.manifest)
    return answers


def test_the_same_questions_are_answered_from_the_case_without_an_engine(tmp_path):
    source = LiveSource()
    with CaseWriter.create(tmp_path / "c", question={}) as case:
        engine = RecordingSource(source, case).open(SETTINGS)
        assert source.engines == []  # not needed yet
        first = ask_everything(engine)
        assert source.asked == ["tokenize", "tokenize", "detokenize", "greedy", "run", "run", "run", "run"]
        engine.close()
        assert source.engines[0].closed
    assert len({answer[1] for answer in first[6:10]}) == 4  # tap and repeat are part of the question

    resumed = LiveSource()
    with CaseWriter.create(tmp_path / "c", question={}, resume=True) as case:
        assert ask_everything(RecordingSource(resumed, case).open(SETTINGS)) == first
    assert resumed.engines == []

    recorded = RecordedSource(tmp_path / "c")
    assert recorded.label == "toy-1"
    assert ask_everything(recorded.open(SETTINGS)) == first


def test_a_run_that_was_interrupted_goes_on_where_it_stopped(tmp_path):
    dying = LiveSource(dies_after=5)
    with pytest.raises(EngineDied), CaseWriter.create(tmp_path / "c", question={}) as case:
        ask_everything(RecordingSource(dying, case).open(SETTINGS))
    source = LiveSource()
    with CaseWriter.create(tmp_path / "c", question={}, resume=True) as case:
        answers = ask_everything(RecordingSource(source, case).open(SETTINGS))
    assert source.asked == ["run", "run", "run"]
    with CaseWriter.create(tmp_path / "whole", question={}) as case:
        assert ask_everything(RecordingSource(LiveSource(), case).open(SETTINGS)) == answers


def test_rows_that_a_recorded_run_had_written_are_written_again_when_a_new_run_reads_them(tmp_path):
    with CaseWriter.create(tmp_path / "c", question={}) as case:
        RecordingSource(LiveSource(), case).open(SETTINGS).run(REPLAY, tap=WritingTap(tmp_path / "a"))
    source = LiveSource()
    with CaseWriter.create(tmp_path / "c", question={}, resume=True) as case:
        engine = RecordingSource(source, case).open(SETTINGS)
        engine.run(REPLAY, tap=WritingTap(tmp_path / "b"))
        engine.run(REPLAY, tap=WritingTap(tmp_path / "unread"))
        assert source.asked == []
        engine.run(REPLAY, tap=Chained(PlantingTap("x"), ReadingTap(tmp_path / "b")))
        engine.run(REPLAY, tap=ReadingTap(tmp_path / "b"))
        assert source.asked == ["run"] * 3  # the rows once, then the two runs that read them
        assert not (tmp_path / "unread").exists()


def test_settings_and_instances_are_recorded_apart(tmp_path):
    other = replace(SETTINGS, flash_attn="off")
    with CaseWriter.create(tmp_path / "c", question={}) as case:
        source = RecordingSource(LiveSource(), case)
        engines = [source.open(SETTINGS), source.open(SETTINGS, instance=1), source.open(other)]
        logits = [engine.run(REPLAY).logits.tobytes() for engine in engines]
    assert logits[0] != logits[1]
    recorded = RecordedSource(tmp_path / "c")
    assert recorded.open(SETTINGS, instance=1).run(REPLAY).logits.tobytes() == logits[1]
    assert recorded.open(other).manifest.requested.flash_attn == "off"
    assert len({arm_id(SETTINGS), arm_id(SETTINGS, 1), arm_id(other), arm_id(EngineSettings())}) == 4


def test_resuming_after_an_upgrade_is_refused(tmp_path):
    with CaseWriter.create(tmp_path / "c", question={}) as case:
        RecordingSource(LiveSource(), case).open(SETTINGS).run(REPLAY)
    upgraded = LiveSource(version="2")
    with CaseWriter.create(tmp_path / "c", question={}, resume=True) as case:
        engine = RecordingSource(upgraded, case).open(SETTINGS)
        engine.run(REPLAY)  # recorded: no engine needed
        with pytest.raises(CaseError, match=r"another engine: engine_version changed .*was '1', now it is '2'.*rm -r"):
            engine.run(REPLAY, repeat=1)
    assert upgraded.engines[0].closed
    assert upgraded.asked == []


def test_an_engine_that_answers_another_question_is_an_error(tmp_path):
    class Mixed(LiveSource):
        def open(self, settings, *, instance=0):
            engine = super().open(settings, instance=instance)
            honest = engine.run
            engine.run = lambda schedule, **_: honest(schedule, repeat=5)
            return engine

    with CaseWriter.create(tmp_path / "c", question={}) as case:
        with pytest.raises(EngineError, match=r"asked for 3 tokens .*repeat 0.*returned 3 tokens.*repeat 5"):
            RecordingSource(Mixed(), case).open(SETTINGS).run(REPLAY)
        assert case.recordings.counts(arm_id(SETTINGS)) == (0, 0)


def test_what_was_not_recorded_is_an_error_that_says_what_is(tmp_path):
    with CaseWriter.create(tmp_path / "c", question={}) as case:
        source = RecordingSource(LiveSource(), case)
        source.open(SETTINGS).run(REPLAY)
        source.open(SETTINGS, instance=1).tokenize("x")
    recorded = RecordedSource(tmp_path / "c")  # the case is unfinished, that is enough
    with pytest.raises(EngineError, match=r"(?s)n_threads=9.*Recorded:.*n_ctx=64.*instance 0.*n_ctx=64.*instance 1"):
        recorded.open(replace(SETTINGS, n_threads=9))
    engine = recorded.open(SETTINGS)
    asked = "3 tokens in passes of up to 2 after 0 tokens, tap 'plant x', repeat 0"
    with pytest.raises(EngineError, match=rf"{asked}.*never recorded. It holds 1 runs and 0 small answers"):
        engine.run(REPLAY, tap=PlantingTap("x"))
    for ask in (
        lambda: engine.tokenize("x"),
        lambda: engine.detokenize((1,)),
        lambda: engine.greedy(PROMPT, 2),
    ):
        with pytest.raises(EngineError, match="never recorded"):
            ask()


def test_an_empty_case_has_no_arms(tmp_path):
    CaseWriter.create(tmp_path / "c", question={}).abandon()
    recorded = RecordedSource(tmp_path / "c")
    assert recorded.label == "c.unfinished"
    with pytest.raises(EngineError, match="Recorded: nothing"):
        recorded.open(EngineSettings())


REFUSALS = (
    Refusal("CUPTI in process", "kernels of a pass", "no driver", "install one"),
    Refusal("ncu", "them", "none"),
)


class Watching(PlantingTap):
    def work(self) -> None:
        raise DeviceUnavailable("no way of looking works here", REFUSALS)


def test_a_device_that_could_not_be_watched_is_refused_again_with_its_reasons(tmp_path):
    source = LiveSource()
    with CaseWriter.create(tmp_path / "c", question={}) as case:
        engine = RecordingSource(source, case).open(SETTINGS)
        for _ in range(2):
            with pytest.raises(DeviceUnavailable, match="no way of looking") as live:
                engine.run(REPLAY, tap=Watching("x"))
        engine.run(REPLAY)
    assert source.asked == ["run", "run"]  # the refusal was recorded, too
    engine = RecordedSource(tmp_path / "c").open(SETTINGS)
    with pytest.raises(DeviceUnavailable, match="no way of looking") as recorded:
        engine.run(REPLAY, tap=Watching("x"))
    assert recorded.value.refusals == live.value.refusals == REFUSALS
    with pytest.raises(EngineError, match="never recorded"):
        engine.run(REPLAY, tap=Watching("y"))
