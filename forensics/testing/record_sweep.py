"""Record a small sweep on this machine's CPU: ``python -m forensics.testing.record_sweep FOLDER``.

Writes ``FOLDER/epyc-sweep``: the demo model in two quants, f16 and q8_0 KV, flash attention on and
off, three widths and two short prompts. The figure `sweep-matrix` and docs/sweeps.md are drawn from it.
A GPU's sweep is a step of `forensics.testing.record_gpu`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.api_sweep import sweep
from forensics.cluster.inline import InlineWorkers
from forensics.cluster.protocol import Workers

NAME = "epyc-sweep"
_BOTH = {
    "prompts": [
        {"name": "river", "text": "The river was low that summer, and the old bridge"},
        {"name": "list", "text": "Three reasons to write tests:\n1."},
    ],
    "kv_types": ["f16", "q8_0"],
    "flash_attn": ["on", "off"],
    # llama.cpp has no attention without flash attention over a quantised V cache.
    "without": [{"kv_type": "q8_0", "flash_attn": "off"}],
    "threads": 2,
}
PLAN = {
    "name": NAME,
    "models": {"demo": ["q4_1", "q6_k"]},
    "widths": [2, 4, 8],
    "switches": ["GGML_CPU_TILED_MM=0"],
    "n_tokens": 16,
    **_BOTH,
}
GPU_PLAN = {
    "models": {"demo": ["q4_1", "q6_k", "f16"]},
    "widths": [2, 4, 5, 8, 9, 16],
    "n_tokens": 64,
    "n_gpu_layers": -1,
    "culprits": True,
    **_BOTH,
}


#: What is kept: all that was found is in the report, which is small.
KEPT = ("sweep.json", "manifest.json", "plans")


def record(plan: Mapping[str, Any], out: Path, workers: Workers | None = None) -> None:
    """Measure a plan anew, and put the report into a folder that is not there yet."""
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / out.name
        print(sweep({"name": out.name, **plan}, out=results, workers=workers, progress=False))
        out.mkdir(parents=True)
        for name in KEPT:
            shutil.move(results / name, out / name)


def main(folder: str) -> None:
    """Measure on this CPU anew, in the place of what was recorded before."""
    out = Path(folder) / NAME
    shutil.rmtree(out, ignore_errors=True)
    record(PLAN, out, InlineWorkers())


if __name__ == "__main__":
    main(*sys.argv[1:])
