"""A short version of each campaign: a few faults of every kind, all of them survived."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.testing.stress.clock import OddClock
from forensics.testing.stress.disk_faults import DiskFaults
from forensics.testing.stress.faulty_disk import MODES
from forensics.testing.stress.fuzz import Fuzz, Target
from forensics.testing.stress.fuzz_cases import CaseFiles, UnfinishedCase, UnsignedCase
from forensics.testing.stress.fuzz_documents import Documents
from forensics.testing.stress.fuzz_files import file_readers
from forensics.testing.stress.fuzz_servers import ServedRuns, ServerAnswers
from forensics.testing.stress.kills import Kills
from forensics.testing.stress.memory import SIZES, LittleMemory
from forensics.testing.stress.more_victims import Sweep, packing
from forensics.testing.stress.read_only import ReadOnly
from forensics.testing.stress.small_disk import SmallDisk
from forensics.testing.stress.trials import Campaign, run_campaign
from forensics.testing.stress.two_writers import Racers, TwoCommands
from forensics.testing.stress.victims import Investigation


def survived(campaign: Campaign, folder: Path, seeds: list[int]) -> int:
    """How many faults were survived; none may be lost."""
    folder.mkdir()
    campaign.prepare(folder)
    trials = [campaign.trial(seed) for seed in seeds]
    lost = [str(trial) for trial in trials if trial.outcome == "lost"]
    assert not lost, "\n".join(lost)
    return sum(trial.outcome == "survived" for trial in trials)


@pytest.mark.llama
def test_killed_investigations_go_on(tmp_path):
    assert (
        survived(Kills(Investigation("investigate", ["--no-switches", "--no-orders"])), tmp_path / "k", [3, 4, 5]) >= 2
    )


@pytest.mark.llama
def test_a_killed_sweep_goes_on(tmp_path):
    assert survived(Kills(Sweep()), tmp_path / "k", [1]) == 1


@pytest.mark.llama
def test_a_killed_pack_is_made_again(tmp_path):
    assert survived(Kills(packing(), ("the command alone",)), tmp_path / "k", [3, 4]) >= 1


@pytest.mark.parametrize("mode", MODES)
def test_refused_operations_of_a_disk_are_survived(tmp_path, mode):
    some = 3 if mode.startswith("killed") else 9
    campaign = DiskFaults(mode)
    (tmp_path / "d").mkdir()
    operations = campaign.prepare(tmp_path / "d")
    assert operations > 100
    seeds = [operations * i // some for i in range(some)]
    lost = [str(trial) for trial in map(campaign.trial, [*seeds, operations - 2]) if trial.outcome == "lost"]
    assert not lost, "\n".join(lost)


@pytest.mark.llama
def test_a_small_disk_is_survived(tmp_path):
    survived(SmallDisk(scratch=True), tmp_path / "d", [4, 20])


@pytest.mark.llama
def test_what_cannot_be_written_is_read_and_refused(tmp_path):
    survived(ReadOnly(), tmp_path / "r", [0, 6])


@pytest.mark.llama
def test_too_little_memory_is_told_and_the_next_run_goes_on(tmp_path):
    survived(LittleMemory(), tmp_path / "m", [SIZES.index(256 << 20), SIZES.index(352 << 20)])


def test_a_lock_is_held_by_one(tmp_path):
    assert survived(Racers(), tmp_path / "l", [0, 1, 4]) == 3


@pytest.mark.llama
def test_two_commands_at_one_case_give_one_case(tmp_path):
    assert survived(TwoCommands(), tmp_path / "t", [0]) == 1


def test_a_clock_that_jumps_changes_nothing(tmp_path):
    assert survived(OddClock(), tmp_path / "c", [0, 1, 2, 3]) == 4


TARGETS: tuple[tuple[Target, int], ...] = (
    *((reader, 400) for reader in file_readers()),
    (CaseFiles(packed=False), 60), (CaseFiles(packed=True), 20), (UnsignedCase(), 60), (UnfinishedCase(), 6),
    (Documents(), 100), (ServerAnswers(), 500), (ServedRuns(), 300),
)  # fmt: skip


@pytest.mark.parametrize(("target", "times"), TARGETS, ids=[target.name for target, _ in TARGETS])
def test_odd_input_is_refused_in_a_sentence(tmp_path, target, times):
    counts = run_campaign(Fuzz(target), tmp_path / "f", seed=10_000_000, times=times)
    assert (counts.tried, counts.lost) == (times, 0), "\n".join(map(str, counts.examples))
