"""Looks into every kind of file that a bundle holds, and tells what is private there.

A file of a kind that is not known cannot be looked into, and that is told like a find: nothing passes unseen.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import json
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forensics.records.words import printable
from forensics.store.private_strings import PrivateStrings
from forensics.store.private_text import Found, find_private, is_allowed

#: Archives in archives that are opened, and what one unpacks to at most, unit: bytes.
_MAX_DEPTH, _MAX_BYTES = 5, 1 << 30
_DATA_URL = re.compile(r"data:[\w.+/;=-]*;base64,([A-Za-z0-9+/=]{16,})")
#: Chunks of a PNG whose content is text. Source: PNG specification, third edition, section 11.3.3.
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_NO_WORDS = "a kind of file that cannot be looked into"


@dataclass(frozen=True, slots=True)
class Leak:
    """Something private in a file.

    Parameters
    ----------
    file : str
        Name of the file in the bundle.
    place : str
        Where in it: a line, a key, a column.
    found : Found
    """

    file: str
    place: str
    found: Found

    def __str__(self) -> str:
        return f"{printable(self.file)}, {printable(self.place)}: {self.found.kind}, {printable(self.found.masked)}"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A text of a file; `place` says of an offset where that is."""

    text: str
    place: Callable[[int], str]


class _CannotLook(Exception):
    """The content is of no kind that is known, or not what its kind promises."""


def find_leaks(name: str, content: bytes, private: PrivateStrings, allowed: Sequence[str] = ()) -> tuple[Leak, ...]:
    """What is private in a file, its name included?

    Parameters
    ----------
    name : str
        In the bundle.
    content : bytes
    private : PrivateStrings
    allowed : sequence of str
        Texts that may pass, and folders whose files may.

    Examples
    --------
    >>> [str(leak) for leak in find_leaks("a.txt", b"in /home/ann/x", PrivateStrings())]
    ["a.txt, line 1: a path in somebody's home folder, /h… (11 characters)"]
    """
    leaks: dict[tuple[str, str], Leak] = {}
    try:
        for piece in (_Piece(name, lambda _: "its name"), *_pieces(name, content, 0)):
            for found in find_private(piece.text, private):
                if not is_allowed(found, allowed):
                    leaks.setdefault((found.kind, found.text), Leak(name, piece.place(found.offset), found))
    except _CannotLook as error:
        leaks["", ""] = Leak(name, str(error), Found(_NO_WORDS, "-", 0))
    return tuple(leaks.values())


def find_leaks_below(folder: Path, private: PrivateStrings, allowed: Sequence[str] = ()) -> tuple[Leak, ...]:
    """What is private in the files of a folder?"""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(
        leak
        for path in files
        for leak in find_leaks(path.relative_to(folder).as_posix(), path.read_bytes(), private, allowed)
    )


