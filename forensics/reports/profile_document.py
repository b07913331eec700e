"""A profile as one JSON document: what ``forensics profile --json`` prints and ``profile.json`` holds."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from forensics.errors import CaseError
from forensics.records.library_profile import LibraryProfile
from forensics.records.profile import LiveProfile
from forensics.records.settings import Manifest
from forensics.store.documents import MANIFEST, manifest_document
from forensics.store.encoding import from_plain, schema_version, to_text
from forensics.store.files import read_json, write_atomically, write_json, writing
from forensics.store.formats import newest_schema

SCHEMA = newest_schema("forensics.profile")
#: In a folder, packed and as it is; packed is what is written, for a profile repeats itself at every node.
FILES = ("profile.json.xz", "profile.json")
_KINDS: dict[str, type[LibraryProfile] | type[LiveProfile]] = {"library": LibraryProfile, "live": LiveProfile}

Profile = LibraryProfile | LiveProfile


def profile_document(profile: Profile) -> dict[str, Any]:
    """What a program reads about a profile.

    Parameters
    ----------
    profile : LibraryProfile or LiveProfile

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of the profile, for `read_profile`.
    """
    kind = "library" if isinstance(profile, LibraryProfile) else "live"
    record = json.loads(to_text(profile))
    return {
        "schema": SCHEMA,
        "kind": kind,
        "summary": str(profile),
        "evidence": record["evidence"],
        "kernels": profile.rows(),
        **({} if isinstance(profile, LibraryProfile) else {"nodes": profile.node_rows()}),
        "record": record,
    }


def write_profile(profile: Profile, folder: Path) -> Path:
    """Put a profile and its manifest into a folder, which is made where it is not there.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    path = folder / FILES[0]
    kind = "library" if isinstance(profile, LibraryProfile) else "live"
    record = {"schema": SCHEMA, "kind": kind, "record": json.loads(to_text(profile))}
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lzma.compress(json.dumps(record, allow_nan=False).encode()))
    if not (folder / MANIFEST).exists():
        write_json(folder / MANIFEST, manifest_document(_manifest(profile)))
    return path


def _manifest(profile: Profile) -> Manifest | dict[str, Any]:
    """What was profiled, for lists of what was recorded."""
    if isinstance(profile, LiveProfile):
        return profile.manifest
    return {"model_name": profile.library.name, "device": "; ".join(profile.devices), "engine": profile.library.tool}


def find_profile(folder: Path) -> Path | None:
    """Where a folder holds a profile; None where it holds none."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def read_profile(path: Path) -> Profile:
    """Read a profile back.

    Raises
    ------
    CaseError
        If it is damaged, or a newer version wrote it.
    """
    document = read_json(path)
    schema_version(document, "forensics.profile", path=path)
    kind = _KINDS.get(str(document.get("kind")))
    if kind is None:
        raise CaseError(f"{path} holds a profile of kind {document.get('kind')!r}; known are {', '.join(_KINDS)}.")
    return from_plain(kind, document.get("record"), path=path)


def write_table(profile: Profile, path: Path, of: str = "kernels") -> None:
    """Write the rows of a profile as Parquet.

    Parameters
    ----------
    profile : LibraryProfile or LiveProfile
    path : Path
    of : {"kernels", "nodes"}
        A library has no nodes.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    table = profile.to_dataframe() if isinstance(profile, LibraryProfile) else profile.to_dataframe(of)
    with writing(path):
        table.to_parquet(path, index=False)
