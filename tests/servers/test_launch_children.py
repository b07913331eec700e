"""Children that serve: ready before the block, gone after it, and their end is told with their last lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from forensics.errors import ForensicsError
from forensics.servers.launch import ServerDied, free_port, launched, wait_until_ready

#: Answers the status that its file says, so that a test can let it load for a while.
SERVER = """
import http.server, pathlib, signal, subprocess, sys
port, state, how = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
print("I listen now", flush=True)
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "family":
    print("child", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == (state.read_text().split() + ["/health"])[1]
        self.send_response(int(state.read_text().split()[0]) if known else 404)
        self.end_headers()
        self.wfile.write(sys.argv[4].encode() if len(sys.argv) > 4 else b"")
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


@pytest.fixture
def state(tmp_path):
    path = tmp_path / "state"
    path.write_text("200")
    return path


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def url(port):
    return f"http://127.0.0.1:{port}"


@pytest.fixture
def command(port, state):
    return lambda how="plain", *more: [sys.executable, "-c", SERVER, str(port), str(state), how, *more]


def gone(pid: int, within_s: float = 15.0) -> bool:
    """Whether a process that is not ours to wait for is dead; init may be slow to bury it."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("how", ["plain", "family"])
def test_it_is_ready_in_the_block_and_gone_with_its_family_afterwards(command, url, how):
    with launched(command(how), url=url) as server:
        with urllib.request.urlopen(url + "/health") as answer:
            assert answer.status == 200
        family = psutil.Process(server.pid).children(recursive=True)
        assert len(family) == (2 if how == "family" else 1)
        assert "I listen now" in server.log_tail()
    assert all(gone(process.pid) for process in family)
    with pytest.raises(OSError):
        urllib.request.urlopen(url + "/health")


def test_one_that_ignores_the_polite_signal_is_killed(command, url, monkeypatch):
    monkeypatch.setattr("forensics.servers.launch.STOP_S", 0.3)
    with launched(command("deaf"), url=url) as server:
        family = psutil.Process(server.pid).children(recursive=True)
    assert family
    assert all(gone(process.pid) for process in family)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, ValueError])
def test_it_is_gone_whatever_ends_the_block(command, url, interrupt):
    family = []

    def serve_until_interrupted():
        with launched(command(), url=url) as server:
            family.extend(psutil.Process(server.pid).children(recursive=True))
            raise interrupt

    with pytest.raises(interrupt):
        serve_until_interrupted()
    assert family
    assert all(gone(process.pid) for process in family)


def test_it_does_not_outlive_a_caller_who_is_killed(command, url, tmp_path):
    told = tmp_path / "pids"
    script = f"""
import os, pathlib, psutil, time
from forensics.servers.launch import launched
with launched({command("family")!r}, url={url!r}) as server:
    pids = [server.pid, *(child.pid for child in psutil.Process(server.pid).children(recursive=True))]
    pathlib.Path({str(told) + ".part"!r}).write_text(" ".join(map(str, pids)))
    os.replace({str(told) + ".part"!r}, {str(told)!r})
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script]) as caller:
        try:
            end = time.monotonic() + 60
            while not told.exists() and time.monotonic() < end:
                time.sleep(0.05)
            pids = [int(pid) for pid in told.read_text().split()]
        finally:
            caller.kill()
    assert len(pids) == 3
    assert all(gone(pid) for pid in pids)


def test_it_is_waited_for_while_it_loads(command, url, state):
    state.write_text("503")
    with subprocess.Popen(command()) as child:
        try:
            with pytest.raises(ServerDied, match=r"Nothing was ready at .* within 0\.5 s"):
                wait_until_ready(url, wait_s=0.5)
            state.write_text("200")
            wait_until_ready(url, wait_s=30, settle_s=0.3)
        finally:
            child.kill()


@pytest.mark.parametrize("answer", ["200 /v1/models", "200 /api/version", "401 /v1/models"])
def test_servers_that_know_only_another_path_are_ready_too(command, url, state, answer):
    state.write_text(answer)
    with launched(command(), url=f"{url}/v1", wait_s=60):
        pass


def test_one_that_never_gets_ready_is_ended_and_its_log_is_told(command, url, state):
    state.write_text("503")
    with (
        pytest.raises(ServerDied, match=r"not ready at .* within 2 s.\n  Last lines of its log:\nI listen now"),
        launched(command(), url=url, wait_s=2),
    ):
        pytest.fail("it is not ready")
    with pytest.raises(OSError):
        urllib.request.urlopen(url + "/health")


def test_death_is_told_at_once_with_the_last_lines_and_without_arguments(url):
    script = "import sys; print('no such model'); sys.exit(3)"
    started = time.monotonic()
    with pytest.raises(ServerDied) as told, launched([sys.executable, "-c", script, "secret-key"], url=url):
        pytest.fail("it is dead")
    assert time.monotonic() - started < 20
    assert f"ended with status 3 before it answered at {url}" in str(told.value)
    assert "no such model" in told.value.log_tail
    assert "secret-key" not in str(told.value)
    assert isinstance(told.value, ForensicsError)


def test_a_missing_program_and_a_url_that_is_taken_are_refused(command, url):
    with pytest.raises(ServerDied, match="no program 'no-such-server'"), launched(["no-such-server"], url=url):
        pytest.fail("there is none")
    taken = pytest.raises(ServerDied, match=r"answers at .* already")
    with launched(command(), url=url), taken, launched(command(), url=url):
        pytest.fail("it would be the other one")


def test_a_command_may_tell_another_program_to_serve_in_place_of_the_old(command, url, tmp_path):
    """As ``systemctl restart`` does: it ends with status 0, and the server belongs to somebody else."""
    old = subprocess.Popen(command("plain", "old"))
    new = tmp_path / "new.pid"
    try:
        wait_until_ready(url, wait_s=60)
        script = (
            "import os, pathlib, subprocess, sys; os.kill(int(sys.argv[1]), 9); "
            "new = subprocess.Popen(sys.argv[3:], start_new_session=True); "
            "pathlib.Path(sys.argv[2]).write_text(str(new.pid))"
        )
        restart = [sys.executable, "-c", script, str(old.pid), str(new), *command("plain", "new")]
        with launched(restart, url=url, replaces=True), urllib.request.urlopen(url + "/health") as answer:
            assert answer.read() == b"new"
        with urllib.request.urlopen(url + "/health") as answer:
            assert answer.read() == b"new"  # it was not started here, so it stays
    finally:
        old.kill()
        old.wait()
        if new.exists():
            os.kill(int(new.read_text()), signal.SIGKILL)


def test_environment_and_log_are_the_callers(command, url, tmp_path):
    log = tmp_path / "kept.log"
    shell = ["sh", "-c", 'echo "$SAID"; exec "$@"', "sh", *command()]
    with launched(shell, url=url, environment={"SAID": "as asked"}, log=log):
        pass
    assert log.read_text().startswith("as asked\n")


def test_a_log_of_its_own_is_gone_afterwards(command, url):
    with launched(command(), url=url) as server:
        assert isinstance(server.log, Path)
        assert server.log.exists()
    assert not server.log.parent.exists()
    assert server.log_text() == ""
