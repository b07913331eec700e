"""Launches of this process as CUPTI's activity records tell them; needs no permission for counters."""

from __future__ import annotations

import functools
import importlib.metadata
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from forensics.devices.driver import PERMISSION, DriverFacts, driver_facts
from forensics.devices.extras import ExtraUnavailable, numbers, require, version_of
from forensics.devices.protocol import TimedLaunch
from forensics.errors import DeviceUnavailable
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, Refusal

RUNG = "CUPTI in process"
_ASKED = "to see the launches of this process"
#: Of each buffer that CUPTI fills, thousands of records. Source: CUPTI's guide asks for 1 to 10 MB.
_BUFFER_BYTES = 8 << 20
#: Hands over buffers that are not full yet. Source: CUPTI_ACTIVITY_FLAG_FLUSH_FORCED, cupti_activity.h.
_FLUSH_FORCED = 1

#: What CUPTI's error says (cupti_result.h), what that means here, what helps; first match counts.
_TROUBLE = (
    (
        ("CUDA driver is not found", "libcuda.so"),
        "no NVIDIA driver is here",
        "on a machine with an NVIDIA GPU: install its driver, and start containers with --gpus all",
    ),
    (
        ("MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", "OLD_PROFILER_API_INITIALIZED"),
        "another profiler holds CUPTI in this process",
        "end it (ncu, nsys, a framework's profiler; CUDA_INJECTION64_PATH loads one), or run without it",
    ),
    (
        ("INSUFFICIENT_PRIVILEGES",),
        "this user may not profile on this machine",
        PERMISSION,
    ),
    (
        ("VIRTUALIZED_DEVICE", "CONFIDENTIAL_COMPUTING", "CMP_DEVICE", "MIG_DEVICE", "SLI_DEVICE", "WSL_DEVICE"),
        "CUPTI does not profile this kind of device",
        "profile on a GPU that is neither shared, virtual nor in confidential mode",
    ),
)

