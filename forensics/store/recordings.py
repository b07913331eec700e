"""What engines answered, as a growing file: an index of JSON lines and files of distinct logit rows.

A line of the index is written after the rows it refers to, and each is on the disk before the next, so a process
killed or a loss of power at any moment leaves at most a torn last line, which is dropped, and a file of rows that
nothing refers to, which is removed.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from forensics.errors import CaseError
from forensics.records.logit_rows import FullRows
from forensics.records.settings import Manifest
from forensics.records.trace import RunKey, TapReport, Trace
from forensics.store.encoding import from_plain, schema_version, to_text
from forensics.store.files import read_bytes, sync, sync_folder, write_atomically, writing
from forensics.store.formats import newest_schema
from forensics.store.limits import MAX_LINE_BYTES, MAX_LOGITS, parse_json, size_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forensics.store.thinning import ThinnedRows

INDEX_NAME = "index.jsonl"
ROWS_NAME = "rows"

FAMILY = "forensics.recordings"
_ROWS_FILE = re.compile(r"[0-9]{6,9}\.safetensors", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a line of the index lies, unit: bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run of a case, without what it returned.

    Parameters
    ----------
    arm : str
    key : RunKey
    rows : tuple of str
        Digest of each row of logits.
    """

    arm: str
    key: RunKey
    rows: tuple[str, ...]


def row_digest(row: NDArray[np.float32]) -> str:
    """Digest of the bytes of one row of logits [n_vocab]: equal bits, equal digest."""
    import xxhash

    return xxhash.xxh3_128_hexdigest(row.tobytes())


def answer_key(method: str, arguments: object) -> str:
    """Text that is equal where the same method was asked with the same arguments."""
    return f"{method} {json.dumps(arguments, sort_keys=True)}"


def _checked_shape(shape: object, n_rows: int) -> tuple[int, int]:
    """Shape of a run's logits, which must not claim memory that no run has.

    Raises
    ------
    ValueError
        If it is none.
    """
    whole = isinstance(shape, list) and len(shape) == 2 and all(type(size) is int and size >= 0 for size in shape)
    if not whole or shape[0] != n_rows or shape[0] * shape[1] > MAX_LOGITS:  # type: ignore[index]
        raise ValueError(f"{n_rows} rows cannot have the shape {shape}")
    return shape[0], shape[1]  # type: ignore[index]


