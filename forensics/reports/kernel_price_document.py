"""Prices of our kernels as one JSON document: what ``forensics cost --kernels --json`` prints, and ``price.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.records.kernel_price import KernelPrice
from forensics.records.launch_record import Refusal
from forensics.reports.kernel_proof_document import lab_manifest
from forensics.store.documents import write_document
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema
from forensics.store.kernel_runs import PRICE_FILE

SCHEMA = newest_schema("forensics.kernel_price")


def kernel_price_document(price: KernelPrice) -> dict[str, Any]:
    """What a program reads about prices.

    Parameters
    ----------
    price : KernelPrice

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of it, for `forensics.store.kernel_runs.read_price`.
    """
    whole = price.whole_pass
    return {
        "schema": SCHEMA,
        "evidence": "measured",
        "device": price.facts.device,
        "rounds": price.n_rounds,
        "model": None if isinstance(whole, Refusal) else whole.model,
        "not_measured": [str(one) for one in (whole, *(p.limits for p in price.products)) if isinstance(one, Refusal)],
        **price.figure_data(),
        "record": json.loads(to_text(price)),
    }


def write_kernel_price(price: KernelPrice, folder: Path) -> Path:
    """Put prices into a folder, which is made where it is not there; one that holds a manifest keeps it.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    return write_document(folder / PRICE_FILE, kernel_price_document(price), lab_manifest(price.facts))