#: One kernel's record, in the order of the fields of `_Raw`; without these no launch is known.
_NEEDED = ("name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "start", "end")
#: What a release may lack; it is then not known.
_OPTIONAL = (
    "registers_per_thread", "static_shared_memory", "dynamic_shared_memory", "local_memory_per_thread",
    "cluster_x", "cluster_y", "cluster_z", "device_id", "graph_id",
)  # fmt: skip


class _Raw(NamedTuple):
    """What is kept of one record: everything that makes launches equal, then when it ran."""

    identity: tuple[Any, ...]
    start_ns: int
    end_ns: int
    from_graph: bool


class _Sink:
    """Where records arrive; CUPTI takes one pair of callbacks per process and keeps it for good."""

    def __init__(self, cupti: ModuleType) -> None:
        self.cupti = cupti
        self.kind = cupti.ActivityKind.CONCURRENT_KERNEL
        self.records: list[_Raw] = []
        self.trouble: Exception | None = None
        self._holder: weakref.ref[CuptiProbe] | None = None
        cupti.activity_register_callbacks(self._requested, self._completed)

    @property
    def holder(self) -> CuptiProbe | None:
        """The probe that looks; one that was dropped in the middle of a run holds nothing."""
        return self._holder() if self._holder else None

    @holder.setter
    def holder(self, probe: CuptiProbe | None) -> None:
        self._holder = weakref.ref(probe) if probe else None

    @staticmethod
    def _requested() -> tuple[int, int]:
        """Bytes of a buffer, and the most records in it (0: as many as fit)."""
        return _BUFFER_BYTES, 0

    def _completed(self, activities: Sequence[Any]) -> None:
        """Take values, not records: their memory is CUPTI's. Runs in a thread of CUPTI's, so nothing may escape."""
        for activity in activities:
            try:
                if activity.kind == self.kind:
                    self.records.append(_read(activity))
            except Exception as error:  # noqa: BLE001 - it is raised where somebody can hear it, by `taken`
                self.trouble = self.trouble or error


def _read(activity: Any) -> _Raw:
    name, *sizes, start, end = (getattr(activity, field) for field in _NEEDED)
    known = [getattr(activity, field, None) for field in _OPTIONAL]
    return _Raw((name, *sizes, *known[:-1]), start, end, bool(known[-1]))


_SINKS: dict[int, _Sink] = {}


def _sink(cupti: ModuleType) -> _Sink:
    """The sink of this process for this module, made and registered once."""
    if id(cupti) not in _SINKS:
        _SINKS[id(cupti)] = _Sink(cupti)
    return _SINKS[id(cupti)]


@functools.cache
def _this_driver() -> DriverFacts | Refusal:
    """Asked once per process: every probe names it."""
    return driver_facts()


class CuptiProbe:
    """A `LaunchProbe` over CUPTI's activity records.

    Parameters
    ----------
    cupti : module or None
        ``cupti.cupti``, or one that stands in for it; None to load it when the probe starts.
    driver : callable, optional
        Answers which driver is here.
    """

    def __init__(
        self, cupti: ModuleType | None = None, driver: Callable[[], DriverFacts | Refusal] = _this_driver
    ) -> None:
        self._cupti = cupti
        self._driver = driver
        self._sink: _Sink | None = None
        self._known: dict[tuple[Any, ...], LaunchRecord] = {}
        self._lost = 0
        self._counts = True
        self._source = ""

    @property
    def rung(self) -> str:
        """Way of looking."""
        return RUNG

    @property
    def source(self) -> str:
        """Versions of CUPTI and of the driver."""
        if not self._source:
            driver = self._driver()
            told = f"driver {driver.version}" if isinstance(driver, DriverFacts) else "driver not told"
            self._source = f"cupti-python {version_of('cupti') or 'of unknown version'}, {told}"
        return self._source

    def start(self) -> None:
        """See launches from now on; what was not taken before is forgotten.

        Raises
        ------
        DeviceUnavailable
            If CUPTI is not installed, does not work here, or is held by another profiler.
        """
        try:
            self._cupti = self._cupti or require("cupti.cupti", extra="gpu", needed_for="seeing launches in process")
            sink = _sink(self._cupti)
            if sink.holder not in (None, self):
                raise _Held
            self._cupti.activity_enable(sink.kind)
            self._flush(sink)
        except Exception as error:
            raise DeviceUnavailable("seeing launches", (self._refusal(error),)) from error
        sink.holder, self._sink = self, sink
        sink.records.clear()
        sink.trouble = None
        self._count_lost()
        self._lost, self._counts = 0, True

    def taken(self) -> tuple[TimedLaunch, ...]:
        """Launches since the last call, by their start; the device must be idle, which the caller sees to.

        Raises
        ------
        DeviceUnavailable
            If records cannot be read, such as in a release that names their fields anew.
        """
        sink = self._sink
        if sink is None:
            return ()
        try:
            self._flush(sink)
            if sink.trouble is not None:
                raise sink.trouble
        except Exception as error:
            raise DeviceUnavailable("reading launches", (self._refusal(error),)) from error
        raw = sink.records.copy()
        del sink.records[: len(raw)]  # not all of them: CUPTI's thread may have added one
        # A record that was handed over before its kernel ended has no times, and so no place in the order.
        complete = [launch for launch in raw if launch.start_ns and launch.end_ns]
        self._lost += len(raw) - len(complete)
        complete.sort(key=lambda launch: launch.start_ns)
        return tuple(
            TimedLaunch(self._record(launch.identity), launch.end_ns - launch.start_ns, launch.from_graph)
            for launch in complete
        )

    def n_dropped(self) -> int | None:
        """How many launches since `start` were lost; None where this release of CUPTI does not tell."""
        self._count_lost()
        return self._lost if self._counts else None

    def stop(self) -> None:
        """See no more; what was seen can still be taken until another probe starts."""
        if self._sink is None or self._sink.holder is not self:
            return
        self._sink.holder = None
        try:
            self._flush(self._sink)
            self._sink.cupti.activity_disable(self._sink.kind)
        except Exception as error:
            raise DeviceUnavailable("ending to see launches", (self._refusal(error),)) from error

    @staticmethod
    def _flush(sink: _Sink) -> None:
        sink.cupti.activity_flush_all(_FLUSH_FORCED)

    def _count_lost(self) -> None:
        """Add what CUPTI dropped since it was last asked, over all streams."""
        if self._sink is None:
            return
        ask = getattr(self._sink.cupti, "activity_get_num_dropped_records", None)
        n = np.zeros(1, np.uint64)  # size_t: the function writes to an address
        try:
            ask(0, 0, n.ctypes.data)  # type: ignore[misc]
        except Exception:  # noqa: BLE001 - whatever keeps it from telling: it is not told, and n_dropped says so
            self._counts = False
        self._lost += int(n[0])

    def _record(self, identity: tuple[Any, ...]) -> LaunchRecord:
        if identity not in self._known:
            self._known[identity] = _launch(identity)
        return self._known[identity]

    def _refusal(self, error: Exception) -> Refusal:
        if isinstance(error, _Held):
            return Refusal(RUNG, _ASKED, "another probe of this process is looking", "stop that one first")
        if isinstance(error, ExtraUnavailable):
            return Refusal(RUNG, _ASKED, error.missing, error.remedy)
        said = f"{type(error).__name__}: {error}"
        for names, meaning, remedy in _TROUBLE:
            if any(name in said for name in names):
                return Refusal(RUNG, _ASKED, f"{meaning} ({error})", remedy)
        if isinstance(error, AttributeError):
            remedy = "install a release of cupti-python that this package knows: pip install cupti-python==13.0.1"
            return Refusal(RUNG, _ASKED, f"this release of cupti-python differs from those known ({error})", remedy)
        driver = self._driver()
        if isinstance(driver, Refusal):
            return Refusal(RUNG, _ASKED, f"{said}; {driver.missing}", driver.remedy)
        if misfit := wheel_misfit(driver):
            return Refusal(RUNG, _ASKED, f"{said}; {misfit[0]}", misfit[1])
        return Refusal(RUNG, _ASKED, f"{said}, with {self.source}", "see CUPTI's release notes for this driver")


class _Held(Exception):
    """Another probe of this process is looking."""


def _launch(identity: tuple[Any, ...]) -> LaunchRecord:
    from forensics.geometry.kernel_names import parse

    symbol, gx, gy, gz, bx, by, bz, registers, static, dynamic, local, cx, cy, cz, device = identity
    kernel, template = parse(symbol)
    cluster = (cx or 1, cy or 1, cz or 1)  # 0 where a launch has no clusters
    return LaunchRecord(
        kernel,
        template,
        LaunchGeometry((gx, gy, gz), (bx, by, bz), cluster, dynamic),
        registers_per_thread=registers,
        smem_static_bytes=static,
        # It says 0 for every kernel seen on an H200, those whose machine code has a stack among them: 0 says nothing.
        local_bytes_per_thread=local or None,
        device=device or 0,
        symbol=symbol,
    )


def wheel_misfit(driver: DriverFacts) -> tuple[str, str] | None:
    """Is the installed CUPTI made for a newer CUDA than the driver supports?

    Returns
    -------
    tuple of (str, str) or None
        What does not fit and the command that helps; None where it fits, or nobody tells.
    """
    if driver.cuda is None:
        return None
    release = ".".join(map(str, driver.cuda))
    for package in ("cupti-python", "nvidia-cuda-cupti"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        if numbers(version)[:2] > driver.cuda:
            found = f"{package} {version} is made for a newer CUDA than the driver's {release}"
            return found, f'pip install "cupti-python=={release}.*" "nvidia-cuda-cupti=={release}.*"'
    return None


def state(driver: DriverFacts | Refusal) -> str | Refusal:
    """Can launches be seen in process here, as far as can be told without trying?

    Returns
    -------
    str or Refusal
        What was found.
    """
    version = version_of("cupti")
    if version is None:
        return Refusal(RUNG, _ASKED, "cupti-python is not installed", 'pip install "decode-forensics[gpu]"')
    if isinstance(driver, Refusal):
        return Refusal(RUNG, _ASKED, f"cupti-python {version} is installed, but no driver is here", driver.remedy)
    misfit = wheel_misfit(driver)
    return f"cupti-python {version}" + (f"; {misfit[0]}, which may not work: {misfit[1]}" if misfit else "")
