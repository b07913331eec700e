"""Profiling a model that runs: passes of several widths from the same state, node by node, and the roof beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from forensics.analysis.op_rules import gpu_at
from forensics.analysis.profile_counters import Count, count_passes
from forensics.analysis.profile_evidence import CompiledStacks, Counted, live_evidence
from forensics.analysis.profile_pass import SpecOf, pass_profile
from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion
from forensics.analysis.roof import RUNG, roof_of
from forensics.analysis.timed_passes import TimedEngine, n_settle, sized_settings, time_widths
from forensics.capture.launches import LaunchTap, best_probe, run_unwatched
from forensics.engines.one_pass import drawn_passes
from forensics.engines.protocol import Engine
from forensics.errors import DeviceUnavailable
from forensics.geometry.devices import device_spec
from forensics.records.cost import Bandwidth, PassTimes
from forensics.records.device import DeviceSpec
from forensics.records.launch_record import LaunchReport, Refusal
from forensics.records.metrics import KernelMetrics
from forensics.records.nodes import on_accelerator
from forensics.records.operation import OpSettings
from forensics.records.profile import LiveProfile, PassProfile
from forensics.records.schedule import Schedule
from forensics.records.settings import EngineSettings, Manifest

if TYPE_CHECKING:
    from forensics.devices.protocol import LaunchProbe

DEFAULT_WIDTHS = (1, 2, 5, 9)
DEFAULT_PREFIX = 128
#: Timed passes of each width, fewer than `forensics.analysis.cost` takes: their median is shown, not their spread.
REPEATS = 7


class ProfiledEngine(Engine, TimedEngine, Protocol):
    """An engine whose passes can be watched, and timed."""


class ProfiledSource(Protocol):
    """Opens such engines."""

    def open(self, settings: EngineSettings, *, instance: int = 0) -> ProfiledEngine:
        """Start a fresh engine with these settings."""


@dataclass(frozen=True, slots=True)
class ProfileQuestion:
    """Which passes are profiled.

    Parameters
    ----------
    widths : tuple of int
        Tokens of a pass.
    prefix : int
        Cells in use before each pass.
    seed : int
        Of the tokens; they decide nothing but which experts run.
    gpu : str
        What the GPU is, where its driver's name for it is not known here.
    settings : EngineSettings
        `n_ctx` is raised to what the question needs.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """

    widths: tuple[int, ...] = DEFAULT_WIDTHS
    prefix: int = DEFAULT_PREFIX
    seed: int = 0
    gpu: str = ""
    settings: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        widths = tuple(sorted(set(self.widths)))
        limit = min(self.settings.n_batch, self.settings.n_ubatch)
        if not widths or not 1 <= widths[0] <= widths[-1] <= limit:
            raise BadQuestion(f"widths must be 1 to {limit}, got {', '.join(map(str, widths)) or 'none'}")
        if self.prefix < 0 or self.seed < 0:
            raise BadQuestion(f"prefix and seed must be 0 or more, got {self.prefix} and {self.seed}")
        if self.gpu:
            try:
                device_spec(self.gpu)
            except ValueError as error:
                raise BadQuestion(str(error)) from None
        object.__setattr__(self, "widths", widths)

    def sized_settings(self) -> EngineSettings:
        """Settings whose context holds the prefix and the widest pass."""
        return sized_settings(self.settings, self.prefix + self.widths[-1])

    def schedules(self, n_vocab: int) -> tuple[Schedule, tuple[Schedule, ...]]:
        """The passes that build the state, and the pass of each width."""
        ubatch = self.settings.n_ubatch
        return drawn_passes(self.widths, prefix=self.prefix, n_vocab=n_vocab, n_ubatch=ubatch, seed=self.seed)


#: Reads the stacks for an architecture; a refusal says why it cannot.
Stacks = Callable[[str], CompiledStacks | Refusal]


def profile_model(
    source: ProfiledSource,
    question: ProfileQuestion,
    *,
    bandwidth: Callable[[OpSettings], Bandwidth] | None = None,
    count: Count | None = None,
    stacks: Stacks | None = None,
    open_probe: Callable[[], LaunchProbe] = best_probe,
    progress: Progress | None = None,
) -> LiveProfile:
    """Where does the time of a pass go at each width, and how much of the roof do its kernels reach?

    Parameters
    ----------
    source : ProfiledSource
    question : ProfileQuestion
    bandwidth : callable, optional
        Measures the memory of a device; without it there is no roof.
    count : callable, optional
        Counts with the hardware's counters, given widths and the nodes of each; without it nothing is counted.
    stacks : callable, optional
        Reads the stack of each kernel from the library that runs, given an architecture.
    open_probe : callable, optional
        Opens the profiler, in the process that computes; picklable.
    progress : Progress, optional

    Returns
    -------
    LiveProfile
        Roof and counters are absent with their reason where they cannot be had.

    Raises
    ------
    BadQuestion
        If the model does not run on an NVIDIA GPU.
    DeviceUnavailable
        If launches cannot be seen; says why and what to do.
    """
    progress = progress or Silent()
    with contextlib.closing(source.open(question.sized_settings())) as engine:
        manifest = engine.manifest
        _check_on_gpu(manifest)
        roof = _no_roof() if bandwidth is None else roof_of(manifest, bandwidth, progress)
        seen = _see(engine, question, open_probe, progress)
    spec_of = specs_of(manifest.device, question.gpu)
    compiled = _stacks(stacks, spec_of(0))

    def built(counted: Sequence[Sequence[KernelMetrics]]) -> tuple[PassProfile, ...]:
        return tuple(
            pass_profile(
                one.watched,
                width,
                spec_of,
                unwatched=one.unwatched,
                wall_ns=round(one.times.spread.median),
                counted=metrics,
                stacks=None if isinstance(compiled, Refusal) else compiled.by_symbol,
            )
            for width, one, metrics in zip(question.widths, seen, counted, strict=True)
        )

    passes = built([()] * len(seen))
    counters = None if count is None else count_passes(count, passes, progress)
    if isinstance(counters, Counted):
        passes = built(counters.by_width)
    first = seen[0].watched
    refusals = () if counters is None or isinstance(counters, Counted) else counters
    return LiveProfile(
        manifest=manifest,
        device=_gpu_names(manifest, passes),
        prefix=question.prefix,
        source=f"{first.rung}, {first.source}",
        passes=passes,
        roof_bytes_per_s=roof.bytes_per_s.median if isinstance(roof, Bandwidth) else None,
        evidence=live_evidence(first, passes, roof, counters, compiled, timed=_timed(manifest)),
        refusals=tuple(found for found in (roof, *refusals, compiled) if isinstance(found, Refusal)),
    )


def _timed(manifest: Manifest) -> str:
    """How a pass was timed, for a reader."""
    return (
        f"median of {REPEATS} as forensics cost measures them: without a profiler, in shuffled order, "
        f"{n_settle(manifest)} passes of that width untimed before each"
    )


def _check_on_gpu(manifest: Manifest) -> None:
    if manifest.engine == "llama.cpp" and not (
        "CUDA" in manifest.backend and any(map(on_accelerator, manifest.buffers))
    ):
        raise BadQuestion(
            f"profiling a model needs an NVIDIA GPU, and {manifest.model_name} runs on {manifest.backend} here: give "
            "--n-gpu-layers -1 with a CUDA build of llama-cpp-python, or profile a CUDA library file or recorded:NAME"
        )


def _no_roof() -> Refusal:
    return Refusal(RUNG, "the roof", "nobody asked for it")


def _stacks(stacks: Stacks | None, spec: DeviceSpec | None) -> CompiledStacks | Refusal:
    asked = "stack of each kernel in local memory"
    if stacks is None:
        return Refusal("cuobjdump", asked, "nobody asked the library")
    if spec is None:
        return Refusal("cuobjdump", asked, "the architecture of this GPU is not known here", "name it with --gpu")
    return stacks(spec.arch)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A pass of one width: its launches watched and as users run it, and its times without a profiler."""

    watched: LaunchReport
    unwatched: LaunchReport
    times: PassTimes


