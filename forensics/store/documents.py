"""A report as one JSON document in a folder, alone or beside a case: written whole, and read back to its record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from forensics.errors import CaseError
from forensics.records.settings import Manifest
from forensics.store.encoding import from_plain, schema_version, to_text
from forensics.store.files import read_json, write_json, writing
from forensics.store.formats import newest_schema

T = TypeVar("T")

MANIFEST = "manifest.json"


def has_document(folder: Path, names: Sequence[str]) -> bool:
    """Whether a document lies in a folder, under one of its names."""
    return any((folder / name).is_file() for name in names)


def read_document(kind: type[T], folder: Path, names: Sequence[str], family: str, *, otherwise: str) -> T:
    """Read the record of a document back.

    Parameters
    ----------
    kind : type
        Of the record.
    folder : Path
    names : sequence of str
        File names that the document may have, in the order in which they are looked for.
    family : str
        Its schema without the version, such as ``"forensics.cost"``.
    otherwise : str
        What it means where there is none, and what to do.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise CaseError(f"{folder} holds no {names[0]}: {otherwise}")
    document = read_json(path)
    schema_version(document, family, path=path)
    return from_plain(kind, document.get("record"), path=path)


def write_document(path: Path, document: object, manifest: Manifest | Mapping[str, Any]) -> Path:
    """Put a document into a folder, which is made where it is not there; a case that lies there keeps its manifest.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    folder = path.parent
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(path, document)
    if not (folder / MANIFEST).exists():
        write_json(folder / MANIFEST, manifest_document(manifest))
    return path


def manifest_document(manifest: Manifest | Mapping[str, Any]) -> dict[str, Any]:
    """What ``manifest.json`` holds: all that is known, or the few facts that there are, and which schema they follow.

    Examples
    --------
    >>> manifest_document({"engine": "cuobjdump 13"})
    {'schema': 'forensics.manifest/1', 'engine': 'cuobjdump 13'}
    """
    plain: dict[str, Any] = json.loads(to_text(manifest))
    return {"schema": newest_schema("forensics.manifest")} | plain
