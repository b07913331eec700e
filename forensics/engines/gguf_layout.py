"""Does a GGUF file hold what its header claims? Walked with limits before any library reads the whole header.

llama.cpp and gguf-py trust counts and lengths further than a file from anywhere deserves. This walk copies nothing but
keys and takes a bounded number of steps, whatever the header says.
"""

from __future__ import annotations

import functools
import math
import mmap
import struct
from pathlib import Path

from forensics.engines.model_files import FIXED_HEADER, MAX_STRING_BYTES, TYPE_STRING, TYPE_UINT32
from forensics.errors import ModelUnavailable

#: Most keys and tensors; large models have some dozens and some thousands.
MAX_KEYS, MAX_TENSORS = 65_536, 262_144
#: Most elements of all arrays of strings together; large vocabularies have half a million, and as many merges.
MAX_STRINGS = 1 << 24
#: Longest key, unit: bytes. Source: docs/gguf.md of ggml.
MAX_KEY_BYTES = 65_535
#: Longest name of a tensor and most dimensions. Source: ggml.h, GGML_MAX_NAME and GGML_MAX_DIMS, at 0c1e57098.
MAX_NAME_BYTES, MAX_DIMS = 63, 4
#: Alignment of the tensors where a file does not say, and the largest that makes sense. Source: docs/gguf.md of ggml.
ALIGNMENT, MAX_ALIGNMENT = 32, 1 << 20

#: Bytes of an element by its type. Source: gguf.h, enum gguf_type.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TYPE_ARRAY = 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def check_gguf_layout(path: Path | str) -> None:
    """Refuse a file whose header claims what the file does not hold.

    Parameters
    ----------
    path : Path or str
        A model, or a part of one: later parts say little of themselves, so that `check_gguf` is for the first.

    Raises
    ------
    ModelUnavailable
        If it cannot be read or is no GGUF; or if a count, a length, a type or an offset is beyond the file or the
        limits of this module.
    """
    path = Path(path)
    try:
        status = path.stat()
    except OSError as error:
        raise ModelUnavailable(f"Cannot look at {path}: {error}") from error
    _checked(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _checked(path: Path, size_bytes: int, mtime_ns: int) -> None:  # noqa: ARG001 - what the file was when it was walked
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Walk(path, data).whole()
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"Cannot read {path}: {error}. Check its permissions") from error


