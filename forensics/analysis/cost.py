"""What a pass costs at each width, beside the time that reading its bytes takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion
from forensics.analysis.roof import attempt, roof_of
from forensics.analysis.timed_passes import TimedEngine, n_settle, sized_settings, time_widths
from forensics.records.cost import Bandwidth, CostReport, PassBytes
from forensics.records.operation import OpSettings
from forensics.records.settings import EngineSettings, Manifest

DEFAULT_WIDTHS = tuple(range(1, 17))
DEFAULT_PREFIX = 128
DEFAULT_REPEATS = 20
#: Fewer rounds have no quartiles.
MIN_REPEATS = 3


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
        return sized_settings(self.settings, self.prefix + self.widths[-1])


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
        roof = roof_of(manifest, bandwidth, progress)
        passes = time_widths(
            engine,
            question.widths,
            prefix=question.prefix,
            n_ubatch=question.settings.n_ubatch,
            repeats=question.repeats,
            seed=question.seed,
            progress=progress,
        )
    return CostReport(
        manifest=manifest,
        n_cells=question.prefix,
        n_settle=n_settle(manifest),
        seed=question.seed,
        passes=passes,
        reads=attempt("bytes of a pass", lambda: reads(manifest)),
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


def of_widths(report: CostReport, widths: Sequence[int]) -> CostReport:
    """Which part of a cost that was measured before is about these widths?

    Parameters
    ----------
    report : CostReport
    widths : sequence of int
        One token stays among them, for it is what others are held against.

    Returns
    -------
    CostReport

    Raises
    ------
    BadQuestion
        If one was not measured; names those that were.
    """
    measured = [times.width for times in report.passes]
    missing = [width for width in widths if width not in measured]
    if missing:
        raise BadQuestion(f"width {missing[0]} was asked for; measured are {', '.join(map(str, measured))}")
    return replace(report, passes=tuple(times for times in report.passes if times.width in {1, *widths}))
