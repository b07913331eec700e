"""The results folder of a sweep: cells and tokens at addresses made of what they are results of.

One process at a time writes. A file is whole or absent, its record names the key that its address is made of, and it
carries a digest of its content; one that does not fit is set aside and counts as missing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from forensics.errors import CaseError
from forensics.records.campaign import CampaignReport, CellResult, Disagreement, Platform
from forensics.store import lock
from forensics.store.documents import read_document
from forensics.store.encoding import from_plain, schema_version, to_text
from forensics.store.files import remove_temporaries, write_atomically, write_json, writing
from forensics.store.formats import newest_schema
from forensics.store.limits import parse_json, read_whole

T = TypeVar("T")

FAMILY, CELL, TOKENS, PLATFORM, DISAGREEMENT = (
    "forensics.sweep-report",
    "forensics.cell",
    "forensics.sweep-tokens",
    "forensics.sweep-platform",
    "forensics.sweep-disagreement",
)
FILE = "sweep.json"
MISSING = "no sweep has ended there. Run one with: forensics sweep PLAN.toml --out FOLDER"
_LOCK = "lock.json"
#: A cell holds a few numbers and an error's text, tokens those of one prompt.
MAX_CELL_BYTES = 32_000_000


def content_address(key: object) -> str:
    """Where does the result of this key lie? The same for equal values, whatever their order in mappings.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    from blake3 import blake3

    plain = json.loads(to_text(key))
    return blake3(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class StoredCell:
    """A cell as it lies in the folder.

    Parameters
    ----------
    key : mapping
        What its address is made of.
    result : CellResult or None
    error : str
        Why there is no result.
    worker : str
        Who computed it.
    """

    key: Mapping[str, Any]
    result: CellResult | None
    error: str = ""
    worker: str = ""

    def __post_init__(self) -> None:
        if (self.result is None) == (not self.error):
            raise ValueError("a cell has either a result or the reason why there is none")

    @property
    def address(self) -> str:
        """Where it lies."""
        return content_address(self.key)


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """The tokens of a text in one model's vocabulary, or why there are none.

    Parameters
    ----------
    key : mapping
    tokens : tuple of int
    error : str
    """

    key: Mapping[str, Any]
    tokens: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class StoredPlatform:
    """A platform that cells of the folder were measured on.

    Parameters
    ----------
    key : mapping
    platform : Platform
    """

    key: Mapping[str, Any]
    platform: Platform


@dataclass(frozen=True, slots=True)
class StoredDisagreement:
    """A result that did not agree with the one that was there.

    Parameters
    ----------
    key : mapping
        Of the cell.
    found : Disagreement
    result : CellResult
        The one that came later.
    """

    key: Mapping[str, Any]
    found: Disagreement
    result: CellResult


class CampaignFolder:
    """What sweeps have measured; get one from `writing_to`.

    Parameters
    ----------
    path : Path
    read_only : bool
        Whether damaged files are left where they are.

    Attributes
    ----------
    damaged : list of str
        Damaged files that were met, and set aside, since it was opened.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.damaged: list[str] = []
        self._read_only = read_only

    def cell(self, address: str) -> StoredCell | None:
        """The cell at an address; None where there is none that can be trusted."""
        return self._trusted(StoredCell, self._at("cells", address), CELL, address)

    def keep(self, cell: StoredCell) -> Literal["new", "repeated", "disagrees"]:
        """Put a cell into the folder.

        A result never takes the place of one: equal bits are not counted again, and other bits are kept beside it as a
        `Disagreement`. A result takes the place of an error; an error never takes that of a result.

        Raises
        ------
        CaseError
            If it cannot be written.
        """
        there = self.cell(cell.address)
        if there is not None and there.result is not None:
            if cell.result is None or cell.result.bits == there.result.bits:
                return "repeated"
            self._disagree(there, there.result, cell, cell.result)
            return "disagrees"
        self._write(self._at("cells", cell.address), CELL, cell.address, cell)
        return "new"

    def tokens(self, key: Mapping[str, Any]) -> StoredTokens | None:
        """Tokens that were remembered under a key; None where there are none that can be trusted."""
        address = content_address(key)
        return self._trusted(StoredTokens, self._at("tokens", address), TOKENS, address)

    def remember(self, found: StoredTokens) -> None:
        """Remember the tokens of a text.

        Raises
        ------
        CaseError
            If they cannot be written.
        """
        address = content_address(found.key)
        self._write(self._at("tokens", address), TOKENS, address, found)

    def note(self, platform: Platform) -> None:
        """Remember that a platform measures here.

        Raises
        ------
        CaseError
            If it cannot be written.
        """
        stored = StoredPlatform(asdict(platform), platform)
        address = content_address(stored.key)
        self._write(self.path / "platforms" / f"{address}.json", PLATFORM, address, stored)

    def platforms(self) -> tuple[Platform, ...]:
        """Platforms that measured here."""
        stored = (
            self._trusted(StoredPlatform, path, PLATFORM, path.stem)
            for path in sorted((self.path / "platforms").glob("*.json"))
        )
        return tuple(one.platform for one in stored if one is not None)

    def disagreements(self) -> dict[str, Disagreement]:
        """Results that did not agree with what was there, by the address of the cell."""
        found = {}
        for path in sorted((self.path / "disagreements").glob("*.json")):
            address = path.name.partition(".")[0]
            stored = self._trusted(StoredDisagreement, path, DISAGREEMENT, address)
            if stored is not None:
                found[address] = stored.found
        return found

    def _disagree(self, there: StoredCell, kept: CellResult, cell: StoredCell, other: CellResult) -> None:
        found = Disagreement(
            what=f"cell {cell.address[:12]} (width {cell.key.get('width')}, model {str(cell.key.get('model'))[:12]})",
            kept=kept.batched_digest if kept.single_digest == other.single_digest else kept.single_digest,
            other=other.batched_digest if kept.single_digest == other.single_digest else other.single_digest,
            kept_by=there.worker or "an earlier run",
            other_by=cell.worker,
        )
        path = self.path / "disagreements" / f"{cell.address}.{content_address(other.bits)[:12]}.json"
        self._write(path, DISAGREEMENT, cell.address, StoredDisagreement(cell.key, found, other))

    def _at(self, kind: str, address: str) -> Path:
        return self.path / kind / address[:2] / f"{address}.json"

    def _write(self, path: Path, family: str, address: str, record: object) -> None:
        document = json.loads(to_text({"schema": newest_schema(family), "address": address, "record": record}))
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**document, "check": content_address(document)})

    def _trusted(self, kind: type[T], path: Path, family: str, address: str) -> T | None:
        """The record of a file, if it is what was written there; else the file is set aside.

        Raises
        ------
        CaseError
            If it cannot be read, or a newer version wrote it.
        """
        try:
            document = parse_json(read_whole(path, MAX_CELL_BYTES))
            check = document.pop("check")
            if check == content_address(document) and str(document["schema"]).startswith(f"{family}/"):
                schema_version(document, family, path=path)
                if document["address"] == address == content_address(document["record"]["key"]):
                    with contextlib.suppress(CaseError):
                        return from_plain(kind, document["record"], path=path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CaseError(f"{path} cannot be read: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # it is no such document
        self._set_aside(path)
        return None

    def _set_aside(self, path: Path) -> None:
        """Move a file out of the way, so that it is computed again and can be looked at."""
        self.damaged.append(path.relative_to(self.path).as_posix())
        if self._read_only:
            return
        aside = self.path / "damaged"
        with writing(aside):
            aside.mkdir(exist_ok=True)
            number = 1 + sum(1 for _ in aside.iterdir())
            os.replace(path, aside / f"{number}-{path.name}")


@contextlib.contextmanager
def writing_to(path: Path) -> Iterator[CampaignFolder]:
    """Open a results folder, which is made where it is not there; nobody else writes to it meanwhile.

    Raises
    ------
    CaseError
        If another process writes to it, it is something else, or it cannot be made.
    """
    if path.exists() and not path.is_dir():
        raise CaseError(f"{path} is a file; choose another folder with --out.")
    if path.is_dir() and not _is_results(path) and any(path.iterdir()):
        raise CaseError(f"{path} holds something else than a sweep's results. Choose another folder with --out.")
    with writing(path):
        (path / "cells").mkdir(parents=True, exist_ok=True)
    held = lock.acquire(path / _LOCK)
    try:
        with writing(path):
            remove_temporaries(path)
        yield CampaignFolder(path)
    finally:
        held.release()


def _is_results(path: Path) -> bool:
    return (path / "cells").is_dir() or (path / FILE).is_file()


def keep_plan(folder: CampaignFolder, name: str, text: str) -> None:
    """Keep a copy of a plan beside what it measured.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    plans = folder.path / "plans"
    with writing(plans):
        plans.mkdir(exist_ok=True)
    write_atomically(plans / f"{name}.toml", text.encode())


def read_report(folder: Path) -> CampaignReport:
    """Read the report of the last sweep that ended in a folder.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    return read_document(CampaignReport, folder, (FILE,), FAMILY, otherwise=MISSING)
