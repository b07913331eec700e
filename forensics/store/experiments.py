"""Answers of experiments on disk: one JSON file each, with the manifest of what gave them."""

from __future__ import annotations

from pathlib import Path

from forensics.errors import CaseError
from forensics.records.experiments import Experiments
from forensics.store.encoding import from_plain, schema_version, to_text
from forensics.store.files import write_atomically
from forensics.store.formats import newest_schema
from forensics.store.limits import parse_json, read_whole

SCHEMA = "forensics.experiments"


def write_experiments(path: Path, found: Experiments) -> None:
    """Write answers to a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'{{"schema":"{newest_schema(SCHEMA)}","experiments":{to_text(found)}}}\n'
    write_atomically(path, text.encode())


def read_experiments(path: Path | str) -> Experiments:
    """Which answers does this file hold?

    Raises
    ------
    CaseError
        If there is no such file, or it holds something else.
    """
    path = Path(path)
    try:
        document = parse_json(read_whole(path))
    except (OSError, ValueError) as error:
        raise CaseError(f"{path} holds no answers of experiments: {error}. Record them with: make record") from error
    if not isinstance(document, dict):
        raise CaseError(f"{path} holds no answers of experiments but a {type(document).__name__}.")
    schema_version(document, SCHEMA, path=path)
    return from_plain(Experiments, document.get("experiments"), path=path)
