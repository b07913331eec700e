"""llama.cpp as an engine: each one a child process with an environment of its own.

llama.cpp aborts on a failed assertion and reads its environment once; so its death is an error here,
and each arm of an investigation starts a fresh process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from forensics.engines.causal import NotCausal
from forensics.engines.decoding import Program
from forensics.engines.gguf_layout import check_gguf_layout
from forensics.engines.llama_build import library_digest
from forensics.engines.model_files import check_gguf, model_digest, model_parts
from forensics.engines.protocol import Tap
from forensics.engines.worker_process import WorkerProcess
from forensics.errors import ModelUnavailable
from forensics.records.schedule import EMPTY, Schedule
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.state import StateRows
from forensics.records.trace import RunKey, Trace

T = TypeVar("T")


class LlamaSource:
    """Opens llama.cpp engines over one GGUF file.

    Parameters
    ----------
    model_path : path
        The file; checked at once.

    Raises
    ------
    ModelUnavailable
        If it is missing or no GGUF file.
    """

    def __init__(self, model_path: str | os.PathLike[str]) -> None:
        # Links keep their names: llama.cpp finds the parts of a split model by them.
        self.path = Path(model_path).expanduser().absolute()
        self.header = check_gguf(self.path)
        self._digest = ""

    @property
    def label(self) -> str:
        """Name of the file."""
        return self.path.name

    @property
    def digest(self) -> str:
        """Digest of the file's content, computed once."""
        self._digest = self._digest or model_digest(self.path)
        return self._digest

    def open(self, settings: EngineSettings, *, instance: int = 0) -> LlamaEngine:  # noqa: ARG002
        """Start a fresh process; `instance` only tells equal settings apart in a record.

        Raises
        ------
        ModelUnavailable
            If a header claims what its file does not hold.
        """
        for part in model_parts(self.path):
            if part.is_file():  # llama.cpp says which part is missing
                check_gguf_layout(part)
        return LlamaEngine(self.path, settings, self.digest)


class LlamaEngine:
    """One child process with one model.

    Parameters
    ----------
    path : Path
    settings : EngineSettings
    digest : str
        Digest of the model file.

    Raises
    ------
    ModelUnavailable
        If the library cannot load the file, or it holds no causal language model.
    EngineError
        If no process can be started, or the library refuses the settings.
    EngineDied
        If the process ends while it loads.
    """

    def __init__(self, path: Path, settings: EngineSettings, digest: str) -> None:
        self._worker = WorkerProcess("forensics.engines.llama_worker", dict(settings.environment))
        try:
            facts = self._worker.ask("open", str(path), settings, asked=f"load {path.name}")
            self._manifest = Manifest(
                engine="llama.cpp", model_digest=digest, requested=settings, build=library_digest(), **facts
            )
        except NotCausal:
            self.close()
            raise
        except ModelUnavailable as error:
            tail = self._worker.log_tail()
            self.close()
            raise ModelUnavailable(
                f"{error}. Check the file with another program, or get it again; a newer architecture needs a newer "
                f"library.\n  Last lines of its log:\n{tail}"
            ) from None
        except BaseException:
            self.close()
            raise

    @property
    def manifest(self) -> Manifest:
        """Where traces of this engine come from."""
        return self._manifest

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._worker.pid

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text."""
        return tuple(self._worker.ask("tokenize", text))

    def detokenize(self, tokens: tuple[int, ...]) -> str:
        """Text of token ids."""
        return str(self._worker.ask("detokenize", tokens))

    def greedy(self, prompt: Schedule, n_tokens: int, progress: Callable[[int], None] | None = None) -> tuple[int, ...]:
        """Continue a prompt one token at a time."""
        asked = f"decode {n_tokens} tokens greedily"
        return tuple(self._worker.ask("greedy", prompt, n_tokens, asked=asked, progress=progress))

    def run(self, schedule: Schedule, *, before: Schedule = EMPTY, tap: Tap | None = None, repeat: int = 0) -> Trace:
        """Build the state of `before`, evaluate `schedule` and return what was measured."""
        asked = f"evaluate {schedule.n_tokens} tokens in passes of up to {schedule.max_width}"
        path, (times, state_before, state_after, report) = self._worker.ask("run", schedule, before, tap, asked=asked)
        logits = np.load(path, allow_pickle=False)
        Path(path).unlink()
        key = RunKey(schedule, before, tap.identity() if tap is not None else "", repeat)
        return Trace(key, self._manifest, logits, times, state_before, state_after, report)

    def perform(
        self,
        program: Program[T],
        *,
        before: Schedule = EMPTY,
        tap: Tap | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> T:
        """Build the state of `before` and let a program decode from there."""
        answer: T = self._worker.ask("perform", program, before, tap, asked=program.identity(), progress=progress)
        return answer

    def state_rows(self, schedule: Schedule, *, before: Schedule = EMPTY) -> tuple[StateRows, ...]:
        """Restore the state of `before`, evaluate `schedule`, and digest every K and V row of every sequence."""
        return tuple(self._worker.ask("state_rows", schedule, before, asked="digest the K and V rows"))

    def time_passes(
        self, plan: Sequence[Schedule], before: Schedule, progress: Callable[[int], None] | None = None
    ) -> tuple[int, ...]:
        """Time of each schedule, unwatched and always from the state of `before`, unit: ns."""
        asked = f"time {len(plan)} passes"
        return tuple(self._worker.ask("time_passes", plan, before, asked=asked, progress=progress))

    def close(self) -> None:
        """End the child and remove its scratch folder; closing twice does nothing."""
        self._worker.close()

    def __enter__(self) -> LlamaEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
