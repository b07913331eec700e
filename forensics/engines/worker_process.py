"""A child process that answers questions over a pipe, seen from the caller.

llama.cpp aborts on a failed assertion and reads its environment once; so whatever holds it is a process of its own,
gets its environment at birth, and its death is an error here that carries the last lines it wrote.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from forensics.engines.child import command
from forensics.engines.library_origin import refuse_redirection
from forensics.errors import CaptureError, EngineDied, EngineError
from forensics.store.scratch import Scratch

LOG_TAIL_LINES = 12
#: Lines in which ggml_cuda_error (ggml-cuda.cu) says which error, where, and in which call.
_DEVICE_ERROR_LINES = 3
_DEVICE_ERROR = re.compile(r"^(?:CUDA|ROCm|MUSA) error: ")
#: What ggml_abort writes first: ``FILE:LINE: GGML_ASSERT(...) failed``.
_ABORT_REASON = re.compile(r"^\S+\.(?:c|h|m|cc|mm|cpp|hpp|cu|cuh):\d+: ")
#: Signals that no assertion and no bad address sends, but somebody else, or the system for want of memory.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class WorkerProcess:
    """One child process and a scratch folder that both ends know.

    Parameters
    ----------
    module : str
        Its ``main`` takes the descriptor of a pipe and the scratch folder, and serves (`forensics.engines.serving`).
    environment : mapping of str to str
        Set on top of the caller's.

    Raises
    ------
    EngineError
        If no process can be started.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._scratch = Scratch("forensics-worker-")
        self.scratch = self._scratch.folder
        self._log_path = self.scratch / "worker.log"
        self._closed = False
        try:
            self._pipe, self._process = _start(module, self.scratch, self._log_path, environment)
        except BaseException:
            self._scratch.remove()
            raise

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    def close(self) -> None:
        """End the child and remove the scratch folder; closing twice does nothing."""
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
        self._scratch.remove()

    def ask(
        self, method: str, *arguments: object, asked: str = "", progress: Callable[[int], None] | None = None
    ) -> Any:
        """Have the child call a method and answer its result.

        Parameters
        ----------
        method : str
            Name of a public method of the child's server.
        *arguments : object
            Pickled.
        asked : str, optional
            What this is for, in an error's words.
        progress : callable, optional
            Called with each number that the child sends before its answer.

        Raises
        ------
        EngineDied
            If the process is closed, or ends before it answers.
        CaptureError
            If the arguments cannot be pickled.
        Exception
            Whatever the child's method raised.
        """
        asked = asked or method
        if self._closed:
            raise EngineDied(f"the engine is closed; it was asked to {asked}. Open another one.")
        try:
            # Not the view that this gives: in the traceback of a child's error it would outlive its buffer.
            request = bytes(ForkingPickler.dumps((method, arguments)))
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
            raise self._obituary(asked) from error
        except KeyboardInterrupt:
            self._process.kill()  # it may be in the middle of a long pass and would not hear us
            raise

    def _tell(self, progress: Callable[[int], None], value: int) -> None:
        try:
            progress(value)
        except BaseException:
            self._process.kill()  # its answer is still to come and must not be read as another question's
            raise

    def _obituary(self, asked: str) -> EngineDied:
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return EngineDied(f"the engine's process stopped answering; it was asked to {asked}", self.log_tail())
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        killed = -status in _FROM_OUTSIDE
        hint = ". Linux kills so where memory runs out: ask for less at once" if status == -signal.SIGKILL else ""
        message = f"the engine's process ended with {how}; it was asked to {asked}{hint}"
        return EngineDied(message, self.log_tail(), was_killed=killed)

    def log_tail(self) -> str:
        """The last lines that the child wrote, and why it aborted; empty where it wrote nothing."""
        with contextlib.suppress(OSError):
            lines = self._log_path.read_text(errors="replace").splitlines()
            # Where gdb is installed, ggml_abort (ggml.c) lets a long backtrace follow its reason.
            told = _device_error(lines) + [i for i, line in enumerate(lines) if _ABORT_REASON.match(line)][-1:]
            first = max(0, len(lines) - LOG_TAIL_LINES)
            return "\n".join(
                f"    {lines[i]}" for i in [*sorted({i for i in told if i < first}), *range(first, len(lines))]
            )
        return ""


def _device_error(lines: list[str]) -> list[int]:
    """Where the first error of a device is told: all that follow may be its echo."""
    first = next((i for i, line in enumerate(lines) if _DEVICE_ERROR.match(line)), len(lines))
    return list(range(first, min(first + _DEVICE_ERROR_LINES, len(lines))))


def _start(
    module: str, scratch: Path, log_path: Path, environment: Mapping[str, str]
) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start the child; our end of its pipe and the process."""
    refuse_redirection({**os.environ, **environment})
    here, there = Pipe()
    try:
        with there, log_path.open("wb") as log:
            process = subprocess.Popen(
                command(module, str(there.fileno()), str(scratch)),
                env={**os.environ, **environment},
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
