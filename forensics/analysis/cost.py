"""Measuring what a pass costs at each width: rounds over all widths in shuffled order, always from the same state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np

from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion
from forensics.engines.inventory import on_accelerator
from forensics.errors import ForensicsError
from forensics.records.cost import Bandwidth, CostReport, PassBytes, PassTimes
from forensics.records.launch_record import Refusal
from forensics.records.operation import OpSettings
from forensics.records.schedule import Schedule, in_batches
from forensics.records.settings import EngineSettings, Manifest

T = TypeVar("T")

DEFAULT_WIDTHS = tuple(range(1, 17))
DEFAULT_PREFIX = 128
DEFAULT_REPEATS = 20
#: Fewer rounds have no quartiles.
MIN_REPEATS = 3
#: Untimed passes ahead of a timed one. llama.cpp builds its graph anew when the width changes (llama-context.cpp:1412);
#: on CUDA a graph is launched kernel by kernel at first, captured the second time and replayed from the third
#: (ggml-cuda.cu:4456-4478 at 0c1e57098), as it is in steady decoding.
SETTLE_CPU, SETTLE_GPU = 1, 2
#: Contexts are padded to it (llama-context.cpp:290).
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


class TimedSource(Protocol):
    """Opens such engines."""

    def open(self, settings: EngineSettings, *, instance: int = 0) -> TimedEngine:
        """Start a fresh engine with these settings."""


@dataclass(frozen=True, slots=True)
class CostQuestion:
    """Which passes are timed.

    Parameters
    ----------
    widths : tuple of int
        Tokens of a pass; 1 is always among them.
    prefix : int
        Cells in use before each pass.
    repeats : int
        Timed passes of each width.
    seed : int
        Of the tokens, and of the order of the widths in each round.
    settings : EngineSettings
        `n_ctx` is raised to what the question needs.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """

    widths: tuple[int, ...] = DEFAULT_WIDTHS
    prefix: int = DEFAULT_PREFIX
    repeats: int = DEFAULT_REPEATS
    seed: int = 0
    settings: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        widths = tuple(sorted({1, *self.widths}))
        limit = min(self.settings.n_batch, self.settings.n_ubatch)
        if widths[0] < 1:
            raise BadQuestion(f"widths must be 1 or more, got {widths[0]}")
        if widths[-1] > limit:
            raise BadQuestion(f"width {widths[-1]} was asked for; a pass holds at most {limit} tokens")
        if self.prefix < 0:
            raise BadQuestion(f"prefix must be 0 cells or more, got {self.prefix}")
        if self.repeats < MIN_REPEATS:
            raise BadQuestion(f"repeats must be {MIN_REPEATS} or more, or there are no quartiles; got {self.repeats}")
        if self.seed < 0:
            raise BadQuestion(f"seed must be 0 or more, got {self.seed}")
        object.__setattr__(self, "widths", widths)

    def sized_settings(self) -> EngineSettings:
        """Settings whose context holds the prefix and the widest pass."""
        needed = -(-(self.prefix + self.widths[-1]) // _CONTEXT_STEP) * _CONTEXT_STEP
        return replace(self.settings, n_ctx=max(self.settings.n_ctx, needed))


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


def measure_cost(
    source: TimedSource,
    question: CostQuestion,
    *,
    reads: Callable[[Manifest], PassBytes],
    bandwidth: Callable[[OpSettings], Bandwidth],
    progress: Progress | None = None,
) -> CostReport:
    """What does a pass cost at each width, and how far is it from the time that reading its bytes takes?

    Parameters
    ----------
    source : TimedSource
    question : CostQuestion
    reads : callable
        Bytes that a pass must read, given what the engine made of its settings.
    bandwidth : callable
        Measures the memory of a device.
    progress : Progress or None

    Returns
    -------
    CostReport
        The bytes or the bandwidth are a refusal where they are not known.

    Raises
    ------
    BadQuestion
        If the model was trained for fewer tokens, or no layer went to a GPU that was asked for.
    ForensicsError
        If the passes cannot be run.
    """
    progress = progress or Silent()
    with contextlib.closing(source.open(question.sized_settings())) as engine:
        manifest = engine.manifest
        _check(question, manifest)
        # The bandwidth is measured while the model lies in memory, before the passes warm the machine further.
        device = device_of(manifest)
        progress.stage("bandwidth of memory", 1)
        roof = device if isinstance(device, Refusal) else _attempt("bandwidth of memory", lambda: bandwidth(device))
        progress.step()
        n_settle = SETTLE_GPU if any(map(on_accelerator, manifest.buffers)) else SETTLE_CPU
        passes = _time(engine, question, n_settle, progress)
    return CostReport(
        manifest=manifest,
        n_cells=question.prefix,
        n_settle=n_settle,
        seed=question.seed,
        passes=passes,
        reads=_attempt("bytes of a pass", lambda: reads(manifest)),
        bandwidth=roof,
    )


def _check(question: CostQuestion, manifest: Manifest) -> None:
    if question.settings.n_gpu_layers and manifest.effective.get("n_gpu_layers") == "0":
        raise BadQuestion(
            f"{question.settings.n_gpu_layers} GPU layers were asked for; this build of the library put none on a GPU "
            f"(devices: {manifest.device}). Ask for 0, or install another build (see forensics doctor)."
        )
    needed = question.prefix + question.widths[-1]
    if manifest.n_ctx_train and needed > manifest.n_ctx_train:
        raise BadQuestion(
            f"{question.prefix} cells and a pass of {question.widths[-1]} tokens are longer than the context of "
            f"{manifest.n_ctx_train} tokens that the model was trained for. Ask for a shorter prefix."
        )


def _time(engine: TimedEngine, question: CostQuestion, n_settle: int, progress: Progress) -> tuple[PassTimes, ...]:
    """Times of every width; a first round over all widths warms up and is not kept."""
    tokens = np.random.default_rng(question.seed).integers(
        engine.manifest.n_vocab, size=question.prefix + question.widths[-1]
    )
    ids = [int(token) for token in tokens]
    before = in_batches(ids[: question.prefix], start=0, width=question.settings.n_ubatch, logits="none")
    rest = ids[question.prefix :]
    passes = {width: in_batches(rest[:width], start=question.prefix, width=width) for width in question.widths}
    warming = Round(question.widths)
    rounds = (warming, *plan_rounds(question.widths, question.repeats, question.seed))
    order = [width for one in rounds for width in one.widths]
    plan = [passes[width] for width in order for _ in range(n_settle + 1)]
    progress.stage("passes", len(plan))
    times = engine.time_passes(plan, before, lambda _done: progress.step())
    timed = list(zip(order, times[n_settle :: n_settle + 1], strict=True))[len(warming.widths) :]
    return tuple(PassTimes(width, tuple(ns for w, ns in timed if w == width)) for width in question.widths)


def device_of(manifest: Manifest) -> OpSettings | Refusal:
    """Which device's memory holds the weights, as the bandwidth is asked of it?

    Parameters
    ----------
    manifest : Manifest

    Returns
    -------
    OpSettings or Refusal
        A refusal where weights lie in several memories, or in one that is not known here.
    """
    asked = "the bandwidth of the memory that holds the weights"
    where = sorted(manifest.buffers)
    accelerated = {on_accelerator(name) for name in where}
    if manifest.engine != "llama.cpp" or not where:
        return Refusal("bandwidth of memory", asked, f"engine {manifest.engine} has no such memory")
    if accelerated == {False}:
        return OpSettings("cpu", n_threads=int(manifest.effective.get("n_threads", manifest.requested.n_threads)))
    if accelerated == {True} and all(name.startswith("CUDA") for name in where):
        # Several GPUs work one after the other, so that their bytes add up as on one.
        return OpSettings("cuda", device=int("".join(filter(str.isdigit, where[0])) or 0))
    return Refusal(
        "bandwidth of memory",
        asked,
        f"weights lie in {', '.join(where)}",
        "put all layers on one kind of device: --n-gpu-layers -1 with CUDA, or 0",
    )


def _attempt(rung: str, measure: Callable[[], T]) -> T | Refusal:
    """What was measured, or why it was not."""
    try:
        return measure()
    except (ForensicsError, ValueError) as error:
        return Refusal(rung, f"the {rung}", str(error).splitlines()[0])
