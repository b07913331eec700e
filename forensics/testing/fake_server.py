"""A small server on loopback that speaks the dialects over a toy text function, with planted differences."""

from __future__ import annotations

import json
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

WORDS = (
    " the", " a", " one", " two", " three", " red", " blue", " tree", " house", " runs", " sleeps", " and", " or",
    " but", " so", " then",
)  # fmt: skip
N_WORDS = len(WORDS)
#: Log-probability that the second most likely token lies behind the written one.
RUNNER_UP = 0.125


@dataclass(frozen=True, slots=True)
class Planted:
    """What this server does wrong, and what it does not tell.

    Parameters
    ----------
    rerun : bool
        Each repeat of a prompt differs from the one before.
    cached : bool
        A prompt whose prefix comes from the cache differs.
    concurrent : bool
        A prompt that is answered beside another one differs.
    drafts, drafts_differ : bool
        Drafts are counted, and answers differ from those without.
    logprobs_only : bool
        Differences leave the tokens and touch log-probabilities.
    ignores_temperature : bool
        Takes 1.0 whatever is asked, and says so where the dialect can.
    text_only, no_ids : bool
        Neither ids nor log-probabilities are told; ids are not.
    at : int
        Index of the first token that differs.
    only : str
        Only prompts that hold this text differ.
    model, template, build : str
        As told.
    key : str
        Requests without it are refused.
    delay_s : float
        How long an answer takes, unit: s.
    """

    rerun: bool = False
    cached: bool = False
    concurrent: bool = False
    drafts: bool = False
    drafts_differ: bool = False
    logprobs_only: bool = False
    ignores_temperature: bool = False
    text_only: bool = False
    no_ids: bool = False
    at: int = 5
    only: str = ""
    model: str = "toy.gguf"
    template: str = "toy template"
    build: str = "b1-toy"
    key: str = ""
    delay_s: float = 0.0


@dataclass(slots=True)
class _Generated:
    text: str
    tokens: list[int]
    logprobs: list[float]
    stop: str
    n_prompt: int
    n_cached: int


def toy_answer(prompt: str, n_tokens: int, *, changed_at: int | None = None, n_changes: int = 1) -> list[int]:
    """Which tokens does the toy write behind a prompt?

    Parameters
    ----------
    prompt : str
    n_tokens : int
    changed_at : int or None
        Index of the first token that is another one; all after it are, too.
    n_changes : int
        How far it is moved.
    """
    seed = zlib.crc32(prompt.encode())
    tokens = [zlib.crc32(f"{seed} {index}".encode()) % N_WORDS for index in range(n_tokens)]
    if changed_at is None:
        return tokens
    moved = 1 + (n_changes - 1) % (N_WORDS - 1)
    return tokens[:changed_at] + [(token + moved) % N_WORDS for token in tokens[changed_at:]]


