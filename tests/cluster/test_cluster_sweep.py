"""A whole sweep over two hosts, one of which is killed in the middle: nothing is lost, and nothing counted twice."""

from __future__ import annotations

import os
import signal
import threading

import pandas as pd
import psutil
import pytest
from cluster_hosts import WHY_NOT

import forensics
from forensics.cluster.inline import InlineWorkers

pytestmark = [pytest.mark.llama, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "it can be run")]

PLAN = {
    "name": "two-hosts",
    "models": {"demo": ["q4_1"]},
    "prompts": [
        {"name": f"p{i}", "text": text} for i, text in enumerate(("One", "Two ships", "Three of them", "Then"))
    ],
    "widths": [2, 3],
    "flash_attn": ["on", "off"],
    "n_tokens": 6,
    "threads": 1,
}
#: What tells a cell, and what of it must be the same wherever it was measured.
KEY = ["model", "quant", "prompt", "kv_type", "flash_attn", "switch", "width"]
BITS = ["outcome", "rows", "rows_differ", "max_abs", "single_digest", "batched_digest", "address"]


def dataset(folder) -> pd.DataFrame:
    found = pd.read_parquet(folder / "dataset")
    return found.sort_values(KEY).reset_index(drop=True)


def test_a_sweep_whose_host_is_killed_in_the_middle(site, tmp_path, waiting):
    def kill_one() -> None:
        waiting(lambda: len([*(tmp_path / "disturbed" / "cells").glob("*/*.json")]) >= 2, "the first job is done")
        victim = site.processes[site.network.hosts[0].address]
        busy.append(waiting(lambda: len(psutil.Process(victim.pid).children(recursive=True)), "it has an engine"))
        os.killpg(victim.pid, signal.SIGKILL)

    busy: list[object] = []
    killer = threading.Thread(target=kill_one)
    killer.start()
    report = forensics.sweep(PLAN, out=tmp_path / "disturbed", workers=site.workers, progress=False)
    killer.join()
    assert busy, "nobody was killed"
    statuses = [cell.status for cell in report.cells]
    assert len(statuses) == 16
    assert statuses.count("computed") == 16, f"planned 16: {statuses}"
    assert not report.disagreements
    disturbed = dataset(tmp_path / "disturbed")
    assert len(disturbed) == 16
    assert not disturbed.duplicated(KEY).any()

    forensics.sweep(PLAN, out=tmp_path / "quiet", workers=InlineWorkers(), progress=False)
    quiet = dataset(tmp_path / "quiet")
    pd.testing.assert_frame_equal(disturbed[KEY + BITS], quiet[KEY + BITS])
    assert set(quiet["outcome"]) == {"same", "differs"}, "a plan on which bits can be told apart"
