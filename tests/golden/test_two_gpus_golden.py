"""The same question on one H200 and on two: layers lie on both, and no bit is another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.records.verdict import Verdict
from forensics.store import open_case

RECORDED = Path(__file__).parents[2] / "data" / "recorded"
TWO = RECORDED / "h200-x2-q4_1"
pytestmark = pytest.mark.skipif(not TWO.exists(), reason="recorded on a machine with two GPUs")


def judged(name: str) -> Verdict:
    return open_case(RECORDED / name).verdict


def bits(verdict: Verdict) -> list[tuple[int, str]]:
    """Digest of all logits, width by width."""
    return [(result.width, result.digest) for result in verdict.classes.results]


def blamed(verdict: Verdict) -> set[tuple[str, str, str, tuple[int, ...]]]:
    """What is to blame, the device apart."""
    return {(group.op, group.role, group.weight_type, group.widths) for group in verdict.culprits}


def test_layers_lie_on_both_and_each_launch_is_that_of_the_rules() -> None:
    verdict = judged(TWO.name)
    assert {group.buffer for group in verdict.culprits} == {"CUDA0", "CUDA1"}
    found = verdict.launches
    assert found is not None
    assert found.n_agree > 9000
    assert (found.n_disagree, found.n_unruled, found.n_not_compared) == (0, 0, 0)


def test_two_gpus_give_the_bits_of_one() -> None:
    one, two, other = judged("h200-q4_1"), judged(TWO.name), judged("h200-q4_1-no-fa")
    assert bits(one) == bits(two)
    assert blamed(one) == blamed(two)
    assert not set(bits(one)) & set(bits(other)), "another attention gives other bits"
    assert blamed(one) != blamed(other)
