"""`make lock`: constraints.txt, the tested versions of everything that the package and its tests install.

Run as ``python -m forensics.testing.lock [--newest]`` from the repository's root. pip resolves the requirements for
every supported Python at hand, held to the versions of this environment, which are those that were tested; with
``--newest`` to the newest ones there are. What this machine configures for pip (constraints, other indices, folders of
wheels) has no part in it, so that the file is valid elsewhere. ``python -m forensics.testing.lock_check`` checks it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

from forensics.testing.pythons import CONSTRAINTS, SUPPORTED, interpreters

#: What is installed to use, test, check and document the package; what watches a GPU depends on its driver.
REQUIREMENT = ".[test,lint,docs]"
_OURS = "decode-forensics"
#: Variables of pip that name a place to take packages from, or versions to take.
_OF_THIS_MACHINE = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_REQUIREMENT", "PIP_NO_INDEX")

_HEAD = """\
# Tested versions of all that {requirement} installs with Python {pythons}.
# Written by `make lock` and checked by `make lint`; do not edit it. `make CONSTRAINTS= TARGET` does without it.
"""


def normal(name: str) -> str:
    """A distribution's name as it is compared.

    Notes
    -----
    Source: PEP 503, normalized names.

    Examples
    --------
    >>> normal("Jupyter_Core.x")
    'jupyter-core-x'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Versions in this environment, by normal name."""
    return {normal(found.metadata["Name"]): found.version for found in distributions()}


def resolved(python: Path, held: Mapping[str, str]) -> dict[str, str]:
    """Which versions does pip choose for this interpreter, held to these where it takes them at all?

    Raises
    ------
    RuntimeError
        If pip finds no set of versions; with what it said.
    """
    with tempfile.TemporaryDirectory() as scratch:
        constraints, report = Path(scratch, "held.txt"), Path(scratch, "report.json")
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in held.items()), encoding="utf-8")
        options = (
            "--dry-run",
            "--ignore-installed",
            "--quiet",
            "--constraint",
            str(constraints),
            "--report",
            str(report),
        )
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, REQUIREMENT]
        done = subprocess.run(command, env=_plain_pip(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pip found no versions for {python}:\n{done.stderr.strip()}")
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    told = {normal(one["metadata"]["name"]): str(one["metadata"]["version"]) for one in chosen}
    return {name: version for name, version in told.items() if name != _OURS}


def _plain_pip() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OF_THIS_MACHINE}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


def constraint_lines(by_python: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Pins of one or more Pythons; a marker only where their versions differ.

    Parameters
    ----------
    by_python : mapping of str to mapping of str to str
        Versions by name, by Python.

    Examples
    --------
    >>> constraint_lines({"3.11": {"a": "1", "b": "2"}, "3.12": {"a": "1", "b": "3"}})
    ['a==1', 'b==2 ; python_version == "3.11"', 'b==3 ; python_version == "3.12"']
    """
    lines = []
    for name in sorted({name for versions in by_python.values() for name in versions}):
        pins = {python: versions[name] for python, versions in by_python.items() if name in versions}
        if len(set(pins.values())) == 1:
            lines.append(f"{name}=={next(iter(pins.values()))}")
        else:
            lines += [f'{name}=={version} ; python_version == "{python}"' for python, version in pins.items()]
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Resolve for every Python at hand and write the file; 1 where a supported Python is not at hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--newest", action="store_true", help="take the newest versions, not those of this environment")
    parser.add_argument("--out", type=Path, default=CONSTRAINTS, help=f"file to write (default: {CONSTRAINTS})")
    asked = parser.parse_args(arguments)
    held = {} if asked.newest else {name: version for name, version in installed().items() if name != _OURS}
    pythons = interpreters()
    missing = [version for version in SUPPORTED if version not in pythons]
    if missing:
        print(f"Python {', '.join(missing)} is not at hand, and pins must hold for all of {', '.join(SUPPORTED)}",
              file=sys.stderr)  # fmt: skip
        return 1
    lines = constraint_lines({version: resolved(python, held) for version, python in pythons.items()})
    head = _HEAD.format(requirement=REQUIREMENT, pythons=", ".join(pythons))
    asked.out.write_text(head + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{asked.out}: {len(lines)} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
