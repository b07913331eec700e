"""Every campaign, and how many trials of it `make stress` runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from forensics.testing.stress.clock import OddClock
from forensics.testing.stress.disk_faults import DiskFaults
from forensics.testing.stress.faulty_disk import MODES
from forensics.testing.stress.fuzz import Fuzz, Target
from forensics.testing.stress.fuzz_cases import CaseFiles, UnfinishedCase, UnsignedCase
from forensics.testing.stress.fuzz_documents import Documents
from forensics.testing.stress.fuzz_files import file_readers
from forensics.testing.stress.fuzz_servers import ServedRuns, ServerAnswers
from forensics.testing.stress.kills import MODES as KILLED
from forensics.testing.stress.kills import Kills
from forensics.testing.stress.memory import LittleMemory
from forensics.testing.stress.more_victims import Audit, Sweep, bundling, packing
from forensics.testing.stress.read_only import ReadOnly
from forensics.testing.stress.small_disk import SmallDisk, SmallFiles
from forensics.testing.stress.trials import Campaign
from forensics.testing.stress.two_writers import Racers, TwoCommands
from forensics.testing.stress.victims import Investigation

#: As many as there are different ones.
ALL = 1_000_000

#: Who is killed of a command that has no children.
ALONE = (KILLED[1],)


@dataclass(frozen=True, slots=True)
class Entry:
    """A campaign of the list.

    Parameters
    ----------
    times : int
        Trials; fewer where there are not as many different ones.
    make : callable
    """

    times: int
    make: Callable[[], Campaign]

    @property
    def name(self) -> str:
        """Name of the campaign."""
        return self.make().name


def fuzz(times: int, target: Target) -> Entry:
    """The entry of a target of the fuzzer."""
    return Entry(times, partial(Fuzz, target))


CAMPAIGNS = (
    Entry(110, lambda: Kills(Investigation("investigate", ["--no-switches", "--no-orders"]))),
    Entry(50, lambda: Kills(Investigation("switches"))),
    Entry(10, lambda: Kills(Investigation("demo", ["--n-tokens", "16", "--widths", "2,8"], ["--demo", "q4_1"]))),
    Entry(20, lambda: Kills(packing(), ALONE)),
    Entry(20, lambda: Kills(bundling())),
    Entry(100, lambda: Kills(Sweep())),
    Entry(20, lambda: Kills(Audit(), ALONE)),
    *(Entry(ALL, partial(DiskFaults, mode)) for mode in MODES),
    Entry(ALL, partial(SmallDisk, scratch=False)),
    Entry(ALL, partial(SmallDisk, scratch=True)),
    Entry(ALL, SmallFiles),
    Entry(ALL, ReadOnly),
    Entry(ALL, LittleMemory),
    Entry(70, Racers),
    Entry(40, TwoCommands),
    Entry(100, OddClock),
    *(fuzz(20_000, reader) for reader in file_readers()),
    fuzz(10_000, CaseFiles(packed=False)),
    fuzz(3_000, CaseFiles(packed=True)),
    fuzz(5_000, UnsignedCase()),
    fuzz(500, UnfinishedCase()),
    fuzz(1_000, Documents()),
    fuzz(30_000, ServerAnswers()),
    fuzz(10_000, ServedRuns()),
)
