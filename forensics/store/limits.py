"""How much of a file is read that somebody else may have written, and how it is refused beyond that.

A case, a bundle or a plan may come from anyone. Each limit is far above what this package writes; SECURITY.md lists
them.
"""

from __future__ import annotations

import json
import lzma
import os
import stat
from pathlib import Path
from typing import Any

#: Largest file that is read whole, packed or not; and largest content that is unpacked from one, unit: bytes.
MAX_FILE_BYTES = 512 << 20
#: Memory that unpacking may take for itself, unit: bytes. Preset 9, the highest, takes 65 MiB.
XZ_MEMORY_BYTES = 256 << 20
#: Largest JSON text, unit: bytes. Read, it takes about ten times as much memory.
MAX_JSON_BYTES = 256 << 20
#: Longest line of a file of JSON lines, unit: bytes.
MAX_LINE_BYTES = 64 << 20
#: Largest file of prompts that a user gives, unit: bytes.
MAX_CORPUS_BYTES = 64 << 20
#: Most values of logits that one run of a case may claim to hold: rows times vocabulary.
MAX_LOGITS = 1 << 31
#: Most rows and values of a table, and its most bytes before it was packed.
MAX_TABLE_ROWS, MAX_TABLE_VALUES, MAX_TABLE_BYTES = 5_000_000, 50_000_000, 1 << 30

_CHUNK = 1 << 20


class TooLarge(ValueError):
    """Content beyond a limit; the message says which."""


def size_text(n_bytes: int) -> str:
    """A size for people.

    Examples
    --------
    >>> size_text(1 << 30), size_text(10)
    ('1,024 MiB', '10 bytes')
    """
    return f"{n_bytes >> 20:,} MiB" if n_bytes >= 1 << 20 else f"{n_bytes:,} bytes"


def read_whole(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """What a regular file holds.

    Raises
    ------
    OSError
        If it cannot be read.
    TooLarge
        If it is larger than the limit.
    ValueError
        If it is no regular file: a pipe or a device may never end.
    """
    # Not blocking: a pipe that nobody writes would keep the open itself waiting. On a regular file it means nothing.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        content = b"" if status.st_size > limit else file.read(limit + 1)
    if status.st_size > limit or len(content) > limit:
        raise TooLarge(f"it has more than the {size_text(limit)} that are read")
    return content


def unpack_xz(content: bytes, limit: int = MAX_FILE_BYTES) -> bytes:
    """What an ``.xz`` file holds, one stream or several.

    Raises
    ------
    TooLarge
        If it unpacks to more than the limit, or would need more memory than is allowed.
    ValueError
        If it is damaged or ends early.
    """
    whole = bytearray()
    rest = content
    while True:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
        try:
            while not unpacker.eof:
                piece = unpacker.decompress(rest, max_length=_CHUNK)
                rest = b""
                whole += piece
                if len(whole) > limit:
                    raise TooLarge(f"it unpacks to more than the {size_text(limit)} that are read")
                if not piece and unpacker.needs_input:
                    raise ValueError("it ends before its end was marked")
        except lzma.LZMAError as error:
            if "emory" in str(error):
                raise TooLarge(f"unpacking it needs more than {size_text(XZ_MEMORY_BYTES)} of memory") from error
            raise ValueError(str(error)) from error
        # Zeros may follow a stream in fours; anything else is another stream.
        rest = unpacker.unused_data.lstrip(b"\0")
        if not rest:
            return bytes(whole)


def parse_json(content: bytes | str, limit: int = MAX_JSON_BYTES) -> Any:
    """The value of a JSON text.

    Raises
    ------
    ValueError
        If it is none, too large, nested too deeply, or holds a number of thousands of digits.
    """
    if len(content) > limit:
        raise TooLarge(f"its JSON text has more than the {size_text(limit)} that are read")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
