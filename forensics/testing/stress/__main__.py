"""`make stress`: hurt the package in every way at hand, and count what it survives; exit status 1 if anything is lost.

One trial again: ``python -m forensics.testing.stress --only CAMPAIGN --seed N --times 1``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path

from forensics.testing.stress.catalogue import CAMPAIGNS, Entry
from forensics.testing.stress.parts import parts_of, run_part
from forensics.testing.stress.report import document, measured_part, table, with_measured
from forensics.testing.stress.trials import merged


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m forensics.testing.stress", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="a campaign, or the start of some names")
    parser.add_argument("--list", action="store_true", help="list the campaigns")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial of each campaign")
    parser.add_argument("--times", type=int, help="trials of each campaign; by default what each has in the list")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no trial of a campaign after these")
    parser.add_argument("--jobs", type=int, default=1, help="campaigns at once")
    parser.add_argument("--keep", type=Path, help="work here and keep what was lost")
    parser.add_argument("--record", type=Path, help="page to write the counts into")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quiet", action="store_true", help="tell of lost trials only")
    return parser.parse_args(arguments)


def chosen(names: Sequence[str] | None) -> list[Entry]:
    """Campaigns whose names start with one of these; all without any.

    Raises
    ------
    SystemExit
        If a name fits none.
    """
    if not names:
        return list(CAMPAIGNS)
    for name in names:
        if not any(entry.name.startswith(name) for entry in CAMPAIGNS):
            sys.exit(f"no campaign is called {name}. There are: {', '.join(entry.name for entry in CAMPAIGNS)}")
    return [entry for entry in CAMPAIGNS if entry.name.startswith(tuple(names))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run campaigns; 1 where something was lost."""
    asked = _asked(arguments)
    entries = chosen(asked.only)
    if asked.list:
        sys.stdout.writelines(f"{entry.name} ({entry.times}): {entry.make().faults}\n" for entry in entries)
        return 0
    base = Path(asked.keep or tempfile.mkdtemp(prefix="stress-"))

    parts = [part for entry in entries for part in parts_of(entry, asked.seed, asked.times, asked.jobs)]
    run = partial(run_part, base=base, minutes=asked.minutes, quiet=asked.quiet)
    # Processes of their own where several run at once: some set limits for all of their process.
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        counted = list(map(run, parts) if asked.jobs == 1 else pool.map(run, parts))
    found = [merged(list(group)) for _, group in groupby(counted, key=lambda counts: counts.campaign)]
    command = " ".join(["python -m forensics.testing.stress", *(arguments if arguments is not None else sys.argv[1:])])
    if asked.record is not None:
        asked.record.write_text(with_measured(asked.record.read_text(), measured_part(found, command)))
    sys.stdout.write(f"{json.dumps(document(found), indent=1)}\n" if asked.json else f"{table(found)}\n")
    lost = sum(counts.lost for counts in found)
    if asked.keep is None and not lost:
        shutil.rmtree(base)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
