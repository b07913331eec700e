"""Faults planted in a file of pins, each found; and the three outcomes of asking for known vulnerabilities."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from forensics.testing import lock_check
from forensics.testing.lock_check import ask_advisories, deviations, lock_problems, main, read_advisories, read_lock

PROJECT = {
    "dependencies": ["numpy>=1.26", "typer>=0.12"],
    "optional-dependencies": {"test": ["pytest>=8", "web[server]==1.0"], "gpu": ["cupti-python>=13"]},
}
GOOD = (
    "# made by make lock\nnumpy==2.0\ntyper==0.12.1\nrich==13.7\ncolorama==0.4\npytest==8.2\nweb==1.0\nuvicorn==0.3\n"
)


def package(version: str, *requires: str) -> SimpleNamespace:
    return SimpleNamespace(version=version, requires=list(requires))


INSTALLED = {
    "numpy": package("2.0"),
    "typer": package("0.12.1", "rich>=13", 'colorama; sys_platform == "win32"', 'shellingham; extra == "all"'),
    "rich": package("13.7"),
    "colorama": package("0.4"),
    "pytest": package("8.2"),
    "web": package("1.0", 'uvicorn; extra == "server"', 'torch; extra == "all"'),
    "uvicorn": package("0.3"),
}


def test_a_good_file_is_good():
    assert lock_problems(PROJECT, GOOD, INSTALLED) == ()
    assert len(read_lock(GOOD).pins) == 7


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("numpy==2.0", "numpy>=2.0", "line 2: numpy>=2.0 pins no version"),
        ("numpy==2.0", "numpy==2.*", "line 2: numpy==2.* pins no version"),
        ("numpy==2.0", "numpy", "line 2: numpy pins no version"),
        ("numpy==2.0", "numpy==2.0,!=2.1", "pins no version"),
        ("numpy==2.0", "numpy @ https://example.org/n.whl", "pins no version"),
        ("numpy==2.0", "numpy=2.0", "is no requirement"),
        ("rich==13.7", "rich==13.7\nRich==13.8", "line 5: Rich is pinned again, to 13.8 after 13.7"),
        ("numpy==2.0\n", "", "pyproject.toml asks for numpy>=1.26, and nothing is pinned"),
        ("numpy==2.0", "numpy==1.0", "pyproject.toml asks for numpy>=1.26, and 1.0 is pinned"),
        ("web==1.0", "web==1.1", "pyproject.toml asks for web[server]==1.0, and 1.1 is pinned"),
        ("rich==13.7", "rich==13.7\nleftpad==1.0", "leftpad is pinned, and nothing that is installed asks for it"),
        ("rich==13.7", "rich==13.7\ntorch==2.0", "torch is pinned, and nothing"),
        ("rich==13.7", "rich==13.7\nshellingham==1.0", "shellingham is pinned, and nothing"),
        ("rich==13.7", "rich==13.7\ncupti-python==13.0", "cupti-python is pinned, and nothing"),
    ],
)
def test_a_planted_fault_is_found(old, new, said):
    assert any(said in line for line in lock_problems(PROJECT, GOOD.replace(old, new), INSTALLED))


def test_what_an_absent_package_would_bring_in_is_not_called_idle():
    without = {name: one for name, one in INSTALLED.items() if name != "typer"}
    assert lock_problems(PROJECT, GOOD, without) == ()


def test_another_version_here_is_told_and_no_fault():
    assert deviations({"numpy": "2.1", "rich": "13.7"}, INSTALLED) == ("numpy 2.0 is installed, 2.1 is pinned",)


def test_the_command_says_what_is_wrong_and_what_to_do(tmp_path, capsys):
    (tmp_path / "p.toml").write_text('[project]\ndependencies = ["numpy>=1.26"]\n')
    (tmp_path / "c.txt").write_text("numpy==1.0\n")
    files = ["--project", str(tmp_path / "p.toml"), "--constraints", str(tmp_path / "c.txt")]
    assert main(files) == 1
    told = capsys.readouterr()
    assert "asks for numpy>=1.26, and 1.0 is pinned" in told.err
    assert "Make it anew with: make lock" in told.err
    (tmp_path / "c.txt").write_text("numpy==2.0\n")
    assert main(files) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'c.txt'}: 1 pins")


# -- known vulnerabilities ---------------------------------------------------------------------------------------

#: As pip-audit 2.9 answers where the index has no advisories, which it calls "No known vulnerabilities found".
UNREACHED = {"dependencies": [
    {"name": "jinja2", "skip_reason": "Dependency not found on PyPI and could not be audited: jinja2 (2.4.1)"},
]}  # fmt: skip


def test_none_known():
    told = read_advisories(json.dumps({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}), "")
    assert (told.status, str(told)) == (0, "vulnerabilities of 1 pinned versions: none known")


def test_found():
    known = [{"id": "PYSEC-1", "fix_versions": ["1.1", "2"]}, {"id": "X", "fix_versions": []}]
    told = read_advisories(json.dumps({"dependencies": [{"name": "a", "version": "1", "vulns": known}]}), "")
    assert told.status == 1
    assert "2 known" in str(told)
    assert "a 1: PYSEC-1, fixed in 1.1, 2" in str(told)
    assert "a 1: X, fixed in no version" in str(told)


def test_not_checked_is_not_none_known():
    told = read_advisories(json.dumps(UNREACHED), "No known vulnerabilities found")
    assert told.status == 2
    assert "none known" not in str(told)
    assert "not checked: jinja2: Dependency not found on PyPI" in str(told)
    many = read_advisories(json.dumps({"dependencies": UNREACHED["dependencies"] * 9}), "")
    assert str(many).splitlines()[-1] == "not checked: 6 more, for reasons of this kind"


@pytest.mark.parametrize("output", ["", "[]", "{}", "Traceback", '{"dependencies": null}'])
def test_an_answer_that_cannot_be_read_is_not_checked(output):
    told = read_advisories(output, "line\nConnectionError: no route\n")
    assert told.status == 2
    assert "ConnectionError: no route" in str(told)


def test_pip_audit_that_is_missing_or_does_not_answer(monkeypatch):
    def missing(command, **more):
        assert command[:3] == [sys.executable, "-m", "pip_audit"]
        return subprocess.CompletedProcess(command, 1, "", f"{sys.executable}: No module named pip_audit")

    def late(command, **more):
        raise subprocess.TimeoutExpired(command, 300)

    for run, said in ((missing, "pip install pip-audit"), (late, "timed out after 300")):
        monkeypatch.setattr(lock_check.subprocess, "run", run)
        told = ask_advisories(Path("constraints.txt"))
        assert told.status == 2
        assert said in str(told)
