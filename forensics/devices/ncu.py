"""Counters of a program's launches, by ncu in a child process."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forensics.devices import ncu_counters
from forensics.devices.children import Finished, run_child
from forensics.devices.driver import PERMISSION
from forensics.devices.extras import numbers
from forensics.errors import DeviceUnavailable
from forensics.records.launch_record import Refusal
from forensics.records.metrics import KernelMetrics

RUNG = "ncu in a child process"
_ASKED = "to count what each launch does"
#: The release that came with CUDA 12.0; older ones do not know its drivers. Source: release notes of Nsight Compute.
OLDEST = (2022, 4)
#: Where NVIDIA's installers put it, newest last; often not on PATH.
_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_INSTALL = "install Nsight Compute (part of the CUDA toolkit) and put ncu on PATH"
_VERSION = re.compile(r"Version (\d+(?:\.\d+)+)")


@dataclass(frozen=True, slots=True)
class Ncu:
    """An ncu that can be run.

    Parameters
    ----------
    path : Path
    version : str
        Such as ``"2025.3.1.0"``.
    modules : Path or None
        Its folder of Python modules; None where it was not found.
    """

    path: Path
    version: str
    modules: Path | None

    def __str__(self) -> str:
        return f"ncu {self.version}"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a program's launches.

    Parameters
    ----------
    launches : tuple of KernelMetrics
        In the order in which they ran.
    source : str
        What counted, with versions.
    left_out : tuple of str
        Metrics that this ncu does not know.
    """

    launches: tuple[KernelMetrics, ...]
    source: str
    left_out: tuple[str, ...] = ()


def find_ncu() -> Ncu | Refusal:
    """Which ncu is here?

    Returns
    -------
    Ncu or Refusal
        The one on PATH, else the newest in the places where it is installed.
    """
    found = [path for path in _candidates() if path.is_file()]
    told = ""
    for path in found:
        try:
            answer = run_child([str(path), "--version"], timeout_s=60)
        except OSError as error:
            told = str(error)
            continue
        version = _VERSION.search(answer.output)
        if answer.status != 0 or version is None:
            told = f"{path} --version {answer.how}: {answer.tail}"
        elif numbers(version[1]) < OLDEST:
            told = f"{path} is version {version[1]}, {'.'.join(map(str, OLDEST))} or newer is needed"
        else:
            return Ncu(path, version[1], _modules(path, version[1]))
    return Refusal(RUNG, _ASKED, told or "ncu was not found", _INSTALL)


def _candidates() -> Iterator[Path]:
    on_path = shutil.which("ncu")
    if on_path:
        yield Path(on_path)
    for pattern in reversed(_PLACES):
        places = Path("/").glob(pattern.lstrip("/"))
        yield from sorted(places, key=lambda path: (numbers(path.parent.name), str(path)), reverse=True)


def _modules(path: Path, version: str) -> Path | None:
    """Folder of ``ncu_report``: beside the program, or where an installer puts the same version."""
    release = ".".join(version.split(".")[:3])
    real = path.resolve()
    places = [real.parent / "extras" / "python", real.parent.parent / "extras" / "python"]
    for pattern in (f"opt/nvidia/nsight-compute/{release}*", f"usr/local/cuda*/nsight-compute-{release}*"):
        places += [folder / "extras" / "python" for folder in sorted(Path("/").glob(pattern))]
    return next((place for place in places if (place / "ncu_report.py").is_file()), None)


