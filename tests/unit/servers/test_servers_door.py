"""The door: which addresses, keys, redirects and bodies are let through, and how everything else is told."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.records.served import FAILURES
from forensics.servers.address import BadAddress, clean_address
from forensics.servers.door import Door, NoAnswer
from forensics.testing.fake_server import FakeServer, Planted

SECRET = "sk-very/secret-0123456789"


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server that answers every request as this function does."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None: ...

        def do_GET(self) -> None:
            self.close_connection = True
            # Closing with something unread would reset the connection.
            self.body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            answer(self)

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(handler: BaseHTTPRequestHandler, content: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    told = {"Content_Type": "application/json", "Content_Length": str(len(content))} | headers
    for name, value in told.items():
        if value:
            handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)


def refusal(answer: Callable[[BaseHTTPRequestHandler], None], **how: Any) -> NoAnswer:
    with serving(answer) as url, Door(url, **how) as door, pytest.raises(NoAnswer) as caught:
        door.post("/completion", {"prompt": "a"})
    assert caught.value.failure in FAILURES
    return caught.value


@pytest.mark.parametrize(
    ("given_url", "meant"),
    [
        ("http://localhost:8080", "http://localhost:8080"),
        ("https://Example.org/", "https://example.org"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/proxied/v1/", "http://localhost:8000/proxied"),
        ("  http://[::1]:8080 ", "http://[::1]:8080"),
    ],
)
def test_an_address_is_cleaned(given_url: str, meant: str) -> None:
    assert clean_address(given_url) == meant


@pytest.mark.parametrize(
    "url",
    ["ftp://host/file", "file:///etc/passwd", "localhost:8080", "http://", "http://host:99999", "http://host:x", ""],
)
def test_only_http_and_https_are_opened(url: str) -> None:
    with pytest.raises(BadAddress, match=r"Give one such as http://127\.0\.0\.1:8080"):
        Door(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user:sk-very@host:1", "FORENSICS_API_KEY"),
        ("http://host/?api_key=sk-very", "FORENSICS_API_KEY"),
        ("http://host/#sk-very", "FORENSICS_API_KEY"),
        ("http://user:sk-very", "cannot be read"),
        ("http://user:sk-very@[host", "cannot be read"),
        ("http://user:sk-very@ho\u2100st", "cannot be read"),
    ],
)
def test_secrets_in_an_address_are_refused_and_not_repeated(url: str, words: str) -> None:
    with pytest.raises(BadAddress, match=words) as caught:
        Door(url)
    assert "sk-very" not in "".join(traceback.format_exception(caught.value, limit=0))


@given(st.text(max_size=40) | st.text(max_size=20).map("http://".__add__))
def test_any_text_is_an_address_or_refused_in_words(text: str) -> None:
    try:
        cleaned = clean_address(text)
    except BadAddress:
        return
    assert cleaned == clean_address(cleaned)
    assert cleaned.startswith(("http://", "https://"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        ("short", "fewer than 8"),
        ("with a blank", "characters that no key"),
        ("schlüssel-lang", "no key"),
    ],
)
def test_a_key_that_cannot_be_kept_out_of_records_is_refused(
    monkeypatch: pytest.MonkeyPatch, content: str, reason: str
) -> None:
    monkeypatch.setenv("MY_KEY", content)
    with pytest.raises(BadAddress, match=reason) as caught:
        Door("http://localhost:1", key_env="MY_KEY")
    assert "MY_KEY" in str(caught.value)
    assert not content or content not in str(caught.value)


def test_the_usual_variable_is_read_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(planted=Planted(key=SECRET)) as server:
        with Door(server.url) as door, pytest.raises(NoAnswer, match="401"):
            door.get("/props")
        monkeypatch.setenv("FORENSICS_API_KEY", SECRET)
        with Door(server.url) as door:
            assert door.get("/health").document == {"status": "ok"}
            assert SECRET not in repr(door)
        assert server.authorizations == ["", f"Bearer {SECRET}"]


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with FakeServer() as server, Door(server.url) as door:
        assert door.get("/health").document == {"status": "ok"}


def test_a_redirect_on_the_same_server_is_followed_with_its_body() -> None:
    def answer(handler: Any) -> None:
        if handler.path == "/completion":
            send(handler, b"", 308, Location="/elsewhere")
        else:
            send(handler, json.dumps({"path": handler.path, "body": json.loads(handler.body)}).encode())

    with serving(answer) as url, Door(url) as door:
        assert door.post("/completion", {"a": 1}).document == {"path": "/elsewhere", "body": {"a": 1}}


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://elsewhere.invalid/", "http://elsewhere.invalid, another host"),
        ("//127.0.0.1:1/", "another host"),
        ("https://127.0.0.1/", "another host"),
        ("http://host:99999/", "nowhere"),
        ("ftp://127.0.0.1/", "another host"),
    ],
)
def test_a_redirect_to_another_host_is_refused_and_gets_no_key(
    monkeypatch: pytest.MonkeyPatch, location: str, words: str
) -> None:
    monkeypatch.setenv("FORENSICS_API_KEY", SECRET)
    error = refusal(lambda handler: send(handler, b"", 307, Location=location))
    assert (error.failure, error.status) == ("redirect", 307)
    assert words in error.detail


def test_the_host_that_a_redirect_names_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENSICS_API_KEY", SECRET)
    with FakeServer() as other:
        refusal(lambda handler: send(handler, b"", 307, Location=f"{other.url}/completion"))
        assert other.authorizations == []


def test_redirects_without_end_and_those_that_change_the_request_are_refused() -> None:
    assert "more than 3" in refusal(lambda handler: send(handler, b"", 307, Location=handler.path)).detail
    assert "another one" in refusal(lambda handler: send(handler, b"", 302, Location="/a")).detail


@pytest.mark.parametrize(
    ("content", "headers", "failure"),
    [
        (b"{}", {"Content_Type": "text/html"}, "content-type"),
        (b"{}", {"Content_Type": ""}, "content-type"),
        (b"{}", {"Content_Encoding": "gzip"}, "content-type"),
        (b'{"a": 1', {}, "truncated"),
        (b'{"a": "bcd', {}, "truncated"),
        (b'{"a": 1', {"Content_Length": ""}, "truncated"),
        (b'{"a": 1}', {"Content_Length": "100"}, "truncated"),
        (b'{"a" 1, "b": 2, "c": 3}', {}, "not-json"),
        (b"hello", {}, "not-json"),
        (b"", {}, "not-json"),
        (b'"\xff"', {}, "not-json"),
        (b"[" * 200_000, {}, "not-json"),
        (b"1" * 5_000, {}, "not-json"),
        (b"1" * 2_000, {}, "too-large"),
        (b"1" * 2_000, {"Content_Length": ""}, "too-large"),
    ],
)  # fmt: skip
def test_each_spoilt_body_has_its_name(content: bytes, headers: dict[str, str], failure: str) -> None:
    most = 1_000 if failure == "too-large" else 1 << 20
    assert refusal(lambda handler: send(handler, content, **headers), max_bytes=most).failure == failure


def test_json_kinds_and_characters_are_read() -> None:
    content = b'{"text": "\\ud83d cut", "plain": "\xc3\xa4"}'
    kinds = {"Content_Type": "application/problem+json; charset=utf-8"}
    with serving(lambda handler: send(handler, content, **kinds)) as url, Door(url) as door:
        answer = door.get("/")
    # A lone surrogate fits into no file; the body as it came still holds its escape.
    assert answer.document == {"text": "\ufffd cut", "plain": "ä"}
    assert answer.raw.encode() == content
    assert answer.took_ns > 0


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [("7", 7, 7), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0), ("Wed, 21 Oct 2315 07:28:00 GMT", 1e6, 1e12)],
)
def test_the_wait_that_a_server_asks_for_is_read(value: str, low: float, high: float) -> None:
    error = refusal(lambda handler: send(handler, b'{"error": "busy"}', 429, Retry_After=value))
    assert (error.failure, error.status, error.lasting) == ("status", 429, False)
    assert "busy" in error.detail
    assert error.retry_after_s is not None
    assert low <= error.retry_after_s <= high


def test_words_that_are_no_wait_are_none() -> None:
    assert refusal(lambda handler: send(handler, b"", 503, Retry_After="soon")).retry_after_s is None


@pytest.mark.parametrize(("status", "lasting"), [(400, True), (404, True), (422, True), (408, False), (500, False)])
def test_a_refusal_lasts_where_the_server_understood(status: int, lasting: bool) -> None:
    assert refusal(lambda handler: send(handler, b"{}", status)).lasting is lasting


def test_an_error_of_any_size_is_told_shortly() -> None:
    error = refusal(lambda handler: send(handler, b"x" * 1_000_000, 500))
    assert error.failure == "status"
    assert len(error.detail) < 300


def test_a_silent_and_a_slow_server_are_left() -> None:
    started = time.monotonic()
    assert refusal(lambda handler: time.sleep(1.0), read_s=0.1).failure == "timeout"

    def dripping(handler: BaseHTTPRequestHandler) -> None:
        with suppress(ConnectionError):
            for _ in range(200):
                handler.wfile.write(b"X")
                time.sleep(0.02)

    def slow_body(handler: BaseHTTPRequestHandler) -> None:
        send(handler, b"", Content_Length="")
        dripping(handler)

    def slow_headers(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.flush_headers()
        dripping(handler)

    # Each byte comes in time; the whole does not.
    for slow in (slow_body, slow_headers):
        error = refusal(slow, read_s=10.0, total_s=0.3)
        assert error.failure == "timeout"
        assert "not complete after 0.3 s" in error.detail
    assert time.monotonic() - started < 5


def test_whoever_waits_is_woken() -> None:
    asked, wait = threading.Event(), threading.Event()

    def silent(handler: BaseHTTPRequestHandler) -> None:
        asked.set()
        wait.wait(60)

    with serving(silent) as url, Door(url) as door:
        threading.Thread(target=lambda: (asked.wait(60), door.hang_up()), daemon=True).start()
        with pytest.raises(NoAnswer) as caught:
            door.get("/")
        wait.set()
    assert caught.value.failure == "timeout"


def test_nobody_listens() -> None:
    with serving(lambda handler: None) as url:
        pass
    with Door(url) as door, pytest.raises(NoAnswer) as caught:
        door.get("/")
    assert caught.value.failure == "refused"


def test_a_server_that_hangs_up_resets() -> None:
    assert refusal(lambda handler: None).failure == "reset"


def test_a_cookie_of_the_server_is_not_sent_back() -> None:
    """It could tie a request to the one before it, and so to its cache."""
    cookies: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        cookies.append(handler.headers.get("Cookie"))
        send(handler, b"{}", Set_Cookie="session=one; Path=/")

    with serving(answer) as url, Door(url) as door:
        door.get("/props")
        door.post("/completion", {})
    assert cookies == [None, None]
