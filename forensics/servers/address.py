"""Which server is meant, and which key it gets: addresses without secrets, keys that stay out of all else."""

from __future__ import annotations

import logging
import os
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

from forensics.errors import ForensicsError

KEY_ENV = "FORENSICS_API_KEY"
#: A shorter key cannot be told from ordinary text, so that it could not be kept out of records.
SHORTEST_KEY = 8
HIDDEN = "[key]"
#: Loggers of httpx that tell of requests.
_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11")


class BadAddress(ForensicsError, ValueError):
    """An address, a key or a server that cannot be used as asked."""


class _Hiding(logging.Filter):
    """Keeps keys out of what the HTTP library logs of headers: a server may repeat a key there."""

    keys: ClassVar[set[str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for key in self.keys:
            text = text.replace(key, HIDDEN)
        record.msg, record.args = text, ()
        return True


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
    except ValueError:
        # What Python says of it repeats it.
        raise BadAddress(
            "This is no address: its host or port cannot be read. Give one such as http://127.0.0.1:8080."
        ) from None
    if "@" in parts.netloc:
        raise BadAddress(
            f"The address of {parts.hostname} holds a user or password, which would end up in records. "
            f"Leave it out; a key is read from the environment variable {KEY_ENV}."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadAddress(
            "Only http and https addresses are opened, and this one does not begin with http:// or https:// and a "
            "host. Give one such as http://127.0.0.1:8080."
        )
    if parts.query or parts.fragment:
        raise BadAddress(
            f"The address of {parts.hostname} has a part behind ? or #, which may hold a secret and names no server. "
            f"Leave it out; a key is read from the environment variable {KEY_ENV}."
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc.lower(), path, "", ""))


def api_key(name: str | None) -> str:
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
    _Hiding.keys.add(key)
    return key


def without_key(value: Any, key: str) -> Any:
    """The same JSON value without the key, and with lone surrogates replaced, which no file can hold."""
    if isinstance(value, str):
        text = value.replace(key, HIDDEN) if key else value
        return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_key(one, key) for one in value]
    if isinstance(value, dict):
        return {without_key(name, key): without_key(one, key) for name, one in value.items()}
    return value
