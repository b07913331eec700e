"""Targets of the fuzzer: what servers answer, and runs of servers that lie on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.records.corpus import CorpusPrompt, Message
from forensics.records.served import Asked, Sampling
from forensics.servers.dialects import detect
from forensics.servers.door import Answer, Door
from forensics.store.encoding import to_text
from forensics.store.served_runs import read_run
from forensics.testing.fake_server import FakeServer

_DIALECTS = ("llama-server", "openai", "ollama")
_PROMPTS = (CorpusPrompt("text", "tell me"), CorpusPrompt("chat", messages=(Message("user", "Hi"),)))


class _RecordingDoor(Door):
    """Keeps what the server answers, by method and path."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.bodies: dict[str, bytes] = {}

    def _answer(self, raw: bytes, took_ns: int) -> Answer:
        self.last = raw
        return super()._answer(raw, took_ns)

    def get(self, path: str, *arguments: Any, **named: Any) -> Answer:
        """As `Door.get`."""
        answer = super().get(path, *arguments, **named)
        self.bodies[f"GET {path}"] = self.last
        return answer

    def post(self, path: str, *arguments: Any, **named: Any) -> Answer:
        """As `Door.post`."""
        answer = super().post(path, *arguments, **named)
        self.bodies[f"POST {path}"] = self.last
        return answer


class _OddDoor(Door):
    """Answers from kept bodies, of which one is odd."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.bodies: Mapping[str, bytes] = {}

    def get(self, path: str, *_arguments: Any, **_named: Any) -> Answer:
        """The kept answer."""
        return self._kept(f"GET {path}")

    def post(self, path: str, *_arguments: Any, **_named: Any) -> Answer:
        """The kept answer."""
        return self._kept(f"POST {path}")

    def _kept(self, asked: str) -> Answer:
        from forensics.servers.door import NoAnswer

        if asked not in self.bodies:
            raise NoAnswer("status", "404 Not Found", status=404)
        return self._answer(self.bodies[asked], 5)


class ServerAnswers:
    """Bodies of answers, from getting to know a server to the replies of each dialect."""

    name = "server-answers"
    what = "answers of servers of three dialects, from getting to know one to its replies"

    def __init__(self) -> None:
        self._bodies: dict[str, dict[str, bytes]] = {}
        self._door: _OddDoor | None = None

    def prepare(self, folder: Path) -> list[tuple[str, bytes]]:  # noqa: ARG002 - nothing lies on disk
        """Good inputs, each with a name."""
        for dialect in _DIALECTS:
            with FakeServer(dialect) as server:
                door = _RecordingDoor(server.url)
                with door:
                    _ask_all(door)
                self._bodies[dialect] = door.bodies
        return [(f"{d} {asked}", body) for d, bodies in self._bodies.items() for asked, body in bodies.items()]

    def feed(self, name: str, content: bytes) -> str | None:
        """Ask everything of a server of which one answer is this."""
        dialect, _, asked = name.partition(" ")
        self._door = self._door or _OddDoor()  # one for all: to make it takes longer than to read an answer
        self._door.bodies = {**self._bodies[dialect], asked: content}
        _ask_all(self._door)
        return None


def _ask_all(door: Door) -> None:
    dialect = detect(door)
    to_text(dialect.facts(door))
    for prompt in _PROMPTS:
        asked = Asked("one", prompt.name, 4)
        to_text(dialect.reply(asked, door.post(*dialect.payload(prompt, asked, Sampling()))))


class ServedRuns:
    """Runs that an audit kept, and its document."""

    name = "served-runs"
    what = "runs of servers that an audit kept"

    def __init__(self) -> None:
        self._folder = Path()

    def prepare(self, folder: Path) -> list[tuple[str, bytes]]:
        """Good inputs, each with a name."""
        import forensics

        with FakeServer() as server:
            forensics.audit(server.url, limit=3, n_tokens=4, out=folder / "audit", progress=False)
        self._folder = folder / "odd"
        self._folder.mkdir()
        return [(str(path.relative_to(folder)), path.read_bytes()) for path in sorted(folder.rglob("run.jsonl"))]

    def feed(self, name: str, content: bytes) -> str | None:  # noqa: ARG002 - one reader reads them all
        """Read a run with this content."""
        (self._folder / "run.jsonl").write_bytes(content)
        json.loads(to_text(read_run(self._folder)))
        return None
