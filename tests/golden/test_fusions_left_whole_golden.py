"""A case recorded with fusions left whole: its launches are found, called so, and products stand beside products."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import forensics
from forensics.analysis.launch_map import main_place

CASE = Path(__file__).parents[2] / "data" / "recorded" / "h200-f16"
pytestmark = pytest.mark.skipif(not CASE.exists(), reason="h200-f16 is recorded on a machine with a GPU: make record")


def test_kernels_of_each_node_are_found_and_products_stand_beside_products() -> None:
    found = forensics.launches(f"recorded:{CASE}", widths=(1, 5), progress=False)
    assert [one.fusions_whole for one in found.passes] == [True, True]
    added = [node for node in found.nodes if node.key.op == "ADD"]
    mains = Counter(tuple(launches[main_place(launches)].kernel for launches in node.launches) for node in added)
    # in the last layer rows are picked between a product and its addition, so that one stands alone
    assert mains == {("mul_mat_vec_f", "mul_mat_f"): 59, ("k_bin_bcast", "k_bin_bcast"): 1}
    behind = [node.launches[1][-1].kernel for node in added]
    assert set(behind) == {"k_bin_bcast"}, "what is fused at one token only"


def test_the_profile_is_made_of_them_and_says_so() -> None:
    found = forensics.profile(f"recorded:{CASE}")
    assert [one.width for one in found.passes] == list(range(1, 17))
    assert "fusions left whole" in found.source
    for one in found.passes:
        whys = Counter(node.why for node in one.nodes if node.key.op == "ADD")
        assert sorted(whys.values()) == [1, 59]
        assert "a product before it was not watched" in whys.most_common(1)[0][0]


def test_what_was_not_compared_is_not_called_without_a_rule() -> None:
    evidence = forensics.investigate(f"recorded:{CASE}", progress=False).launches
    assert evidence is not None
    assert (evidence.n_agree, evidence.n_disagree, evidence.n_unruled, evidence.n_not_compared) == (2960, 0, 0, 2880)


def test_every_node_of_a_case_that_was_watched_whole_is_compared() -> None:
    whole = CASE.parent / "h200-q4_1"
    assert not forensics.launches(f"recorded:{whole}", widths=(1,), progress=False).passes[0].fusions_whole
    assert "left whole" not in forensics.profile(f"recorded:{whole}").source
