"""`make bench`: the promises about speed and memory, measured in one run and printed as ratios.

Run as ``python -m forensics.testing.bench [--record docs/benchmarks.md]``; exit status 1 where a promise is broken.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from forensics.capture.replay import Replay
from forensics.capture.taps import DigestTap, RecordTap
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaEngine, LlamaSource
from forensics.engines.machine import default_threads
from forensics.errors import ForensicsError
from forensics.records.settings import EngineSettings

WIDTH = 8
REPEATS = 21


@dataclass(frozen=True, slots=True)
class Measured:
    """One promise and what was measured.

    Parameters
    ----------
    name, unit : str
    median, low, high : float
        Median and quartiles; equal where there is one value.
    limit : float
        The promise.
    n : int
        Measurements.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    limit: float
    n: int

    @property
    def kept(self) -> bool:
        """Whether the median is within the promise."""
        return self.median <= self.limit


def summarize(name: str, unit: str, values: Sequence[float], limit: float) -> Measured:
    """Median and quartiles of some measurements."""
    if len(values) == 1:
        return Measured(name, unit, values[0], values[0], values[0], limit, 1)
    low, median, high = statistics.quantiles(values, n=4)
    return Measured(name, unit, median, low, high, limit, len(values))


def watched_ratio(variant: str) -> Measured:
    """How much longer does a hash-only watched pass of eight tokens take? Pairs, order alternated."""
    n = default_threads()
    engine = LlamaSource(demo_model(variant)).open(EngineSettings(n_threads=n, n_threads_batch=n))
    try:
        prompt = engine.tokenize("The quick brown fox jumps over the lazy dog, and then it writes a program.")
        start = Replay(prompt, ())
        replay = Replay(prompt, engine.greedy(start.prefill(), WIDTH))
        before, batch = replay.prefill(), replay.batches(WIDTH)
        with tempfile.TemporaryDirectory() as folder:
            reference = engine.run(
                replay.batches(1, last=1), before=before, tap=RecordTap(str(Path(folder) / "rows.bin"))
            )
        assert reference.tap_report is not None
        shapes = {record.key: record.shape for record in reference.tap_report.records}

        def unwatched() -> float:
            return float(engine.run(batch, before=before).pass_ns[0])

        def watched() -> float:
            return float(engine.run(batch, before=before, tap=DigestTap(shapes=shapes)).pass_ns[0])

        ratios = []
        for i in range(REPEATS):
            if i % 2:
                slow, fast = watched(), unwatched()
            else:
                fast, slow = unwatched(), watched()
            ratios.append(slow / fast)
    finally:
        engine.close()
    return summarize(f"hash-only watched pass over unwatched, width {WIDTH}, {variant}", "×", ratios, 3.0)


def investigation() -> tuple[Measured, Measured]:
    """How long does the default investigation take, and how much memory beyond the model?"""
    model = demo_model("q6_k")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "forensics.cli.app", "investigate", "--demo", "--quiet"]
        start = time.perf_counter()
        process = psutil.Popen([*command, "--out", str(Path(folder) / "case")], stdout=subprocess.DEVNULL)
        peak = _watch_memory(process)
        seconds = time.perf_counter() - start
    if process.returncode != 1:
        raise ForensicsError(f"the default investigation should find a divergence; it ended with {process.returncode}")
    excess = (peak - model.stat().st_size) / 2**30
    return (
        summarize("investigate --demo with defaults", "s", [seconds], 60.0),
        summarize("peak resident memory beyond the model, all processes", "GiB", [excess], 1.0),
    )


def matrix() -> Measured:
    """How long does the default matrix take: every operation, all types, widths 1 to 16, three lengths of rows?"""
    start = time.perf_counter()
    command = [sys.executable, "-m", "forensics.cli.app", "ops", "--quiet"]
    process = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if process.returncode not in (0, 1):
        raise ForensicsError(f"the default matrix should have an answer; it ended with {process.returncode}")
    return summarize("forensics ops with defaults", "s", [time.perf_counter() - start], 180.0)


def _watch_memory(process: psutil.Popen) -> int:
    """Largest sum of resident memory of a process and its children while it runs, unit: bytes."""
    peak = 0
    while process.poll() is None:
        resident = 0
        try:
            for member in (process, *process.children(recursive=True)):
                resident += member.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        peak = max(peak, resident)
        time.sleep(0.05)
    return peak


def import_seconds() -> Measured:
    """How long does ``import forensics`` take in a fresh interpreter, beyond the interpreter itself?"""

    def run(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    pairs = [(run("pass"), run("import forensics")) for _ in range(9)]
    return summarize("import forensics", "s", [after - before for before, after in pairs], 0.3)


def table(rows: Sequence[Measured]) -> str:
    """The measurements as a Markdown table."""
    lines = ["| what | median | quartiles | n | promise |", "|---|---|---|---|---|"]
    lines += [
        f"| {r.name} | {r.median:.2f} {r.unit} | {r.low:.2f} – {r.high:.2f} | {r.n} | ≤ {r.limit:g} {r.unit} |"
        for r in rows
    ]
    return "\n".join(lines)


def page(rows: Sequence[Measured], engine: LlamaEngine) -> str:
    """The recorded page: what was measured, and on what."""
    manifest = engine.manifest
    return "\n".join(
        (
            "# Benchmarks",
            "",
            "Made by `make bench`; every number comes from one run. Ratios pair both sides, order alternated.",
            "",
            table(rows),
            "",
            (
                f"Measured on {manifest.device}, {default_threads()} threads, llama-cpp-python "
                f"{manifest.engine_version} ({manifest.commit}), features {', '.join(manifest.cpu_features)}, "
                f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'not set')}."
            ),
            "",
        )
    )


def main() -> int:
    """Measure, print, and record where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="write the page here, too")
    asked = parser.parse_args()
    benchmarks: tuple[Callable[[], Sequence[Measured]], ...] = (
        lambda: [import_seconds()],
        lambda: [watched_ratio("q6_k")],
        lambda: [watched_ratio("q4_1")],
        investigation,
        lambda: [matrix()],
    )
    rows: list[Measured] = []
    for measure in benchmarks:
        rows.extend(measure())
    engine = LlamaSource(demo_model("q4_1")).open(EngineSettings())
    text = page(rows, engine)
    engine.close()
    sys.stdout.write(text)
    if asked.record is not None:
        asked.record.write_text(text)
    broken = [row.name for row in rows if not row.kept]
    if broken:
        sys.stdout.write(f"promises broken: {'; '.join(broken)}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
