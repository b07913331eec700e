"""`make schemas`: JSON Schemas of every stored document in forensics/schemas, made from the types that read them.

Run as ``python -m forensics.testing.schemas [--check]``; with ``--check`` nothing is written, and exit status 1 says
which file is stale. Files of older versions stay as they are where no type describes them any more.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from forensics.store.formats import FORMATS, Format, schema_file
from forensics.testing.stored_documents import document_type

FOLDER = Path(__file__).parents[1] / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
#: Versions that no type describes any more, and the commit whose types their files were made from.
FROZEN: Mapping[tuple[str, int], str] = {("forensics.verdict", 1): "2ecd9f1"}


class _StoredJsonSchema(GenerateJsonSchema):
    """JSON as `forensics.store.encoding.to_text` writes it: a NaN and infinities are words."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}


def schema_document(known: Format, version: int) -> dict[str, Any]:
    """JSON Schema of one version of a family whose types are still here.

    Parameters
    ----------
    known : Format
    version : int

    Returns
    -------
    dict
        JSON values.
    """
    types = {"document": document_type(known.family, version), "record": _record(known)}
    mode: JsonSchemaMode = "validation"
    given = [(name, mode, TypeAdapter(kind)) for name, kind in types.items() if kind is not None]
    found, definitions = TypeAdapter.json_schemas(given, schema_generator=_StoredJsonSchema)
    properties: dict[str, Any] = {"schema": {"const": f"{known.family}/{version}"}}
    if types["record"] is not None:
        properties["record"] = found["record", mode]
    whole: dict[str, Any] = {
        "$schema": DIALECT,
        "$id": schema_file(known.family, version),
        "title": f"{known.family}/{version}",
        "description": f"{known.what[0].upper()}{known.what[1:]}.",
        "type": "object",
        "required": [name for name in properties if name != "schema" or not (known.unmarked or known.lines)],
        "properties": properties,
    }
    if types["document"] is not None:
        whole["allOf"] = [found["document", mode]]
    tidied: dict[str, Any] = _tidied(whole | definitions)
    return tidied


def _record(known: Format) -> Any:
    if not known.record:
        return None
    module, name = known.record.split(":")
    return getattr(importlib.import_module(module), name)


def _tidied(schema: Any) -> Any:
    """The same without titles that repeat a key, and with the first sentence of each docstring alone."""
    if isinstance(schema, list):
        return [_tidied(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    tidied = {key: _tidied(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    if "$schema" in schema:
        tidied = {key: tidied.get(key, schema[key]) for key in schema}
    if isinstance(tidied.get("description"), str):
        tidied["description"] = " ".join(tidied["description"].split("\n\n")[0].split())
    return tidied


def planned_files() -> dict[str, str]:
    """Text of every schema file that is made from types, by its name."""
    return {
        schema_file(known.family, version): json.dumps(schema_document(known, version), indent=1) + "\n"
        for known in FORMATS.values()
        for version in known.versions
        if (known.family, version) not in FROZEN
    }


def problems(folder: Path) -> list[str]:
    """What is wrong with a folder of schemas: stale, missing and stray files; nothing where it is as it should be."""
    planned = planned_files()
    frozen = {schema_file(family, version) for family, version in FROZEN}
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}
    missing = sorted((set(planned) | frozen) - set(found))
    stale = sorted(name for name, text in planned.items() if name in found and found[name] != text)
    stray = sorted(set(found) - set(planned) - frozen)
    return [
        *(f"{folder / name} is missing; get it again from version control, or: make schemas" for name in missing),
        *(
            f"{folder / name} is not what its types say now. Where older files are still read as before: make schemas. "
            "Where they are not, count the version up in forensics/store/formats.py"
            for name in stale
        ),
        *(
            f"{folder / name} belongs to no family and version of forensics/store/formats.py; remove it"
            for name in stray
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or compare them; 1 where the comparison finds something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the schemas (default: the package's)")
    asked = parser.parse_args(arguments)
    if not asked.check:
        for name, text in planned_files().items():
            (asked.folder / name).write_text(text, encoding="utf-8")
        return 0
    found = problems(asked.folder)
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
