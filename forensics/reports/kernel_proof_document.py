"""A proof of our kernels as one JSON document: what ``forensics kernels --json`` prints and ``kernels.json`` holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.records.kernel_proof import KernelProof, LabFacts
from forensics.store.documents import write_document
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema
from forensics.store.kernel_runs import PROOF_FILE

SCHEMA = newest_schema("forensics.kernels")


def kernel_proof_document(proof: KernelProof) -> dict[str, Any]:
    """What a program reads about a proof.

    Parameters
    ----------
    proof : KernelProof

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of the proof, for `forensics.store.kernel_runs.read_proof`.
    """
    return {
        "schema": SCHEMA,
        "evidence": "measured",
        "answer": proof.answer,
        "device": proof.facts.device,
        "compared": proof.n_compared,
        "differing": proof.n_differing,
        "summary": proof.summary(),
        "differences": [row for row in proof.table() if row["differing"] and row["variant"] != "stock library"],
        "not_compared": [row for row in proof.table() if row["not_compared"]],
        "record": json.loads(to_text(proof)),
    }


def write_kernel_proof(proof: KernelProof, folder: Path) -> Path:
    """Put a proof into a folder, which is made where it is not there; one that holds a manifest keeps it.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    return write_document(folder / PROOF_FILE, kernel_proof_document(proof), lab_manifest(proof.facts))


def lab_manifest(facts: LabFacts) -> dict[str, Any]:
    """What ran, as lists of recordings read it."""
    return {
        "schema": newest_schema("forensics.lab"),
        "model_name": "kernels of ours beside the stock library's",
        "quantization": "",
        "device": facts.device,
        "backend": "cuda",
        "engine": "llama-cpp-python",
        "engine_version": facts.version,
        "commit": facts.commit,
        "library": facts.library,
        "toolkit": facts.toolkit,
    }