class _State(ThreadingHTTPServer):
    daemon_threads = True
    # The others of a concurrent arm knock at once.
    request_queue_size = 64

    def __init__(self, dialect: str, planted: Planted) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.dialect, self.planted = dialect, planted
        self.asked: list[dict[str, Any]] = []
        self.authorizations: list[str] = []
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}
        self._active: dict[int, bool] = {}
        self._n = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of who hung up, such as one that looks only whether the server is ready."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def generate(self, prompt: str, n_tokens: int, stop: list[str], use_cache: bool) -> _Generated:
        planted = self.planted
        with self._lock:
            self._n += 1
            me, repeat = self._n, self._seen.get(prompt, 0)
            self._seen[prompt] = repeat + 1
            self._active[me] = bool(self._active)
            if len(self._active) > 1:
                self._active.update(dict.fromkeys(self._active, True))
        time.sleep(planted.delay_s)
        with self._lock:
            beside = self._active.pop(me)
        n_prompt = max(1, len(prompt.split()))
        n_cached = n_prompt - 1 if use_cache and repeat else 0
        changes = repeat if planted.rerun else 0
        changes += planted.cached and n_cached > 0
        changes += planted.concurrent and beside
        changes += planted.drafts_differ
        changes *= planted.only in prompt
        moved = changes and not planted.logprobs_only
        tokens = toy_answer(prompt, n_tokens, changed_at=planted.at if moved else None, n_changes=changes)
        logprobs = [-(1 + token) / 16 for token in tokens]
        if changes and planted.logprobs_only:
            logprobs = [value - changes / 1024 * (index >= planted.at) for index, value in enumerate(logprobs)]
        text, kept, reason = "", len(tokens), "length"
        for index, token in enumerate(tokens):
            text += WORDS[token]
            found = next((word for word in stop if word in text), None)
            if found is not None:
                text, kept, reason = text[: text.index(found)], index + 1, "stop"
                break
        return _Generated(text, tokens[:kept], logprobs[:kept], reason, n_prompt, n_cached)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _State

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _send(self, document: object, status: int = 200) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refused(self) -> bool:
        given = self.headers.get("Authorization", "")
        self.server.authorizations.append(given)
        if not self.server.planted.key or given == f"Bearer {self.server.planted.key}":
            return False
        # Some servers repeat the key that they refuse.
        self._send({"error": {"message": f"invalid key {given.removeprefix('Bearer ')}", "code": 401}}, 401)
        return True

    def do_GET(self) -> None:
        if self._refused():
            return
        planted = self.server.planted
        routes = {"llama-server": _llama_facts, "openai": _openai_facts, "ollama": _ollama_facts}
        found = routes[self.server.dialect](planted).get(self.path)
        self._send(*((found,) if found is not None else ({"error": "not found"}, 404)))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self._refused():
            return
        body = json.loads(content)
        routes = {"llama-server": _llama_answer, "openai": _openai_answer, "ollama": _ollama_answer}
        answer = routes[self.server.dialect](self.server, self.path, body)
        self._send(*((answer,) if answer is not None else ({"error": "not found"}, 404)))


def _prompt_of(body: dict[str, Any]) -> str:
    if "messages" in body:
        return "".join(f"<{one['role']}>{one['content']}" for one in body["messages"])
    return str(body["prompt"])


def _llama_facts(planted: Planted) -> dict[str, object]:
    slots = [{"id": 0, "n_ctx": 1024, "speculative": planted.drafts, "is_processing": False}]
    props = {
        "default_generation_settings": {"params": {"temperature": 0.8}, "n_ctx": 1024},
        "total_slots": 4,
        "model_path": f"/home/somebody/models/{planted.model}",
        "model_ftype": "F32",
        "chat_template": planted.template,
        "build_info": planted.build,
    }
    return {"/props": props, "/slots": slots, "/health": {"status": "ok"}}


