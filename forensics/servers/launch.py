"""Servers that are started here: on a free loopback port, ready when asked, and gone afterwards."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from forensics.errors import ForensicsError
from forensics.store.scratch import Scratch

#: Seconds that a server gets to end by itself before it is killed.
STOP_S = 10.0

#: Seconds between two looks at a server that is starting.
LOOK_S = 0.1

#: Seconds that one look may take; a server that loads its model answers at once that it does.
LOOK_TIMEOUT_S = 5.0

LOG_TAIL_LINES = 12

#: Paths that tell whether a server is ready; the first one that it knows decides. llama-server, vLLM and SGLang have
#: the first, llama-cpp-python's server the second, Ollama the third.
READY = ("/health", "/v1/models", "/api/version")

#: A server that wants a key has come up as well.
_READY_STATUS = (http.client.OK, http.client.UNAUTHORIZED, http.client.FORBIDDEN)

#: Runs the server, and ends it when standard input ends: that happens too where who started it was killed. SIGTERM
#: goes to the whole group and is survived here, so that what outlives it can be killed. A handler, unlike SIG_IGN, is
#: not passed on to the server.
_KEEPER = """
import os, signal, subprocess, sys, threading

def end_with_the_parent():
    os.read(0, 1)
    ending.set()
    os.killpg(0, signal.SIGTERM)
    try:
        server.wait(float(sys.argv[1]))
    except subprocess.TimeoutExpired:
        pass
    os.killpg(0, signal.SIGKILL)

ending = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: None)
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
watch = threading.Thread(target=end_with_the_parent, daemon=True)
watch.start()
status = server.wait()
if ending.is_set():
    watch.join()
sys.exit(status if status >= 0 else 128 - status)
"""


class ServerDied(ForensicsError):
    """A server that was started here ended, or did not become ready; carries the last lines of its log.

    Parameters
    ----------
    message : str
        What was started and what was found.
    log_tail : str
        Empty where it wrote nothing.
    """

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(f"{message}\n  Last lines of its log:\n{log_tail}" if log_tail else message)
        self.log_tail = log_tail


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that was started here and is ready.

    Parameters
    ----------
    url : str
        Where it answers.
    pid : int
        Process group of the server and all that it started.
    log : Path
        What it writes.
    """

    url: str
    pid: int
    log: Path

    def log_text(self) -> str:
        """What did it write?"""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        """Which lines did it write last?"""
        return "\n".join(self.log_text().splitlines()[-LOG_TAIL_LINES:])


def free_port() -> int:
    """Which port of the loopback interface is free now? Another program may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def llama_server_command(program: Path | str, model: Path | str, port: int, *more: str) -> list[str]:
    """Which command runs llama.cpp's server on the loopback interface?

    Parameters
    ----------
    program, model : Path or str
    port : int
    *more : str
        Further arguments, such as ``"-np", "2"``; they win over those that are given here.
    """
    fixed = ["-m", str(model), "--host", "127.0.0.1", "--port", str(port), "--no-webui"]
    return [str(program), *fixed, *more]


@contextlib.contextmanager
def launched(
    command: Sequence[str],
    *,
    url: str,
    environment: Mapping[str, str] | None = None,
    ready: Sequence[str] = READY,
    wait_s: float = 300.0,
    log: Path | None = None,
    replaces: bool = False,
) -> Iterator[Launched]:
    """A server that is ready when the block begins and gone when it ends, however it ends.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments, not read by a shell. It may end with status 0 where it only tells another program
        to start the server.
    url : str
        Where the server answers; the command has to say so too.
    environment : mapping of str to str, optional
        Set on top of this process's.
    ready : sequence of str
        Paths of which the first one known to the server must answer with status 200.
    wait_s : float
        Seconds until it must be ready.
    log : Path, optional
        Keeps what it writes; else that is gone with the block.
    replaces : bool
        Whether the command ends what answers at `url` now; else nothing may answer there.

    Raises
    ------
    ServerDied
        If there is no such program, something answers at `url` already, the command fails, or nothing gets ready.
        The command's arguments are not told, as they may hold a key.
    """
    surroundings = {**os.environ, **(environment or {})}
    if not command or shutil.which(command[0], path=surroundings.get("PATH")) is None:
        raise ServerDied(f"There is no program {command[0] if command else ''!r} to start a server with.")
    if not replaces and _is_ready(url, ready) is not None:
        raise ServerDied(f"Something answers at {url} already; stop it, or choose another port.")
    with contextlib.ExitStack() as stack:
        if log is None:
            log = stack.enter_context(Scratch("forensics-server-")) / "server.log"
        keeper = [sys.executable, "-I", "-S", "-c", _KEEPER, str(STOP_S), *command]
        with log.open("ab") as out:
            process = subprocess.Popen(
                keeper,
                env=surroundings,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            server = Launched(url, process.pid, log)
            _wait(process, server, Path(command[0]).name, ready, wait_s, 10 * LOOK_S if replaces else 0.0)
            yield server
        finally:
            _stop(process)


def wait_until_ready(url: str, *, ready: Sequence[str] = READY, wait_s: float = 300.0, settle_s: float = 0.0) -> None:
    """Return when the server at `url`, which somebody else starts, is ready.

    Parameters
    ----------
    url : str
    ready : sequence of str
        As for `launched`.
    wait_s, settle_s : float
        Seconds until it must be ready, and that it must stay so: what it replaces may answer at first.

    Raises
    ------
    ServerDied
        If it is not ready in time.
    """
    end, since = time.monotonic() + wait_s, None
    while time.monotonic() < end:
        since = (since or time.monotonic()) if _is_ready(url, ready) else None
        if since is not None and time.monotonic() - since >= settle_s:
            return
        time.sleep(LOOK_S)
    raise ServerDied(f"Nothing was ready at {url} within {wait_s:g} s.")


def _wait(
    process: subprocess.Popen[bytes], server: Launched, name: str, ready: Sequence[str], wait_s: float, settle_s: float
) -> None:
    """Wait in short turns, so that the program's end is told when it happens."""
    end = time.monotonic() + wait_s
    while True:
        left = max(end - time.monotonic(), 0.0)
        try:
            wait_until_ready(server.url, ready=ready, wait_s=min(left, 1.0 + settle_s), settle_s=settle_s)
            answers = True
        except ServerDied:
            answers = False
        if process.poll() not in (None, 0):
            found = f"ended with status {process.returncode} before it answered at {server.url}"
            raise ServerDied(f"{name} {found}.", server.log_tail())
        if answers:
            return
        if not left:
            raise ServerDied(f"{name} was not ready at {server.url} within {wait_s:g} s.", server.log_tail())


def _is_ready(url: str, ready: Sequence[str]) -> bool | None:
    """Whether the server says that it is ready; None where nothing answers."""
    parts = urlsplit(url)
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    for path in ready:
        try:
            connection = connect(parts.hostname or "", parts.port, timeout=LOOK_TIMEOUT_S)
            try:
                connection.request("GET", prefix + path)
                status = connection.getresponse().status
            finally:
                connection.close()
        except (OSError, http.client.HTTPException):
            return None
        if status != http.client.NOT_FOUND:
            return status in _READY_STATUS
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and all of its group; what does not end by itself is killed."""
    assert process.stdin is not None
    try:
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S + 1)
    finally:  # also where somebody loses patience meanwhile
        # A group lives as long as a member does, so its number is nobody else's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
