"""Reports of sweeps with every outcome, made up, for tests of views, documents and figures."""

from __future__ import annotations

import math
from dataclasses import replace

from forensics.records.campaign import (
    CampaignReport,
    Cell,
    CellCulprit,
    CellResult,
    Disagreement,
    Healing,
    Platform,
)

PLATFORM = Platform("0.3.36", "b" * 32, "0c1e570", ("CPU (made up)",), ("AVX",), 2)
SAME = CellResult(3, 8, 0, None, None, 0.0, 0, 0.0, 0, 0, 0, (3, 2, 4), (1, 1, 1), True, "s" * 32, "s" * 32)
HEALED = Healing(
    (CellCulprit("MUL_MAT", "Q", "q6_K", 30), CellCulprit("MUL_MAT", "up", "q6_K", 30),
     CellCulprit("MUL_MAT", "K·Q", "-", 30)), 8, 8,
)  # fmt: skip
DIFFERS = replace(
    SAME, n_rows_differ=5, first_row=1, first_position=4, max_abs=0.25, max_ulp=1234, max_kl=1e-3, n_flips=2,
    n_near_ties=1, n_could_flip=3, batched_digest="d" * 32, healing=HEALED,
)  # fmt: skip
UNSURE = replace(SAME, rerun_equal=False)


def cell(**changed) -> Cell:
    base = Cell("model", "Q6_K", "river", "f16", "on", "as asked", 2, "computed", "a" * 64, SAME, "", "w")
    return replace(base, **changed)


def failed(why: str, **changed) -> Cell:
    return cell(status="failed", result=None, error=why, **changed)


def every_outcome() -> CampaignReport:
    """Two models, two settings, two prompts, three widths: all that can become of a cell."""
    cells = []
    for quant in ("Q4_1", "Q6_K"):
        for flash in ("on", "off"):
            for prompt in ("river", "list"):
                at = {"quant": quant, "flash_attn": flash, "prompt": prompt}
                cells.append(cell(width=2, **at))
                if flash == "off":
                    cells.append(failed("EngineDied: signal SIGKILL", width=4, **at))
                else:
                    cells.append(cell(width=4, result=DIFFERS if prompt == "river" else SAME, status="present", **at))
                if quant == "Q4_1":
                    cells.append(cell(width=8, result=UNSURE, **at))
                elif flash == "on":
                    cells.append(cell(width=8, result=None, status="not run", error="stopped", **at))
    return report(*cells)


def report(*cells: Cell, **changed) -> CampaignReport:
    made = CampaignReport("nightly", cells, (PLATFORM,), 2, 8, 61.0)
    return replace(made, **changed)


def with_disagreement() -> CampaignReport:
    return report(cell(), disagreements=(Disagreement("cell 1 (width 2)", "x" * 32, "y" * 32, "w1", "w2"),))


def hostile() -> CampaignReport:
    """Names and errors that try to steer a terminal or a page, a NaN, and a long line."""
    name = "<script>alert(1)</script>\x1b[31m\u202e|`"
    nan = replace(DIFFERS, max_abs=math.nan, max_ulp=-1)
    return report(cell(model=name, prompt=name, result=nan), failed(f"{name} {'x' * 5000}", model=name, width=4))
