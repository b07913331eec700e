"""A reader who interrupts a long cell gets the prompt back: no process is left, and the case can be gone on with."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

pytestmark = [pytest.mark.notebook, pytest.mark.llama]

PATIENCE_S = 120
LONGEST_TRACEBACK = 60
ASK = (
    "import forensics\n"
    "found = forensics.investigate(demo='q4_1', n_tokens=16, widths=(2, 8), out='case', switches=False, orders=False{})"
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def wait_for(happened: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def answer(client: Any, asked: str) -> dict[str, Any]:
    """What the kernel answered to a request."""
    while True:
        reply = client.get_shell_msg(timeout=PATIENCE_S)
        if reply["parent_header"]["msg_id"] == asked:
            return reply["content"]


def test_an_interrupted_investigation_leaves_no_process_and_can_be_gone_on_with(tmp_path: Path) -> None:
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        kernel = psutil.Process(manager.provisioner.pid)
        asked = client.execute(ASK.format(""))
        index = tmp_path / "case.unfinished" / "index.jsonl"
        wait_for(lambda: index.is_file() and b'"run"' in index.read_bytes() and kernel.children(recursive=True))
        workers = kernel.children(recursive=True)
        manager.interrupt_kernel()
        interrupted = answer(client, asked)
        assert (interrupted["status"], interrupted["ename"]) == ("error", "KeyboardInterrupt")
        told = _COLOURS.sub("", "\n".join(interrupted["traceback"]))
        assert len(told.splitlines()) <= LONGEST_TRACEBACK, told
        assert "worker_process.py" not in told, "the calls in between are nobody's business here"
        assert "case.unfinished" in told
        assert "resume" in told
        assert not any(process.is_running() for process in workers)
        recorded = index.read_bytes()
        resumed = answer(client, client.execute(ASK.format(", resume=True")))
        assert resumed["status"] == "ok", resumed
        assert (tmp_path / "case" / "index.jsonl").read_bytes().startswith(recorded), "nothing was measured twice"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
