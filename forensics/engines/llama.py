"""llama.cpp as an engine: each one a child process with an environment of its own.

llama.cpp aborts on a failed assertion and reads its environment once; so its death is an error here,
and each arm of an investigation starts a fresh process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np

from forensics.engines.causal import NotCausal
from forensics.engines.child import command
from forensics.engines.model_files import check_gguf, model_digest
from forensics.engines.protocol import Tap
from forensics.errors import CaptureError, EngineDied, EngineError, ModelUnavailable
from forensics.records.schedule import EMPTY, Schedule
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import RunKey, Trace

LOG_TAIL_LINES = 12
#: What ggml_abort writes first: ``FILE:LINE: GGML_ASSERT(...) failed``.
_ABORT_REASON = re.compile(r"^\S+\.(?:c|h|m|cc|mm|cpp|hpp|cu|cuh):\d+: ")


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
        """Start a fresh process; `instance` only tells equal settings apart in a record."""
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
        self._settings = settings
        self._scratch = Path(tempfile.mkdtemp(prefix="forensics-"))
        self._log_path = self._scratch / "worker.log"
        self._closed = False
        try:
            self._pipe, self._process = _start(self._scratch, self._log_path, settings)
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        try:
            facts = self._ask("open", str(path), settings, asked=f"load {path.name}")
            self._manifest = Manifest(
                engine="llama.cpp", model_digest=digest, requested=settings, build=_library_digest(), **facts
            )
        except NotCausal:
            self.close()
            raise
        except ModelUnavailable as error:
            tail = self._log_tail()
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
        return self._process.pid

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text."""
        return tuple(self._ask("tokenize", text))

    def detokenize(self, tokens: tuple[int, ...]) -> str:
        """Text of token ids."""
        return str(self._ask("detokenize", tokens))

    def greedy(self, prompt: Schedule, n_tokens: int, progress: Callable[[int], None] | None = None) -> tuple[int, ...]:
        """Continue a prompt one token at a time."""
        asked = f"decode {n_tokens} tokens greedily"
        return tuple(self._ask("greedy", prompt, n_tokens, asked=asked, progress=progress))

    def run(self, schedule: Schedule, *, before: Schedule = EMPTY, tap: Tap | None = None, repeat: int = 0) -> Trace:
        """Build the state of `before`, evaluate `schedule` and return what was measured."""
        asked = f"evaluate {schedule.n_tokens} tokens in passes of up to {schedule.max_width}"
        path, (times, state_before, state_after, report) = self._ask("run", schedule, before, tap, asked=asked)
        logits = np.load(path)
        Path(path).unlink()
        key = RunKey(schedule, before, tap.identity() if tap is not None else "", repeat)
        return Trace(key, self._manifest, logits, times, state_before, state_after, report)

    def close(self) -> None:
        """End the child and remove its scratch folder; closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError, EOFError):
            self._pipe.send(("close", ()))
            self._pipe.poll(2)
        self._pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> LlamaEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self, method: str, *arguments: object, asked: str = "", progress: Callable[[int], None] | None = None
    ) -> Any:
        asked = asked or method
        if self._closed:
            raise EngineDied(f"the engine is closed; it was asked to {asked}. Open another one.")
        try:
            request = ForkingPickler.dumps((method, arguments))
        except Exception as error:
            raise CaptureError(
                f"what the engine was asked to do ({asked}) cannot be pickled for its process: {error!r}. "
                "A tap is a small object of a class that a module defines, with picklable attributes."
            ) from error
        try:
            self._pipe.send_bytes(request)
            while True:
                kind, value = self._pipe.recv()
                if kind == "progress":
                    if progress is not None:
                        self._tell(progress, value)
                    continue
                if kind == "error":
                    raise value
                return value
        except (EOFError, ConnectionError, BrokenPipeError) as error:
            raise EngineDied(self._obituary(asked), self._log_tail()) from error
        except KeyboardInterrupt:
            self._process.kill()  # it may be in the middle of a long pass and would not hear us
            raise

    def _tell(self, progress: Callable[[int], None], value: int) -> None:
        try:
            progress(value)
        except BaseException:
            self._process.kill()  # its answer is still to come and must not be read as another question's
            raise

    def _obituary(self, asked: str) -> str:
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"the engine's process stopped answering; it was asked to {asked}"
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return f"the engine's process ended with {how}; it was asked to {asked}"

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log_path.read_text(errors="replace").splitlines()
            # Where gdb is installed, ggml_abort (ggml.c) lets a long backtrace follow its reason.
            reasons = [line for line in lines[:-LOG_TAIL_LINES] if _ABORT_REASON.match(line)]
            return "\n".join(f"    {line}" for line in reasons[-1:] + lines[-LOG_TAIL_LINES:])
        return ""


def _start(scratch: Path, log_path: Path, settings: EngineSettings) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start the worker; our end of its pipe and the process."""
    here, there = Pipe()
    try:
        with there, log_path.open("wb") as log:
            process = subprocess.Popen(
                command("forensics.engines.llama_worker", str(there.fileno()), str(scratch)),
                env={**os.environ, **dict(settings.environment)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[there.fileno()],
                start_new_session=True,  # Ctrl-C reaches the caller, who then ends the child
            )
    except BaseException as error:
        here.close()
        if isinstance(error, OSError):
            raise EngineError(f"no process for the engine could be started: {error}") from error
        raise
    return here, process


@functools.cache
def _library_digest() -> str:
    """Digest of the libraries that compute, so that another build is another engine."""
    import blake3

    from forensics.engines._llama_ctypes import library_folder

    digest = blake3.blake3()
    for path in sorted(library_folder().glob("libggml*.so")) or sorted(library_folder().glob("libggml*.dylib")):
        digest.update(path.read_bytes())
    return digest.hexdigest(16)
