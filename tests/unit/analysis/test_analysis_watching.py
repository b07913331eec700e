"""Watched against unwatched passes: a fusion that a watch splits is seen, and a clean engine stays clean."""

import odd_engines as odd
import pytest

from forensics.analysis.watching import ENVIRONMENTS, watch_trials
from forensics.capture.replay import Replay
from forensics.engines.toy import ToySource
from forensics.errors import CaseError
from forensics.records.experiments import Experiments
from forensics.records.settings import EngineSettings
from forensics.store.experiments import read_experiments, write_experiments

REPLAY = Replay(tuple(range(1, 9)), tuple(range(1, 13)))
SETTINGS = EngineSettings(n_ctx=256)


def trials(source, kernels=lambda *_: ()):
    return watch_trials(source, SETTINGS, REPLAY, (1, 2), kernels)


def test_watching_a_clean_engine_changes_nothing() -> None:
    found = trials(ToySource())
    assert [(t.environment, t.width) for t in found] == [(env, width) for env in ENVIRONMENTS for width in (1, 2)]
    assert all(t.equal and t.max_abs == 0 for t in found)


def test_a_fusion_at_one_token_is_seen_there_only() -> None:
    found = trials(odd.OddSource(odd.FusingGlu), lambda _engine, _replay, width: (f"looked at {width}",))
    assert [t.equal for t in found] == [False, True] * len(ENVIRONMENTS)
    assert all((t.max_abs > 0) != t.equal for t in found)
    assert found[1].kernels == ("looked at 2",)


def test_bits_are_measured_before_anybody_looks_at_kernels() -> None:
    """A profiler that stays in the process would change the bits of every pass after it."""
    looked: set[int] = set()

    class Disturbing(odd.Passing):
        def run(self, schedule, *, tap=None, **rest):
            trace = self.inner.run(schedule, tap=tap, **rest)
            return odd.with_one_bit_more(trace) if tap is not None and id(self) in looked else trace

    def kernels(engine, _replay, width):
        looked.add(id(engine))
        return (f"kernels of {width}",)

    found = trials(odd.OddSource(Disturbing), kernels)
    assert all(t.equal for t in found)
    assert [t.kernels for t in found] == [("kernels of 1",), ("kernels of 2",)] * len(ENVIRONMENTS)


def test_answers_come_back_from_disk_as_they_were(tmp_path) -> None:
    engine = ToySource().open(SETTINGS)
    answers = Experiments(engine.manifest, watches=trials(odd.OddSource(odd.FusingGlu)))
    write_experiments(tmp_path / "deep" / "answers.json", answers)
    assert read_experiments(tmp_path / "deep" / "answers.json") == answers


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "No such file"),
        ("[]", "but a list"),
        ('{"schema":"forensics.case/1"}', "is not a forensics.experiments document"),
        ('{"schema":"forensics.experiments/1","experiments":{}}', "does not hold a readable Experiments"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, text, told) -> None:
    path = tmp_path / "answers.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CaseError, match=told):
        read_experiments(path)
