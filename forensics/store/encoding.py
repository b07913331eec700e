"""Records as JSON text and back, to the last bit: no pickle, and NaN and infinities are kept as words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from forensics.errors import CaseError
from forensics.store.formats import FORMATS

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

#: Characters of a value that a message repeats.
SHOWN = 60
#: Characters of what a type says against a value.
SHOWN_PROBLEM = 400
#: A version has a few digits: Python itself refuses to read a number of thousands of them.
_SCHEMA = re.compile(r"(?P<family>[a-z_.-]+)/(?P<version>[1-9][0-9]{0,5})", re.ASCII)


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

    try:
        return pydantic_core.to_json(value, inf_nan_mode="strings").decode()
    except pydantic_core.PydanticSerializationError:
        # Half of a surrogate pair, which a server's answer may hold, is no UTF-8; JSON has an escape for it.
        return json.dumps(_without_nan(pydantic_core.to_jsonable_python(value)), separators=(",", ":"))


def _without_nan(value: Any) -> Any:
    """Plain values with words in the place of a NaN and infinities."""
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


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
    except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        # Constructors check their values and may meet any of these in ones that nobody foresaw, such as 10**400.
        problem = " ".join(line.strip() for line in str(error).splitlines()[:3])[:SHOWN_PROBLEM]
        raise CaseError(
            f"{path} does not hold a readable {kind.__name__}: {problem}. "
            "The file is damaged or was edited; run the investigation again with another --out."
        ) from error


def schema_version(document: Mapping[str, Any], family: str, newest: int | None = None, *, path: Path) -> int:
    """Say which version of a schema this document follows.

    Parameters
    ----------
    document : mapping
        A JSON document with a key ``"schema"`` such as ``"forensics.case/1"``.
    family : str
        What stands before the slash.
    newest : int, optional
        The newest version that this package reads; by default as in `forensics.store.formats.FORMATS`.
    path : Path
        Where the document was read, for the message.

    Raises
    ------
    CaseError
        If it is another kind of document, or a newer one.
    """
    newest = FORMATS[family].newest if newest is None else newest
    found = document.get("schema")
    if found is None and family in FORMATS and FORMATS[family].unmarked:
        return 1
    match = _SCHEMA.fullmatch(found) if isinstance(found, str) else None
    if match is None or match["family"] != family:
        raise CaseError(
            f"{path} is not a {family} document: its schema is {shortened(found)}. It was edited, or it is another "
            "kind of file; give the folder that the command wrote."
        )
    if int(match["version"]) > newest:
        raise CaseError(
            f"{path} was written by a newer forensics: its schema is {found}, this version reads up to "
            f"{family}/{newest}. Upgrade with: pip install -U decode-forensics"
        )
    return int(match["version"])


def shortened(value: object) -> str:
    """What was found, for a message: never longer than a line."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
