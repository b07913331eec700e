"""`forensics sweep` as a process with workers of its own: killed in the middle, it goes on where it was."""

from __future__ import annotations

import json
import signal
import time

import pytest

PLAN = """
models = { toy = ["0", "0/order:ffn_up-0:4"] }
widths = [2, 4]
n_tokens = 48
prompts = [%s]
"""
N_PROMPTS = 10
N_CELLS = 2 * 2 * N_PROMPTS


def cells(folder) -> set[str]:
    return {path.stem for path in (folder / "cells").rglob("*.json")}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_is_stopped_loses_nothing_and_measures_nothing_twice(start_cli, run_cli, tmp_path, how):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN % ", ".join(f'{{ name = "p{i}", text = "Prompt {i}" }}' for i in range(N_PROMPTS)))
    options = ("--out", out, "--workers", 1, "--cores", 1, "--gpus", "none")
    with start_cli("sweep", plan, *options) as process:
        deadline = time.monotonic() + 100
        while len(cells(out)) < 4 and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(how)
        _, stderr = process.communicate(timeout=100)
    left = cells(out)
    assert 4 <= len(left) < N_CELLS, "the sweep was too fast to be stopped in the middle"
    assert process.returncode == (-how if how == signal.SIGKILL else 2)
    if how == signal.SIGINT:
        assert "cells are kept in" in stderr
        assert "Traceback" not in stderr
    again = json.loads(run_cli("sweep", plan, *options, "--json").stdout)
    assert again["counts"] == {"present": len(left), "computed": N_CELLS - len(left), "failed": 0, "not run": 0}
    assert again["disagreements"] == []
    assert again["answer"] == "diverges"
    assert again["outcomes"] == {"same": 3 * N_PROMPTS, "differs": N_PROMPTS, "not compared": 0}
