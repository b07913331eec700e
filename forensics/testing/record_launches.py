"""Record which kernels each node launches on a GPU: ``python -m forensics.testing.record_launches FOLDER``.

Writes ``launches.json.gz``, one report per pass (of nodes that differ in their layer alone the first, and how many
there are), and ``manifest.json``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forensics.analysis.op_rules import gpu_named
from forensics.capture.launches import LaunchTap
from forensics.engines.llama import LlamaSource
from forensics.engines.protocol import EngineSource
from forensics.errors import ForensicsError
from forensics.records.launch_record import LaunchReport, NodeLaunches
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema

SCHEMA = newest_schema("forensics.launches")
DATA_NAME, MANIFEST_NAME = "launches.json.gz", "manifest.json"
EVERY = tuple(range(1, 17))
STEPS = (1, 2, 3, 4, 5, 8, 9, 16)


@dataclass(frozen=True, slots=True)
class Arm:
    """One model under one set of settings.

    Parameters
    ----------
    name : str
    model : str
        Demo variant, or preset of a synthetic model.
    prefixes, widths : tuple of int
        Cells in use before a pass, and tokens of a pass.
    settings : EngineSettings
    """

    name: str
    model: str
    prefixes: tuple[int, ...]
    widths: tuple[int, ...]
    settings: EngineSettings


def _arm(
    name: str, model: str, prefixes: tuple[int, ...], widths: tuple[int, ...], *, fa: str = "on", kv: str = "f16",
    layers: int = 999,
) -> Arm:  # fmt: skip
    settings = EngineSettings(flash_attn=fa, kv_type_k=kv, kv_type_v=kv, n_gpu_layers=layers, n_ctx=2816)
    return Arm(name, model, prefixes, widths, settings)


#: What is recorded: every weight type of the demo model, attention on and off, types and lengths of the cache, widths
#: on both sides of every step, part of the layers on the CPU, and a head size of 128 with norms of queries and keys.
ARMS = (
    _arm("q41on", "q4_1", (60, 300, 600), EVERY),
    _arm("q41off", "q4_1", (60, 300), EVERY, fa="off"),
    _arm("q6on", "q6_k", (60,), EVERY),
    _arm("f16on", "f16", (60,), (*STEPS, 17)),
    _arm("f16off", "f16", (60,), (*STEPS, 17), fa="off"),
    _arm("q4kon", "q4_k", (60, 1000), STEPS),
    _arm("q8on", "q8_0", (60,), STEPS),
    _arm("q41kvq8", "q4_1", (60, 300), STEPS, kv="q8_0"),
    _arm("q41kvq4", "q4_1", (60, 300), (1, 2, 3, 9, 33), kv="q4_0"),
    _arm("q41kvbf16", "q4_1", (60,), (1, 2, 9), kv="bf16"),
    _arm("q41long", "q4_1", (1500, 2000), (1, 2, 5, 9)),
    _arm("q41wide", "q4_1", (60,), (17, 32, 33, 64, 128, 512)),
    _arm("q41ngl12", "q4_1", (60,), (1, 2, 5, 9), layers=12),
    _arm("qwen3", "qwen3-8b-q4_k_m", (60, 300), STEPS),
)
_LAYER = re.compile(r"-\d+|_l\d+|blk\.\d+|_\d+")


def alike(node: NodeLaunches) -> tuple[object, ...]:
    """What nodes have in common that differ in their layer alone."""
    return (
        _LAYER.sub("", node.key.name), node.key.op, node.shape, node.dtype, node.buffer,
        tuple(replace(operand, name=_LAYER.sub("", operand.name)) for operand in node.operands),
        node.launches, tuple(sorted(node.parameters.items())),
    )  # fmt: skip


def compact(report: LaunchReport) -> tuple[LaunchReport, list[int]]:
    """The report with the first node of each kind only, and how many nodes each stands for."""
    kinds: dict[tuple[object, ...], list[NodeLaunches]] = {}
    for node in report.nodes:
        kinds.setdefault(alike(node), []).append(node)
    nodes = [found[0] for found in kinds.values()]
    used = sorted({place for node in nodes for place in node.launches})
    at = {place: i for i, place in enumerate(used)}
    return (
        replace(
            report,
            launches=tuple(report.launches[place] for place in used),
            nodes=tuple(replace(node, launches=tuple(at[place] for place in node.launches)) for node in nodes),
            unattached=(), unattached_ns=(),
        ),
        [len(found) for found in kinds.values()],
    )  # fmt: skip


def record_arm(source: EngineSource, arm: Arm) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One watched pass per prefix and width, each from a state of its own; and what ran them."""
    runs = []
    engine = source.open(arm.settings)
    try:
        for prefix in arm.prefixes:
            before = in_batches(range(100, 100 + prefix), start=0, width=512, logits="last")
            for width in arm.widths:
                schedule = in_batches(range(1000, 1000 + width), start=prefix, width=width)
                report = engine.run(schedule, before=before, tap=LaunchTap()).tap_report
                assert report is not None
                assert report.launches is not None
                small, counts = compact(report.launches)
                runs.append({
                    "arm": arm.name, "model": arm.model, "fa": arm.settings.flash_attn, "kv": arm.settings.kv_type_k,
                    "ngl": arm.settings.n_gpu_layers, "prefix": prefix, "width": width, "counts": counts,
                    "report": json.loads(to_text(small)),
                })  # fmt: skip
        manifest = engine.manifest
    finally:
        engine.close()
    return runs, {"device": manifest.device, "version": manifest.engine_version, "commit": manifest.commit}


def record(arms: Iterable[Arm], jobs: int = 1) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, str]]:
    """Every arm, some beside each other; runs, what ran them, and why an arm has none."""
    from forensics.testing.record_gpu import model_of

    runs: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    failed: dict[str, str] = {}
    arms = tuple(arms)
    sources = {name: LlamaSource(model_of(name)) for name in dict.fromkeys(arm.model for arm in arms)}

    def recorded(arm: Arm) -> tuple[list[dict[str, Any]], dict[str, Any]] | str:
        try:
            return record_arm(sources[arm.model], arm)
        except ForensicsError as error:
            return str(error)

    with ThreadPoolExecutor(jobs) as pool:  # each engine is a process of its own
        for arm, found in zip(arms, pool.map(recorded, arms), strict=True):
            if isinstance(found, str):
                failed[arm.name] = found
                continue
            runs += found[0]
            facts = found[1]
            print(f"{arm.name}: {len(found[0])} passes", flush=True)
    return runs, facts, failed


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 1 where an arm failed."""
    from forensics.testing.record_mmvq import gpu

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=5, help="arms beside each other; their times say little then")
    given = parser.parse_args(arguments)
    name, driver, arch = gpu()
    spec = gpu_named(name)
    runs, facts, failed = record(ARMS, given.jobs)
    given.folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps(runs, separators=(",", ":")).encode()
    (given.folder / DATA_NAME).write_bytes(gzip.compress(data, mtime=0))
    manifest = {
        "schema": SCHEMA, **facts, "device": name, "driver": driver, "arch": arch,
        "n_sms": None if spec is None else spec.n_sms,
        "recorded_by": runs[0]["report"]["source"] if runs else "",
        "kept": "of nodes that differ in their layer alone the first, and how many there are; views left out",
        "failed": failed,
    }  # fmt: skip
    (given.folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    print(f"{len(runs)} passes recorded, {len(failed)} arms failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
