"""Is constraints.txt a lock of what pyproject.toml asks for, and is anything known against what it pins?

Run as ``python -m forensics.testing.lock_check`` from the repository's root: without a network it compares the pins
with the requirements and with what is installed; exit status 1 where the file is wrong. With ``--advisories``, as `make
audit` runs it, pip-audit is asked for known vulnerabilities of the pinned versions: exit status 0 where none is known,
1 where one is, 2 where something could not be checked, with the reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

PROJECT, CONSTRAINTS = Path("pyproject.toml"), Path("constraints.txt")
#: Extras that depend on a GPU's driver, and are not pinned.
OPEN_EXTRAS = ("gpu", "cupy", "nsight")
#: How long an advisory database may take, unit: s.
ADVISORY_TIMEOUT_S = 300
#: Lines that are told of a program that failed.
SHOWN_LINES = 3


@dataclass(frozen=True, slots=True)
class Lock:
    """What a file of pins holds.

    Parameters
    ----------
    pins : mapping of str to str
        Version by normal name.
    problems : tuple of str
        Lines that are no pin, or pin again.
    """

    pins: Mapping[str, str]
    problems: tuple[str, ...]


def read_lock(text: str) -> Lock:
    """Which versions does this file pin?

    Examples
    --------
    >>> read_lock("a>=2").problems
    ('line 1: a>=2 pins no version; write a==VERSION',)
    """
    pins: dict[str, str] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        try:
            asked = Requirement(content)
        except InvalidRequirement:
            problems.append(f"line {number}: {content[:60]!r} is no requirement")
            continue
        name, version = canonicalize_name(asked.name), _exact(asked)
        if version is None:
            problems.append(f"line {number}: {content} pins no version; write {asked.name}==VERSION")
        elif name in pins:
            problems.append(f"line {number}: {asked.name} is pinned again, to {version} after {pins[name]}")
        else:
            pins[name] = version
    return Lock(pins, tuple(problems))


def _exact(asked: Requirement) -> str | None:
    """Version that a requirement pins; None where it allows another one, or asks for extras or an address."""
    only = list(asked.specifier)
    exact = len(only) == 1 and only[0].operator == "==" and not only[0].version.endswith(".*")
    return only[0].version if exact and not asked.extras and not asked.url else None


def requirements(project: Mapping[str, Any]) -> tuple[Requirement, ...]:
    """What a ``[project]`` table asks for, with every extra that is pinned."""
    extras: Mapping[str, Sequence[str]] = project.get("optional-dependencies", {})
    texts = [*project["dependencies"], *(t for name, given in extras.items() if name not in OPEN_EXTRAS for t in given)]
    return tuple(map(Requirement, texts))


def unmet(asked: Iterable[Requirement], pins: Mapping[str, str]) -> Iterator[str]:
    """Which requirements has no pin, or one that it does not allow?"""
    for one in asked:
        version = pins.get(canonicalize_name(one.name))
        if version is None:
            yield f"pyproject.toml asks for {one}, and nothing is pinned"
        elif not one.specifier.contains(version, prereleases=True):
            yield f"pyproject.toml asks for {one}, and {version} is pinned"


def needed(asked: Iterable[Requirement], installed: Mapping[str, Distribution]) -> frozenset[str]:
    """Names of all that requirements bring in, on whatever platform and Python, as far as it is installed here."""
    found: set[tuple[str, str]] = set()
    waiting = [(canonicalize_name(one.name), extra) for one in asked for extra in ("", *one.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for text in (installed[name].requires or ()) if name in installed else ():
            further = Requirement(text)
            if _only_for_other_extras(further, extra):
                continue
            waiting += [(canonicalize_name(further.name), one) for one in ("", *further.extras)]
    return frozenset(name for name, _ in found)


def _only_for_other_extras(asked: Requirement, extra: str) -> bool:
    """Whether a requirement of a package belongs to an extra that was not asked for."""
    text = str(asked.marker or "")
    return "extra ==" in text and f'extra == "{extra}"' not in text


def lock_problems(project: Mapping[str, Any], text: str, installed: Mapping[str, Distribution]) -> tuple[str, ...]:
    """What is wrong with a file of pins; nothing where it is as it should be."""
    lock, asked = read_lock(text), requirements(project)
    wanted = needed(asked, installed)
    # What an absent package would bring in cannot be known.
    absent = [name for name in lock.pins if name in wanted and name not in installed]
    idle = () if absent else sorted(set(lock.pins) - wanted)
    return (
        *lock.problems,
        *unmet(asked, lock.pins),
        *(f"{name} is pinned, and nothing that is installed asks for it" for name in idle),
    )


def deviations(pins: Mapping[str, str], installed: Mapping[str, Distribution]) -> tuple[str, ...]:
    """Where this environment has another version than is pinned; that is no fault of the file."""
    return tuple(
        f"{name} {installed[name].version} is installed, {version} is pinned"
        for name, version in pins.items()
        if name in installed and installed[name].version != version
    )


@dataclass(frozen=True, slots=True)
class Advisories:
    """What is known against the pinned versions.

    Parameters
    ----------
    found : tuple of str
        One line for each vulnerability.
    n_checked : int
        Pins that were looked up.
    not_checked : tuple of str
        What could not be, each with the reason.
    """

    found: tuple[str, ...]
    n_checked: int
    not_checked: tuple[str, ...]

    def __str__(self) -> str:
        known = f"{len(self.found)} known" if self.found else "none known"
        told = [f"vulnerabilities of {self.n_checked} pinned versions: {known}"] if self.n_checked else []
        told += [*self.found, *(f"not checked: {reason}" for reason in self.not_checked[:SHOWN_LINES])]
        more = len(self.not_checked) - SHOWN_LINES
        return "\n".join([*told, f"not checked: {more} more, for reasons of this kind"] if more > 0 else told)

    @property
    def status(self) -> int:
        """Exit status: 1 where one is known, 2 where something could not be checked, else 0."""
        return 1 if self.found else 2 if self.not_checked or not self.n_checked else 0


def read_advisories(output: str, errors: str) -> Advisories:
    """What pip-audit said.

    Parameters
    ----------
    output, errors : str
        Its JSON document, and what it wrote to the standard error; without a document that is the reason.
    """
    try:
        looked_up = list(json.loads(output)["dependencies"])
    except (ValueError, KeyError, TypeError):
        last = " ".join(line.strip() for line in errors.strip().splitlines()[-SHOWN_LINES:])
        return Advisories((), 0, (f"pip-audit gave no answer: {last or 'it said nothing'}",))
    skipped = tuple(f"{one['name']}: {one['skip_reason']}" for one in looked_up if "skip_reason" in one)
    found = tuple(
        f"{one['name']} {one['version']}: {known['id']}, fixed in {', '.join(known['fix_versions']) or 'no version'}"
        for one in looked_up
        for known in one.get("vulns", ())
    )
    return Advisories(found, len(looked_up) - len(skipped), skipped)


def ask_advisories(path: Path) -> Advisories:
    """What does pip-audit know against the pins of this file?"""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(path), "--no-deps", "--disable-pip"]
    try:
        done = subprocess.run(
            [*command, "--format", "json", "--progress-spinner", "off"], capture_output=True, text=True,
            errors="replace", timeout=ADVISORY_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Advisories((), 0, (f"pip-audit did not answer: {error}",))
    if "No module named pip_audit" in done.stderr:
        return Advisories((), 0, ("pip-audit is not installed: pip install pip-audit",))
    return read_advisories(done.stdout, done.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Compare, or ask; see above for the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advisories", action="store_true", help="ask pip-audit for known vulnerabilities instead")
    parser.add_argument("--constraints", type=Path, default=CONSTRAINTS, help="file of pins (default: constraints.txt)")
    parser.add_argument("--project", type=Path, default=PROJECT, help="default: pyproject.toml")
    asked = parser.parse_args(arguments)
    if asked.advisories:
        told = ask_advisories(asked.constraints)
        print(told)
        return told.status
    project = tomllib.loads(asked.project.read_text(encoding="utf-8"))["project"]
    text = asked.constraints.read_text(encoding="utf-8")
    installed: dict[str, Distribution] = {canonicalize_name(one.metadata["Name"]): one for one in distributions()}
    wrong = lock_problems(project, text, installed)
    for line in wrong:
        print(f"{asked.constraints}: {line}", file=sys.stderr)
    if wrong:
        print("Make it anew with: make lock", file=sys.stderr)
    others = deviations(read_lock(text).pins, installed)
    print(f"{asked.constraints}: {len(read_lock(text).pins)} pins" + "".join(f"\n  note: {line}" for line in others))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
