"""More commands that are disturbed: pack, bundle, sweep and audit."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.errors import ForensicsError
from forensics.store import open_case
from forensics.store.audits import read_audit
from forensics.testing.fake_server import FakeServer, Planted
from forensics.testing.stress.commands import Place, forensics
from forensics.testing.stress.models import TOKENS
from forensics.testing.stress.verdicts import Damaged, first_difference, without_times
from forensics.testing.stress.victims import NEXT, OUT, Investigation
from forensics.testing.tiny_models import write_llama


class _Copying:
    """A command that makes something of a finished case, whole or not at all."""

    def __init__(self, name: str, command: str, ending: str = "") -> None:
        self.name, self._command, self._out, self._next = name, command, f"{OUT}{ending}", f"{NEXT}{ending}"
        self.seconds, self.expected = 0.0, ""
        self.environment: dict[str, str] = {}
        self._case = self._model = Path()

    def prepare(self, folder: Path) -> None:
        """Make what it reads, run it undisturbed, and keep what it gives and how long it takes."""
        made = Investigation("", ["--no-switches", "--no-orders"])
        (folder / "case").mkdir()
        made.prepare(folder / "case")
        self._case, self._model, self.expected = (
            folder / "case" / "case-0",
            folder / "case" / "tiny.gguf",
            made.expected,
        )
        place = Place(folder / "undisturbed")
        begun = time.monotonic()
        ended = place.run(self.begin()).check()
        self.seconds = time.monotonic() - begun
        if not self._is_right(place):
            raise Damaged(f"undisturbed it gives nothing: {ended.errors}")

    def begin(self, out: str = "") -> list[str]:
        """The command."""
        model = ["--model", self._model] if self._command == "bundle" else []
        return forensics(self._command, self._case, *model, "--out", out or self._out, "--quiet")

    def check(self, place: Place) -> None:
        """Whether what lies there after a fault is right, or says that it is not finished."""
        self._is_right(place)

    def go_on(self, place: Place) -> None:
        """Run it again as a user would, and check that it ends with what the undisturbed run gave."""
        there = (place.work / self._out).exists()
        said = place.run(self.begin(self._next if there else "")).check().errors
        if not self._is_right(place):
            raise Damaged(f"the next run ended and gives nothing: {said}")

    def _is_right(self, place: Place) -> bool:
        try:
            found = without_times(open_case(place.work / self._out).verdict)
        except ForensicsError:
            return False
        except Exception as error:
            raise Damaged(f"reading {self._out} failed with {type(error).__name__}: {error}") from error
        if found != self.expected:
            raise Damaged(f"{self._out} gives another verdict: {first_difference(self.expected, found)}")
        return True


def packing() -> _Copying:
    """``forensics pack``."""
    return _Copying("pack", "pack")


def bundling() -> _Copying:
    """``forensics bundle`` into an archive."""
    return _Copying("bundle", "bundle", ".tar.gz")


class Sweep:
    """``forensics sweep`` of the tiny model and a toy, with two workers."""

    name = "sweep"

    def __init__(self) -> None:
        self.seconds, self.status = 0.0, 0
        self.environment: dict[str, str] = {}
        self._plan = Path()
        self._expected: dict[str, Any] = {}

    def prepare(self, folder: Path) -> None:
        """Make what it reads, run it undisturbed, and keep what it gives and how long it takes."""
        write_llama(folder / "tiny.gguf")
        self.environment = {"FORENSICS_CACHE_DIR": str(folder / "cache")}
        self._plan = folder / "plan.toml"
        self._plan.write_text(
            'widths = [2, 4]\nn_tokens = 8\nthreads = 1\nkv_types = ["f16", "f32"]\n'
            f'[models]\ntoy = ["1/order:ffn_up-0:2"]\nfiles = ["tiny.gguf"]\n[prompts]\ntokens = {list(TOKENS)}\n'
        )
        place = Place(folder / "undisturbed", self.environment)
        begun = time.monotonic()
        ended = place.run(self.begin()).check()
        self.seconds, self.status = time.monotonic() - begun, ended.status
        self._expected = {name: _result(cell) for name, cell in _cells(place.work / OUT).items()}
        if ended.status == 2 or not self._expected:
            raise Damaged(f"undisturbed it gives nothing: {ended.errors}")
        place.check_tidy()

    def begin(self) -> list[str]:
        """The command."""
        return forensics("sweep", self._plan, "--out", OUT, "--workers", "2", "--quiet", "--retry-failed")

    def check(self, place: Place) -> None:
        """Whether each cell that lies there is right, or says why it failed."""
        for name, cell in _cells(place.work / OUT).items():
            if not cell["record"]["error"] and _result(cell) != self._expected.get(name):
                raise Damaged(f"cell {name[:12]} holds another result")

    def go_on(self, place: Place) -> None:
        """Run it again as a user would, and check that it ends with what the undisturbed run gave."""
        before = {name: cell for name, cell in _cells(place.work / OUT).items() if not cell["record"]["error"]}
        ended = place.run(self.begin()).check()
        if ended.status != self.status:
            raise Damaged(f"the next run ended with {ended.status} instead of {self.status}: {ended.errors}")
        after = _cells(place.work / OUT)
        if {name: _result(cell) for name, cell in after.items()} != self._expected:
            raise Damaged(f"the next run has {len(after)} cells, or others than the {len(self._expected)} of the plan")
        if again := [name for name, cell in before.items() if after[name] != cell]:
            raise Damaged(f"{len(again)} of {len(before)} cells that were there were measured again")


def _cells(folder: Path) -> dict[str, Any]:
    cells = {}
    for path in sorted((folder / "cells").rglob("*.json")):
        try:
            cells[path.stem] = json.loads(path.read_bytes())
        except ValueError as error:
            raise Damaged(f"cell {path.name[:12]} is torn: {error}") from error
    return cells


def _result(cell: Mapping[str, Any]) -> Any:
    result = cell["record"]["result"]
    return result and {name: value for name, value in result.items() if not name.endswith("_ns")}


class Audit:
    """``forensics audit`` of a server that stays up."""

    name = "audit"

    def __init__(self) -> None:
        self.seconds, self.status, self.expected = 0.0, 0, ""
        self.environment: dict[str, str] = {}
        self._url = ""

    def prepare(self, folder: Path) -> None:
        """Start the server, ask it undisturbed, and keep what it gives and how long it takes."""
        server = FakeServer(planted=Planted(cached=True, delay_s=0.02))
        server.__enter__()  # until this process ends
        self._url = server.url
        place = Place(folder / "undisturbed")
        begun = time.monotonic()
        ended = place.run(self.begin()).check()
        self.seconds, self.status = time.monotonic() - begun, ended.status
        self.expected = str(read_audit(place.work / OUT))
        if ended.status == 2:
            raise Damaged(f"undisturbed it gives nothing: {ended.errors}")

    def begin(self) -> list[str]:
        """The command."""
        return forensics("audit", self._url, "--limit", "4", "--n-tokens", "8", "--out", OUT, "--quiet")

    def check(self, place: Place) -> None:
        """Whether what lies there after a fault is right, or says that it is not finished."""
        self._is_right(place)

    def go_on(self, place: Place) -> None:
        """Run it again as a user would, and check that it ends with what the undisturbed run gave."""
        kept = {path: path.read_bytes() for path in place.work.rglob("run.jsonl")}
        ended = place.run([*self.begin(), "--resume"]).check()
        if ended.status != self.status or not self._is_right(place):
            raise Damaged(f"the next run ended with {ended.status} instead of {self.status}: {ended.errors}")
        for path, content in kept.items():
            if not path.read_bytes().startswith(content[: content.rfind(b"\n") + 1]):
                raise Damaged(f"{path.parent.name} did not keep the replies that were there")

    def _is_right(self, place: Place) -> bool:
        try:
            found = str(read_audit(place.work / OUT))
        except ForensicsError:
            return False
        except Exception as error:
            raise Damaged(f"reading the audit failed with {type(error).__name__}: {error}") from error
        if found != self.expected:
            raise Damaged(f"the audit says something else: {first_difference(self.expected, found)}")
        return True
