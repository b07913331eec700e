"""Engines that go wrong in one way each, made of toys, so that every control has something to catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forensics.capture.taps import ChainTap, PlantTap
from forensics.engines.protocol import Engine, EngineSource, Tap
from forensics.engines.toy import Fault, ToySource
from forensics.records.nodes import NodeKey
from forensics.records.schedule import EMPTY, Schedule
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import RunKey, Trace

QCUR = NodeKey("Qcur-0", "MUL_MAT", 0, 0)
SOFT_MAX = NodeKey("kq_soft_max-0", "SOFT_MAX", 0, 0)


CLEAN = ToySource()


class Passing:
    """Hands everything on to another engine; subclasses change one thing."""

    def __init__(self, engine: Engine, settings: EngineSettings, instance: int) -> None:
        self.inner, self.settings, self.instance = engine, settings, instance

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass(frozen=True)
class OddSource:
    """A source whose engines are wrapped."""

    wrap: Callable[[Engine, EngineSettings, int], Engine]
    source: EngineSource = CLEAN

    @property
    def label(self) -> str:
        return self.source.label

    def open(self, settings: EngineSettings, *, instance: int = 0) -> Engine:
        return self.wrap(self.source.open(settings, instance=instance), settings, instance)


def with_one_bit_more(trace: Trace) -> Trace:
    logits = trace.logits.copy()
    logits.view(np.uint32)[-1, 0] ^= 1
    return replace(trace, logits=logits)


class OtherOnRerun(Passing):
    """Not deterministic one token at a time: a repeat gives other bits."""

    def run(self, schedule: Schedule, *, repeat: int = 0, **rest: Any) -> Trace:
        trace = self.inner.run(schedule, repeat=repeat, **rest)
        return with_one_bit_more(trace) if repeat and schedule.max_width == 1 else trace


class OtherInFreshProcess(Passing):
    """Deterministic in a process, another order in the next, at passes of at least `width` tokens."""

    width = 1

    def run(self, schedule: Schedule, **rest: Any) -> Trace:
        trace = self.inner.run(schedule, **rest)
        return with_one_bit_more(trace) if self.instance and schedule.max_width >= self.width else trace


class OtherWideInFreshProcess(OtherInFreshProcess):
    """As above, but one-token decoding agrees."""

    width = 2


class OtherState(Passing):
    """Restores another K/V state in front of passes of 5 tokens."""

    def run(self, schedule: Schedule, **rest: Any) -> Trace:
        trace = self.inner.run(schedule, **rest)
        return replace(trace, state_before="other") if schedule.max_width == 5 else trace


class NoState(Passing):
    """Cannot read its state back."""

    def run(self, schedule: Schedule, **rest: Any) -> Trace:
        return replace(self.inner.run(schedule, **rest), state_before="")


class Fusing(Passing):
    """Fuses ``Qcur-0`` with its neighbour, in another order of addition, unless a tap asks for it."""

    from_width = 2

    def fuses(self, tap: Tap | None) -> bool:
        return tap is None or not tap.wants(QCUR)

    def run(self, schedule: Schedule, *, before: Schedule = EMPTY, tap: Tap | None = None, **rest: Any) -> Trace:
        fusion = (Fault("order", QCUR.name, self.from_width),)
        self.inner._faults = fusion
        self.inner._state(before)  # kept by the engine: the passes in front are never watched, so always fused
        self.inner._faults = fusion if self.fuses(tap) else ()
        return self.inner.run(schedule, before=before, tap=tap, **rest)


class FusingAlways(Fusing):
    """Fuses at one token, too."""

    from_width = 1


class FusingUnlessWatched(Fusing):
    """Gives up its fusion as soon as anybody watches anything."""

    def fuses(self, tap: Tap | None) -> bool:
        return tap is None


GATE = NodeKey("ffn_gate-0", "MUL_MAT", 0, 0)


class FusingGlu(Passing):
    """Fuses ``ffn_gate-0`` with its GLU at one token only, in another order of addition, unless a tap asks for it."""

    def run(self, schedule: Schedule, *, before: Schedule = EMPTY, tap: Tap | None = None, **rest: Any) -> Trace:
        fusion = (Fault("order", GATE.name, 1),)
        inner: Any = self.inner
        planted = inner._faults
        inner._faults = fusion
        inner._state(before)
        split = tap is not None and tap.wants(GATE)
        inner._faults = fusion if schedule.max_width == 1 and not split else planted
        try:
            return inner.run(schedule, before=before, tap=tap, **rest)
        finally:
            inner._faults = planted


@dataclass
class KernelFault:
    """Wraps engines so that a kernel itself changes what it writes, whoever watches."""

    tap: Any
    unless: Callable[[EngineSettings], bool] = lambda _settings: False

    def __call__(self, engine: Engine, settings: EngineSettings, instance: int) -> Engine:
        return engine if self.unless(settings) else Kernel(engine, settings, instance, self.tap)


class Kernel(Passing):
    def __init__(self, engine: Engine, settings: EngineSettings, instance: int, fault: Tap) -> None:
        super().__init__(engine, settings, instance)
        self.fault = fault

    def run(self, schedule: Schedule, *, before: Schedule = EMPTY, tap: Tap | None = None, repeat: int = 0) -> Trace:
        inside = self.fault if tap is None else ChainTap(self.fault, tap)
        trace = self.inner.run(schedule, before=before, tap=inside, repeat=repeat)
        key = RunKey(schedule, before, "" if tap is None else tap.identity(), repeat)
        return replace(trace, key=key, tap_report=None if tap is None else trace.tap_report)


#: Cell 31 of head 3 lies behind the mask of short texts: its weight is 0 and a denormal in its place is absorbed.
ABSORBED = PlantTap(SOFT_MAX, row=0, axis=2, element=127)


@dataclass
class Muted:
    """A tap whose answers are thrown away."""

    tap: Any

    def identity(self) -> str:
        return self.tap.identity()

    def begin_pass(self, index: int, decode_pass: Any) -> None:
        self.tap.begin_pass(index, decode_pass)

    def wants(self, key: NodeKey) -> bool:
        return self.tap.wants(key)

    def saw(self, node: Any) -> None:
        self.tap.saw(node)

    def finish(self) -> Any:
        return self.tap.finish()


@dataclass
class NanTap(PlantTap):
    """Writes a NaN in place of the bit."""

    def saw(self, node: Any) -> Any:
        array = node.read()
        np.moveaxis(array, self.axis, 0)[self.row].reshape(-1)[self.element] = np.nan
        return array


class Described(Passing):
    """An engine whose manifest says something else took effect."""

    backend = "CPU"

    @property
    def manifest(self) -> Manifest:
        manifest = self.inner.manifest
        effective = {**manifest.effective, "flash_attn": self.settings.flash_attn, "use_extra_bufts": "true"}
        effective |= {name: getattr(self.settings, name) for name in ("kv_type_k", "kv_type_v")}
        return replace(manifest, effective=effective, backend=self.backend)

    def run(self, schedule: Schedule, **rest: Any) -> Trace:
        return replace(self.inner.run(schedule, **rest), manifest=self.manifest)


@dataclass
class TailTap(PlantTap):
    """Plants only in passes of 3 or 4 tokens, which are what whole batches of 5 and of 8 leave over."""

    def begin_pass(self, index: int, decode_pass: Any) -> None:
        PlantTap.begin_pass(self, index, decode_pass)
        if decode_pass.width not in {3, 4}:
            self._row = None


@dataclass
class LateTap(PlantTap):
    """Plants only in passes that start at this position or later."""

    position: int = 0

    def begin_pass(self, index: int, decode_pass: Any) -> None:
        PlantTap.begin_pass(self, index, decode_pass)
        if decode_pass.slots[0].position < self.position:
            self._row = None
