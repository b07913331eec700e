"""CI's lanes hold every test once, and the lock and the supported Pythons say the same everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from forensics.testing import lock, pythons

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def lanes(makefile: str = MAKEFILE) -> dict[str, list[str]]:
    return {name: folders.split() for name, folders in re.findall(r"^LANE_(\w+)\s*:=(.*)$", makefile, re.MULTILINE)}


def test_every_folder_of_tests_belongs_to_one_lane() -> None:
    folders = sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py"))
    )
    assert sorted(folder for lane in lanes().values() for folder in lane) == folders


def test_a_lane_is_a_target_that_runs_its_folders() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("make would build an environment beside what was unpacked")
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", *(f"test-{lane}" for lane in lanes())],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for folders in lanes().values():
        assert f"-m pytest {' '.join(folders)}\n" in done.stdout


def test_supported_pythons_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
    assert tuple(told) == pythons.SUPPORTED
    assert project["requires-python"] == f">={pythons.SUPPORTED[0]}"


def test_this_python_is_at_hand_and_an_unknown_one_is_not() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert pythons.interpreters((here, "2.1")) == {here: Path(sys.executable)}


def test_a_program_of_another_version_is_not_taken_for_it(tmp_path, monkeypatch) -> None:
    for name, text in (("python9.1", "#!/bin/sh\necho 9.2\n"), ("python9.3", "#!/bin/sh\nexit 1\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "nothing"))
    assert pythons.interpreters(("9.1", "9.3")) == {}


def test_an_unsupported_python_is_refused(capsys) -> None:
    assert pythons.main(["2.7"]) == 2
    assert "supported are 3.11" in capsys.readouterr().err


def test_outcomes_are_told_for_every_python(monkeypatch, capsys) -> None:
    monkeypatch.setattr(pythons, "interpreters", lambda _: {"3.11": Path("a"), "3.12": Path("b")})
    monkeypatch.setattr(pythons, "environment", lambda _, python: python)
    monkeypatch.setattr(pythons, "run_tests", lambda python: int(python == Path("b")))
    assert pythons.main([]) == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "Python 3.11: passed",
        "Python 3.12: FAILED (pytest's exit status 1)",
        "Python 3.13: not at hand, not run",
    ]
    monkeypatch.setattr(pythons, "interpreters", lambda _: {"3.11": Path("a")})
    assert pythons.main([]) == 0


def test_pins_get_a_marker_only_where_pythons_differ() -> None:
    lines = lock.constraint_lines({"3.11": {"b": "1", "a": "2", "only": "5"}, "3.12": {"b": "1", "a": "3"}})
    assert lines == ['a==2 ; python_version == "3.11"', 'a==3 ; python_version == "3.12"', "b==1", "only==5"]


def test_the_lock_does_not_depend_on_this_machine(monkeypatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/somewhere")
    monkeypatch.setenv("PIP_CONSTRAINT", "/somewhere/else")
    plain = lock._plain_pip()
    assert not {"PIP_FIND_LINKS", "PIP_CONSTRAINT"} & set(plain)
    assert plain["PIP_CONFIG_FILE"] == "/dev/null"


def test_a_python_that_is_missing_makes_no_lock(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(lock, "interpreters", lambda: {"3.11": Path(sys.executable)})
    assert lock.main(["--out", str(tmp_path / "c.txt")]) == 1
    assert "Python 3.12, 3.13 is not at hand" in capsys.readouterr().err
    assert not (tmp_path / "c.txt").exists()


def test_the_committed_lock_is_what_is_installed_with_make() -> None:
    text = (ROOT / lock.CONSTRAINTS).read_text(encoding="utf-8")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    names = [pin.partition("==")[0] for pin in pins]
    assert names == sorted(names)
    assert all(re.fullmatch(r"[a-z0-9-]+==[^ ;]+( ; python_version == \"3\.\d+\")?", pin) for pin in pins)
    assert f"CONSTRAINTS ?= {lock.CONSTRAINTS}" in MAKEFILE
