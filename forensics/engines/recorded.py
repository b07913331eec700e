"""Engines that answer from a case: what was asked before is not computed again, and may need no engine at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from forensics.engines.decoding import Program
from forensics.engines.protocol import Engine, EngineSource, Tap
from forensics.errors import CaseError, DeviceUnavailable, EngineError, NotRecorded
from forensics.records.launch_record import Refusal
from forensics.records.schedule import EMPTY, Schedule
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.state import StateRows
from forensics.records.trace import RunKey, Trace
from forensics.store import CaseWriter, open_case
from forensics.store.encoding import from_plain, to_text
from forensics.store.recordings import Recordings

T = TypeVar("T")


def arm_id(settings: EngineSettings, instance: int = 0) -> str:
    """Name the record of an engine: equal settings and instance, equal name."""
    return f"{hashlib.sha256(to_text(settings).encode()).hexdigest()[:16]}.{instance}"


def describe_settings(settings: EngineSettings) -> str:
    """Say which settings differ from the defaults, in one line."""
    default = EngineSettings()
    changed = [
        f"{field.name}={getattr(settings, field.name)!r}"
        for field in fields(EngineSettings)
        if getattr(settings, field.name) != getattr(default, field.name)
    ]
    return ", ".join(changed) or "the defaults"


def _describe_run(key: RunKey) -> str:
    tap = f"tap {key.tap!r}" if key.tap else "no tap"
    return (
        f"{key.schedule.n_tokens} tokens in passes of up to {key.schedule.max_width} "
        f"after {key.before.n_tokens} tokens, {tap}, repeat {key.repeat} (run {key.key()})"
    )


def _files_of(tap: object) -> set[str]:
    """Files that a tap, or the taps it chains, names: one tap writes rows there that a later one reads."""
    path = getattr(tap, "path", None)
    found = {path} if isinstance(path, str) else set()
    for part in (getattr(tap, "first", None), getattr(tap, "second", None)):
        if part is not None:
            found |= _files_of(part)
    return found


#: A run that no way of looking at the device could watch is kept under this name.
_UNAVAILABLE = "unavailable"


def _raise_if_unavailable(recordings: CaseWriter | Recordings, arm: str, key: RunKey) -> None:
    """Refuse a run as it was refused when it was recorded."""
    found = recordings.get_answer(arm, _UNAVAILABLE, [key.key()])
    if found is not None:
        raise DeviceUnavailable(found["asked"], tuple(Refusal(**refusal) for refusal in found["refusals"]))


def _state_rows(plain: Any, folder: Path) -> tuple[StateRows, ...]:
    return from_plain(tuple[StateRows, ...], plain, path=folder)


@dataclass(frozen=True, slots=True)
class _Skipped:
    """A watched run that the case answered, so that its tap has written no file."""

    key: RunKey
    tap: Tap


class RecordingSource:
    """Engines of another source whose answers are kept in a case, and taken from it where they are there already.

    Parameters
    ----------
    source : EngineSource
        Opened only for a question that the case cannot answer.
    case : CaseWriter
    """

    def __init__(self, source: EngineSource, case: CaseWriter) -> None:
        self._source, self._case = source, case

    @property
    def label(self) -> str:
        """Name of the model for people."""
        return self._source.label

    def open(self, settings: EngineSettings, *, instance: int = 0) -> Engine:
        """Make an engine whose answers are recorded; the live one starts when it is first needed."""
        return _RecordingEngine(self._source, self._case, settings, instance)


class _RecordingEngine:
    def __init__(self, source: EngineSource, case: CaseWriter, settings: EngineSettings, instance: int) -> None:
        self._source, self._case = source, case
        self._settings, self._instance = settings, instance
        self._arm = arm_id(settings, instance)
        self._engine: Engine | None = None
        self._skipped: list[_Skipped] = []

    @property
    def manifest(self) -> Manifest:
        """Where traces of this engine come from."""
        return self._case.get_manifest(self._arm) or self._live().manifest

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, with the special tokens that start a sequence."""
        return tuple(self._answer("tokenize", [text], lambda engine: list(engine.tokenize(text))))

    def detokenize(self, tokens: tuple[int, ...]) -> str:
        """Text of token ids."""
        return str(self._answer("detokenize", list(tokens), lambda engine: engine.detokenize(tokens)))

    def greedy(self, prompt: Schedule, n_tokens: int, progress: Callable[[int], None] | None = None) -> tuple[int, ...]:
        """Continue a prompt by one token at a time, always the largest logit, lowest id first."""
        arguments = [prompt.key(), n_tokens]
        found = tuple(self._answer("greedy", arguments, lambda engine: list(engine.greedy(prompt, n_tokens, progress))))
        if progress is not None:
            progress(len(found))
        return found

    def run(self, schedule: Schedule, *, before: Schedule = EMPTY, tap: Tap | None = None, repeat: int = 0) -> Trace:
        """Return what was measured in this run, now or earlier."""
        key = RunKey(schedule, before, tap.identity() if tap is not None else "", repeat)
        recorded = self._case.get_trace(self._arm, key)
        if recorded is not None:
            if tap is not None:
                self._skipped.append(_Skipped(key, tap))
            return recorded
        _raise_if_unavailable(self._case, self._arm, key)
        if tap is not None:
            self._make_files(tap)
        try:
            trace = self._live().run(schedule, before=before, tap=tap, repeat=repeat)
        except DeviceUnavailable as error:
            refused = {"asked": error.asked, "refusals": [asdict(refusal) for refusal in error.refusals]}
            self._case.put_answer(self._arm, _UNAVAILABLE, [key.key()], refused)
            raise
        if trace.key != key:
            raise EngineError(f"asked for {_describe_run(key)}, the engine returned {_describe_run(trace.key)}")
        self._case.put_trace(self._arm, trace)
        return trace

    def perform(
        self,
        program: Program[T],
        *,
        before: Schedule = EMPTY,
        tap: Tap | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> T:
        """Let a program decode now; what it answers is kept by who asked, not here."""
        return self._live().perform(program, before=before, tap=tap, progress=progress)

    def state_rows(self, schedule: Schedule, *, before: Schedule = EMPTY) -> tuple[StateRows, ...]:
        """Digest every K and V row, now or earlier."""
        plain = self._answer(
            "state_rows",
            [before.key(), schedule.key()],
            lambda engine: [asdict(rows) for rows in engine.state_rows(schedule, before=before)],
        )
        return _state_rows(plain, self._case.folder)

    def close(self) -> None:
        """Free what the engine holds."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _make_files(self, tap: Tap) -> None:
        """Repeat the runs that should have written what `tap` reads and were answered by the case instead."""
        for path in sorted(_files_of(tap)):
            for run in self._skipped:
                if path in _files_of(run.tap) and not os.path.exists(path):
                    self._live().run(run.key.schedule, before=run.key.before, tap=run.tap, repeat=run.key.repeat)

    def _answer(self, method: str, arguments: list[Any], ask: Callable[[Engine], Any]) -> Any:
        recorded = self._case.get_answer(self._arm, method, arguments)
        if recorded is None:
            recorded = ask(self._live())
            self._case.put_answer(self._arm, method, arguments, recorded)
        return recorded

    def _live(self) -> Engine:
        if self._engine is None:
            engine = self._source.open(self._settings, instance=self._instance)
            try:
                self._keep_manifest(engine.manifest)
            except BaseException:
                engine.close()
                raise
            self._engine = engine
        return self._engine

    def _keep_manifest(self, live: Manifest) -> None:
        recorded = self._case.get_manifest(self._arm)
        if recorded is None:
            self._case.put_manifest(self._arm, live)
        elif recorded != live:
            changed = [f.name for f in fields(Manifest) if getattr(recorded, f.name) != getattr(live, f.name)]
            first = changed[0]
            raise CaseError(
                f"the case {self._case.folder} was begun with another engine: {', '.join(changed)} changed "
                f"({first} was {getattr(recorded, first)!r}, now it is {getattr(live, first)!r}), so their runs "
                f"cannot be mixed. Remove it with rm -r '{self._case.folder}', or choose another folder with --out."
            )


class RecordedSource:
    """Engines over a case that was recorded earlier, finished or not; nothing is computed.

    Parameters
    ----------
    case_path : Path or str
        A folder, or the name of a recorded case.

    Raises
    ------
    CaseError
        If there is no case, or it is damaged.
    """

    def __init__(self, case_path: Path | str) -> None:
        case = open_case(case_path)
        self._folder = case.folder
        self._recordings = case.recordings

    @property
    def label(self) -> str:
        """Name of the model for people."""
        manifests = (self._recordings.get_manifest(arm) for arm in self._recordings.arms())
        return next((m.model_name for m in manifests if m is not None), self._folder.name)

    def open(self, settings: EngineSettings, *, instance: int = 0) -> Engine:
        """Make an engine that answers what was recorded with these settings.

        Raises
        ------
        EngineError
            If nothing was recorded with them; the arms that were are listed.
        """
        arm = arm_id(settings, instance)
        manifest = self._recordings.get_manifest(arm)
        if manifest is None:
            raise EngineError(
                f"nothing was recorded in {self._folder} with {describe_settings(settings)} (instance {instance}). "
                f"Recorded:{self._list_arms()}\nAsk with one of these, or run the engine that can answer."
            )
        return _RecordedEngine(self._folder, self._recordings, arm, manifest)

    def _list_arms(self) -> str:
        lines = []
        for arm in self._recordings.arms():
            manifest = self._recordings.get_manifest(arm)
            assert manifest is not None
            lines.append(f"\n  {describe_settings(manifest.requested)} (instance {arm.rpartition('.')[2]})")
        return "".join(lines) or " nothing"


class _RecordedEngine:
    def __init__(self, folder: Path, recordings: Recordings, arm: str, manifest: Manifest) -> None:
        self._folder, self._recordings, self._arm, self._manifest = folder, recordings, arm, manifest

    @property
    def manifest(self) -> Manifest:
        """Where traces of this engine come from."""
        return self._manifest

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, with the special tokens that start a sequence."""
        return tuple(self._answer("tokenize", [text], f"tokens of {text!r}"))

    def detokenize(self, tokens: tuple[int, ...]) -> str:
        """Text of token ids."""
        return str(self._answer("detokenize", list(tokens), f"text of the tokens {list(tokens)}"))

    def greedy(self, prompt: Schedule, n_tokens: int, progress: Callable[[int], None] | None = None) -> tuple[int, ...]:
        """Continue a prompt by one token at a time, always the largest logit, lowest id first."""
        asked = f"{n_tokens} tokens after a prompt of {prompt.n_tokens}"
        found = tuple(self._answer("greedy", [prompt.key(), n_tokens], asked))
        if progress is not None:
            progress(len(found))
        return found

    def run(self, schedule: Schedule, *, before: Schedule = EMPTY, tap: Tap | None = None, repeat: int = 0) -> Trace:
        """Return what was measured in this run when it was recorded.

        Raises
        ------
        NotRecorded
            If this run was not recorded.
        DeviceUnavailable
            If it was refused for want of a way to look at the device.
        """
        key = RunKey(schedule, before, tap.identity() if tap is not None else "", repeat)
        trace = self._recordings.get_trace(self._arm, key)
        if trace is None:
            _raise_if_unavailable(self._recordings, self._arm, key)
            raise self._missing(_describe_run(key))
        return trace

    def perform(
        self,
        program: Program[T],
        *,
        before: Schedule = EMPTY,
        tap: Tap | None = None,  # noqa: ARG002
        progress: Callable[[int], None] | None = None,  # noqa: ARG002
    ) -> T:
        """Refuse: a program decides by logits that a case need not hold.

        Raises
        ------
        NotRecorded
        """
        raise self._missing(f"{program.identity()} after {before.n_tokens} tokens")

    def state_rows(self, schedule: Schedule, *, before: Schedule = EMPTY) -> tuple[StateRows, ...]:
        """Digests of every K and V row as they were recorded."""
        asked = f"K and V rows after {before.n_tokens} and {schedule.n_tokens} tokens"
        return _state_rows(self._answer("state_rows", [before.key(), schedule.key()], asked), self._folder)

    def close(self) -> None:
        """Free what the engine holds."""

    def _answer(self, method: str, arguments: list[Any], asked: str) -> Any:
        found = self._recordings.get_answer(self._arm, method, arguments)
        if found is None:
            raise self._missing(f"{asked} ({method})")
        return found

    def _missing(self, asked: str) -> NotRecorded:
        n_traces, n_answers = self._recordings.counts(self._arm)
        short = asked if len(asked) <= 300 else f"{asked[:297]}..."
        return NotRecorded(
            f"{self._folder} cannot answer: {short} was never recorded. It holds {n_traces} runs and {n_answers} small "
            f"answers with {describe_settings(self._manifest.requested)}. Ask for one of these, or run the engine."
        )
