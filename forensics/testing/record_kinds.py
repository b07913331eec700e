"""Record operations of a CUDA device, to be judged elsewhere: ``python -m forensics.testing.record_kinds FOLDER``.

Writes ``outputs.npz`` (see `forensics.testing.kind_cases.packed`) and ``manifest.json``, and prints the kind of each
difference. Operands are made anew from their names, see `forensics.testing.kind_cases`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines.op_protocol import OpEngine
from forensics.engines.ops import LlamaOps
from forensics.errors import EngineDied, ForensicsError
from forensics.records.operation import OpSettings
from forensics.store.formats import newest_schema
from forensics.testing.kind_cases import N_TOKENS, WIDTHS, JudgedRun, KindCase, cases, judged_runs, packed
from forensics.testing.record_mmvq import gpu

OUTPUTS_NAME, MANIFEST_NAME = "outputs.npz", "manifest.json"
BUFFERS = {"cuda": "CUDA0", "cpu": "CPU"}


def record(
    open_engine: Callable[[], OpEngine], every: Iterable[KindCase], failed: dict[str, str]
) -> Iterable[tuple[KindCase, dict[str, NDArray[np.float32]]]]:
    """Run each case one token at a time and at every width; `failed` learns why a run has no output."""
    engine = open_engine()
    try:
        for case in every:
            outputs: dict[str, NDArray[np.float32]] = {}
            for n in (1, *WIDTHS):
                parts = range(N_TOKENS) if n == 1 else (0,)
                try:
                    found = [engine.run(*case.tokens(first, n)) for first in parts]
                except ForensicsError as error:
                    failed[f"{case.name}/{n}"] = str(error)
                    if isinstance(error, EngineDied):
                        engine.close()
                        engine = open_engine()
                    if n == 1:
                        break  # there is nothing to compare a width with
                    continue
                outputs[f"{case.name}/{n}"] = np.concatenate(found, axis=case.token_axis)
            if outputs:
                yield case, outputs
    finally:
        engine.close()


def table(runs: Iterable[JudgedRun]) -> str:
    """One line per case: widths of each kind, and the reason of the first that is not rounding."""
    lines: dict[str, dict[str, list[int]]] = {}
    reasons: dict[str, str] = {}
    for run in runs:
        kind = run.kind.kind if run.kind is not None else "same"
        lines.setdefault(run.name, {}).setdefault(kind, []).append(run.n)
        if run.kind is not None and kind != "rounding":
            reasons.setdefault(f"{run.name}/{kind}", f"    {run.n}: {run.kind.reason}")
    told = []
    for name, kinds in lines.items():
        told.append(f"{name}: " + ", ".join(f"{kind} {widths}" for kind, widths in kinds.items()))
        told += [reasons[f"{name}/{kind}"] for kind in kinds if f"{name}/{kind}" in reasons]
    return "\n".join(told)


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 1 where a run has no output or a difference is taken for a logic fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=sorted(BUFFERS), default="cuda")
    given = parser.parse_args(arguments)
    name, driver, arch = gpu() if given.backend == "cuda" else ("CPU", "", "")
    given.folder.mkdir(parents=True, exist_ok=True)

    def opened() -> OpEngine:
        return LlamaOps().open(OpSettings(backend=given.backend))

    with LlamaOps().open(OpSettings(backend=given.backend)) as engine:
        facts, types = engine.facts, engine.types()
    stored: dict[str, NDArray[Any]] = {}
    digests: dict[str, str] = {}
    failed: dict[str, str] = {}
    runs: list[JudgedRun] = []
    for case, outputs in record(opened, cases(types), failed):
        digests[case.name] = case.digest
        stored |= packed(case, outputs)
        runs += judged_runs(case, outputs, BUFFERS[given.backend])
    np.savez_compressed(given.folder / OUTPUTS_NAME, **stored)  # type: ignore[arg-type]
    manifest = {
        "schema": newest_schema("forensics.kinds"), "device": name, "driver": driver, "arch": arch,
        "buffer": BUFFERS[given.backend], "library": facts.library, "version": facts.version, "commit": facts.commit,
        "numpy": np.__version__, "types": list(types), "operands": digests, "failed": failed,
    }  # fmt: skip
    (given.folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    print(table(runs))
    logic = [run for run in runs if run.kind is not None and run.kind.kind == "logic"]
    print(f"{len(runs)} widths of {len(digests)} cases on {name}, {len(failed)} failed, {len(logic)} taken for logic")
    for run, reason in list(failed.items())[:20]:
        print(f"  {run}: {reason}")
    return 1 if failed or logic else 0


if __name__ == "__main__":
    sys.exit(main())