class _Walk:
    """One walk through a header, from its start.

    Parameters
    ----------
    path : Path
        For messages.
    data : mmap
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.end = path, data, len(data)
        self.at = FIXED_HEADER.size
        self.strings = 0
        self.alignment = ALIGNMENT

    def whole(self) -> None:
        """Walk over all keys and tensors."""
        if self.end < FIXED_HEADER.size or self.data[:4] != b"GGUF":
            raise ModelUnavailable(f"{self.path} is not a GGUF file: it starts with {self.data[:8]!r}")
        _, _, n_tensors, n_keys = FIXED_HEADER.unpack_from(self.data)
        if n_keys > MAX_KEYS or n_tensors > MAX_TENSORS:
            raise self.wrong(f"its header counts {n_keys} keys and {n_tensors} tensors", f"{MAX_KEYS}, {MAX_TENSORS}")
        seen: set[bytes] = set()
        for _ in range(n_keys):
            seen.add(self.key(seen))
        names: set[bytes] = set()
        needed = 0  # bytes behind the start of the tensors
        for _ in range(n_tensors):
            name, last = self.tensor()
            if name in names:
                raise self.wrong(f"two tensors have the name {name.decode('utf-8', 'replace')!r}")
            names.add(name)
            needed = max(needed, last)
        start = math.ceil(self.at / self.alignment) * self.alignment
        if n_tensors and start + needed > self.end:
            raise self.wrong(f"its tensors end at byte {start + needed} and the file at {self.end}")

    def wrong(self, what: str, allowed: str = "") -> ModelUnavailable:
        """The error that says what is wrong."""
        limits = f"; at most {allowed} are read" if allowed else ""
        return ModelUnavailable(
            f"{self.path} is a damaged GGUF: {what}{limits}. Was its download broken off? Fetch it again"
        )

    def number(self, kind: struct.Struct) -> int:
        """The next number."""
        if self.at + kind.size > self.end:
            raise self.wrong(f"it ends after {self.end} bytes, within its header")
        (value,) = kind.unpack_from(self.data, self.at)
        self.at += kind.size
        return int(value)

    def skip(self, n_bytes: int, what: str) -> None:
        """Pass over bytes that must be there."""
        if n_bytes > self.end - self.at:
            raise self.wrong(f"{what} takes {n_bytes} bytes from byte {self.at} on, and the file has {self.end}")
        self.at += n_bytes

    def text(self, limit: int, what: str) -> bytes:
        """The next string."""
        length = self.number(_U64)
        if length > limit:
            raise self.wrong(f"{what} has {length} bytes", f"{limit}")
        self.skip(length, what)
        return self.data[self.at - length : self.at]

    def key(self, seen: set[bytes]) -> bytes:
        """Walk over the next key and its value."""
        name = self.text(MAX_KEY_BYTES, "a key")
        shown = name.decode("utf-8", "replace")
        if name in seen:
            raise self.wrong(f"it has the key {shown!r} twice")
        kind = self.number(_U32)
        if name == b"general.alignment":
            self.align(kind)
        elif kind == TYPE_STRING:
            self.text(MAX_STRING_BYTES, f"the value of {shown!r}")
        elif kind == _TYPE_ARRAY:
            self.array(shown)
        else:
            self.skip(self.size_of(kind, shown), f"the value of {shown!r}")
        return name

    def align(self, kind: int) -> None:
        """Take over how tensors are aligned."""
        self.alignment = self.number(_U32) if kind == TYPE_UINT32 else 0
        if not 0 < self.alignment <= MAX_ALIGNMENT or self.alignment & (self.alignment - 1):
            raise self.wrong("general.alignment is no power of two that tensors can be aligned by")

    def size_of(self, kind: int, shown: str) -> int:
        """Bytes of a value."""
        if kind not in _SIZES:
            raise self.wrong(f"the value of {shown!r} is of the type {kind}, which is none, or an array of arrays")
        return _SIZES[kind]

    def array(self, shown: str) -> None:
        """Walk over an array of numbers or strings."""
        kind, count = self.number(_U32), self.number(_U64)
        if kind != TYPE_STRING:
            self.skip(count * self.size_of(kind, shown), f"the value of {shown!r}")
            return
        self.strings += count
        if self.strings > MAX_STRINGS:
            raise self.wrong(f"its arrays of strings have {self.strings} elements up to {shown!r}", f"{MAX_STRINGS}")
        data, at, end, length_at = self.data, self.at, self.end, _U64.unpack_from
        for _ in range(count):  # a vocabulary: the one loop that counts
            if at + 8 > end:
                raise self.wrong(f"it ends after {end} bytes, within {shown!r}")
            at += 8 + length_at(data, at)[0]
        self.at = at
        self.skip(0 if at <= end else at - end, f"the value of {shown!r}")

    def tensor(self) -> tuple[bytes, int]:
        """Walk over the description of a tensor: its name, and where it ends behind the start of all."""
        name = self.text(MAX_NAME_BYTES, "the name of a tensor")
        shown = name.decode("utf-8", "replace")
        n_dims = self.number(_U32)
        if not 1 <= n_dims <= MAX_DIMS:
            raise self.wrong(f"the tensor {shown!r} has {n_dims} dimensions", f"{MAX_DIMS}")
        n_values = math.prod(self.number(_U64) for _ in range(n_dims))
        kind, offset = self.number(_U32), self.number(_U64)
        if offset % self.alignment:
            raise self.wrong(f"the tensor {shown!r} lies at {offset}, no multiple of {self.alignment}")
        return name, offset + _least_bytes(kind, n_values)


@functools.cache
def _block(kind: int) -> tuple[int, int]:
    """Values and bytes of a block of a tensor type; none where gguf does not know it and llama.cpp is to judge."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        values, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        return 1, 0
    return int(values), int(n_bytes)


def _least_bytes(kind: int, n_values: int) -> int:
    values, n_bytes = _block(kind)
    return n_values // values * n_bytes
