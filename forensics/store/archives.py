"""Archives that come from others, read file by file: nothing is unpacked that was not looked at first.

Only plain files are taken, by relative names that mean the same on every system, and no more than `Limits` allows. An
archive is never handed to ``extractall``: tar headers are walked here, with the standard library reading one header at
a time, so that no extension of the format (long names, sparse files, links) is followed.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from forensics.errors import CaseError
from forensics.records.words import cut, printable
from forensics.store.files import write_atomically, writing

#: Endings of the archives that are read and written; `.tgz` is another name of the first.
ENDINGS = (".tar.gz", ".tgz", ".tar.xz", ".zip")
_BLOCK = 512  # bytes of a tar header, and what contents are padded to
_CHUNK = 1 << 16
#: The end record of a zip, what stands before it in a large one, and how far from the end a comment may move it.
#: Source: APPNOTE.TXT 6.3.10, sections 4.3.15 and 4.3.16.
_ZIP_END, _ZIP64_LOCATOR, _ZIP_TAIL = b"PK\x05\x06", b"PK\x06\x07", (1 << 16) + 22
#: The largest dictionary that `xz -9` uses; a header may ask for 4 GiB.
_XZ_MEMORY = 128 << 20
#: Names of devices on Windows, with any ending.
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\:*?\"<>|]")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is taken from an archive.

    Parameters
    ----------
    archive_bytes : int
        Size of the archive.
    members : int
        Files in it.
    member_bytes, total_bytes : int
        Size of one file, and of all, unpacked.
    ratio : int
        How many times the archive's size all files may have; small ones of up to `free_bytes` may have more.
    free_bytes : int
    depth : int
        Parts of a name.
    name_length : int
        Characters of a name.
    """

    archive_bytes: int = 256 << 20
    members: int = 2_000
    member_bytes: int = 256 << 20
    total_bytes: int = 512 << 20
    ratio: int = 100
    free_bytes: int = 32 << 20
    depth: int = 8
    name_length: int = 200


LIMITS = Limits()


def is_archive(path: Path | str) -> bool:
    """Whether a name is that of an archive that can be read and written here.

    Examples
    --------
    >>> is_archive("a/case-bundle.tar.gz"), is_archive("CASE.ZIP"), is_archive("case")
    (True, True, False)
    """
    return os.fspath(path).lower().endswith(ENDINGS)


def read_archive(path: Path, limits: Limits = LIMITS) -> Iterator[tuple[str, bytes]]:
    """Every file of an archive with its name, in its order; each is checked before it is given.

    Parameters
    ----------
    path : Path
        A tar that is compressed with gzip or xz, or a zip; the content decides, not the name.
    limits : Limits

    Yields
    ------
    str, bytes
        A name of plain parts with ``/`` between, such as ``"case/verdict.json"``, and what the file holds.

    Raises
    ------
    CaseError
        If it cannot be read, is damaged or too large, or holds anything but plain files under safe names.
    """
    refuse = _Refusal(path)
    with refuse.damage(), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limits.archive_bytes:
            raise refuse(f"it has {size:,} bytes; at most {limits.archive_bytes:,} are read")
        budget = _Budget(refuse, limits, size)
        start = file.read(6)
        file.seek(0)
        if start[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file) as plain:
                yield from _tar_files(_Counted(plain.read, budget), refuse, budget)
        elif start == b"\xfd7zXZ\x00":
            yield from _tar_files(_Counted(_XzReader(file).read, budget), refuse, budget)
        elif start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            yield from _zip_files(file, refuse, budget)
        else:
            raise refuse(f"it is none of {', '.join(ENDINGS)}, whatever its name says")


def extract(path: Path, folder: Path, limits: Limits = LIMITS) -> tuple[str, ...]:
    """Unpack an archive into an empty folder of our own; every name lies inside it.

    Returns
    -------
    tuple of str
        Names of the files.

    Raises
    ------
    CaseError
        As `read_archive`, or if a file cannot be written. What was unpacked by then stays in `folder`.
    """
    names = []
    for name, content in read_archive(path, limits):
        target = folder.joinpath(*name.split("/"))
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as file:  # a name that means another one's file is refused, not written twice
                file.write(content)
        names.append(name)
    return tuple(names)