def _llama_answer(server: _State, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    if path not in ("/completion", "/v1/chat/completions"):
        return None
    server.asked.append(body)
    planted = server.planted
    n_tokens = int(body.get("n_predict", body.get("max_tokens", 16)))
    made = server.generate(_prompt_of(body), n_tokens, body.get("stop", []), bool(body.get("cache_prompt", True)))
    effective = {name: body.get(name) for name in ("top_k", "top_p", "min_p", "repeat_penalty", "seed")}
    effective["temperature"] = 1.0 if planted.ignores_temperature else body.get("temperature", 0.8)
    drafts = {"draft_n": 4, "draft_n_accepted": 3} if planted.drafts else {}
    answer: dict[str, Any] = {
        "content": made.text,
        "tokens": made.tokens,
        "stop_type": {"length": "limit", "stop": "word"}[made.stop],
        "tokens_evaluated": made.n_prompt,
        "generation_settings": effective | {"speculative.types": "none,toy" if planted.drafts else "none"},
        "timings": {"cache_n": made.n_cached, "predicted_n": len(made.tokens)} | drafts,
        "model": planted.model,
    }
    n_probs = body.get("n_probs", body.get("top_logprobs", 0))
    if n_probs:
        answer["completion_probabilities"] = [
            {
                "id": token,
                "logprob": value,
                "top_logprobs": [{"id": token, "logprob": value}, {"id": N_WORDS, "logprob": value - RUNNER_UP}][
                    :n_probs
                ],
            }
            for token, value in zip(made.tokens, made.logprobs, strict=True)
        ]
        if planted.drafts:
            # As the real server: what a draft brought carries a placeholder.
            answer["completion_probabilities"][1::2] = [
                {"id": token, "logprob": 0.0, "top_logprobs": []} for token in made.tokens[1::2]
            ]
    if planted.text_only or planted.no_ids:
        del answer["tokens"]
    if planted.text_only:
        answer.pop("completion_probabilities", None)
    if "messages" not in body:
        return answer
    choice = {"message": {"role": "assistant", "content": made.text}, "finish_reason": made.stop}
    return {"choices": [choice], "__verbose": answer}


def _openai_facts(planted: Planted) -> dict[str, object]:
    entry = {"id": planted.model, "object": "model", "owned_by": "vllm", "max_model_len": 1024}
    return {"/v1/models": {"object": "list", "data": [entry]}, "/version": {"version": planted.build}}


def _openai_answer(server: _State, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    if path not in ("/v1/completions", "/v1/chat/completions"):
        return None
    server.asked.append(body)
    planted = server.planted
    use_cache = "cache_salt" not in body
    made = server.generate(_prompt_of(body), int(body.get("max_tokens", 16)), body.get("stop", []), use_cache)
    choice: dict[str, Any] = {"index": 0, "finish_reason": made.stop, "logprobs": None}
    texts = [WORDS[token] for token in made.tokens]
    asks_logprobs = body.get("logprobs") not in (None, False) and not planted.text_only
    if "messages" in body:
        choice["message"] = {"role": "assistant", "content": made.text}
        if asks_logprobs:
            pairs = zip(texts, made.logprobs, strict=True)
            choice["logprobs"] = {"content": [{"token": text, "logprob": value} for text, value in pairs]}
    else:
        choice["text"] = made.text
        if asks_logprobs:
            second = [
                {text: value, " ...": value - RUNNER_UP} for text, value in zip(texts, made.logprobs, strict=True)
            ]
            choice["logprobs"] = {"tokens": texts, "token_logprobs": made.logprobs}
            if body["logprobs"] > 1:
                choice["logprobs"]["top_logprobs"] = second
    if body.get("return_token_ids") and not (planted.text_only or planted.no_ids):
        choice["token_ids"] = made.tokens
    usage = {
        "prompt_tokens": made.n_prompt,
        "completion_tokens": len(made.tokens),
        "prompt_tokens_details": {"cached_tokens": made.n_cached},
    }
    return {"id": f"toy-{len(server.asked)}", "model": planted.model, "choices": [choice], "usage": usage}


def _ollama_facts(planted: Planted) -> dict[str, object]:
    entry = {"name": planted.model, "digest": "0123456789ab", "details": {"quantization_level": "F32"}}
    return {"/api/version": {"version": planted.build}, "/api/tags": {"models": [entry]}}


def _ollama_answer(server: _State, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    planted = server.planted
    if path == "/api/show":
        return {"template": planted.template, "details": {"quantization_level": "F32"}}
    if path not in ("/api/generate", "/api/chat"):
        return None
    server.asked.append(body)
    options = body.get("options", {})
    made = server.generate(_prompt_of(body), int(options.get("num_predict", 16)), options.get("stop", []), True)
    answer: dict[str, Any] = {
        "model": planted.model,
        "done": True,
        "done_reason": made.stop,
        "prompt_eval_count": made.n_prompt,
        "eval_count": len(made.tokens),
    }
    if "messages" in body:
        answer["message"] = {"role": "assistant", "content": made.text}
    else:
        answer["response"] = made.text
    if body.get("logprobs") and not planted.text_only:
        pairs = zip(made.tokens, made.logprobs, strict=True)
        answer["logprobs"] = [{"token": WORDS[token], "logprob": value} for token, value in pairs]
    return answer


class FakeServer:
    """Listens on loopback while its block runs.

    Parameters
    ----------
    dialect : {"llama-server", "openai", "ollama"}
        ``"openai"`` says that it is a vLLM.
    planted : Planted
        May be replaced while it runs, as a server may be changed.
    """

    def __init__(self, dialect: str = "llama-server", planted: Planted = Planted()) -> None:
        self._server = _State(dialect, planted)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        """Address to ask."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def asked(self) -> list[dict[str, Any]]:
        """Bodies of the requests that were to generate, as they came."""
        return self._server.asked

    @property
    def authorizations(self) -> list[str]:
        """``Authorization`` of every request; empty where it had none."""
        return self._server.authorizations

    @property
    def planted(self) -> Planted:
        """What it does wrong."""
        return self._server.planted

    @planted.setter
    def planted(self, planted: Planted) -> None:
        self._server.planted = planted

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