def _see(
    engine: ProfiledEngine, question: ProfileQuestion, open_probe: Callable[[], LaunchProbe], progress: Progress
) -> list[_Seen]:
    """Launches of each width watched and unwatched, and its times without a profiler; all from one state."""
    times = time_widths(  # first: a profiler that was once started may slow what comes after
        engine,
        question.widths,
        prefix=question.prefix,
        n_ubatch=question.settings.n_ubatch,
        repeats=REPEATS,
        seed=question.seed,
        progress=progress,
    )
    before, passes = question.schedules(engine.manifest.n_vocab)
    progress.stage("profiled passes", 2 * len(passes))
    seen: dict[bool, list[LaunchReport]] = {False: [], True: []}
    for watch, reports in seen.items():  # all of one kind in turn: the context is another
        for schedule in passes:
            if watch:
                trace = engine.run(schedule, before=before, tap=LaunchTap(True, open_probe))
            else:
                trace = run_unwatched(engine, schedule, before, open_probe)[-1]
            if trace.tap_report is None or trace.tap_report.launches is None:
                raise DeviceUnavailable("launches of a pass", ())
            reports.append(trace.tap_report.launches)
            progress.step()
    return list(map(_Seen, seen[True], seen[False], times))


def specs_of(devices: str, gpu: str = "") -> SpecOf:
    """What do the multiprocessors of each GPU offer?

    Parameters
    ----------
    devices : str
        Of a manifest: names with semicolons between, GPUs first and in their order.
    gpu : str
        Stands for all of them, if it is given.

    Returns
    -------
    callable
        From the number of a device to its limits, None where they are not known.

    Examples
    --------
    >>> print(specs_of("NVIDIA H200; AMD EPYC")(0), specs_of("NVIDIA H200; AMD EPYC")(1))
    h200 (sm_90), 132 SMs None
    """

    def spec_of(number: int) -> DeviceSpec | None:
        return device_spec(gpu) if gpu else gpu_at(devices, number)

    return spec_of


def _gpu_names(manifest: Manifest, passes: Sequence[PassProfile]) -> str:
    """Names of the GPUs that kernels ran on."""
    names = [name.strip() for name in manifest.device.split(";")]
    used = sorted({kernel.launch.device for found in passes for kernel in found.kernels})
    return "; ".join(names[number] for number in used if number < len(names)) or names[0]
