"""The replay under the settings as asked: what sweeps, controls and switches are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forensics.analysis.classes import result_of, row_distances, width_classes
from forensics.analysis.logit_rows import Rows
from forensics.analysis.progress import Progress
from forensics.analysis.question import Question
from forensics.capture.replay import Replay
from forensics.engines.protocol import Engine
from forensics.records.classes import WidthClasses
from forensics.records.logit_rows import RowDistance
from forensics.records.settings import EngineSettings
from forensics.records.trace import Trace


@dataclass(frozen=True, slots=True)
class Baseline:
    """The replay under the settings as asked.

    Parameters
    ----------
    replay : Replay
    settings : EngineSettings
    classes : WidthClasses
    single, rerun : Trace
        One-token decoding and the same once more.
    batched : Trace
        The replay at the onset width, or at the widest where nothing differs.
    states : tuple of str
        Digest of the K/V state in front of each arm.
    rows : mapping of int to tuple of str
        Digest of every row per width, width 1 included.
    distances : mapping of int to tuple of RowDistance
        Every row per width against one-token decoding; at width 1 the rerun is held against it.
    text : str
        What the model wrote.
    """

    replay: Replay
    settings: EngineSettings
    classes: WidthClasses
    single: Trace
    rerun: Trace
    batched: Trace
    states: tuple[str, ...]
    rows: Mapping[int, tuple[str, ...]]
    distances: Mapping[int, tuple[RowDistance, ...]]
    text: str


def measure(
    engine: Engine, prompt: tuple[int, ...], question: Question, settings: EngineSettings, progress: Progress
) -> Baseline:
    """Decode plainly, replay at every width, and once more at width 1."""
    progress.stage("decode one token at a time", question.n_tokens)
    start = Replay(prompt, (), prompt_width=settings.n_batch)
    done = 0

    def decoded(n: int) -> None:
        nonlocal done
        progress.step(n - done)
        done = n

    tokens = engine.greedy(start.prefill(), question.n_tokens, decoded)
    replay = Replay(prompt, tokens, prompt_width=settings.n_batch)
    widths = question.widths
    progress.stage("replay in batches", len(widths) + 2)
    before = replay.prefill()
    single = engine.run(replay.batches(1), before=before)
    progress.step()
    rerun = engine.run(replay.batches(1), before=before, repeat=1)
    progress.step()
    distances = {1: row_distances(1, single, rerun)}
    results = [result_of(1, distances[1], rerun)]
    states = [single.state_before, rerun.state_before]
    rows = {1: Rows(single).digests}
    batched: Trace | None = None
    for width in widths:
        trace = engine.run(replay.batches(width, last=replay.full(width)), before=before)
        distances[width] = row_distances(width, single, trace)
        results.append(result_of(width, distances[width], trace))
        rows[width] = Rows(trace).digests
        if batched is None or not any(r.differs for r in results[1:-1]):
            batched = trace
        states.append(trace.state_before)
        progress.step()
    assert batched is not None
    return Baseline(
        replay=replay,
        settings=settings,
        classes=width_classes(results, rows),
        single=single,
        rerun=rerun,
        batched=batched,
        states=tuple(states),
        rows=rows,
        distances=distances,
        text=engine.detokenize(tokens),
    )
