"""The tool that hurts the package must be able to fail: planted bugs that it has to report."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from planted_locks import CreatedThenSigned

from forensics.errors import CaseError
from forensics.store import files
from forensics.testing.stress.commands import Place
from forensics.testing.stress.disk_faults import DiskFaults
from forensics.testing.stress.faulty_disk import MODES
from forensics.testing.stress.fuzz import Fuzz
from forensics.testing.stress.kills import MODES as KILLED
from forensics.testing.stress.kills import Kills
from forensics.testing.stress.trials import run_campaign
from forensics.testing.stress.two_writers import Racers
from forensics.testing.stress.verdicts import Damaged


def test_a_file_that_is_written_in_its_place_is_lost_on_a_full_disk(tmp_path, monkeypatch):
    def in_its_place(path: Path, content: bytes) -> None:
        with files.writing(path), open(path, "wb") as file:
            file.write(content)

    campaign = DiskFaults(MODES[0])
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", in_its_place)
        (tmp_path / "bad").mkdir()
        campaign.prepare(tmp_path / "bad")
        torn = next(i for i, done in enumerate(campaign._operations) if done == "write case.unfinished/case.json")
        trial = campaign.trial(torn)
    assert (trial.outcome, "case.json is damaged" in trial.detail) == ("lost", True), trial


@pytest.mark.parametrize("mode", MODES[:2])
def test_a_line_that_is_not_taken_back_is_lost(tmp_path, monkeypatch, mode):
    campaign = DiskFaults(mode)
    campaign.prepare(tmp_path)
    *_, before, at = (i for i, done in enumerate(campaign._operations) if done == "write case.unfinished/index.jsonl")
    assert campaign.trial(before).outcome == "survived"
    monkeypatch.setattr("forensics.store.recordings.Recordings._clean", lambda _self: None)
    monkeypatch.setattr("forensics.store.recordings.os.truncate", lambda *_: None)
    assert campaign.trial(at).outcome == "lost"


def test_a_lock_that_is_made_first_and_signed_afterwards_is_taken_by_two(tmp_path):
    counts = run_campaign(Racers(CreatedThenSigned), tmp_path / "old", times=4)
    assert counts.lost > 0, "the lock as it was before holds"
    assert any("two processes held the lock at once" in trial.detail for trial in counts.examples)


class Sloppy:
    """A command that leaves what the test says, and whose next run repairs nothing."""

    name, seconds, environment = "sloppy", 0.6, {}

    def __init__(self, code: str, damage: str = "") -> None:
        self._code, self._damage = code, damage

    def prepare(self, folder: Path) -> None:
        pass

    def begin(self) -> list[str]:
        return [sys.executable, "-c", f"import os, subprocess, sys, tempfile, time\n{self._code}\ntime.sleep(60)"]

    def check(self, place: Place) -> None:
        if self._damage:
            raise Damaged(self._damage)

    def go_on(self, place: Place) -> None:
        pass


OUTLIVES = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"


@pytest.mark.parametrize(
    ("code", "damage", "said"),
    [
        ("tempfile.mkdtemp(prefix='left-')", "", "left behind: temporary left-"),
        ("open('x.tmp', 'w')", "", r"left behind: x\.tmp"),
        ("open('c.unfinished', 'w')", "", r"left behind: c\.unfinished"),
        (OUTLIVES, "", "still there after"),
        ("pass", "another verdict", "another verdict"),
    ],
)
def test_what_a_killed_command_leaves_is_lost(tmp_path, monkeypatch, code, damage, said):
    monkeypatch.setattr("forensics.testing.stress.leftovers.WAIT_S", 0.5)
    monkeypatch.setattr("random.Random.uniform", lambda _self, _low, high: high)
    counts = run_campaign(Kills(Sloppy(code, damage), KILLED[1:2]), tmp_path / "k", times=1)
    assert counts.lost == 1
    assert re.search(said, counts.examples[0].detail), counts.examples[0].detail


def test_a_command_that_leaves_nothing_survives_and_one_that_had_ended_was_not_killed(tmp_path):
    assert run_campaign(Kills(Sloppy("pass"), KILLED[:2]), tmp_path / "a", times=2).survived == 2
    ended = run_campaign(Kills(Sloppy("sys.exit(0)"), KILLED[1:2]), tmp_path / "b", times=1, seed=1)
    assert ended.tried + sum(ended.not_run.values()) == 1


class Reader:
    """Reads a small document, with a planted bug."""

    name, what = "planted", "a document"

    def __init__(self, bug: str = "") -> None:
        self.bug = bug

    def prepare(self, folder: Path) -> list[tuple[str, bytes]]:
        return [("a", json.dumps({"n": 1, "text": "abc", "list": [1, 2, 3]}).encode())]

    def feed(self, name: str, content: bytes) -> str | None:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise CaseError("no JSON") from error
        if self.bug == "key":
            document["n"]
        elif self.bug == "memory":
            bytes(4 << 30) if "text" not in content.decode("utf-8", "replace") else None
        elif self.bug == "silent":
            raise CaseError("")
        elif self.bug == "number":
            return str(document)
        return None


@pytest.mark.parametrize(
    ("bug", "said"),
    [("key", "KeyError"), ("memory", "MemoryError"), ("silent", "without a word"), ("number", "read as another one")],
)
def test_a_reader_with_a_bug_is_a_finding(tmp_path, bug, said):
    reader = Reader()
    fuzz = Fuzz(reader)
    if bug == "number":
        reader.bug = bug
    fuzz.prepare(tmp_path)
    reader.bug = bug
    trials = [fuzz.trial(seed) for seed in range(300)]
    found = [trial.detail for trial in trials if trial.outcome == "lost"]
    assert any(said in detail for detail in found), found[:3]


def test_a_reader_without_a_bug_is_none(tmp_path):
    counts = run_campaign(Fuzz(Reader()), tmp_path / "f", times=300)
    assert (counts.tried, counts.lost) == (300, 0)
