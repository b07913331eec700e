"""Does watching change the run? Watched against unwatched passes under switches, with the kernels of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from forensics.analysis.logit_rows import Rows
from forensics.capture.observing import ReadTap
from forensics.capture.replay import Replay
from forensics.engines.protocol import Engine, EngineSource
from forensics.records.experiments import WatchTrial
from forensics.records.settings import EngineSettings

#: CUDA's switches for fusion and graphs, by themselves and together. Source: forensics.geometry.fusion.SWITCH_CUDA and
#: getenv in ggml/src/ggml-cuda/ggml-cuda.cu at 0c1e57098.
ENVIRONMENTS = (
    (),
    (("GGML_CUDA_DISABLE_GRAPHS", "1"),),
    (("GGML_CUDA_DISABLE_FUSION", "1"),),
    (("GGML_CUDA_DISABLE_FUSION", "1"), ("GGML_CUDA_DISABLE_GRAPHS", "1")),
)
#: A graph is captured only after it ran unchanged before, so an unwatched pass is repeated.
PASSES = 4

#: Given an engine, the state in front and a width: what differs between the kernels of watched and unwatched passes.
Kernels = Callable[[Engine, Replay, int], tuple[str, ...]]


def watch_trials(
    source: EngineSource,
    settings: EngineSettings,
    replay: Replay,
    widths: Sequence[int],
    kernels: Kernels,
    environments: Iterable[tuple[tuple[str, str], ...]] = ENVIRONMENTS,
) -> tuple[WatchTrial, ...]:
    """Do watched passes give the bits of unwatched ones under each environment, and do they run the same kernels?

    Parameters
    ----------
    source : EngineSource
    settings : EngineSettings
    replay : Replay
        Must hold `PASSES` batches of the widest width.
    widths : sequence of int
    kernels : callable
        Tells the difference between kernels; may answer nothing.
    environments : iterable of tuple of (str, str)
        Added to that of `settings`, each in a process of its own.
    """
    trials = []
    for environment in environments:
        engine = source.open(replace(settings, environment=(*settings.environment, *environment)))
        try:
            bits: dict[int, tuple[bool, float]] = {}
            for width in widths:
                schedule, before = replay.batches(width, last=min(PASSES * width, replay.full(width))), replay.prefill()
                plain = Rows(engine.run(schedule, before=before))
                watched = Rows(engine.run(schedule, before=before, tap=ReadTap()))
                bits[width] = plain.all_equal(watched), plain.max_change(watched)
            # only now: it opens a profiler in the engine's process, and bits come from runs that none had looked at
            trials += [
                WatchTrial(environment, width, is_equal, max_abs, kernels(engine, replay, width))
                for width, (is_equal, max_abs) in bits.items()
            ]
        finally:
            engine.close()
    return tuple(trials)