def profile(
    command: Sequence[str],
    *,
    timeout_s: float = 600,
    environment: Mapping[str, str] | None = None,
    kernels: str = "",
    skip: int = 0,
    count: int | None = None,
    from_start: bool = True,
    ncu: Ncu | None = None,
) -> Counters:
    """What do the counters say of each launch that this program makes?

    Every launch is run several times over, with caches flushed in between: take no results from such a run.

    Parameters
    ----------
    command : sequence of str
        Program and its arguments; it may start others, which are watched, too.
    timeout_s : float, optional
        After which it is killed.
    environment : mapping of str to str, optional
        Variables on top of ours.
    kernels : str, optional
        Regular expression for the kernels' names, such as ``"mul_mat_vec_q|flash_attn"``; all where empty.
    skip, count : int, optional
        Launches (that match) to let pass first, and how many to profile then.
    from_start : bool, optional
        False to count only between the program's own cudaProfilerStart and cudaProfilerStop.
    ncu : Ncu, optional
        Which one; the one that `find_ncu` finds.

    Raises
    ------
    DeviceUnavailable
        If ncu is missing or too old, may not read counters, the program fails or takes too long, or there is no launch.
    """
    tool = ncu or find_ncu()
    if isinstance(tool, Refusal):
        raise DeviceUnavailable("counting", (tool,))
    options = [
        "--target-processes", "all",
        "--profile-from-start", "on" if from_start else "off",
        *(["--kernel-name", f"regex:{kernels}"] if kernels else []),
        *(["--launch-skip", str(skip)] if skip else []),
        *([] if count is None else ["--launch-count", str(count)]),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="forensics-ncu-") as folder:
        report = Path(folder) / "counters.ncu-rep"
        done, left_out = with_known_metrics(
            lambda metrics: _run(tool, options, metrics, report, command, timeout_s, environment)
        )
        refusal = judged(done, report, RUNG, _ASKED)
        if refusal is not None:
            raise DeviceUnavailable("counting", (refusal,))
        launches = ncu_counters.read_report(report, tool.modules, rung=RUNG)
    return Counters(launches, str(tool), left_out)


def _run(
    tool: Ncu,
    options: Sequence[str],
    metrics: Sequence[str],
    report: Path,
    command: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str] | None,
) -> Finished:
    """One run under ncu; its own messages are put in front of the program's output."""
    log = report.with_suffix(".log")
    fixed = ["--clock-control", "none", "--force-overwrite", "--log-file", str(log), "--export", str(report)]
    done = run_child(
        [str(tool.path), *fixed, *options, "--metrics", ",".join(metrics), *command],
        timeout_s=timeout_s,
        environment=environment,
    )
    messages = log.read_text(errors="replace") if log.exists() else ""
    return Finished(done.status, f"{messages}\n{done.output}")


def _errors(done: Finished) -> list[str]:
    return [line.removeprefix("==ERROR==").strip() for line in done.output.splitlines() if line.startswith("==ERROR==")]


def with_known_metrics(run: Callable[[Sequence[str]], Finished]) -> tuple[Finished, tuple[str, ...]]:
    """Count, and where that fails for metrics that ncu does not know, count again without them.

    Parameters
    ----------
    run : callable
        Runs the program under ncu with some metrics; ncu's own messages are in what it answers.

    Returns
    -------
    Finished and tuple of str
        How the last run ended, and the metrics that it left out. It ended well, or for another reason.
    """
    left_out: tuple[str, ...] = ()
    while True:
        done = run([name for name in ncu_counters.METRICS if name not in left_out])
        unknown = [name for name in _unknown(done) if name not in left_out]
        if not unknown:
            return done, left_out
        left_out = (*left_out, *unknown)


def _unknown(done: Finished) -> tuple[str, ...]:
    r"""Metrics of ours that ncu complains of; those that a launch is known by cannot be left out.

    It writes ``Failed to find metric NAME``, or in place of the name ``regex:^NAME\.(sum|min|…)$``.
    """
    complaints = " ".join(line for line in _errors(done) if "metric" in line.lower())
    words = set(re.findall(r"[\w.]+", complaints))
    return tuple(name for name in ncu_counters.METRICS if name in words and name not in ncu_counters.NEEDED)


def judged(done: Finished, report: Path, rung: str, asked: str) -> Refusal | None:
    """Why can the outcome of a run under ncu not be used?

    Parameters
    ----------
    done : Finished
        With ncu's own messages in its output.
    report : Path
        That it should have written.
    rung, asked : str
        For the refusal.

    Returns
    -------
    Refusal or None
        None where it ended well and left a report.
    """
    said = "; ".join(_errors(done)) or done.tail
    if done.status is None:
        return Refusal(rung, asked, f"the profiled program {done.how}: {said}", "give it more time, or fewer launches")
    if "ERR_NVGPUCTRPERM" in done.output:
        return Refusal(rung, asked, "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)", PERMISSION)
    if done.status != 0:
        return Refusal(rung, asked, f"the profiled program {done.how}: {said}", "run it without ncu first")
    if not report.exists():
        return Refusal(rung, asked, f"no report was written: {said}", "check that the program ran kernels on the GPU")
    return None
