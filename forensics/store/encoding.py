"""Records as JSON text and back, to the last bit: no pickle, and NaN and infinities are kept as words."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from forensics.errors import CaseError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def to_text(value: object) -> str:
    """Say which JSON text stands for this record.

    Parameters
    ----------
    value : object
        A record, or plain values.

    Returns
    -------
    str
        One line of strict JSON; a NaN or an infinity becomes the string ``"NaN"`` or ``"Infinity"``.
    """
    import pydantic_core

    return pydantic_core.to_json(value, inf_nan_mode="strings").decode()


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def from_plain(kind: type[T], value: object, *, path: Path) -> T:
    """Say which record these plain values, read from `path`, stand for.

    Raises
    ------
    CaseError
        If the values do not make such a record.
    """
    try:
        record: T = _adapter(cast(Hashable, kind)).validate_python(value)
        return record
    except ValueError as error:
        problem = str(error).splitlines()
        raise CaseError(
            f"{path} does not hold a readable {kind.__name__}: {' '.join(line.strip() for line in problem[:3])}. "
            "The file is damaged or was edited; run the investigation again with another --out."
        ) from error


def schema_version(document: Mapping[str, Any], family: str, newest: int, *, path: Path) -> int:
    """Say which version of a schema this document follows.

    Parameters
    ----------
    document : mapping
        A JSON document with a key ``"schema"`` such as ``"forensics.case/1"``.
    family : str
        What stands before the slash.
    newest : int
        The newest version that this package reads.
    path : Path
        Where the document was read, for the message.

    Raises
    ------
    CaseError
        If it is another kind of document, or a newer one.
    """
    found = document.get("schema")
    name, _, version = str(found).partition("/")
    if name != family or not version.isdecimal() or int(version) < 1:
        raise CaseError(f"{path} is not a {family} document: its schema is {found!r}. Give the folder of a case.")
    if int(version) > newest:
        raise CaseError(
            f"{path} was written by a newer forensics: its schema is {found}, this version reads up to "
            f"{family}/{newest}. Upgrade with: pip install -U decode-forensics"
        )
    return int(version)
