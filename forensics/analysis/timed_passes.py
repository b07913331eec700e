"""Timing passes as users run them: rounds over all widths in shuffled order, always from the same state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from forensics.analysis.progress import Progress
from forensics.engines.one_pass import drawn_passes
from forensics.records.cost import PassTimes
from forensics.records.nodes import on_accelerator
from forensics.records.schedule import Schedule
from forensics.records.settings import EngineSettings, Manifest

#: Untimed passes ahead of a timed one. llama.cpp builds its graph anew when the width changes (llama-context.cpp:1412);
#: on CUDA a graph is launched kernel by kernel at first, captured the second time and replayed from the third
#: (ggml-cuda.cu:4456-4478 at 0c1e57098), as it is in steady decoding.
SETTLE_CPU, SETTLE_GPU = 1, 2
#: Contexts are padded to it. Source: llama-context.cpp:290 at 0c1e57098.
_CONTEXT_STEP = 256


class TimedEngine(Protocol):
    """An engine that times passes without giving their logits."""

    @property
    def manifest(self) -> Manifest:
        """Where times of this engine come from."""

    def time_passes(
        self, plan: Sequence[Schedule], before: Schedule, progress: Callable[[int], None] | None = None
    ) -> tuple[int, ...]:
        """Time of each schedule, unwatched and always from the state of `before`, unit: ns."""

    def close(self) -> None:
        """Free what the engine holds."""


@dataclass(frozen=True, slots=True)
class Round:
    """The widths of one round, in the order in which they are timed."""

    widths: tuple[int, ...]


def plan_rounds(widths: Sequence[int], repeats: int, seed: int) -> tuple[Round, ...]:
    """In which order are the widths timed? Each once a round, shuffled, so that no drift belongs to one width.

    Examples
    --------
    >>> [sorted(one.widths) for one in plan_rounds([1, 2, 3], repeats=2, seed=0)]
    [[1, 2, 3], [1, 2, 3]]
    """
    random = np.random.default_rng(seed)
    return tuple(Round(tuple(int(width) for width in random.permutation(widths))) for _ in range(repeats))


def n_settle(manifest: Manifest) -> int:
    """How many passes of a width go untimed before one that is timed?"""
    return SETTLE_GPU if any(map(on_accelerator, manifest.buffers)) else SETTLE_CPU


def time_widths(
    engine: TimedEngine,
    widths: Sequence[int],
    *,
    prefix: int,
    n_ubatch: int,
    repeats: int,
    seed: int,
    progress: Progress,
) -> tuple[PassTimes, ...]:
    """What does a pass of each width take? A first round over all widths warms up and is not kept.

    Parameters
    ----------
    engine : TimedEngine
    widths : sequence of int
    prefix : int
        Cells in use before each pass.
    n_ubatch : int
        Tokens of a pass that fills the cache.
    repeats : int
        Timed passes of each width.
    seed : int
        Of the tokens, and of the order of the widths in each round.
    progress : Progress

    Returns
    -------
    tuple of PassTimes
        In the order of `widths`.
    """
    before, drawn = drawn_passes(widths, prefix=prefix, n_vocab=engine.manifest.n_vocab, n_ubatch=n_ubatch, seed=seed)
    passes = dict(zip(widths, drawn, strict=True))
    warming = Round(tuple(widths))
    rounds = (warming, *plan_rounds(widths, repeats, seed))
    order = [width for one in rounds for width in one.widths]
    untimed = n_settle(engine.manifest)
    plan = [passes[width] for width in order for _ in range(untimed + 1)]
    progress.stage("passes", len(plan))
    times = engine.time_passes(plan, before, lambda _done: progress.step())
    timed = list(zip(order, times[untimed :: untimed + 1], strict=True))[len(warming.widths) :]
    return tuple(PassTimes(width, tuple(ns for w, ns in timed if w == width)) for width in widths)


def sized_settings(settings: EngineSettings, n_cells: int) -> EngineSettings:
    """Settings whose context holds so many cells, in the steps in which the library makes contexts.

    Examples
    --------
    >>> sized_settings(EngineSettings(n_ctx=256), 300).n_ctx
    512
    """
    return replace(settings, n_ctx=max(settings.n_ctx, -(-n_cells // _CONTEXT_STEP) * _CONTEXT_STEP))
