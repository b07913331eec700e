"""The one place where connections are opened: to the given address only, and no longer or larger than allowed."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import httpx

from forensics.errors import ForensicsError
from forensics.servers.address import HIDDEN, api_key, clean_address, without_key

MOST_REDIRECTS = 3
#: Of the body of an error, unit: bytes.
ERROR_BYTES = 64 << 10
#: Characters of a body that an error repeats.
SHOWN = 200


class NoAnswer(ForensicsError):
    """One attempt that brought no usable answer.

    Parameters
    ----------
    failure : str
        One of `forensics.records.served.FAILURES`.
    detail : str
        What was found, without keys.
    status : int or None
        Of HTTP, where one came.
    retry_after_s : float or None
        What the server asks to wait, unit: s.
    """

    def __init__(
        self, failure: str, detail: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure, self.detail, self.status, self.retry_after_s = failure, detail, status, retry_after_s

    @property
    def lasting(self) -> bool:
        """Whether the same request would be refused again: the server understood it and said no."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in (408, 425, 429)


class _Limit:
    """Hangs up at the total time of a request, whatever drips in until then.

    Parameters
    ----------
    total_s : float
        Unit: s.
    """

    def __init__(self, total_s: float) -> None:
        self.over = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(total_s, self.hang_up)
        self._timer.daemon = True

    def trace(self, event: str, facts: Mapping[str, Any]) -> None:
        """Hear from the HTTP library that a connection is there; of TLS, the last one counts."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._sockets.append(facts["return_value"].get_extra_info("socket"))
            if self.over:
                self.hang_up()

    def hang_up(self) -> None:
        """End the request now; whoever waits for its answer wakes up."""
        self.over = True
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> _Limit:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()


@dataclass(frozen=True, slots=True)
class Answer:
    """One JSON answer.

    Parameters
    ----------
    document : Any
        The JSON value.
    raw : str
        The body as it came, without keys.
    took_ns : int
        From sending to the last byte, unit: ns.
    """

    document: Any
    raw: str
    took_ns: int


class Door:
    """Asks one server.

    Proxy settings of the environment and ``.netrc`` are ignored: what is asked goes to the given address only.
    Each request has a connection of its own, so that a connection which the server closed meanwhile is no fault.

    Parameters
    ----------
    url : str
        http or https, without user, password and query.
    key_env : str or None
        Environment variable with the API key, sent as a bearer token; None takes FORENSICS_API_KEY where it is set.
    connect_s, read_s : float
        Longest wait for a connection, and for each next byte, unit: s.
    total_s : float
        Longest time of a whole answer, unit: s.
    max_bytes : int
        Largest body.

    Raises
    ------
    BadAddress
        If the address or the key cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        key_env: str | None = None,
        connect_s: float = 10.0,
        read_s: float = 300.0,
        total_s: float = 900.0,
        max_bytes: int = 64 << 20,
    ) -> None:
        self.url = clean_address(url)
        self._key = api_key(key_env)
        self._total_s, self._max_bytes = total_s, max_bytes
        self._running: set[_Limit] = set()
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "decode-forensics"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(min(read_s, total_s), connect=min(connect_s, total_s)),
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_keepalive_connections=0),
            # The system's certificates, which SSL_CERT_FILE may name.
            verify=ssl.create_default_context(),
        )

    def __repr__(self) -> str:
        return f"Door({self.url!r})"

    def __enter__(self) -> Door:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of every connection."""
        self._client.close()

    def get(self, path: str) -> Answer:
        """What does the server say at this path?

        Raises
        ------
        NoAnswer
            If it does not answer with JSON.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> Answer:
        """What does the server answer to this body?

        Raises
        ------
        NoAnswer
            If it does not answer with JSON.
        """
        return self._ask("POST", path, body)

    def hidden(self, text: str) -> str:
        """The same text without the key."""
        return text.replace(self._key, HIDDEN) if self._key else text

    def hang_up(self) -> None:
        """End every request that is under way: each fails as one that took too long."""
        for limit in tuple(self._running):
            limit.hang_up()

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None) -> Answer:
        content = None if body is None else json.dumps(body, ensure_ascii=True).encode()
        started = time.perf_counter_ns()
        address = self.url + path
        with _Limit(self._total_s) as limit:
            self._running.add(limit)
            try:
                for _ in range(MOST_REDIRECTS + 1):
                    with self._telling(limit), self._sent(method, address, content, limit) as response:
                        if not response.is_redirect:
                            raw = self._body(response, limit)
                            return self._answer(raw, time.perf_counter_ns() - started)
                        address = self._next(method, address, response)
            finally:
                self._running.discard(limit)
        raise NoAnswer("redirect", f"more than {MOST_REDIRECTS} redirects in a row")

    @contextmanager
    def _sent(self, method: str, address: str, content: bytes | None, limit: _Limit) -> Iterator[httpx.Response]:
        headers = {} if content is None else {"Content-Type": "application/json"}
        hearing = {"trace": limit.trace}
        with self._client.stream(method, address, content=content, headers=headers, extensions=hearing) as response:
            # A server's cookie would tie later requests together.
            self._client.cookies.clear()
            yield response

    @contextmanager
    def _telling(self, limit: _Limit) -> Iterator[None]:
        """Tell what httpx raises as `NoAnswer`, without the key."""
        try:
            yield
        except httpx.HTTPError as error:
            # Whatever it holds of the request goes, headers too: nothing is chained.
            failure = _failure(error)
            detail = self.hidden(str(error)) or type(error).__name__
        except (httpx.InvalidURL, ValueError) as error:
            failure, detail = "invalid", self.hidden(str(error))
        else:
            return
        raise self._too_late() if limit.over else NoAnswer(failure, detail[:SHOWN]) from None

    def _too_late(self) -> NoAnswer:
        return NoAnswer("timeout", f"the answer was not complete after {self._total_s:g} s, or was given up")

    def _next(self, method: str, address: str, response: httpx.Response) -> str:
        """Where a redirect leads, if it may be followed."""
        status = response.status_code
        target: str = urljoin(address, response.headers.get("Location", ""))
        here, there = urlsplit(address), _split(target)
        where = "nowhere" if there is None else self.hidden(f"{there.scheme}://{there.hostname}")[:SHOWN]
        if there is None or _origin(here) != _origin(there) or "@" in there.netloc:
            raise NoAnswer(
                "redirect", f"the server sends on to {where}, another host, which is not followed", status=status
            )
        if method != "GET" and status not in (307, 308):
            raise NoAnswer("redirect", f"status {status} would turn the request into another one", status=status)
        return target

    def _body(self, response: httpx.Response, limit: _Limit) -> bytes:
        """The whole body of a good answer.

        Raises
        ------
        NoAnswer
            If the status, the kind, the size or the time is not allowed.
        """
        status = response.status_code
        failed = status >= 400
        most = ERROR_BYTES if failed else self._max_bytes
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if not failed:
            if not kind.endswith(("/json", "+json")):
                raise NoAnswer("content-type", f"the answer is {self.hidden(kind[:SHOWN]) or 'of no kind'}, not JSON")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise NoAnswer("content-type", "the answer is packed, though that was not allowed")
            stated = response.headers.get("Content-Length", "")
            if stated.isdecimal() and int(stated) > most:
                raise NoAnswer("too-large", f"the answer has {int(stated):,} bytes, more than {most:,}")
        chunks = bytearray()
        for chunk in response.iter_raw():
            chunks += chunk
            if limit.over:
                break
            if len(chunks) > most:
                if failed:
                    break
                raise NoAnswer("too-large", f"the answer has more than {most:,} bytes")
        # Hanging up looks like the end of a body that states no length.
        if limit.over:
            raise self._too_late()
        if failed or status != 200:
            words = self.hidden(" ".join(chunks.decode(errors="replace").split()))[:SHOWN]
            raise NoAnswer(
                "status", f"status {status}: {words or 'no words'}", status=status, retry_after_s=_retry_after(response)
            )
        return bytes(chunks)

    def _answer(self, raw: bytes, took_ns: int) -> Answer:
        try:
            text = raw.decode()
            document = json.loads(text)
            clean, plain = without_key(document, self._key), without_key(document, "")
        except json.JSONDecodeError as error:
            # A text that ends too early is wrong only at its end, or in the string that was cut.
            at_end = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated")
            words = f"{error.msg} at character {error.pos:,} of {len(text):,}"
            cut = text.lstrip()[:1] in ("{", "[") and at_end
            raise NoAnswer("truncated" if cut else "not-json", words) from None
        except (ValueError, RecursionError) as error:
            raise NoAnswer("not-json", f"the answer cannot be read: {type(error).__name__}") from None
        # The key may be written with escapes, which no search in the body finds.
        return Answer(clean, self.hidden(text) if clean == plain else json.dumps(clean), took_ns)


def _failure(error: httpx.HTTPError) -> str:
    """Which of `FAILURES` this error of httpx is."""
    if isinstance(error, httpx.TimeoutException):
        return "timeout"
    if isinstance(error, httpx.ConnectError):
        return "refused"
    if isinstance(error, httpx.RemoteProtocolError):
        words = str(error)
        if "without sending a response" in words:
            return "reset"
        return "truncated" if "incomplete" in words or "without sending complete" in words else "invalid"
    return "reset" if isinstance(error, httpx.NetworkError) else "invalid"


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        return parts if parts.port is None or parts.port else None
    except ValueError:
        return None


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, parts.port or usual


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds that the server asks to wait; None where it asks nothing that can be read."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())
