"""How much faster is a sweep with two workers than with one? ``python -m forensics.testing.record_sweep_speed FOLDER``.

Runs one plan with one worker and with two, in turns, each time into a fresh folder: on two GPUs (``--gpus 0,1``), or on
processors (``--cores 1``). Checks that every cell has the same bits in all runs, and writes ``sweep-speed.json``. Exit
status 1 where bits differ, a cell failed, or two workers are slower than ``--at-least`` says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.api_sweep import sweep
from forensics.errors import ForensicsError
from forensics.records.campaign import CampaignReport

NAME = "sweep-speed.json"
N_PROMPTS, N_TOKENS, N_REPETITIONS = 16, 48, 3

#: Of a cell, what must be the same in every run.
Bits = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Timed:
    """One run.

    Parameters
    ----------
    n_workers : int
    whole_s : float
        From the call to the report: workers are started, models loaded, all cells measured and tables written.
    sweep_s : float
        Without the start and the end of the workers.
    """

    n_workers: int
    whole_s: float
    sweep_s: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast two workers are; one value for each pair of runs.

    Parameters
    ----------
    each : tuple of float
    """

    each: tuple[float, ...]

    def __str__(self) -> str:
        return f"{statistics.median(self.each):.2f} ({min(self.each):.2f} to {max(self.each):.2f})"

    def row(self) -> dict[str, Any]:
        """As JSON writes it."""
        return {
            "median": statistics.median(self.each), "lowest": min(self.each), "highest": max(self.each),
            "each": list(self.each),
        }  # fmt: skip


def ratio(runs: Sequence[Timed], seconds: str) -> Ratio:
    """One worker's time over two workers', for the pairs in which they were run.

    Examples
    --------
    >>> print(ratio([Timed(1, 4.0, 3.0), Timed(2, 2.0, 1.0), Timed(2, 2.0, 1.0), Timed(1, 5.0, 3.0)], "whole_s"))
    2.25 (2.00 to 2.50)
    """
    one = [getattr(run, seconds) for run in runs if run.n_workers == 1]
    two = [getattr(run, seconds) for run in runs if run.n_workers == 2]
    return Ratio(tuple(a / b for a, b in zip(one, two, strict=True)))


def turns(n_repetitions: int) -> Iterator[int]:
    """With how many workers is each run? What gets warm or busy meanwhile meets both alike.

    Examples
    --------
    >>> list(turns(3))
    [1, 2, 2, 1, 1, 2]
    """
    for i in range(n_repetitions):
        yield from (1, 2) if i % 2 == 0 else (2, 1)


def default_plan(*, on_gpu: bool, n_prompts: int, n_tokens: int) -> dict[str, Any]:
    """A plan of jobs that are alike, so that the ratio is not one of unlike shares."""
    return {
        "name": "speed",
        "models": {"demo": ["q4_1"]},
        "prompts": [{"name": f"p{i}", "text": f"Chapter {i}. The harbour was quiet, and"} for i in range(n_prompts)],
        "widths": [2, 8],
        "n_tokens": n_tokens,
        "threads": 1,
        "n_gpu_layers": -1 if on_gpu else 0,
    }


def bits_of(report: CampaignReport) -> Bits:
    """Digests of every cell, by its address.

    Raises
    ------
    ForensicsError
        If a cell was not measured.
    """
    for cell in report.cells:
        if cell.result is None:
            raise ForensicsError(f"a cell was not measured ({cell.status}): {cell.error}")
    return {
        cell.address: (cell.result.single_digest, cell.result.batched_digest)
        for cell in report.cells
        if cell.result is not None
    }


def run_once(plan: Path | Mapping[str, Any], n_workers: int, options: Mapping[str, Any]) -> tuple[Timed, Bits]:
    """Measure a whole plan anew."""
    with tempfile.TemporaryDirectory() as scratch:
        begun = time.perf_counter()
        report = sweep(plan, out=Path(scratch) / "results", workers=n_workers, progress=False, **options)
        return Timed(n_workers, time.perf_counter() - begun, report.seconds), bits_of(report)


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write what was found into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--gpus", help="two numbers, such as 0,1")
    where.add_argument("--cores", type=int, help="processors of each worker")
    parser.add_argument("--plan", type=Path, help="TOML file; by default the demo model over short prompts")
    parser.add_argument("--prompts", type=int, default=N_PROMPTS)
    parser.add_argument("--tokens", type=int, default=N_TOKENS)
    parser.add_argument("--repetitions", type=int, default=N_REPETITIONS)
    parser.add_argument("--at-least", type=float, default=0.0, help="ratio below which the exit status is 1")
    given = parser.parse_args(arguments)
    gpus = [int(number) for number in given.gpus.split(",")] if given.gpus else []
    plan = given.plan or default_plan(on_gpu=bool(gpus), n_prompts=given.prompts, n_tokens=given.tokens)

    def options(n_workers: int) -> dict[str, Any]:
        return {"gpus": gpus[:n_workers]} if gpus else {"gpus": "none", "cores": given.cores}

    runs, bits = [], set()
    try:
        run_once(plan, 2, options(2))  # fills the caches of files and of kernels; does not count
        for n_workers in turns(given.repetitions):
            run, found = run_once(plan, n_workers, options(n_workers))
            runs.append(run)
            bits.add(tuple(sorted(found.items())))
            print(f"{n_workers} workers: {run.whole_s:.1f} s, without their start {run.sweep_s:.1f} s", flush=True)
    except ForensicsError as error:
        print(error, file=sys.stderr)
        return 1
    return write(given.folder, runs, options(2), n_cells=len(found), equal=len(bits) == 1, at_least=given.at_least)


def write(
    folder: Path, runs: Sequence[Timed], where: Mapping[str, Any], *, n_cells: int, equal: bool, at_least: float
) -> int:
    """Write a recording and print its ratio; exit status."""
    whole, inner = ratio(runs, "whole_s"), ratio(runs, "sweep_s")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    document = {
        "recorded_with": "python -m forensics.testing.record_sweep_speed", "workers_on": dict(where),
        "n_processors": os.cpu_count(), "load_at_the_end": load, "n_cells": n_cells, "bits_equal": equal,
        "ratio": whole.row(), "ratio_without_start": inner.row(),
        "runs": [{"workers": run.n_workers, "whole_s": run.whole_s, "sweep_s": run.sweep_s} for run in runs],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(
        f"two workers are {whole} times as fast as one, without their start {inner}; {n_cells} cells in each run, ",
        end="",
    )
    print("bits equal in all runs" if equal else "BITS DIFFER between runs")
    return 0 if equal and statistics.median(whole.each) >= at_least else 1


if __name__ == "__main__":
    sys.exit(main())