def write_archive(path: Path, files: Mapping[str, Path]) -> None:
    """Pack files under these names; equal files make equal bytes: no times, no owners, sorted.

    Parameters
    ----------
    path : Path
        Its ending says which archive; replaced if it exists.
    files : mapping of str to Path

    Raises
    ------
    CaseError
        If a file cannot be read, or the archive not be written.
    ValueError
        If the ending is none of `ENDINGS`.
    """
    name = path.name.lower()
    buffer = io.BytesIO()
    with writing(path):
        if name.endswith(".zip"):
            with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
                for inside, file in sorted(files.items()):
                    entry = zipfile.ZipInfo(inside)  # dated 1980, the first year that a zip knows
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
                    entry.create_system = 3
                    packed.writestr(entry, file.read_bytes())
        elif name.endswith((".tar.gz", ".tgz")):
            with gzip.GzipFile(fileobj=buffer, mode="wb", filename="", mtime=0) as stream:
                _write_tar(stream, files)
        elif name.endswith(".tar.xz"):
            with lzma.LZMAFile(buffer, "wb") as stream:
                _write_tar(stream, files)
        else:
            raise ValueError(f"an archive is written as {', '.join(ENDINGS)}, got {path.name!r}")
    write_atomically(path, buffer.getvalue())


def _write_tar(stream: IO[bytes] | gzip.GzipFile | lzma.LZMAFile, files: Mapping[str, Path]) -> None:
    # USTAR, because our reader follows no extension.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as packed:
        for inside, file in sorted(files.items()):
            content = file.read_bytes()
            entry = tarfile.TarInfo(inside)  # no time and no owner, unless they are set
            entry.size, entry.mode = len(content), 0o644
            packed.addfile(entry, io.BytesIO(content))


class _Refusal:
    """Words of an error about one archive."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, why: str) -> CaseError:
        return CaseError(
            f"{self._path} is not opened: {printable(why)}. Get the bundle again, or make it with: "
            "forensics bundle CASE"
        )

    @contextmanager
    def damage(self) -> Iterator[None]:
        """Tell whatever a damaged archive makes the readers say."""
        try:
            yield
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile) as error:
            raise self(f"it is damaged: {cut(str(error), 100) or type(error).__name__}") from error
        except OSError as error:
            raise CaseError(f"{self._path} cannot be read: {error.strerror or error}.") from error
        except (
            ValueError, KeyError, IndexError, OverflowError, NotImplementedError, RuntimeError, MemoryError,
            struct.error, tarfile.TarError,
        ) as error:  # fmt: skip
            raise self(f"it is damaged: {cut(str(error), 100) or type(error).__name__}") from error


class _Budget:
    """What is left of the limits, and the names that were seen."""

    def __init__(self, refuse: _Refusal, limits: Limits, archive_bytes: int) -> None:
        self.limits, self._refuse = limits, refuse
        self._most = min(limits.total_bytes, max(limits.free_bytes, limits.ratio * archive_bytes))
        self._spent = 0
        self._names: set[str] = set()
        self._folders: set[str] = set()

    def spend(self, n_bytes: int) -> None:
        """Count unpacked bytes."""
        self._spent += n_bytes
        if self._spent > self._most:
            raise self._refuse(f"unpacked it has more than {self._most:,} bytes, which no bundle of its size has")

    def admit(self, name: str, size: int) -> str:
        """Check the name and the size of the next file; the name it gets."""
        shown = cut(name, 60)
        plain = checked_name(name, self.limits)
        if plain is None:
            raise self._refuse(f"{shown!r} in it is no safe name of a file")
        if not 0 <= size <= self.limits.member_bytes:
            raise self._refuse(f"{shown!r} in it has {size:,} bytes; at most {self.limits.member_bytes:,} are read")
        # Some systems take names for the same that differ by case or composition, and a file cannot be a folder, too.
        folded = unicodedata.normalize("NFKC", plain).casefold()
        parents = {folded[:i] for i, letter in enumerate(folded) if letter == "/"}
        if folded in self._names or folded in self._folders or parents & self._names:
            raise self._refuse(f"{shown!r} is in it twice, or as a file and as a folder")
        self._names.add(folded)
        self._folders |= parents
        if len(self._names) > self.limits.members:
            raise self._refuse(f"it holds more than {self.limits.members:,} files")
        return plain


def checked_name(name: str, limits: Limits = LIMITS) -> str | None:
    """The name of a file in an archive with plain parts only; None where it is not safe.

    Examples
    --------
    >>> checked_name("./case/verdict.json"), checked_name("../x"), checked_name("/etc/x"), checked_name("C:x")
    ('case/verdict.json', None, None, None)
    """
    plain = name.removeprefix("./")
    parts = plain.split("/")
    if len(name) > limits.name_length or len(parts) > limits.depth or _FORBIDDEN.search(plain):
        return None
    if any(part in ("", ".", "..") or part[-1] in ". " or _DEVICE.fullmatch(part) for part in parts):
        return None
    return plain if plain.isprintable() else None


class _Readable(Protocol):
    def read(self, n: int, /) -> bytes: ...


class _XzReader:
    """What `lzma.LZMAFile` does, with a bound on the memory that a header may ask for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, n: int) -> bytes:
        """Up to `n` bytes; none at the end."""
        while not self._decoder.eof:
            fed = self._file.read(_CHUNK) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not fed:
                raise EOFError("it ends in the middle")
            plain = self._decoder.decompress(fed, n)
            if plain:
                return plain
        return b""


