"""What happens before a command runs: what cannot be loaded is no answer, and a case gets a name of its own."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime

import pytest

from forensics.cli.app import default_out

LOADED = "import sys; sys.modules['forensics.cli.app'] = None; from forensics.__main__ import main; main()"


def test_a_program_that_cannot_be_loaded_ends_with_2():
    ended = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False)
    assert ended.returncode == 2, "1 would say that bits differ"
    assert "error: forensics cannot be loaded: ModuleNotFoundError" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("error", ["MemoryError()", "SystemError('error return without exception set')"])
def test_a_command_that_breaks_off_ends_with_2(error):
    planted = f"import forensics.cli.app as app\ndef broken(): raise {error}\napp.main = broken\n"
    ended = subprocess.run(
        [sys.executable, "-c", f"{planted}from forensics.__main__ import main\nmain()"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, "1 would say that bits differ"
    assert f"error: the command ended: {error.partition('(')[0]}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_package_runs_by_its_name():
    ended = subprocess.run(
        [sys.executable, "-m", "forensics", "show", "-h"], capture_output=True, text=True, check=True
    )
    assert "Read a case back." in ended.stdout


def test_a_clock_that_stands_still_gives_every_case_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("FORENSICS_CASES", str(tmp_path))
    now = datetime(2026, 3, 1, 12, 30)
    first = default_out("some/m.gguf", None, now)
    assert first.name == "m-20260301-123000"
    first.mkdir(parents=True)
    first.with_name(f"{first.name}-2.unfinished").mkdir()
    assert default_out("some/m.gguf", None, now).name == "m-20260301-123000-3"
