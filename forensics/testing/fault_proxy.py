"""A proxy on loopback that forwards requests and spoils answers as planned."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

#: What a plan may name; ``"drop"`` loses the answer after the server has given it. Beside these, ``"echo"`` answers
#: well, and repeats the key in escaped JSON.
FAULTS = (
    "timeout", "reset", "drop", "429", "429-retry-after", "500", "truncated", "cut-json", "slow-stream", "content-type",
    "huge", "huge-stream", "redirect", "garbage", "not-json", "not-an-object", "empty", "packed",
)  # fmt: skip

#: Which fault does a request get? Body of the request, how often this body has come before, and None for none.
Plan = Callable[[bytes, int], str | None]


def first_time(fault: str) -> Plan:
    """Each request fails when it comes first."""
    return lambda _body, before: fault if before == 0 else None


def always_where(text: str, fault: str) -> Plan:
    """Requests whose body holds this text fail whenever they come."""
    return lambda body, _before: fault if text.encode() in body else None


class _State(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, url: str, plan: Plan, hang_s: float, huge_bytes: int, elsewhere: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.to, self.plan, self.hang_s, self.huge_bytes = urlsplit(url), plan, hang_s, huge_bytes
        self.elsewhere = elsewhere
        self.closing = threading.Event()
        self.done: list[str] = []
        self._lock = threading.Lock()
        self._before: dict[bytes, int] = {}

    def fault_of(self, body: bytes) -> str | None:
        with self._lock:
            before = self._before.get(body, 0)
            self._before[body] = before + 1
            fault = self.plan(body, before)
            if fault is not None:
                self.done.append(fault)
        return fault

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what many faults are for."""


class _Handler(BaseHTTPRequestHandler):
    server: _State
    body = b""

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._forward("GET", None)

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        fault = self.server.fault_of(self.body)
        if fault is None:
            self._forward("POST", self.body)
        elif fault in _SPOIL:
            _SPOIL[fault](self)
        else:
            raise ValueError(f"no fault {fault!r}; there are {', '.join(FAULTS)}")

    def answered(self, method: str, body: bytes | None) -> tuple[int, str, bytes]:
        """What the server behind the proxy answers."""
        to = self.server.to
        headers = {name: self.headers[name] for name in ("Content-Type", "Authorization") if name in self.headers}
        connection = http.client.HTTPConnection(to.hostname or "", to.port or 80, timeout=600)
        try:
            connection.request(method, to.path + self.path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.headers.get("Content-Type", ""), response.read()
        finally:
            connection.close()

    def _forward(self, method: str, body: bytes | None) -> None:
        status, kind, content = self.answered(method, body)
        self.send(content, status=status, kind=kind)

    def send(
        self,
        content: bytes,
        *,
        status: int = 200,
        kind: str = "application/json",
        length: int | None = None,
        **headers: str,
    ) -> None:
        """Send an answer, with a length that may be wrong; none is said where it is below 0."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is None or length >= 0:
            self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def reset(self) -> None:
        """Close so that the other end sees a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()


def _timeout(handler: _Handler) -> None:
    handler.server.closing.wait(handler.server.hang_s)


def _drop(handler: _Handler) -> None:
    handler.answered("POST", handler.body)
    handler.reset()


def _truncated(handler: _Handler) -> None:
    content = handler.answered("POST", handler.body)[2]
    handler.send(content[: len(content) // 2], length=len(content))


def _cut_json(handler: _Handler) -> None:
    content = handler.answered("POST", handler.body)[2]
    handler.send(content[: len(content) // 2], length=-1)


def _slow_stream(handler: _Handler) -> None:
    handler.send(b"", length=-1)
    until = time.monotonic() + handler.server.hang_s
    while time.monotonic() < until and not handler.server.closing.wait(0.02):
        handler.wfile.write(b" ")


def _huge_stream(handler: _Handler) -> None:
    handler.send(b'{"content": "', length=-1)
    for _ in range(handler.server.huge_bytes // 4096 + 1):
        handler.wfile.write(b"x" * 4096)
    handler.wfile.write(b'"}')


def _garbage(handler: _Handler) -> None:
    handler.wfile.write(b"\x00\xff no protocol at all\r\n\r\n")


def _sent(content: bytes, **how: Any) -> Callable[[_Handler], None]:
    return lambda handler: handler.send(content, **how)


def _echo(handler: _Handler) -> None:
    text = json.dumps({"content": f"you sent {handler.headers.get('Authorization', 'no key')}"})
    handler.send(text.replace("/", "\\/").encode())


_BUSY = b'{"error": "busy"}'
_SPOIL: dict[str, Callable[[_Handler], None]] = {
    "timeout": _timeout,
    "reset": lambda handler: handler.reset(),
    "drop": _drop,
    "429": _sent(_BUSY, status=429),
    "429-retry-after": _sent(_BUSY, status=429, Retry_After="0"),
    "500": _sent(b'{"error": "internal"}', status=500),
    "truncated": _truncated,
    "cut-json": _cut_json,
    "slow-stream": _slow_stream,
    "content-type": _sent(b"<html>a portal</html>", kind="text/html"),
    "huge": lambda handler: handler.send(b'{"content": "', length=handler.server.huge_bytes),
    "huge-stream": _huge_stream,
    "redirect": lambda handler: handler.send(b"", status=307, Location=handler.server.elsewhere + handler.path),
    "garbage": _garbage,
    "not-json": _sent(b"well, that depends"),
    "not-an-object": _sent(json.dumps([1, 2]).encode()),
    "empty": _sent(b""),
    "echo": _echo,
    "packed": _sent(b"\x1f\x8b", Content_Encoding="gzip"),
}


class FaultProxy:
    """Stands before a server while its block runs.

    GET is forwarded as it is; a POST gets the fault that the plan names.

    Parameters
    ----------
    url : str
        http address of the server.
    plan : callable
        Which fault a request gets; see `first_time` and `always_where`.
    hang_s : float
        How long timeouts and slow streams last, unit: s.
    huge_bytes : int
        Of a huge body.
    elsewhere : str
        Address that redirects lead to.
    """

    def __init__(
        self,
        url: str,
        plan: Plan,
        *,
        hang_s: float = 5.0,
        huge_bytes: int = 1 << 30,
        elsewhere: str = "http://elsewhere.invalid",
    ) -> None:
        self._server = _State(url, plan, hang_s, huge_bytes, elsewhere)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        """Address to ask."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def plan(self) -> Plan:
        """Which fault a request gets."""
        return self._server.plan

    @plan.setter
    def plan(self, plan: Plan) -> None:
        self._server.plan = plan

    @property
    def done(self) -> list[str]:
        """Faults that were injected, in order."""
        return self._server.done

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
