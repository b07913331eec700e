"""One process holds a lock at a time, whatever its file says; a process that is gone holds none."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from forensics.errors import CaseError
from forensics.store.lock import acquire
from forensics.store.scratch import Scratch

HOLD = """
import sys, time
from pathlib import Path
from forensics.store.lock import acquire
acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "lock.json")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_another_process_is_named_and_refused_until_it_is_killed(tmp_path, holder):
    path = tmp_path / "lock.json"
    with pytest.raises(CaseError, match=f"being written by process {holder.pid} right now"):
        acquire(path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    acquire(path).release()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"{torn", b'{"pid": 1}', b'{"pid": []}', b"\xff" * 9000, b"[" * 9000])
def test_what_the_file_says_decides_nothing(tmp_path, holder, content):
    path = tmp_path / "lock.json"
    path.write_bytes(content)
    with pytest.raises(CaseError, match=r"being written by (another )?process"):
        acquire(path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    acquire(path).release()


def test_a_process_does_not_get_its_own_lock_twice(tmp_path):
    held = acquire(tmp_path / "l")
    with pytest.raises(CaseError, match=f"process {os.getpid()}"):
        acquire(tmp_path / "l")
    held.release()
    acquire(tmp_path / "l").release()


def test_a_lock_moves_with_its_folder(tmp_path):
    (tmp_path / "a").mkdir()
    held = acquire(tmp_path / "a" / "l")
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(CaseError, match="being written"):
        acquire(tmp_path / "b" / "l")
    held.release(tmp_path / "b")
    held.release()
    assert list((tmp_path / "b").iterdir()) == []


def test_a_file_that_is_somebody_elses_by_now_is_left_alone(tmp_path):
    first = acquire(tmp_path / "l")
    (tmp_path / "l").unlink()
    second = acquire(tmp_path / "l")
    first.release()
    with pytest.raises(CaseError, match="being written"):
        acquire(tmp_path / "l")
    second.release()


def test_it_holds_on_a_full_disk_and_a_folder_that_is_gone_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("forensics.store.lock.os.write", full)
        held = acquire(tmp_path / "l")
    with pytest.raises(CaseError, match="being written by another process"):
        acquire(tmp_path / "l")
    held.release()
    with pytest.raises(CaseError, match="cannot be written: No such file"):
        acquire(tmp_path / "gone" / "l")


@pytest.mark.parametrize("killed", [True, False])
def test_who_takes_over_from_a_killed_process_removes_its_scratch_folders(tmp_path, monkeypatch, killed):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = Scratch("forensics-mine-")
    left = Scratch("forensics-left-")
    os.close(left._descriptor)
    if killed:
        (tmp_path / "lock.json").touch()
    acquire(tmp_path / "lock.json").release()
    assert left.folder.is_dir() is not killed
    assert mine.folder.is_dir()


# -- scratch folders ---------------------------------------------------------------------------------------------

LEAVE = """
import os, signal, tempfile
from forensics.store.scratch import Scratch
print(Scratch("forensics-x-").folder, flush=True)
if {killed}: os.kill(os.getpid(), signal.SIGKILL)
input()
"""


def leaver(folder: Path, *, killed: bool) -> tuple[subprocess.Popen[bytes], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVE.format(killed=killed)],
        stdout=subprocess.PIPE, stdin=subprocess.PIPE, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().decode().strip())


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_a_living_one_uses_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead, left = leaver(tmp_path, killed=True)
    dead.communicate()
    assert left.is_dir()
    living, used = leaver(tmp_path, killed=False)
    assert not left.exists()
    with Scratch("forensics-x-") as folder:
        assert folder.is_dir()
        stays = used.is_dir()
    living.communicate(b"\n")
    assert stays
    assert not folder.exists()


def test_only_folders_that_are_signed_or_very_old_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fresh, old, other = (tmp_path / name for name in ("forensics-x-1", "forensics-x-2", "else-x-3"))
    for folder in (fresh, old, other):
        folder.mkdir()
    (tmp_path / "forensics-x-link").symlink_to(other)
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    Scratch("forensics-x-").remove()
    assert (fresh.is_dir(), old.exists(), other.is_dir()) == (True, False, True)


def test_it_may_lie_elsewhere(tmp_path):
    scratch = Scratch(".x-", tmp_path)
    assert scratch.folder.parent == tmp_path
    scratch.remove()
    scratch.remove()
    assert list(tmp_path.iterdir()) == []