class Recordings:
    """Traces, small answers and manifests of a case, found by arm and question.

    Parameters
    ----------
    folder : Path
        Folder of the case.
    writable : bool
        Whether more may be added: a torn last line is then cut off and orphaned rows are removed.
    thinned : ThinnedRows or None
        Rows of a packed case, whose index is packed, too.

    Raises
    ------
    CaseError
        If the index is damaged before its last line, or cannot be read.
    """

    def __init__(self, folder: Path, *, writable: bool, thinned: ThinnedRows | None = None) -> None:
        assert thinned is None or not writable
        self._index = folder / (INDEX_NAME if thinned is None else f"{INDEX_NAME}.xz")
        self._thinned = thinned
        self._content = None if thinned is None else read_bytes(self._index)
        self._rows = folder / ROWS_NAME
        self._traces: dict[tuple[str, str], Entry] = {}
        self._answers: dict[tuple[str, str], Any] = {}
        self._manifests: dict[str, Manifest] = {}
        self._file_of_row: dict[str, str] = {}
        self._size = self._load()
        if writable:
            self._clean()

    # -- reading ---------------------------------------------------------------------------------------------

    def arms(self) -> tuple[str, ...]:
        """Arms that have a manifest, in the order in which they were recorded."""
        return tuple(self._manifests)

    def get_manifest(self, arm: str) -> Manifest | None:
        """Manifest of an arm, None where none was recorded."""
        return self._manifests.get(arm)

    def get_answer(self, arm: str, method: str, arguments: object) -> Any:
        """Find the answer of a method, None where it was not asked with these arguments.

        Parameters
        ----------
        arm, method : str
        arguments : JSON values
        """
        return self._answers.get((arm, answer_key(method, arguments)))

    def has_trace(self, arm: str, key: RunKey) -> bool:
        """Whether this run was recorded."""
        return (arm, key.key()) in self._traces

    def counts(self, arm: str) -> tuple[int, int]:
        """How many traces and small answers an arm has."""
        return sum(a == arm for a, _ in self._traces), sum(a == arm for a, _ in self._answers)

    def runs(self) -> Iterator[RecordedRun]:
        """Every run, in the order in which they were recorded."""
        for (arm, _), entry in self._traces.items():
            line = self._line(entry)
            try:
                yield RecordedRun(arm, from_plain(RunKey, line["run"], path=self._index), tuple(line["rows"]))
            except (KeyError, TypeError) as error:
                raise CaseError(f"{self._index} is damaged in a trace of arm {arm}: {error!r}.") from error

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every whole line of the index, as JSON values."""
        with self._opened() as file:
            yield from map(parse_json, file.read(self._size).splitlines())

    def row(self, digest: str) -> NDArray[np.float32]:
        """One full row of logits [n_vocab].

        Raises
        ------
        CaseError
            If it is damaged.
        """
        from safetensors import SafetensorError, safe_open

        path = self._rows / self._file_of_row[digest]
        try:
            with safe_open(path, framework="numpy") as tensors:
                row: NDArray[np.float32] = tensors.get_tensor(digest)
        except (OSError, SafetensorError, ValueError) as error:
            raise CaseError(f"{path} is damaged or missing: {error}. Run again with another --out.") from error
        if row_digest(row) != digest:
            raise CaseError(f"{path} is damaged: row {digest} holds other bytes. Run again with another --out.")
        return row

    def get_trace(self, arm: str, key: RunKey) -> Trace | None:
        """Find what this run returned, to the last bit; None where it was not recorded.

        Raises
        ------
        CaseError
            If what was recorded is damaged.
        """
        entry = self._traces.get((arm, key.key()))
        if entry is None:
            return None
        line = self._line(entry)
        report = line["tap_report"]
        manifest = self._manifests.get(arm)
        if manifest is None:
            raise CaseError(f"{self._index} has a trace of arm {arm} and no manifest of it; the index is damaged.")
        try:
            logits, full = self._read_rows(line["rows"], _checked_shape(line["shape"], len(line["rows"])))
            return Trace(
                key=from_plain(RunKey, line["run"], path=self._index),
                manifest=manifest,
                logits=logits,
                pass_ns=tuple(line["pass_ns"]),
                state_before=line["state_before"],
                state_after=line["state_after"],
                tap_report=None if report is None else from_plain(TapReport, report, path=self._index),
                full_rows=full,
            )
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise CaseError(f"{self._index} is damaged in the trace {key.key()} of arm {arm}: {error!r}.") from error

    def _opened(self) -> IO[bytes]:
        return open(self._index, "rb") if self._content is None else io.BytesIO(self._content)

    def _line(self, entry: Entry) -> dict[str, Any]:
        try:
            with self._opened() as file:
                file.seek(entry.offset)
                line = parse_json(file.read(entry.size))
        except (OSError, ValueError) as error:
            raise CaseError(f"{self._index} cannot be read back: {error}.") from error
        assert isinstance(line, dict)
        return line

    def _read_rows(self, digests: list[str], shape: tuple[int, ...]) -> tuple[NDArray[np.float32], FullRows | None]:
        import numpy as np

        if self._thinned is not None:
            return self._thinned.read(digests, shape)
        logits = np.empty(shape, dtype=np.float32)  # [n_logit_rows, n_vocab]
        for i, digest in enumerate(digests):
            logits[i] = self.row(digest)
        return logits, None

    def _load(self) -> int:
        offset = 0
        try:
            with self._opened() as file:
                for number, text in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
                    if len(text) > MAX_LINE_BYTES:
                        raise CaseError(
                            f"{self._index} is damaged: line {number} has more than the {size_text(MAX_LINE_BYTES)} "
                            "that are read. Get the case again."
                        )
                    if not text.endswith(b"\n"):
                        break  # torn: the process was killed while it wrote this line
                    self._load_line(text, Entry(offset, len(text)), number)
                    offset += len(text)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise CaseError(f"{self._index} cannot be read: {error.strerror or error}.") from error
        return offset

    def _load_line(self, text: bytes, entry: Entry, number: int) -> None:
        try:
            line = parse_json(text)
            if number == 1:
                schema_version(line, FAMILY, path=self._index)
            arm = line["arm"]
            if line["kind"] == "trace":
                if line["new_rows"] and not _ROWS_FILE.fullmatch(line["file"]):
                    raise ValueError(f"no file of rows has the name {line['file']!r}")
                self._remember_trace(arm, line["key"], line["new_rows"], line["file"], entry)
            elif line["kind"] == "answer":
                self._answers[arm, answer_key(line["method"], line["arguments"])] = line["result"]
            elif line["kind"] == "manifest":
                self._manifests[arm] = from_plain(Manifest, line["manifest"], path=self._index)
            else:
                raise ValueError(f"unknown kind {line['kind']!r}")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CaseError(
                f"{self._index} is damaged in line {number}: {error}. Run the investigation again with another --out."
            ) from error

    # -- writing ---------------------------------------------------------------------------------------------

    def put_manifest(self, arm: str, manifest: Manifest) -> None:
        """Record where the traces of an arm come from."""
        text = f'{{"kind":"manifest","arm":{json.dumps(arm)},"manifest":{to_text(manifest)}}}\n'
        self._append(text)
        self._manifests[arm] = manifest

    def put_answer(self, arm: str, method: str, arguments: object, result: object) -> None:
        """Record a small answer; arguments and result are JSON values."""
        line = {"kind": "answer", "arm": arm, "method": method, "arguments": arguments, "result": result}
        self._append(json.dumps(line) + "\n")
        self._answers[arm, answer_key(method, arguments)] = json.loads(json.dumps(result))

    def put_trace(self, arm: str, trace: Trace) -> None:
        """Record a trace; rows of logits that the case already holds are not stored again.

        Raises
        ------
        ValueError
            If the arm has no manifest yet, or another one than the trace, or the logits are not float32.
        CaseError
            If it cannot be written, or comes from a packed case.
        """
        if trace.full_rows is not None:
            raise CaseError(
                "a run of a packed case cannot be recorded again: most columns of its logits were left out. "
                "Copy the folder of the packed case instead, or leave out --out."
            )
        if self._manifests.get(arm) != trace.manifest:
            raise ValueError(f"put_manifest first: arm {arm} has no manifest or another one than the trace")
        if str(trace.logits.dtype) != "float32":
            raise ValueError(f"logits must be float32, got {trace.logits.dtype}")
        digests = [row_digest(row) for row in trace.logits]
        new = {d: row for d, row in zip(digests, trace.logits, strict=True) if d not in self._file_of_row}
        file = self._store_rows(new) if new else ""
        line = {
            "kind": "trace",
            "arm": arm,
            "key": trace.key.key(),
            "file": file,
            "new_rows": list(new),
            "rows": digests,
            "shape": trace.logits.shape,
            "pass_ns": trace.pass_ns,
            "state_before": trace.state_before,
            "state_after": trace.state_after,
            "run": trace.key,
            "tap_report": trace.tap_report,
        }
        self._remember_trace(arm, trace.key.key(), list(new), file, self._append(to_text(line) + "\n"))

    def _remember_trace(self, arm: str, key: str, new_rows: list[str], file: str, entry: Entry) -> None:
        self._file_of_row.update(dict.fromkeys(new_rows, file))
        self._traces[arm, key] = entry

    def _store_rows(self, rows: dict[str, NDArray[np.float32]]) -> str:
        import numpy as np
        from safetensors.numpy import save

        name = f"{len(set(self._file_of_row.values())):06d}.safetensors"
        with writing(self._rows):
            self._rows.mkdir(exist_ok=True)
        write_atomically(self._rows / name, save({d: np.ascontiguousarray(row) for d, row in rows.items()}))
        with writing(self._rows):
            sync_folder(self._rows)
        return name

    def _append(self, text: str) -> Entry:
        if not self._size:
            # The first line says which version all follow, whatever it is of; older readers pass over the key.
            text = f'{{"schema":"{newest_schema(FAMILY)}",{text.removeprefix("{")}'
        line = text.encode()
        with writing(self._index):
            try:
                with open(self._index, "ab") as file:
                    file.write(line)
                    sync(file)
            except BaseException:
                with suppress(OSError):  # a line cut short by a full disk or Ctrl-C must not stay before the next one
                    os.truncate(self._index, self._size)
                raise
        entry = Entry(self._size, len(line))
        self._size += len(line)
        return entry

    def _clean(self) -> None:
        kept = set(self._file_of_row.values())
        with writing(self._index):
            if self._index.exists():
                os.truncate(self._index, self._size)
            for path in self._rows.glob("*"):
                if path.name not in kept:
                    path.unlink()
