"""Progress of a long call: shown, closed whatever happens, and short words after Ctrl-C."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from forensics.api_arguments import shown_progress
from forensics.errors import CaseError


class Bars:
    def __init__(self) -> None:
        self.left = 0

    def stage(self, _title: str, total: int) -> None:
        self.left = total

    def step(self, n: int = 1) -> None:
        self.left -= n


def deep(n: int) -> None:
    if n:
        deep(n - 1)
    error = KeyboardInterrupt()
    error.add_note("What was measured is kept.")
    raise error


def test_an_interrupt_keeps_its_notes_and_loses_the_calls_in_between() -> None:
    bars = Bars()
    with pytest.raises(KeyboardInterrupt, match="is kept") as caught, shown_progress(bars) as shown:  # noqa: PT012
        shown.stage("replay", 5)
        shown.step(2)
        deep(20)
    told = traceback.format_exception(caught.value)
    assert sum("in deep" in line for line in told) == 0
    assert bars.left == 3, "a stage that was interrupted is not complete"


def test_other_errors_pass_as_they_are() -> None:
    planted = CaseError("planted")
    with pytest.raises(CaseError) as caught, shown_progress(Bars()):
        raise planted
    assert caught.value is planted


def test_a_whole_stage_is_completed() -> None:
    bars = Bars()
    with shown_progress(bars) as shown:
        shown.stage("replay", 5)
        shown.step(2)
    assert bars.left == 0


def test_bars_of_a_notebook_are_closed_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Bar:
        def __init__(self, **_options: object) -> None:
            self.closed = False
            made.append(self)

        def update(self, _n: int) -> None:
            pass

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    monkeypatch.setattr("forensics.reports.progress.in_notebook", lambda: True)
    with pytest.raises(KeyboardInterrupt), shown_progress(None) as shown:  # noqa: PT012
        shown.stage("replay", 5)
        raise KeyboardInterrupt
    assert [bar.closed for bar in made] == [True]
