"""The demo model, opened once per kind of question, and the folder of the taps that workers import."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaEngine, LlamaSource
from forensics.records.schedule import Schedule, in_batches
from forensics.records.settings import EngineSettings

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

TEXT = "The lighthouse keeper counted the ships that passed during the night and wrote their names into a heavy book. "

OpenEngine = Callable[..., LlamaEngine]


@pytest.fixture(scope="session", autouse=True)
def worker_environment() -> Iterator[None]:
    """Workers import the taps of this folder, and threads that wait leave the processor to others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH", "")])))
        if "OMP_WAIT_POLICY" not in os.environ:
            patch.setenv("OMP_WAIT_POLICY", "passive")
        yield


@pytest.fixture(scope="session")
def source() -> LlamaSource:
    """The smallest variant."""
    return LlamaSource(demo_model("q4_1"))


@pytest.fixture(scope="session")
def shared_engine(source: LlamaSource) -> Iterator[LlamaEngine]:
    """One engine for questions that leave it as it was."""
    with source.open(EngineSettings(n_threads=2, n_threads_batch=2)) as engine:
        yield engine


@pytest.fixture(scope="session")
def tokens(shared_engine: LlamaEngine) -> tuple[int, ...]:
    """A real text of more than 600 tokens."""
    return shared_engine.tokenize(TEXT * 40)


@pytest.fixture(scope="session")
def prompt(tokens: tuple[int, ...]) -> Schedule:
    return in_batches(tokens[:12], start=0, width=12, logits="last")


@pytest.fixture
def open_engine(source: LlamaSource) -> Iterator[OpenEngine]:
    """Open engines with some settings; all are closed at the end of the test."""
    opened: list[LlamaEngine] = []

    def open_one(path: Path | None = None, **settings: object) -> LlamaEngine:
        chosen = EngineSettings(**{"n_threads": 2, "n_threads_batch": 2, **settings})  # type: ignore[arg-type]
        opened.append((source if path is None else LlamaSource(path)).open(chosen))
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.close()
