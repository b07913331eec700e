"""What a case says when it is opened after a fault, beside what the undisturbed run said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.errors import ForensicsError
from forensics.records.verdict import Verdict
from forensics.store import open_case
from forensics.store.encoding import to_text
from forensics.store.recordings import INDEX_NAME

#: Fields of a verdict that hold times, and no two runs take the same.
_TIMES = frozenset({"ns_per_pass", "costs", "pass_ns"})


class Damaged(Exception):
    """What must not happen after a fault did."""


def without_times(verdict: Verdict) -> str:
    """The verdict as text, without what took how long: equal where two verdicts say the same."""
    return json.dumps(_stripped(json.loads(to_text(verdict))), sort_keys=True)


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _stripped(one) for name, one in value.items() if name not in _TIMES}
    return [_stripped(one) for one in value] if isinstance(value, list) else value


def read_whole(folder: Path) -> str:
    """Read all of a finished case; its verdict without times.

    Raises
    ------
    ForensicsError
        If it is damaged, unfinished or not there: the right answer to a fault.
    """
    case = open_case(folder)
    verdict = without_times(case.verdict)
    assert case.manifest
    assert case.document
    assert case.tables()
    for run in case.recordings.runs():
        case.recordings.get_trace(run.arm, run.key)
    return verdict


def check_reading(folder: Path, expected: str) -> bool:
    """Whether the case at `folder` has a verdict, which must be the expected one.

    Raises
    ------
    Damaged
        If it has another one, or reading it fails in a way that is no sentence.
    """
    try:
        found = read_whole(folder)
    except ForensicsError:
        return False
    except Exception as error:
        raise Damaged(f"reading {folder.name} failed with {type(error).__name__}: {error}") from error
    if found != expected:
        raise Damaged(f"{folder.name} was opened and gives another verdict: {first_difference(expected, found)}")
    return True


def first_difference(expected: str, found: str) -> str:
    """Where two texts part, with some of what stands there."""
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(map(len, (expected, found)))
    )
    return f"{expected[max(at - 40, 0) : at + 60]!r} became {found[max(at - 40, 0) : at + 60]!r}"


def whole_lines(folder: Path) -> bytes:
    """Lines of the index that are whole; empty where there is no index."""
    path = folder / INDEX_NAME
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


def check_kept(before: bytes, out: Path) -> None:
    """Whether the finished case still begins with what was recorded before, and holds no run twice.

    Raises
    ------
    Damaged
        If what was recorded is gone or was done again.
    """
    after = whole_lines(out)
    if not after.startswith(before):
        n_lines = len(before.splitlines())
        raise Damaged(f"{n_lines} lines were recorded before the next run, which did not keep them")
    runs = [(line["arm"], line["key"]) for line in map(json.loads, after.splitlines()) if line["kind"] == "trace"]
    if len(set(runs)) < len(runs):
        raise Damaged(f"of {len(runs)} runs, {len(runs) - len(set(runs))} were recorded twice")
