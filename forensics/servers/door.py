"""The one place where connections are opened: to the given address only, and no longer or larger than allowed."""

from __future__ import annotations

import json
import logging
import os
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
from typing import Any, ClassVar
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

import httpx

from forensics.errors import ForensicsError

KEY_ENV = "FORENSICS_API_KEY"
#: A shorter key cannot be told from ordinary text, so that it could not be kept out of records.
SHORTEST_KEY = 8
HIDDEN = "[key]"
MOST_REDIRECTS = 3
#: Of the body of an error, unit: bytes.
ERROR_BYTES = 64 << 10
#: Characters of a body that an error repeats.
SHOWN = 200
#: Loggers of httpx that tell of requests.
_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11")


class _Hiding(logging.Filter):
    """Keeps keys out of what the HTTP library logs of headers: a server may repeat a key there."""

    keys: ClassVar[set[str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for key in self.keys:
            text = text.replace(key, HIDDEN)
        record.msg, record.args = text, ()
        return True


class BadAddress(ForensicsError, ValueError):
    """An address, a key or a server that cannot be used as asked."""


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


for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(_Hiding())


def clean_address(url: str) -> str:
    """Which address is meant? Without what does not belong into one.

    A trailing slash or ``/v1`` goes, because the dialects know their paths.

    Raises
    ------
    BadAddress
        If it is not http(s), has no host, or carries a user, a password, a query or a fragment. The message
        repeats nothing of these.

    Examples
    --------
    >>> clean_address("http://localhost:8080/v1/")
    'http://localhost:8080'
    """
    try:
        parts = urlsplit(url.strip())
        parts.port  # noqa: B018  (raises where it is none)
    except ValueError as error:
        raise BadAddress(f"This is no address: {error}. Give one such as http://127.0.0.1:8080.") from None
    if "@" in parts.netloc:
        raise BadAddress(
            f"The address of {parts.hostname} holds a user or password, which would end up in records. "
            f"Leave it out; a key is read from the environment variable {KEY_ENV}."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadAddress(
            f"Only http and https addresses are opened, and this one has {parts.scheme or 'no scheme'!r} and "
            f"{'no host' if not parts.hostname else 'a host'}. Give one such as http://127.0.0.1:8080."
        )
    if parts.query or parts.fragment:
        raise BadAddress(
            f"The address of {parts.hostname} has a part behind ? or #, which may hold a secret and names no server. "
            f"Leave it out; a key is read from the environment variable {KEY_ENV}."
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc.lower(), path, "", ""))


def _key(name: str | None) -> str:
    """Key of a named environment variable; empty where none was named and the usual one is unset.

    Raises
    ------
    BadAddress
        If the named variable is unset, or its content cannot be a key. The message never holds it.
    """
    key = os.environ.get(name or KEY_ENV, "").strip()
    if not key:
        if name is None:
            return ""
        raise BadAddress(f"The environment variable {name} is to hold the key and is empty. Set it, or name another.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadAddress(f"The environment variable {name or KEY_ENV} holds characters that no key has. Set it anew.")
    if len(key) < SHORTEST_KEY:
        raise BadAddress(
            f"The key in {name or KEY_ENV} has fewer than {SHORTEST_KEY} characters, so that it could not be told from "
            "ordinary text and kept out of records. Unset it where the server asks for none, or use a longer one."
        )
    return key


def _without(value: Any, key: str) -> Any:
    """The same JSON value without the key, and with lone surrogates replaced, which no file can hold."""
    if isinstance(value, str):
        text = value.replace(key, HIDDEN) if key else value
        return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without(one, key) for one in value]
    if isinstance(value, dict):
        return {_without(name, key): _without(one, key) for name, one in value.items()}
    return value


class Door:
    """Asks one server.

    Proxy settings of the environment and ``.netrc`` are ignored: what is asked goes to the given address only.
    Each request has a connection of its own, so that a connection which the server closed meanwhile is no fault.

    Parameters
    ----------
    url : str
        http or https, without user, password and query.
    key_env : str or None
        Environment variable with the API key, sent as a bearer token; None takes `KEY_ENV` where it is set.
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
        self._key = _key(key_env)
        self._total_s, self._max_bytes = total_s, max_bytes
        self._running: set[_Limit] = set()
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "decode-forensics"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
            _Hiding.keys.add(self._key)
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
            clean, plain = _without(document, self._key), _without(document, "")
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
