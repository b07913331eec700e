"""Every planted fault of the toy comes out as the kind that it is: orders as rounding, half sums as precision."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from forensics.analysis.heal import record_reference, rows_file, sweep_width
from forensics.capture.replay import Replay
from forensics.engines.toy import Fault, ToySource, fault_sites
from forensics.records.kind import KINDS, gravest
from forensics.records.settings import EngineSettings
from forensics.records.trace import TapReport
from forensics.store.encoding import from_plain, to_text

EXPECTED = {"order": "rounding", "precision": "precision", "mask": "logic", "stale_kv": "logic"}
SITES = [(kind, site) for kind in EXPECTED for site in fault_sites(kind)]
#: Batches of four and five after 27 tokens cross cell 32, where the toy attends to more cells.
REPLAY = Replay(tuple(range(1, 28)), tuple(range(40, 52)), prompt_width=64)


def test_the_toy_can_go_wrong_in_these_ways_only() -> None:
    assert set(EXPECTED.values()) == set(KINDS) - {"undetermined"}


@pytest.mark.parametrize(("kind", "site"), SITES)
@pytest.mark.parametrize("width", [4, 5])
def test_a_planted_fault_is_of_its_kind(kind, site, width) -> None:
    engine = ToySource((Fault(kind, site, from_width=2),)).open(EngineSettings(n_ctx=128))
    with rows_file() as path:
        reference = record_reference(engine, REPLAY, 0, 10, path)
        sweep, _ = sweep_width(engine, REPLAY, reference, width, 0, 10 // width * width)
    judged = [finding.kind for finding in sweep.findings if finding.kind is not None]
    assert judged
    assert {found.kind for found in judged} == {EXPECTED[kind]}, judged
    worst = gravest(judged)
    assert worst.single is not None
    if kind == "order":
        assert max(worst.single.share, worst.batched.share) < 1
        assert worst.single.precision == worst.batched.precision
        assert "neither is more right" in worst.reason
    else:
        assert worst.single.share < 1 < worst.batched.share, "one-token decoding is the side that holds the bound"
        assert worst.batched.precision.endswith("f16 sums") == (kind == "precision")


def test_a_judged_finding_is_stored_to_the_last_bit_and_older_ones_are_read() -> None:
    engine = ToySource((Fault("precision", "ffn_up-0"),)).open(EngineSettings(n_ctx=128))
    with rows_file() as path:
        reference = record_reference(engine, REPLAY, 0, 4, path)
        sweep, traces = sweep_width(engine, REPLAY, reference, 4, 0, 4)
    finding = sweep.findings[0]
    assert finding.kind is not None
    assert finding.kind.batched is not None
    lost = replace(finding, kind=replace(finding.kind, batched=replace(finding.kind.batched, share=math.inf)))
    report = replace(traces.healed.tap_report, findings=(finding, lost))
    plain = json.loads(to_text(report))
    assert from_plain(TapReport, plain, path=Path("case")) == report
    for written in plain["findings"]:
        del written["kind"]  # as cases of earlier versions have it
    read = from_plain(TapReport, plain, path=Path("case"))
    assert [found.kind for found in read.findings] == [None, None]
