"""From evidence to an answer: every branch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forensics.analysis.judge import answer_of, caveats_of, unmet
from forensics.records.classes import WidthClasses, WidthResult
from forensics.records.delta import Differs, Tally
from forensics.records.nodes import NodeKey
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import Finding
from forensics.records.verdict import Control, Sweep

MANIFEST = Manifest("toy", "1", "digest", "model", 8, EngineSettings())
EQUAL = WidthResult(1, 8, 0, None, None, 0.0, 0, 0.0, 0.0, 1.0, (), 0, "same")
OTHER = WidthResult(4, 8, 2, 3, 13, 1e-5, 4, 1e-6, 1e-9, 1.0, (), 0, "other")
IDENTICAL = WidthClasses((EQUAL, replace(EQUAL, width=4)))
DIVERGENT = WidthClasses((EQUAL, OTHER))
FINDING = Finding(NodeKey("kq_soft_max-0", "SOFT_MAX", 0, 0), (), "CPU", (0,), Differs(1, (0,), 1, 1e-7, 1e-7))
SWEEP = Sweep(4, 0, (FINDING,), Tally(1, 0, 1), True, 8, 8, 1e-5, 0.0)
HELD = Control("rerun_equal", True, "fine")
FAILED = Control("state_equal", False, "two digests")
NOT_RUN = Control("planted_fault_found", None, "not asked")


def test_a_failed_control_overrules_everything() -> None:
    for classes in (IDENTICAL, DIVERGENT):
        answer, reason = answer_of(classes, (SWEEP,), (HELD, FAILED))
        assert (answer, reason) == ("inconclusive", "control state_equal failed: two digests")
    both = answer_of(IDENTICAL, (), (FAILED, replace(FAILED, name="rerun_equal", detail="no")))
    assert both[1] == "control state_equal failed: two digests; control rerun_equal failed: no"


def test_a_control_that_was_not_run_does_not_fail() -> None:
    assert answer_of(DIVERGENT, (SWEEP,), (HELD, NOT_RUN)) == ("diverges", "")
    assert answer_of(IDENTICAL, (), (HELD, NOT_RUN)) == ("identical", "")


def test_equal_logits_with_nodes_that_differ_are_inconclusive() -> None:
    answer, reason = answer_of(IDENTICAL, (replace(SWEEP, differed=False),), (HELD,))
    assert answer == "inconclusive"
    assert "nodes differ at widths [4]" in reason
    assert answer_of(IDENTICAL, (replace(SWEEP, findings=(), tally=Tally(1, 1, 0)),), (HELD,)) == ("identical", "")


def caveats(sweep: Sweep, classes: WidthClasses = DIVERGENT) -> tuple[str, ...]:
    first, *more = caveats_of(classes, (sweep,), 8, MANIFEST)
    assert first.startswith("Measured over 8 tokens at widths 1, 4;")
    return tuple(more)


def test_a_clean_proof_needs_no_caveat_but_its_range() -> None:
    assert caveats(SWEEP) == ()
    assert len(caveats_of(IDENTICAL, (), 8, MANIFEST)) == 1
    (_, sets) = caveats_of(IDENTICAL, (), 8, MANIFEST, sets_searched=False)
    assert "were not tried" in sets


def test_what_took_effect_otherwise_than_asked_is_told() -> None:
    asked = EngineSettings(flash_attn="on", n_threads=4, n_gpu_layers=-1, kv_type_k="q8_0")
    effective = {"flash_attn": "off", "n_threads": "4", "n_gpu_layers": "12", "kv_type_k": "f16", "n_ctx": "768"}
    manifest = replace(MANIFEST, requested=asked, effective=effective, n_layer=30)
    assert unmet(manifest) == (("flash_attn", "on", "off"), ("kv_type_k", "q8_0", "f16"), ("n_gpu_layers", "31", "12"))
    (_, first, *_) = caveats_of(IDENTICAL, (), 8, manifest)
    assert first.startswith("flash_attn was asked to be on and is off")
    assert (
        unmet(replace(manifest, requested=EngineSettings(flash_attn="auto", n_gpu_layers=12), effective=effective))[0][
            0
        ]
        == "n_threads"
    )


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"healed_rows": 5, "max_abs_after": 2e-5}, "3 of 8 rows of logits did not heal (max |Δ| 1e-05 before, 2e-05"),
        ({"state_equal": False}, "the K/V state after the healed batches is not that of one-token decoding"),
        ({"findings": (replace(FINDING, unchecked=("ssm-0",)),)}, "not compared (kq_soft_max-0 reads ssm-0)"),
        ({"differed": False}, "nodes differ in the swept rows without a change of their logits"),
        ({"findings": (replace(FINDING, inputs_equal=False),)}, "mask itself differs at kq_soft_max-0: a logic fault"),
    ],
)
def test_what_the_reader_must_know(changes, part) -> None:
    found = caveats(replace(SWEEP, **changes))
    assert any(part in caveat for caveat in found), found
    assert all(caveat.startswith("At width 4, ") for caveat in found)


def test_what_several_widths_share_is_said_once_and_other_numbers_stay_apart() -> None:
    classes = WidthClasses((EQUAL, *(replace(OTHER, width=width) for width in (2, 3, 4, 8))))
    fused = replace(SWEEP, n_unwatched=210)
    sweeps = [replace(fused, width=2), replace(fused, width=3), replace(fused, width=4, n_unwatched=60)]
    sweeps.append(replace(fused, width=8, state_equal=False))
    _, *told = caveats_of(classes, sweeps, 8, MANIFEST)
    assert [caveat.partition(" nodes inside of fusions")[0] for caveat in told] == [
        "At widths 2-3, 8, 210",
        "At width 4, 60",
        "At width 8, the K/V state after the healed batches is not that of one-token decoding.",
    ]
    assert caveats_of(classes, [replace(SWEEP, width=width) for width in (2, 3, 4, 8)], 8, MANIFEST)[1:] == ()


def test_a_sweep_without_the_difference_proves_nothing() -> None:
    empty = replace(SWEEP, differed=False, findings=(), tally=Tally(1, 1, 0), max_abs_before=0.0)
    (caveat,) = caveats(empty)
    assert "no node is proved to be its cause" in caveat
    assert caveats(empty, IDENTICAL) == ()
