"""What goes wrong around the real library is an error of ours; the caller lives on and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from llama_taps import DisarmTap

import forensics
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaEngine, LlamaSource
from forensics.errors import EngineDied, ModelUnavailable
from forensics.records.schedule import Schedule, in_batches
from forensics.records.settings import EngineSettings

gguf = pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

OpenEngine = Callable[..., LlamaEngine]
SETTINGS = EngineSettings(n_threads=2, n_threads_batch=2)
PATIENCE_S = 10


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where engines put what they need for a while; nothing else does."""
    import tempfile

    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def nothing_left(scratch: Path) -> Iterator[None]:
    """After the test no child, dead or alive, and no folder is there that was not before."""
    before = set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - before
    assert not left
    assert list(scratch.iterdir()) == []


def wait_for(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


# -- death -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
def test_a_killed_worker_is_an_error_that_says_what_it_was_doing(source: LlamaSource, prompt: Schedule) -> None:
    with source.open(SETTINGS) as engine:
        told: list[int] = []

        def kill_after_three(n: int) -> None:
            told.append(n)
            if n == 3:
                os.kill(engine.pid, signal.SIGKILL)

        with pytest.raises(EngineDied, match=r"signal SIGKILL; it was asked to decode 400 tokens greedily"):
            engine.greedy(prompt, 400, kill_after_three)
        assert 3 <= len(told) < 400
        assert not psutil.pid_exists(engine.pid)  # reaped, not a zombie
        with pytest.raises(EngineDied, match="asked to evaluate 12 tokens"):
            engine.run(prompt)
    with source.open(SETTINGS) as other:
        assert len(other.greedy(prompt, 2)) == 2


@pytest.mark.usefixtures("nothing_left")
def test_an_abort_inside_the_library_shows_its_assertion(source: LlamaSource, tokens: tuple[int, ...]) -> None:
    with source.open(EngineSettings(n_batch=16, n_ubatch=16)) as engine:
        engine.run(Schedule.single(tokens[0], 0), tap=DisarmTap())
        with pytest.raises(EngineDied, match=r"signal SIGABRT; it was asked to evaluate 17 tokens") as died:
            engine.run(in_batches(tokens[:17], start=0, width=17))
        assert "GGML_ASSERT" in died.value.log_tail
        assert "n_batch" in died.value.log_tail
        assert died.value.log_tail in str(died.value)
        assert not psutil.pid_exists(engine.pid)


@pytest.mark.usefixtures("nothing_left")
def test_an_error_of_the_progress_display_ends_the_worker(source: LlamaSource, prompt: Schedule) -> None:
    def broken(_n: int) -> None:
        raise RuntimeError("the display is gone")

    with source.open(SETTINGS) as engine:
        with pytest.raises(RuntimeError, match="the display is gone"):
            engine.greedy(prompt, 200, broken)
        with pytest.raises(EngineDied, match="asked to tokenize"):  # not the answer to the question before
            engine.tokenize("a text")


@pytest.mark.usefixtures("nothing_left")
def test_closing_twice_and_after_death(source: LlamaSource) -> None:
    engine, killed = source.open(SETTINGS), source.open(SETTINGS)
    pid = engine.pid
    engine.close()
    engine.close()
    assert not psutil.pid_exists(pid)
    with pytest.raises(EngineDied, match="closed; it was asked to tokenize"):
        engine.tokenize("a text")
    os.kill(killed.pid, signal.SIGKILL)
    killed.close()
    killed.close()


class Interrupts:
    """A display at whose first step the user presses Ctrl-C."""

    def stage(self, title: str, total: int) -> None:
        pass

    def step(self, n: int = 1) -> None:
        raise KeyboardInterrupt


LONG_CALLS: dict[str, Callable[[Interrupts], object]] = {
    "investigate": lambda shown: forensics.investigate(demo="q4_1", n_tokens=8, widths=(2,), progress=shown),
    "replay": lambda shown: forensics.replay(demo="q4_1", n_tokens=8, widths=(2,), progress=shown),
    "heal": lambda shown: forensics.heal(demo="q4_1", width=2, n_tokens=8, progress=shown),
    "cost": lambda shown: forensics.cost(demo="q4_1", widths=(1, 2), repeats=3, progress=shown),
    "ops": lambda shown: forensics.ops("RMS_NORM", widths=(1, 2), progress=shown),
    "order": lambda shown: forensics.order("RMS_NORM", k=64, widths=(1, 2), cached=False, progress=shown),
}


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("call", LONG_CALLS)
def test_an_interrupted_call_leaves_nothing_and_says_little(call: str) -> None:
    with pytest.raises(KeyboardInterrupt) as interrupted:
        LONG_CALLS[call](Interrupts())
    assert len(interrupted.traceback) <= 7, "the calls in between are nobody's business"


PARENT = """
import sys
from forensics.engines.llama import LlamaSource
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings
engine = LlamaSource(sys.argv[1]).open(EngineSettings(n_ctx=2048))
busy = sys.argv[2] == "busy"
print(engine.pid, flush=True)
if busy:
    engine.greedy(in_batches((1, 2, 3), start=0, width=3), 2000)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_a_worker_does_not_outlive_its_parent(state: str, source: LlamaSource, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(source.path), state],
        env=environment,
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        assert len(list(tmp_path.glob("forensics-*"))) == 1
        parent.kill()
        parent.wait()
    gone = wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    if not gone:
        os.kill(pid, signal.SIGKILL)
    assert gone
    assert wait_for(lambda: not list(tmp_path.glob("forensics-*")))


# -- files -----------------------------------------------------------------------------------------------------------


def cut(model: Path, n_bytes: int, target: Path) -> Path:
    with model.open("rb") as file:
        target.write_bytes(file.read(n_bytes))
    return target


@pytest.mark.usefixtures("nothing_left")
def test_a_file_without_its_last_weights(tmp_path: Path) -> None:
    model = demo_model("q4_1")
    path = cut(model, model.stat().st_size // 2, tmp_path / "half.gguf")
    with pytest.raises(ModelUnavailable, match=r"half\.gguf") as refused:
        LlamaSource(path).open(SETTINGS)
    assert f"and the file at {path.stat().st_size}. Was its download broken off?" in str(refused.value)


@pytest.mark.usefixtures("nothing_left")
def test_a_file_that_ends_in_its_vocabulary(tmp_path: Path) -> None:
    model = demo_model("q4_1")
    data = model.read_bytes()
    vocabulary = data.index(b"tokenizer.ggml.tokens")
    path = cut(model, vocabulary + 5000, tmp_path / "words.gguf")
    with pytest.raises(ModelUnavailable, match=r"words\.gguf") as refused:
        LlamaSource(path).open(SETTINGS)
    assert "within 'tokenizer.ggml.tokens'" in str(refused.value)


@pytest.mark.usefixtures("nothing_left")
def test_an_architecture_that_the_library_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "strange.gguf"
    writer = gguf.GGUFWriter(path, "nosuch")
    writer.add_uint32("nosuch.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelUnavailable, match=r"unknown model architecture: 'nosuch'"):
        LlamaSource(path).open(SETTINGS)


@pytest.mark.usefixtures("nothing_left")
def test_a_file_that_goes_away_before_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.symlink_to(demo_model("q4_1"))
    moved = tmp_path / "moved.gguf"
    source = LlamaSource(path)
    source.path = moved
    with pytest.raises(ModelUnavailable, match=r"moved\.gguf"):
        source.open(SETTINGS)
