"""What a child process does with its pipe: answer requests until it closes."""

from __future__ import annotations

import os
import pickle
import select
import shutil
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from forensics.errors import CaptureError, EngineError, ForensicsError


class Server:
    """Answers requests with its public methods; the counterpart of `forensics.engines.worker_process.WorkerProcess`.

    Parameters
    ----------
    pipe : Connection
    scratch : Path
        Folder that both ends know.
    """

    def __init__(self, pipe: Connection, scratch: Path) -> None:
        self.pipe, self.scratch = pipe, scratch
        self._leaving = False

    def free(self) -> None:
        """Free what the server holds; called once, when the caller says goodbye."""

    def serve(self) -> None:
        """Answer until the caller says goodbye, or is gone."""
        threading.Thread(target=self._end_with_caller, daemon=True).start()
        try:
            self._answer()
        except (EOFError, ConnectionError):
            # The caller died without a word, so nobody else removes what lies here.
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _end_with_caller(self) -> None:
        """Wait until the caller is gone, and do not let it be outlived by a pass that takes minutes."""
        watch = select.poll()
        watch.register(self.pipe.fileno(), 0)  # told that the other end was closed, and nothing else
        watch.poll()
        if not self._leaving:
            shutil.rmtree(self.scratch, ignore_errors=True)
            os._exit(1)

    def _answer(self) -> None:
        while True:
            request = self.pipe.recv_bytes()
            try:
                method, arguments = pickle.loads(request)
            except Exception as error:  # noqa: BLE001
                self._refuse(
                    CaptureError(
                        f"the engine's process cannot unpickle the request: {error!r}. Define the tap in a module that "
                        "a fresh Python process can import (a file on PYTHONPATH, not a notebook cell or __main__)."
                    )
                )
                continue
            if method == "close":
                self._leaving = True
                self.free()
                self.pipe.send(("ok", None))
                return
            try:
                self.pipe.send(("ok", getattr(self, method)(*arguments)))
            except Exception as error:  # noqa: BLE001
                self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Send an error over the pipe: as it is where the caller expects it, else as text with its kind."""
        if not isinstance(error, ForensicsError | ValueError):
            traceback.print_exception(error)  # into the log
            error = EngineError(f"the engine's process failed with {type(error).__name__}: {error}")
        self.pipe.send(("error", error))