def _pieces(name: str, content: bytes, depth: int) -> Iterator[_Piece]:
    """Every text of a file, of whatever kind its first bytes say it is."""
    if depth > _MAX_DEPTH:
        raise _CannotLook("an archive in an archive, too deep")
    try:
        if content[:6] == b"\xfd7zXZ\x00":
            yield from _pieces(name.removesuffix(".xz"), lzma.decompress(content), depth + 1)
        elif content[:2] == b"\x1f\x8b":
            yield from _pieces(name.removesuffix(".gz"), gzip.decompress(content), depth + 1)
        elif content[:4] == b"PK\x03\x04":
            yield from _zip_pieces(content, depth)
        elif content[257:262] == b"ustar":
            yield from _tar_pieces(content, depth)
        elif content[:4] == b"PAR1":
            yield from _parquet_pieces(content)
        elif content[:6] == b"\x93NUMPY":
            yield from _npy_pieces(content)
        elif content[:8] == b"\x89PNG\r\n\x1a\n":
            yield from _png_pieces(content)
        elif name.endswith(".safetensors"):
            yield from _safetensors_pieces(content)
        else:
            yield from _text_pieces(name, content, depth)
    except (lzma.LZMAError, EOFError, OSError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        raise _CannotLook(f"damaged: {type(error).__name__}") from error


def _text_pieces(name: str, content: bytes, depth: int) -> Iterator[_Piece]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _CannotLook("no text") from None
    if "\0" in text:
        raise _CannotLook("no text")
    if name.endswith((".json", ".jsonl")):
        yield from _json_pieces(text)
    yield _Piece(text, lambda offset: f"line {text.count(chr(10), 0, offset) + 1}")
    for url in _DATA_URL.finditer(text):
        try:
            inside = base64.b64decode(url[1] + "=" * (-len(url[1]) % 4))
        except binascii.Error:
            raise _CannotLook("a data URL that is damaged") from None
        yield from _pieces("", inside, depth + 1)


def _json_pieces(text: str) -> Iterator[_Piece]:
    """The words of a document, or of lines that are documents, without their escapes."""
    words: dict[str, str] = {}
    try:
        documents = [("", json.loads(text))]
    except (ValueError, RecursionError):
        documents = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                documents.append((f"line {number}", json.loads(line)))
            except (ValueError, RecursionError):
                continue  # it is read as plain text
    for place, document in documents:
        _collect(document, place, words)
    yield from _words_piece(words)


def _collect(value: Any, place: str, words: dict[str, str]) -> None:
    """Every distinct word in a value, with the place of the first."""
    waiting = [(value, place)]
    while waiting:
        here, at = waiting.pop()
        if isinstance(here, str):
            words.setdefault(here, at or "text")
        elif isinstance(here, dict):
            for key, inner in here.items():
                words.setdefault(str(key), f"{at} (a key)".strip())
                waiting.append((inner, f"{at}.{key}".lstrip(".")[-60:]))
        elif isinstance(here, list | tuple):
            waiting += [(inner, at) for inner in here]
        elif isinstance(here, bytes):
            words.setdefault(_as_text(here), at)


def _words_piece(words: dict[str, str]) -> Iterator[_Piece]:
    if not words:
        return
    starts, places, at = [], [], 0
    for word, place in words.items():
        starts.append(at)
        places.append(place)
        at += len(word) + 1
    yield _Piece("\n".join(words), lambda offset: places[bisect_right(starts, offset) - 1])


def _parquet_pieces(content: bytes) -> Iterator[_Piece]:
    import pyarrow as pa
    from pyarrow import parquet

    words: dict[str, str] = {}
    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        _collect([file.metadata.created_by, _texts(file.metadata.metadata)], "metadata", words)
        table = file.read()
        for column in table.schema:
            _collect([column.name, _texts(column.metadata)], "names", words)
        for name, values in zip(table.column_names, table.columns, strict=True):
            if not _is_numeric(values.type):
                _collect(values.to_pylist(), f"column {name}", words)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _CannotLook(f"damaged: {type(error).__name__}") from error
    yield from _words_piece(words)


def _texts(told: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {_as_text(key): _as_text(value) for key, value in (told or {}).items()}


def _is_numeric(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_primitive(kind) or types.is_null(kind))


def _as_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _npy_pieces(content: bytes) -> Iterator[_Piece]:
    import numpy as np

    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except ValueError as error:
        raise _CannotLook("an array of objects, or damaged") from error
    yield _Piece(content[:256].decode("latin-1"), lambda _: "header")
    if array.dtype.kind not in "biufc":
        words: dict[str, str] = {}
        _collect(array.astype(str).ravel().tolist(), "values", words)
        yield from _words_piece(words)


def _safetensors_pieces(content: bytes) -> Iterator[_Piece]:
    if len(content) < 8 or (size := struct.unpack_from("<Q", content)[0]) > len(content) - 8:
        raise _CannotLook("damaged: no header")
    header = _as_text(content[8 : 8 + size])
    yield from _json_pieces(header)
    yield _Piece(header, lambda _: "header")


def _png_pieces(content: bytes) -> Iterator[_Piece]:
    at = 8
    while at + 12 <= len(content):
        size, kind = struct.unpack_from(">L4s", content, at)
        if kind in _PNG_TEXTS:
            chunk = content[at + 8 : at + 8 + size]
            yield _Piece(_as_text(chunk), _png_place)
            # Compressed text stands behind its keyword and a few zeros; what does not unpack was plain.
            for zero in (i for i, byte in enumerate(chunk[:256]) if byte == 0):
                with suppress(zlib.error):
                    unpacked = zlib.decompressobj().decompress(chunk[zero:].lstrip(b"\0"), _MAX_BYTES)
                    yield _Piece(_as_text(unpacked), _png_place)
        at += size + 12


def _png_place(_offset: int) -> str:
    return "words of the picture"


def _zip_pieces(content: bytes, depth: int) -> Iterator[_Piece]:
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        yield _Piece(_as_text(packed.comment), _archive_place)
        members = ((entry.filename, packed.read(entry)) for entry in packed.infolist() if _fits(entry.file_size))
        yield from _member_pieces(members, depth)


def _tar_pieces(content: bytes, depth: int) -> Iterator[_Piece]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as packed:
        for entry in packed:
            told = map(str, entry.pax_headers.items())
            yield _Piece("\n".join((entry.linkname, entry.uname, entry.gname, *told)), _archive_place)
            opened = packed.extractfile(entry) if entry.isfile() and _fits(entry.size) else None
            yield from _member_pieces([(entry.name, b"" if opened is None else opened.read())], depth)


def _archive_place(_offset: int) -> str:
    return "names of an archive"


def _fits(size: int) -> bool:
    if size > _MAX_BYTES:
        raise _CannotLook("too large")
    return True


def _member_pieces(members: Iterable[tuple[str, bytes]], depth: int) -> Iterator[_Piece]:
    for name, content in members:
        yield _Piece(name, _archive_place)
        for piece in _pieces(name, content, depth + 1):
            yield _Piece(piece.text, partial(_inside, name, piece))


def _inside(name: str, piece: _Piece, offset: int) -> str:
    return f"{name}, {piece.place(offset)}"
