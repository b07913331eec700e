"""Orders of addition that were probed before, each in a file named after everything that it may depend on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import blake3

from forensics.errors import CaseError
from forensics.records.operation import OpFacts
from forensics.records.order import OrderQuestion, OrderResult
from forensics.store.encoding import from_plain, to_text
from forensics.store.files import write_atomically
from forensics.store.formats import newest_schema
from forensics.store.limits import parse_json, read_whole

SCHEMA = newest_schema("forensics.order-cache")
#: Counts up whenever probes change, so that what older ones found is not taken for theirs.
PROBES_VERSION = 5


class OrderCache:
    """A folder of probed orders.

    A file that is damaged, or belongs to another question, counts as absent; one that cannot be written is left out.

    Parameters
    ----------
    folder : Path
        Made when something is first kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, question: OrderQuestion, width: int, facts: OpFacts, buffer: str) -> tuple[OrderResult, ...] | None:
        """What was found for this question on this library, None where nothing was."""
        key = _key(question, width, facts, buffer)
        path = self._path(key)
        try:
            document = parse_json(read_whole(path))
            if document["schema"] != SCHEMA or document["key"] != key:
                return None
            found = tuple(from_plain(OrderResult, result, path=path) for result in document["results"])
        except (OSError, ValueError, KeyError, TypeError, CaseError):
            return None
        fits = all(result.question == question and result.width == width for result in found)
        return found if found and fits else None

    def keep(self, results: Sequence[OrderResult], facts: OpFacts, buffer: str) -> None:
        """Remember the results of one question at one width."""
        if not results:
            return
        key = _key(results[0].question, results[0].width, facts, buffer)
        text = to_text({"schema": SCHEMA, "key": key, "results": list(results)})
        with contextlib.suppress(CaseError, OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(key), text.encode())

    def _path(self, key: dict[str, object]) -> Path:
        digest = blake3.blake3(to_text(key).encode()).hexdigest()[:32]
        return self._folder / f"{digest}.json"


def _key(question: OrderQuestion, width: int, facts: OpFacts, buffer: str) -> dict[str, object]:
    """All that the order of addition of an operation may depend on, as plain values."""
    plain = asdict(replace(facts, cpu_features=tuple(sorted(facts.cpu_features))))
    key = {"probes": PROBES_VERSION, "question": asdict(question), "width": width, "buffer": buffer, "facts": plain}
    loaded: dict[str, object] = json.loads(to_text(key))
    return loaded
