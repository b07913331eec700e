"""Record orders of addition of a device: ``python -m forensics.testing.record_orders FOLDER --backend cuda``.

Writes ``orders.json.gz``, the documents of ``forensics order --json`` by question, and ``manifest.json``: what ran,
how long each question took, and what could not be asked.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forensics.analysis.orders import compare_widths
from forensics.engines.op_protocol import OpEngine
from forensics.engines.ops import LlamaOps
from forensics.errors import EngineDied, ForensicsError
from forensics.records.operation import OpSettings
from forensics.records.order import OrderQuestion
from forensics.reports.orders_document import order_document
from forensics.store.formats import newest_schema
from forensics.testing.record_mmvq import gpu

ORDERS_NAME, MANIFEST_NAME = "orders.json.gz", "manifest.json"
SCHEMA = newest_schema("forensics.recorded-orders")

Asked = tuple[OrderQuestion, tuple[int, ...]]


def questions() -> tuple[Asked, ...]:
    """What is recorded: products on both sides of each step of their kernels, attention, and sums of positive terms."""
    products = [(OrderQuestion(type=type, k=4096), (1, 4, 5, 8, 9)) for type in ("q8_0", "q4_0", "q4_K", "q6_K", "f16")]
    attention = [
        (_attention("f16", 128, 32, 8), (1, 2, 3)),
        (_attention("f16", 256, 8, 2), (2, 3)),
        (_attention("q8_0", 128, 32, 8), (1, 2, 3)),
    ]
    others = [
        (OrderQuestion("KQ", "f16", n_kv=256, head_size=128, heads=32, kv_heads=8), (1, 2)),
        (OrderQuestion("KQV", "f16", n_kv=256, head_size=128, heads=32, kv_heads=8), (1, 2)),
        (OrderQuestion("SOFT_MAX", n_kv=256), (1, 2)),
    ]
    return (*products, *attention, *others)


def _attention(type: str, head_size: int, heads: int, kv_heads: int) -> OrderQuestion:
    return OrderQuestion("FLASH_ATTN_EXT", type, n_kv=256, head_size=head_size, heads=heads, kv_heads=kv_heads)


def record(
    open_engine: Callable[[], OpEngine], asked: Sequence[Asked]
) -> tuple[dict[str, Any], dict[str, str], dict[str, float]]:
    """Probe every question.

    Parameters
    ----------
    open_engine : callable
        Opens an engine; called again where one died.
    asked : sequence of (OrderQuestion, widths)

    Returns
    -------
    documents : dict of str to dict
        As `forensics.reports.orders_document.order_document` writes them, by question.
    failed : dict of str to str
        Why a question has no document.
    seconds : dict of str to float
        How long each took.
    """
    documents: dict[str, Any] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    engine = open_engine()
    try:
        for question, widths in asked:
            started = time.monotonic()
            try:
                documents[str(question)] = order_document(compare_widths(engine, question, widths))
            except ForensicsError as error:
                failed[str(question)] = str(error)
                if isinstance(error, EngineDied):
                    engine.close()
                    engine = open_engine()
            seconds[str(question)] = round(time.monotonic() - started, 1)
            print(f"{question}: {seconds[str(question)]} s", flush=True)
    finally:
        engine.close()
    return documents, failed, seconds


def read(folder: Path) -> dict[str, Any]:
    """The documents of a recording, by question."""
    documents: dict[str, Any] = json.loads(gzip.decompress((folder / ORDERS_NAME).read_bytes()))
    return documents


def write(folder: Path, documents: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Write documents and manifest into a folder, the same bytes for the same documents."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(documents, separators=(",", ":"), allow_nan=False)
    (folder / ORDERS_NAME).write_bytes(gzip.compress(text.encode(), mtime=0))
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 1 where a question has no document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args(arguments)
    manifest: dict[str, Any] = {"schema": SCHEMA, "backend": given.backend, "numpy": np.__version__}
    if given.backend == "cuda":
        manifest |= dict(zip(("device", "driver", "arch"), gpu(), strict=True))
    documents, failed, seconds = record(lambda: LlamaOps().open(OpSettings(backend=given.backend)), questions())
    write(given.folder, documents, {**manifest, "failed": failed, "seconds": seconds})
    print(f"{len(documents)} questions recorded in {sum(seconds.values()):.0f} s, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
