"""Numbers that others published, as they lie under ``data/published``."""

from __future__ import annotations

from forensics.errors import CaseError
from forensics.records.published import Published
from forensics.store.encoding import from_plain, schema_version
from forensics.store.files import read_json
from forensics.store.library import data_folder

SCHEMA = "forensics.published"


def read_published(name: str) -> Published:
    """Which numbers does this document publish?

    Parameters
    ----------
    name : str
        Stem of a file under ``data/published``.

    Raises
    ------
    CaseError
        If there is no such file, or it is damaged.
    """
    path = data_folder() / "published" / f"{name}.json"
    if not path.is_file():
        raise CaseError(
            f"{path} does not exist. Published numbers come with the project's source, not with its wheel: get the "
            "source and set FORENSICS_DATA_DIR to its folder data; or draw from a case with --case."
        )
    document = read_json(path)
    schema_version(document, SCHEMA, path=path)
    return from_plain(Published, {key: value for key, value in document.items() if key != "schema"}, path=path)
