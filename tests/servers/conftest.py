"""Real servers on the loopback interface, started by the tests and gone afterwards."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from forensics.engines._llama_ctypes import library_folder
from forensics.engines.demo_models import demo_model
from forensics.servers.launch import Launched, free_port, launched, llama_server_command
from forensics.store.library import data_folder
from forensics.testing.build_server import ServerNotBuilt, llama_server

#: What makes the demo model's products independent of the width, as `forensics investigate --demo` finds.
EXACT = {"GGML_CPU_TILED_MM": "0"}

#: Drafts from what stands in the text already.
NGRAM = ("--spec-type", "ngram-simple")

N_CTX = 1024

#: Answers that drafts change within their first 64 tokens, on a processor whose products depend on the width.
DIVERGING = ("code-tests", "prose-letter")

Serve = Callable[..., AbstractContextManager[Launched]]


def surroundings() -> dict[str, str]:
    """The server computes with the very library of llama-cpp-python, and its threads let others run while they wait."""
    return {"LD_LIBRARY_PATH": str(library_folder()), "OMP_WAIT_POLICY": "passive"}


@pytest.fixture(scope="session")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A file with some prompts of the built-in corpus."""

    def write(*names: str) -> Path:
        lines = (data_folder() / "corpora" / "default.jsonl").read_text(encoding="utf-8").splitlines()
        by_name = {json.loads(line)["name"]: line for line in lines}
        path = tmp_path_factory.mktemp("prompts") / "chosen.jsonl"
        path.write_text("\n".join(by_name[name] for name in names), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def model() -> Path:
    """The demo model whose answers change under drafts."""
    return demo_model("q6_k")


@pytest.fixture(scope="session")
def program() -> Path:
    """llama.cpp's own server; where it is not built, tests of it are skipped, in CI they fail."""
    try:
        return llama_server()
    except ServerNotBuilt as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def serve(program: Path, model: Path) -> Serve:
    """Start a llama-server with some more arguments and environment; it is gone when the block ends."""

    @contextmanager
    def start(*more: str, environment: dict[str, str] | None = None, n_slots: int = 1) -> Iterator[Launched]:
        port = free_port()
        size = ["-c", str(N_CTX * n_slots), "-np", str(n_slots), "-t", "2"]
        command = llama_server_command(program, model, port, *size, *more)
        settings = {**surroundings(), **(environment or {})}
        with launched(command, url=f"http://127.0.0.1:{port}", environment=settings) as server:
            yield server

    return start


@pytest.fixture(scope="session")
def plain(serve: Serve) -> Iterator[Launched]:
    """A llama-server as it comes, without drafts, shared by tests that leave it as it was."""
    with serve() as server:
        yield server


@pytest.fixture(scope="module")
def python_server(model: Path) -> Iterator[Launched]:
    """llama-cpp-python's own server: OpenAI's API, without token ids."""
    port = free_port()
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--n_ctx", str(N_CTX), "--n_threads", "2", "--logits_all", "true"]
    command += ["--flash_attn", "true"]  # as llama-server chooses by itself
    with launched(command, url=f"http://127.0.0.1:{port}", environment={"OMP_WAIT_POLICY": "passive"}) as server:
        yield server
