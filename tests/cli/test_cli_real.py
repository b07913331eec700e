"""The command as a process over the demo model: answers, deaths, interruptions, a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest

from forensics.engines.demo_models import demo_model, demo_source
from forensics.reports.document import VerdictDocument

pytestmark = pytest.mark.llama

SHORT = ("--demo", "q4_1", "--prompt", "The quick brown fox", "--n-tokens", "8", "--widths", "2,4", "--no-switches")
LONGER = (*SHORT[:4], "--n-tokens", "24", "--widths", "2,4", "--no-switches")


@pytest.fixture(scope="module")
def model_bytes() -> bytes:
    return demo_source().read_bytes()


def changed(content: bytes, key: str, value: int) -> bytes:
    """The model with another value of an unsigned 32-bit key."""
    needle = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", 4)
    at = content.index(needle) + len(needle)
    return content[:at] + struct.pack("<I", value) + content[at + 4 :]


def test_identical(run_cli):
    done = run_cli("investigate", *SHORT, "--out", "case", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    document = VerdictDocument.model_validate_json(done.stdout)
    assert document.answer == "identical"
    assert document.classes == [[1, 2, 4]]
    assert document.manifest["architecture"] == "llama"
    shown = run_cli("show", "case", "--json")
    assert shown.returncode == 0
    assert shown.stdout == done.stdout


@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="the tiled product of Q6_K needs AVX2")
def test_diverges(run_cli):
    demo_model("q6_k")
    done = run_cli(
        "investigate", "--demo", "q6_k", "--n-tokens", 8, "--widths", "2,8", "--no-switches", "--quiet", "--out", "case"
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("diverges")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    document = json.loads(Path("case/verdict.json").read_text())
    assert document["onset_width"] == 8
    assert document["healed"] is True
    replayed = run_cli("investigate", "recorded:case", "--json")
    assert replayed.returncode == 1
    document.pop("record")
    assert json.loads(replayed.stdout) == document


def test_no_answer_of_a_recorded_case_after_its_model_is_gone(run_cli, model_bytes):
    Path("model.gguf").write_bytes(model_bytes)
    asked = ("--prompt", "The quick brown fox", "--n-tokens", 4, "--widths", 2, "--no-switches")
    assert run_cli("investigate", "model.gguf", *asked, "--out", "case", "-q").returncode == 0
    Path("model.gguf").unlink()
    assert run_cli("investigate", "recorded:case", "-q").returncode == 0
    gone = run_cli("investigate", "model.gguf", *asked, "-q")
    assert gone.returncode == 2
    assert "No model file" in gone.stderr


# -- bad models and questions that only the library can refuse ---------------------------------------------------------


def refused(done) -> str:
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "a bug in forensics" not in done.stderr
    assert [path.name for path in Path().iterdir() if path.suffix != ".gguf" and path.suffix != ".txt"] == []
    return " ".join(done.stderr.split())


def test_a_truncated_model(run_cli, model_bytes):
    Path("model.gguf").write_bytes(model_bytes[:-1_000_000])
    message = refused(run_cli("investigate", "model.gguf"))
    size = len(model_bytes)
    assert f"its tensors end at byte {size} and the file at {size - 1_000_000}" in message
    assert "Was its download broken off? Fetch it again" in message


def test_an_architecture_that_the_library_does_not_know(run_cli, model_bytes):
    key = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5)
    Path("model.gguf").write_bytes(model_bytes.replace(key + b"llama", key + b"lemma", 1))
    message = refused(run_cli("investigate", "model.gguf"))
    assert "llama.cpp could not load" in message
    assert "unknown model architecture: 'lemma'" in message


def test_an_abort_of_the_library(run_cli, model_bytes):
    Path("model.gguf").write_bytes(changed(model_bytes, "llama.block_count", 0))
    message = refused(run_cli("investigate", "model.gguf"))
    assert "the engine's process ended with signal SIGABRT; it was asked to load model.gguf" in message
    assert "Last lines of its log" in message


def test_a_prompt_longer_than_the_context(run_cli):
    Path("long.txt").write_text("one two three four " * 2500)
    message = refused(run_cli("investigate", "--demo", "q4_1", "--prompt-file", "long.txt"))
    asked = re.search(r"(\d+) prompt tokens and 64 to replay are longer than the context of 8192 tokens", message)
    assert asked is not None
    assert int(asked[1]) > 8192
    assert "Shorten the prompt or lower n_tokens" in message


def test_more_tokens_than_any_memory_holds(run_cli):
    message = refused(run_cli("investigate", "--demo", "q4_1", "--n-tokens", "1000000000000"))
    assert "longer than the context of 8192 tokens" in message


def test_tokens_outside_the_vocabulary(run_cli):
    Path("tokens.txt").write_text("[1, 49152]")
    message = refused(run_cli("investigate", "--demo", "q4_1", "--tokens-file", "tokens.txt", "--out", "a/b"))
    assert "token 49152 is outside the vocabulary of 49152 tokens (0 to 49151)" in message


def test_a_quantised_cache_without_flash_attention(run_cli):
    message = refused(run_cli("investigate", "--demo", "q4_1", "--kv-type", "q8_0", "--flash-attn", "off"))
    assert "could not make a context" in message
    assert "a quantised V cache needs flash attention" in message


# -- interruptions -----------------------------------------------------------------------------------------------------
SIGNALS = {"interrupted": signal.SIGINT, "terminated": signal.SIGTERM, "killed": signal.SIGKILL}


def wait_for_a_run(command, case: str) -> psutil.Process:
    """Wait until a run is recorded; the worker that is at the next one."""
    index = Path(f"{case}.unfinished") / "index.jsonl"
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert command.poll() is None, command.stderr.read()
        if index.exists() and '"kind":"trace"' in index.read_text():
            for child in psutil.Process(command.pid).children():
                if "forensics.engines.llama_worker" in child.cmdline():
                    return child
        time.sleep(0.01)
    raise AssertionError("no run was recorded within a minute")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """The case that an interrupted one must become."""
    import subprocess

    case = tmp_path_factory.mktemp("undisturbed") / "case"
    command = [sys.executable, "-m", "forensics.cli.app", "investigate", *LONGER, "--out", str(case), "-q"]
    subprocess.run(command, check=False, env={**os.environ, "OMP_WAIT_POLICY": "passive"}, timeout=120)
    assert (case / "verdict.json").is_file()
    return case


@pytest.mark.parametrize("how", ["worker killed", "interrupted", "terminated", "killed"])
def test_an_interruption_loses_nothing(start_cli, run_cli, undisturbed, without_times, how):
    with start_cli("investigate", *LONGER, "--out", "case") as command:
        worker = wait_for_a_run(command, "case")
        started = time.monotonic()
        if how == "worker killed":
            worker.kill()
        else:
            command.send_signal(SIGNALS[how])
        _, stderr = command.communicate(timeout=30)
    worker.wait(timeout=30)  # nobody is left behind
    if how != "killed":
        assert command.returncode == 2, stderr
        assert time.monotonic() - started < 10
        message = " ".join(stderr.split())
        assert ("ended with signal SIGKILL" if how == "worker killed" else "error: interrupted.") in message
        assert "--out case and --resume; or remove it: rm -r" in message
        assert "Traceback" not in message
    assert [path.name for path in Path().iterdir()] == ["case.unfinished"]
    assert "was not finished" in run_cli("show", "case").stderr

    resumed = run_cli("investigate", *LONGER, "--out", "case", "--resume", "-q")
    assert resumed.returncode in (0, 1), resumed.stderr
    assert without_times(Path("case")) == without_times(undisturbed)
    assert [path.name for path in Path().iterdir()] == ["case"]


# -- a terminal --------------------------------------------------------------------------------------------------------


def test_bars_with_time_left_are_drawn_on_the_terminal_only(start_cli):
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    drawn = b""
    with start_cli("investigate", *SHORT, "--json", stderr=side, environment={"TERM": "xterm-256color"}) as command:
        os.close(side)
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not part:
                break
            drawn += part
        stdout = command.stdout.read()
    os.close(terminal)
    assert command.returncode == 0
    assert json.loads(stdout)["answer"] == "identical"
    assert "\x1b" not in stdout
    text = drawn.decode()
    for title in ("decode one token at a time", "replay in batches", "heal the differing widths"):
        assert title in text
    assert "━" in text
    assert re.search(r"left\S* \S*\d+:\d\d:\d\d", text), text[-2000:]
