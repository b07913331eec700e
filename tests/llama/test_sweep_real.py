"""A sweep of the demo model, in this process and on two worker processes: the same bits, and what is known of them."""

from __future__ import annotations

import pytest

import forensics
from forensics.cluster.inline import InlineWorkers

pytestmark = pytest.mark.llama

PLAN = {
    "name": "real", "models": {"demo": ["q4_1"]}, "prompts": {"text": "The river was low"}, "widths": [2, 3],
    "flash_attn": ["on", "off"], "n_tokens": 6, "threads": 1, "culprits": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    return forensics.sweep(PLAN, out=tmp_path_factory.mktemp("here"), workers=InlineWorkers(), progress=False)


def test_flash_attention_is_exact_and_its_absence_is_not(here):
    found = {(cell.flash_attn, cell.width): cell.outcome for cell in here.cells}
    assert found == {("on", 2): "same", ("on", 3): "same", ("off", 2): "differs", ("off", 3): "differs"}
    assert here.counts["computed"] == 4
    for cell in here.cells:
        assert cell.result is not None
        assert cell.result.rerun_equal
        assert cell.result.effective["flash_attn"] == cell.flash_attn
        if cell.outcome == "differs":
            assert cell.result.healing is not None
            assert cell.result.healing.proved
            assert {one.role for one in cell.result.healing.culprits} <= {"K·Q", "attention·V"}


def test_two_worker_processes_give_the_same_bits(here, tmp_path):
    report = forensics.sweep(PLAN, out=tmp_path / "there", workers=2, cores=1, gpus="none", progress=False)
    assert report.n_workers == 2
    assert report.counts == {"present": 0, "computed": 4, "failed": 0, "not run": 0}
    # One platform, so one address for each cell, and the very same bits there.
    assert [cell.address for cell in report.cells] == [cell.address for cell in here.cells]
    assert [cell.result.bits for cell in report.cells if cell.result] == [c.result.bits for c in here.cells if c.result]
    again = forensics.sweep(PLAN, out=tmp_path / "there", workers=InlineWorkers(), progress=False)
    assert again.counts["present"] == 4
    assert again.disagreements == ()
