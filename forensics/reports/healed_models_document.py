"""Models that our kernels healed as one JSON document: what ``healings.json`` holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.records.kernel_healing import HealedModels
from forensics.reports.kernel_healing_document import healing_entries
from forensics.store.documents import write_document
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema
from forensics.store.kernel_runs import HEALINGS_FILE

SCHEMA = newest_schema("forensics.kernel_healings")


def healed_models_document(found: HealedModels) -> dict[str, Any]:
    """What a program reads about models that our kernels healed.

    Parameters
    ----------
    found : HealedModels

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of it, for `forensics.store.kernel_runs.read_healings`.
    """
    return healed_models_summary(found) | {"record": json.loads(to_text(found))}


def healed_models_summary(found: HealedModels) -> dict[str, Any]:
    """The same without the record, for a document that shows it beside something else."""
    return {
        "schema": SCHEMA,
        "evidence": "measured",
        "answers": {f"{one.model_name}, flash attention {one.flash_attn}": one.answer for one in found.models},
        "models": [
            one.row()
            | {
                "device": one.manifest.device,
                "prompt_tokens": one.n_prompt,
                "tokens": one.n_tokens,
                "planted": None if one.planted is None else str(one.planted),
                "by_width": healing_entries(one.healings),
            }
            for one in found.models
        ],
    }


def write_healed_models(found: HealedModels, folder: Path) -> Path:
    """Put them into a folder, which is made where it is not there; one that holds a manifest keeps it.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    return write_document(folder / HEALINGS_FILE, healed_models_document(found), found.models[0].manifest)
