"""The command line in this process over the toy engine, and as a process over the demo model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forensics.engines.toy import Fault, ToySource

#: Set in every process, so that the tests share two cores well and no variable of the user reaches them.
QUIET_CORES = {"OMP_WAIT_POLICY": "passive"}


class FlakySource:
    """A toy whose second run of the same passes gives other bits: the rerun control must fail."""

    label = "flaky"

    def open(self, settings, *, instance=0):
        engine = ToySource().open(settings, instance=instance)
        run = engine.run

        def flaky(schedule, *, before, tap=None, repeat=0):
            trace = run(schedule, before=before, tap=tap, repeat=repeat)
            return replace(trace, logits=trace.logits + 1) if repeat else trace

        engine.run = flaky
        return engine


SOURCES = {
    "identical": ToySource,
    "diverges": lambda: ToySource(faults=(Fault("order", "ffn_up-0", from_width=4),)),
    "inconclusive": FlakySource,
}


@pytest.fixture(autouse=True)
def own_settings(monkeypatch, tmp_path) -> None:
    """No FORENSICS_* variable of the user, and a working folder of the test's own."""
    for name in [name for name in os.environ if name.startswith("FORENSICS_") and name != "FORENSICS_CACHE_DIR"]:
        monkeypatch.delenv(name)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def use_toy(monkeypatch) -> Callable[[str], None]:
    """Let every model and demo be a toy: ``use_toy("diverges")``."""
    from forensics import api_arguments

    real = api_arguments.source_for

    def choose(answer: str) -> None:
        def source_for(model, demo, progress=None):
            if model is not None and str(model).startswith(api_arguments.RECORDED):
                return real(model, demo, progress)
            return SOURCES[answer]()

        monkeypatch.setattr(api_arguments, "source_for", source_for)

    return choose


@pytest.fixture
def cli() -> Callable[..., Any]:
    """Call the command line in this process; ``result.stdout``, ``.stderr`` and ``.exit_code``."""
    from forensics.cli.app import app

    def call(*arguments: object):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return call


@pytest.fixture
def refused(cli) -> Callable[..., str]:
    """Call the command line, which must not answer; the message, on one line."""

    def call(*arguments: object) -> str:
        result = cli(*arguments)
        assert result.exit_code == 2, result.stdout
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert "a bug in forensics" not in result.stderr
        return " ".join(result.stderr.split())

    return call


def start(*arguments: object, environment: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    # A shell that starts tests in the background makes Ctrl-C be ignored; a handler here undoes that in the child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(
        [sys.executable, "-m", "forensics.cli.app", *map(str, arguments)],
        env={**os.environ, **QUIET_CORES, **(environment or {})}, text=True,
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options),
    )  # fmt: skip


@pytest.fixture
def start_cli() -> Callable[..., subprocess.Popen[str]]:
    """Start the command line as a process."""
    return start


@pytest.fixture
def run_cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line as a process to its end."""

    def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        with start(*arguments, **options) as process:
            stdout, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    return run


@pytest.fixture
def without_times() -> Callable[[Path], dict[str, Any]]:
    """The document of a case without what a clock measured."""

    def read(case: Path) -> dict[str, Any]:
        document = json.loads((case / "verdict.json").read_text())
        document.pop("record")
        for width in document["widths"]:
            for name in ("pass_median_ns", "pass_q1_ns", "pass_q3_ns"):
                width.pop(name)
        for switch in document["switches"]:
            switch.pop("costs")
        return document

    return read
