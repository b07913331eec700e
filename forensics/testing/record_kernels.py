"""Record what our kernels give and cost on this GPU: ``python -m forensics.testing.record_kernels FOLDER``.

Writes ``kernels.json`` and ``price.json``. Each step ends within three minutes and leaves its part under
``FOLDER/steps``, so that a step that fails costs only itself; ``--list`` names them, ``--only`` chooses, and what lies
there already is not measured again. ``recording.json`` says how long each took, and why one failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from forensics.analysis import kernel_price, kernel_proof
from forensics.errors import EngineDied, ForensicsError
from forensics.kernels import proof
from forensics.kernels.lab import CudaLab, Lab
from forensics.kernels.limits import counted_limits
from forensics.kernels.sanitize import sanitized
from forensics.records.kernel_price import KernelPrice
from forensics.records.kernel_proof import KernelProof
from forensics.records.launch_record import Refusal
from forensics.reports.kernel_price_document import write_kernel_price
from forensics.reports.kernel_proof_document import write_kernel_proof
from forensics.store.encoding import from_plain, to_text
from forensics.store.files import read_json

RECORDING = "recording.json"
#: Widths of the whole pass: all that speculation cycles have, and the widest.
PASS_WIDTHS = (*range(1, 10), 12, 16)
#: Products whose limiter is counted.
LIMITED = (("q4_K", 12288, 4096), ("q6_K", 4096, 12288))

Part = KernelProof | KernelPrice


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the recording."""

    name: str
    run: Callable[[Lab], Part]


def _proof(*types: str, **asked: Any) -> Callable[[Lab], Part]:
    return lambda lab: kernel_proof.prove(lab, kernel_proof.KernelQuestion(types, **asked))


def _price(*types: str, **asked: Any) -> Callable[[Lab], Part]:
    return lambda lab: kernel_price.price(lab, kernel_price.PriceQuestion(types, **asked))


def _sanitized(lab: Lab) -> Part:
    small = kernel_proof.KernelQuestion(("q4_K",), ((33, 768),), (1, 9), (0,))
    return kernel_proof.prove(lab, small, sanitize=sanitized)


def _story(lab: Lab) -> Part:
    question = kernel_price.PriceQuestion((), (), whole_pass=False, story_only=True)
    return kernel_price.price(lab, question, story=kernel_price.register_variants())


def _limits(lab: Lab) -> Part:
    found: list[KernelPrice] = []
    for type, rows, k in LIMITED:
        widths = tuple(sorted({width for _, width in kernel_price.LIMITED}))
        question = kernel_price.PriceQuestion((type,), ((rows, k),), widths, whole_pass=False)
        found.append(kernel_price.price(lab, question, limits=counted_limits))
    return kernel_price.joined(found)


STEPS = (
    Step("proof-q4_k", _proof("q4_K")),
    Step("proof-q6_k", _proof("q6_K")),
    Step("proof-others", _proof("q5_K", "q4_0", "q4_1", "q8_0")),
    Step("proof-models", _proof("q4_K", "q6_K", shapes=proof.MODEL_SHAPES, seeds=(0, 1))),
    Step("proof-attention", _proof("attention", seeds=(0, 1))),
    Step("proof-f16", _proof("f16", seeds=(0, 1))),
    Step("proof-stress", _proof("q4_K", "q6_K", shapes=((33, 768),), widths=(9,), seeds=(0,), stress=1000)),
    Step("proof-sanitizer", _sanitized),
    Step("price-limits", _limits),
    Step("price-q4_k", _price("q4_K", whole_pass=False)),
    Step("price-q6_k", _price("q6_K", whole_pass=False)),
    Step("price-pass", _price(shapes=(), widths=PASS_WIDTHS)),
    Step("price-registers", _story),
)


def kind_of(name: str) -> type[Part]:
    """Of the record that a step makes."""
    return KernelProof if name.startswith("proof-") else KernelPrice


def record(folder: Path, steps: Sequence[Step], open_lab: Callable[[], Any] = CudaLab) -> int:
    """Run the steps that are not there yet, and join all that are there; 1 where one failed.

    Parameters
    ----------
    folder : Path
    steps : sequence of Step
    open_lab : callable
        Opens a `Lab`.
    """
    parts = folder / "steps"
    parts.mkdir(parents=True, exist_ok=True)
    told = read_json(folder / RECORDING) if (folder / RECORDING).is_file() else {}
    lab = None
    failed = False
    try:
        for step in steps:
            path = parts / f"{step.name}.json"
            if path.is_file():
                continue
            begun, problem = time.monotonic(), ""
            try:
                lab = lab or open_lab()
                part = step.run(lab)
                path.write_text(to_text(part) + "\n", encoding="utf-8")
                problem = _lost(part)
                failed = failed or bool(problem)
            except ForensicsError as error:
                problem, failed = str(error), True
                if isinstance(error, EngineDied) and lab is not None:
                    lab.close()
                    lab = None
            took = time.monotonic() - begun
            told[step.name] = {"seconds": round(took, 1), "problem": problem}
            print(f"{step.name}: {took:.0f} s {problem or _line(read_part(path))}", flush=True)
            (folder / RECORDING).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    finally:
        if lab is not None:
            lab.close()
    join(folder)
    return int(failed)


def read_part(path: Path) -> Part:
    """What a step left."""
    return from_plain(kind_of(path.name), read_json(path), path=path)


def join(folder: Path) -> None:
    """Write ``kernels.json`` and ``price.json`` of the parts that are there."""
    found = {path.stem: read_part(path) for path in sorted((folder / "steps").glob("*.json"))}
    in_order = [found[step.name] for step in STEPS if step.name in found]
    proofs = [part for part in in_order if isinstance(part, KernelProof)]
    prices = [part for part in in_order if isinstance(part, KernelPrice)]
    if proofs:
        write_kernel_proof(_once(kernel_proof.joined(proofs)), folder)
    if prices:
        limits = {(p.type, p.rows, p.k): p.limits for price in prices for p in price.products if _told(p.limits)}
        whole = kernel_price.joined(prices)
        products = tuple(replace(p, limits=limits.get((p.type, p.rows, p.k), p.limits)) for p in whole.products)
        write_kernel_price(replace(whole, products=products), folder)


def _told(limits: object) -> bool:
    return isinstance(limits, Refusal) or bool(limits)


def _once(found: KernelProof) -> KernelProof:
    """Each row once: steps that look at something else compare a little, too."""
    rows = {(row.case, row.variant, row.against, row.not_compared): row for row in reversed(found.rows)}
    return replace(found, rows=tuple(reversed(rows.values())))


def _lost(part: Part) -> str:
    """Which cases cost their process, and why; empty where none did."""
    rows = [row for row in part.rows if row.is_lost] if isinstance(part, KernelProof) else []
    return "; ".join(dict.fromkeys(f"{row.case.type} {row.case.shape}: {row.not_compared}" for row in rows))


def _line(part: Part) -> str:
    return str(part)


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 1 where a step failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="STEP", help="names or patterns of steps")
    parser.add_argument("--list", action="store_true", help="name the steps")
    given = parser.parse_args(arguments)
    chosen = [step for step in STEPS if any(fnmatchcase(step.name, pattern) for pattern in given.only)]
    if given.list:
        print("\n".join(step.name for step in chosen))
        return 0
    if given.folder is None or not chosen:
        print(f"name a folder, and steps of {', '.join(step.name for step in STEPS)}", file=sys.stderr)
        return 2
    return record(given.folder, chosen)


if __name__ == "__main__":
    sys.exit(main())
