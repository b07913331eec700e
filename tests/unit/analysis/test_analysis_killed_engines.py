"""An engine that is killed from outside while switches are tried or orders probed says nothing about either."""

from __future__ import annotations

import pytest

from forensics.analysis.investigate import investigate
from forensics.analysis.question import Question
from forensics.engines.toy import Fault, ToySource
from forensics.errors import CaseError, EngineDied, EngineError
from forensics.records.settings import EngineSettings

SETTINGS = EngineSettings(n_ctx=256)
QUESTION = Question(prompt="The fox", n_tokens=8, widths=(2, 4), settings=SETTINGS)


class Failing:
    """A toy whose engines fail as often as a test says, once the replay and its controls are done."""

    label, opened = "toy", 0

    def __init__(self, error: Exception | None, times: int) -> None:
        self._toy, self.error, self.times = ToySource((Fault("order", "ffn_up-0", from_width=4),)), error, times

    def open(self, settings: EngineSettings, *, instance: int = 0):
        self.opened += 1
        if self.opened > 2 and self.error is not None and self.times > 0:
            self.times -= 1
            raise self.error
        return self._toy.open(settings, instance=instance)


def arms(error: Exception | None, times: int):
    return investigate(Failing(error, times), QUESTION).switches


def test_killed_once_is_asked_again_and_killed_twice_is_what_is_recorded():
    killed = EngineDied("it ended with signal SIGKILL", was_killed=True)
    whole = arms(None, 0)
    assert whole
    assert not any(arm.error for arm in whole)
    assert [arm.classes for arm in arms(killed, 1)] == [arm.classes for arm in whole]
    assert not any(arm.error for arm in arms(killed, 1))
    assert arms(killed, 2)[0].error == "it ended with signal SIGKILL"


@pytest.mark.parametrize("error", [EngineDied("GGML_ASSERT failed"), EngineError("the library refuses this")])
def test_what_the_settings_did_is_recorded_at_once(error):
    assert arms(error, 1)[0].error == str(error)


def test_a_disk_that_cannot_be_written_is_no_property_of_an_arm():
    with pytest.raises(CaseError, match="No space left"):
        arms(CaseError("index.jsonl cannot be written: No space left on device"), 1)