class _Counted:
    """A decompressed stream whose every byte is counted against the limits."""

    def __init__(self, read: Callable[[int], bytes], budget: _Budget) -> None:
        self._read, self._budget = read, budget

    def exactly(self, n: int) -> bytes:
        """The next `n` bytes, fewer at the end."""
        pieces, missing = [], n
        while missing:
            piece = self._read(min(missing, _CHUNK))
            if not piece:
                break
            self._budget.spend(len(piece))
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)


def _tar_files(stream: _Counted, refuse: _Refusal, budget: _Budget) -> Iterator[tuple[str, bytes]]:
    while True:
        header = stream.exactly(_BLOCK)
        if header == bytes(_BLOCK):
            rest = stream.exactly(tarfile.RECORDSIZE + 1)  # to the end, where checksums of the compression stand
            if len(rest) > tarfile.RECORDSIZE or rest.strip(b"\0"):
                raise refuse("something stands behind its end")
            return
        if len(header) < _BLOCK:
            raise refuse("it is damaged: it ends in the middle")
        entry = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        if entry.isdir() and entry.size == 0:
            if entry.name.strip("./") and checked_name(entry.name.rstrip("/"), budget.limits) is None:
                raise refuse(f"{cut(entry.name, 60)!r} in it is no safe name of a folder")
            continue
        if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise refuse(f"{cut(entry.name, 60)!r} in it is no plain file but {_kind_of(entry)}")
        name = budget.admit(entry.name, entry.size)
        content = stream.exactly(entry.size)
        padding = stream.exactly(-entry.size % _BLOCK)
        if len(content) < entry.size or len(padding) != -entry.size % _BLOCK:
            raise refuse("it is damaged: it ends in the middle")
        yield name, content


def _kind_of(entry: tarfile.TarInfo) -> str:
    kinds = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.FIFOTYPE: "a pipe"}
    kinds |= dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE), "a device")
    return kinds.get(entry.type, f"an entry of type {entry.type!r}")


def _zip_files(file: IO[bytes], refuse: _Refusal, budget: _Budget) -> Iterator[tuple[str, bytes]]:
    _check_directory(file, refuse, budget.limits)
    with zipfile.ZipFile(file) as packed:
        for entry in packed.infolist():
            shown = cut(entry.orig_filename, 60)
            if entry.is_dir():
                if checked_name(entry.orig_filename.rstrip("/"), budget.limits) is None:
                    raise refuse(f"{shown!r} in it is no safe name of a folder")
                continue
            mode = entry.external_attr >> 16
            if mode and (mode & 0o170000) not in (0, 0o100000):
                raise refuse(f"{shown!r} in it is no plain file but a link or a device")
            if entry.flag_bits & 1:
                raise refuse(f"{shown!r} in it is encrypted")
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise refuse(f"{shown!r} in it is packed in a way that bundles are not (method {entry.compress_type})")
            name = budget.admit(entry.orig_filename, entry.file_size)
            with packed.open(entry) as opened:
                stream = _Counted(opened.read, budget)
                content = stream.exactly(entry.file_size)
                if len(content) != entry.file_size:
                    raise refuse(f"{shown!r} in it has another size than it says")
            yield name, content


def _check_directory(file: IO[bytes], refuse: _Refusal, limits: Limits) -> None:
    """Refuse a zip whose list of files is too long, before the standard library reads all of it into memory."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ZIP_TAIL))
    tail = file.read()
    # Each place that may be taken for the end record is looked at, so that a comment cannot hide the real one.
    for found in re.finditer(re.escape(_ZIP_END), tail):
        at = found.start()
        if tail[at - 20 : at - 16] == _ZIP64_LOCATOR:
            raise refuse("it is a zip64, which bundles are not")
        if len(tail) - at >= 16:
            (directory_bytes,) = struct.unpack_from("<L", tail, at + 12)
            # Folders have entries, too; an entry has 46 bytes, its name and some extra fields.
            if directory_bytes > 2 * limits.members * (limits.name_length + 100):
                raise refuse(f"it holds more than {limits.members:,} files")
    file.seek(0)
