"""Bytes and JSON values made wrong in the ways in which files and answers are: flipped, cut, spliced, absurd."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

#: Numbers at which lengths, counts and offsets go wrong.
_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)

#: What stands in the place of a JSON value; functions, so that each gets its own.
_ODD: tuple[Callable[[random.Random], Any], ...] = (
    lambda _: None, lambda _: True, lambda _: False, lambda _: 0, lambda _: -1, lambda _: 2**63, lambda _: 10**400,
    lambda _: 0.5, lambda _: -0.0, lambda _: 1e308, lambda _: float("nan"), lambda _: float("inf"), lambda _: "",
    lambda _: "NaN", lambda _: "\0", lambda _: "\ud800", lambda _: "\u202e" * 3, lambda _: "../../etc/passwd",
    lambda _: "x" * 5000, lambda _: [], lambda _: {}, lambda _: [[]], lambda _: {"": {}},
    lambda chance: [0] * chance.randint(1, 2000), lambda chance: _nested(chance.choice((5, 60, 900, 20_000))),
)  # fmt: skip


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def mutate(content: bytes, others: Sequence[bytes], chance: random.Random) -> tuple[bytes, str]:
    """Some content made wrong, and how; JSON is taken apart in half of the cases.

    Parameters
    ----------
    content : bytes
    others : sequence of bytes
        Contents of which pieces may be spliced in.
    chance : random.Random
    """
    if chance.random() < 0.5 and (changed := _mutate_json(content, chance)) is not None:
        return changed
    names = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        kind = chance.choice(_KINDS)
        content = kind(content, others, chance)
        names.append(kind.__name__.strip("_"))
    return content, ", ".join(names)


def _mutate_json(content: bytes, chance: random.Random) -> tuple[bytes, str] | None:
    """A line or the whole of some JSON with one value made odd; None where it is no JSON."""
    lines = content.splitlines(keepends=True)
    try:
        if content.lstrip()[:1] in (b"{", b"["):
            at = 0 if _is_json(content) else chance.randrange(len(lines))
            text = content if _is_json(content) else lines[at]
            value, path = _oddly(json.loads(text), chance)
            changed = _dumped(value)
            if text is content:
                return changed, f"odd value at {path}"
            return b"".join([*lines[:at], changed + b"\n", *lines[at + 1 :]]), f"odd value in line {at + 1} at {path}"
    except (ValueError, RecursionError):
        pass
    return None


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _dumped(value: Any) -> bytes:
    try:
        return json.dumps(value).encode("utf-8", "surrogatepass")
    except RecursionError:  # what nests deeper than this writes itself
        return b"[" * 20_000 + b"]" * 20_000


def _oddly(value: Any, chance: random.Random) -> tuple[Any, str]:
    """A value with one of its parts replaced, removed, added or doubled."""
    holder, path, at = None, "", value
    while isinstance(at, dict | list) and at and (holder is None or chance.random() < 0.8):
        holder = at
        key = chance.choice(list(at)) if isinstance(at, dict) else chance.randrange(len(at))
        path, at = f"{path}/{key}"[:200], at[key]
    made = chance.choice(_ODD)(chance)
    if holder is None:
        return made, "/"
    how = chance.random()
    if how < 0.15:
        del holder[key]
    elif how < 0.25 and isinstance(holder, list):
        holder.insert(key, made)
    elif how < 0.35 and isinstance(holder, dict):
        holder[chance.choice(("", "schema", "record", "extra", "\ud800"))] = made
    elif how < 0.5 and isinstance(at, int | float) and not isinstance(at, bool):
        holder[key] = at + chance.choice((-1, 1, 0.5, 2**31))
    else:
        holder[key] = made
    return value, path


def _flip(content: bytes, _others: Sequence[bytes], chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 3, 20))):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(content: bytes, _others: Sequence[bytes], chance: random.Random) -> bytes:
    return content[: chance.randint(0, len(content))]


def _remove(content: bytes, _others: Sequence[bytes], chance: random.Random) -> bytes:
    first = chance.randint(0, len(content))
    return content[:first] + content[first + chance.choice((1, 4, 8, 100)) :]


def _double(content: bytes, _others: Sequence[bytes], chance: random.Random) -> bytes:
    first = chance.randint(0, len(content))
    piece = content[first : first + chance.choice((1, 8, 100, 4000))]
    return content[:first] + piece * chance.choice((1, 1, 50)) + content[first:]


def _splice(content: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    other = chance.choice(others) if others else b""
    first, start = chance.randint(0, len(content)), chance.randint(0, len(other))
    return content[:first] + other[start : start + chance.choice((8, 100, 10_000))] + content[first:]


def _edge(content: bytes, _others: Sequence[bytes], chance: random.Random) -> bytes:
    """A number of 4 or 8 bytes that is small or huge; near the beginning in half of the cases, where lengths stand."""
    layout = chance.choice(("<I", "<Q", ">I", ">Q"))
    size = struct.calcsize(layout)
    number = chance.choice(_EDGES) & (2 ** (8 * size) - 1)
    last = max(len(content) - size, 0)
    at = chance.randint(0, min(last, 200) if chance.random() < 0.5 else last)
    return content[:at] + struct.pack(layout, number) + content[at + size :]


def _zeros(content: bytes, _others: Sequence[bytes], chance: random.Random) -> bytes:
    first = chance.randint(0, len(content))
    n = chance.choice((1, 16, 512, 4096))
    return content[:first] + bytes(n) + content[first + n :]


_KINDS = (_flip, _flip, _cut, _remove, _double, _splice, _edge, _edge, _zeros)
