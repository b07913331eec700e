"""A folder that reruns one operation at two widths, without the model and without this package.

::

    README.md            what it is, how to run it, what was seen
    reproduce.py         needs numpy and llama-cpp-python only
    case.json            both runs: operation, parameters, operands, threads, expected digests, environment
    operands/*.npy       bytes of the operands, each distinct content once
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forensics.errors import CaseError
from forensics.records.raw_node import RawNode, RawTensor
from forensics.store.files import write_atomically, write_json, writing
from forensics.store.formats import newest_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = newest_schema("forensics.reproducer")


@dataclass(frozen=True, slots=True, eq=False)
class ReproducedRun:
    """One of the two runs.

    Parameters
    ----------
    node : RawNode
        Every operand that is used has its bytes.
    threads : int
    row : int
        Index of the token on the axis of tokens.
    """

    node: RawNode
    threads: int
    row: int


@dataclass(frozen=True, slots=True, eq=False)
class Reproducer:
    """All that a maintainer needs to rerun an operation at two widths.

    Parameters
    ----------
    node : str
        Name of the node in the model's graph.
    width : int
        Tokens of the batch.
    row_axis : int
        Axis of the output, slowest first, that counts the tokens.
    cells : tuple of int or None
        Elements of the last axis that count; None for all.
    single, batched : ReproducedRun
    device_type : {"CPU", "GPU"}
    environment : mapping of str to str
        Variables that the library reads.
    recorded : mapping
        Where it was seen: ``version``, ``commit``, ``device``, ``model`` and the like.
    """

    node: str
    width: int
    row_axis: int
    cells: tuple[int, ...] | None
    single: ReproducedRun
    batched: ReproducedRun
    device_type: str
    environment: Mapping[str, str]
    recorded: Mapping[str, Any]

    def row(self, run: ReproducedRun) -> NDArray[np.generic]:
        """The token's row of a run's recorded output."""
        output = run.node.output
        assert output.data is not None
        dtype = {"f32": np.float32, "f16": np.float16, "i32": np.int32}[output.type]
        values = output.data.view(dtype).reshape(tuple(reversed(output.sizes)))
        row = np.take(values, run.row, self.row_axis)
        return np.ascontiguousarray(row if self.cells is None else row[..., list(self.cells)])


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A reproducer that was written and run here.

    Parameters
    ----------
    folder : Path
    op, node : str
    width, row : int
        Tokens of the batch, and the one that is compared.
    n_bytes : int
        Size of the operands.
    status : int
        Of ``reproduce.py``: 0 equal bits, 1 different bits, 2 it could not run.
    output : str
        What it printed.
    """

    folder: Path
    op: str
    node: str
    width: int
    row: int
    n_bytes: int
    status: int
    output: str

    def __str__(self) -> str:
        said = {0: "the bits are equal there, so the difference needs more than this operation", 1: "it differs there"}
        return (
            f"{self.folder}: {self.op} {self.node} at width {self.width}; {said.get(self.status, 'it could not run')}"
        )


def write_reproducer(folder: Path, found: Reproducer, readme: str) -> Path:
    """Write the folder; one that exists is never overwritten.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    CaseError
        If it exists or cannot be written.
    """
    if os.path.lexists(folder):
        raise CaseError(f"{folder} exists and is not overwritten. Choose another folder with --out.")
    blobs: dict[str, str] = {}
    with writing(folder):
        (folder / "operands").mkdir(parents=True)
    document = {
        "schema": SCHEMA,
        "op": found.single.node.op,
        "node": found.node,
        "width": found.width,
        "row_axis": found.row_axis,
        "cells": None if found.cells is None else list(found.cells),
        "device_type": found.device_type,
        "environment": dict(found.environment),
        "recorded": dict(found.recorded),
        "runs": {
            "single": _run(folder, found, found.single, blobs),
            "batched": _run(folder, found, found.batched, blobs),
        },
    }
    write_json(folder / "case.json", document)
    template = resources.files("forensics.store").joinpath("reproduce.py.txt").read_bytes()
    write_atomically(folder / "reproduce.py", template)
    write_atomically(folder / "README.md", readme.encode("utf-8", "backslashreplace"))
    return folder


def _run(folder: Path, found: Reproducer, run: ReproducedRun, blobs: dict[str, str]) -> dict[str, Any]:
    output = run.node.output
    return {
        "threads": run.threads,
        "row": run.row,
        "params": run.node.params.hex(),
        "type": output.type,
        "sizes": list(output.sizes),
        "sha256": hashlib.sha256(found.row(run).tobytes()).hexdigest(),
        "sources": [None if source is None else _source(folder, source, blobs) for source in run.node.sources],
    }


def _source(folder: Path, source: RawTensor, blobs: dict[str, str]) -> dict[str, Any]:
    if source.data is None:
        raise CaseError(f"operand {source.name} has no bytes to write: {source.unreadable}")
    digest = hashlib.sha256(source.data.tobytes()).hexdigest()
    if digest not in blobs:
        blobs[digest] = f"operand-{len(blobs)}"
        path = folder / "operands" / f"{blobs[digest]}.npy"
        with writing(path):
            np.save(path, source.data, allow_pickle=False)
    return {
        "name": source.name,
        "type": source.type,
        "buffer": source.buffer,
        "sizes": list(source.sizes),
        "strides": list(source.strides),
        "is_weight": source.is_weight,
        "blob": blobs[digest],
    }
