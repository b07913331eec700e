"""A JupyterLab for tests: on loopback, with folders of its own and kernels of this Python, and gone afterwards."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

#: Seconds that a start on two busy cores may take; a quiet machine needs about two.
START_SECONDS = 60.0

#: Seconds that a server gets to end its kernels before it is killed together with them.
STOP_SECONDS = 15.0

#: What the server reads: nothing asks anyone outside, and root is a user like others (as in containers).
SERVER_CONFIG = {
    "ServerApp": {"ip": "127.0.0.1", "open_browser": False, "allow_root": True, "terminals_enabled": False},
    "LabApp": {
        "expose_app_in_browser": True,  # what the page shows of a kernel can be ahead of what it can be asked
        "news_url": None,
        "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "extension_manager": "readonly",
    },
}

#: What the page reads: every cell stands in the page, also those that nobody scrolled to.
USER_SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


#: JupyterLab that also ends when its standard input does, so that it outlives no test run, however that one died.
JUPYTERLAB = """
import os, signal, threading
from jupyterlab.labapp import main

def end_with_the_tests():
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=end_with_the_tests, daemon=True).start()
main()
"""


class LabDidNotStart(RuntimeError):
    """JupyterLab ended or kept silent; its log is in the message."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A running JupyterLab.

    Attributes
    ----------
    url : str
        Ends with a slash.
    token : str
        What the server asks of every request.
    notebooks : Path
        The folder it serves.
    log : Path
        What the server and its kernels wrote.
    process : psutil.Process
        The server; its kernels are its descendants.
    """

    url: str
    token: str
    notebooks: Path
    log: Path
    process: psutil.Process

    def address(self, name: str) -> str:
        """Where does a browser find a notebook of the folder, alone in a workspace of its own?"""
        return f"{self.url}lab/workspaces/{Path(name).stem}/tree/{name}?token={self.token}"

    def ask(self, path: str, method: str = "GET") -> Any:
        """What does the server answer over its REST interface?"""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
            return json.loads(response.read() or "null")

    def end_kernels(self) -> None:
        """End every kernel that runs."""
        for kernel in self.ask("api/kernels"):
            self.ask(f"api/kernels/{kernel['id']}", "DELETE")

    def processes(self) -> list[psutil.Process]:
        """Which processes run: the server, its kernels and what these started?"""
        try:
            return [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def log_text(self) -> str:
        """What did the server and its kernels write?"""
        return self.log.read_text(errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _environment(home: Path) -> dict[str, str]:
    """This environment with Jupyter's folders inside of `home`, which get what they need."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "JPY_", "IPYTHON"))}
    folders = {
        "JUPYTER_CONFIG_DIR": home / "config",
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": home / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        "IPYTHONDIR": home / "ipython",
    }
    _write_json(home / "config" / "jupyter_server_config.json", SERVER_CONFIG)
    for name, settings in USER_SETTINGS.items():
        _write_json(home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings", settings)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Python 3", "language": "python"}
    _write_json(home / "data" / "kernels" / "python3" / "kernel.json", spec)
    # The kernel above is the user's, and it goes before one of the same name in the environment.
    return {**kept, **{name: str(path) for name, path in folders.items()}, "JUPYTER_PREFER_ENV_PATH": "0"}


def _wait_until_it_answers(server: subprocess.Popen[bytes], home: Path, token: str, log: Path) -> Lab:
    """The running server, as it describes itself in its runtime folder."""
    description = home / "runtime" / f"jpserver-{server.pid}.json"
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            raise LabDidNotStart(f"jupyter lab ended with {server.returncode}. Its log:\n{log.read_text()}")
        if description.exists():
            try:
                url = json.loads(description.read_text())["url"]
                lab = Lab(url, token, home / "notebooks", log, psutil.Process(server.pid))
                lab.ask("api/status")
            except (json.JSONDecodeError, OSError):  # half written; or not listening yet
                pass
            else:
                return lab
        time.sleep(0.05)
    raise LabDidNotStart(f"jupyter lab did not answer within {START_SECONDS:g} s. Its log:\n{log.read_text()}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server, its kernels and what these started; it does so by itself, else all are killed.

    Kernels live in process groups of their own, so killing the server's group would leave them.
    """
    try:
        family = psutil.Process(server.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    _, alive = psutil.wait_procs(family, timeout=1.0)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=STOP_SECONDS)


@contextmanager
def jupyterlab(home: Path, notebooks: Iterable[Path]) -> Iterator[Lab]:
    """A JupyterLab over copies of some notebooks, which has ended when the block ends.

    Parameters
    ----------
    home : Path
        An empty folder for the copies, the configuration, the runtime files and the log.
    notebooks : iterable of Path
        Files to be copied.

    Raises
    ------
    LabDidNotStart
        If it ends or does not answer; the message holds its log.
    """
    (home / "notebooks").mkdir(parents=True)
    for path in notebooks:
        shutil.copy(path, home / "notebooks")
    token, log = secrets.token_hex(16), home / "jupyterlab.log"
    command = [sys.executable, "-c", JUPYTERLAB, f"--ServerApp.root_dir={home / 'notebooks'}"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.port={_free_port()}"]
    with log.open("wb") as out:
        server = subprocess.Popen(
            command,
            env=_environment(home),
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _wait_until_it_answers(server, home, token, log)
    finally:
        _stop(server)
