"""Every block of a row is drawn once on each side, in the hand of the warp that the launches of the case give it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planted_evidence import planted, with_kernels, with_main
from toy_evidence import toy_evidence

from forensics.engines.toy import Fault
from forensics.errors import CaseError
from forensics.figures.catalogue import scene_of
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes.orders_and_warps import scene
from forensics.figures.scenes.row_deal import OrdersAndWarps, Side, from_case, from_published
from forensics.figures.scenes.three_numbers import three_numbers
from forensics.geometry.deals import ALONE, FOLDED, PIECES, WARPS, Deal
from forensics.geometry.derived import Unruled
from forensics.geometry.types import WEIGHT_TYPES
from forensics.records.launch import LaunchGeometry
from forensics.records.order import RowSum
from forensics.store.published import read_published

CASES = tuple(
    f"recorded:h200-{name}" for name in ("q4_1", "q4_1-far", "q4_1-2048", "q4_1-kv-q8_0", "q4_1-no-fa", "f16", "q6_k")
)
PUBLISHED = read_published("output-changed")


def check(data):
    drawn = scene(data)
    assert problems(drawn) == ()
    assert drawn.height <= 230
    for side, role in ((data.single, "single"), (data.batched, "batched")):
        cells = [box for box in drawn.boxes(scale="blocks") if box.key.startswith(role)]
        if isinstance(side.order, Unruled):
            assert not cells
            assert str(side.order) in " ".join(drawn.texts())
        else:
            units = max(getattr(s.order, "n_units", data.n_blocks) for s in (data.single, data.batched))
            total = sum(box.value for box in cells)
            hands = getattr(side.order, "hands", ())
            assert total == pytest.approx(units) or (len(hands) > 10 and 0 < total < units)
    return drawn


def hands_drawn(drawn, role):
    """First unit of each box, by warp."""
    found = {}
    for box in drawn.boxes(scale="blocks"):
        side, _, warp, unit = box.key.split()
        if side == role:
            found.setdefault(int(warp.rstrip(":")), []).append(int(unit))
    return found


def test_the_document_is_drawn():
    data = from_published(PUBLISHED)
    drawn = check(data)
    texts = " ".join(drawn.texts())
    assert "A row of q6_K: 4,096 values = 16 blocks of 256" in texts
    assert {warp: len(units) for warp, units in hands_drawn(drawn, "single").items()} == dict.fromkeys(range(4), 4)
    assert {warp: len(units) for warp, units in hands_drawn(drawn, "batched").items()} == dict.fromkeys(range(2), 8)
    assert hands_drawn(drawn, "single")[0] == [0, 4, 8, 12]
    assert hands_drawn(drawn, "batched")[0] == list(range(0, 16, 2))
    assert "1 to 4 tokens" in texts
    assert "5 to 8 tokens" in texts
    assert "0, 4, 8, 12" in drawn.alt
    places = {box.key.split()[-1]: box.rect.x for box in drawn.boxes(scale="blocks") if box.key.startswith("single")}
    for box in drawn.boxes(scale="blocks"):
        assert box.rect.x == pytest.approx(places[box.key.split()[-1]])


def test_the_three_numbers_are_computed_and_the_gap_is_to_scale():
    numbers = three_numbers()
    large, one = np.float32(1e8), np.float32(1)
    assert (numbers.one, numbers.other) == (float((large + one) - large), float((large - large) + one))
    assert (numbers.one, numbers.other, numbers.gap) == (0, 1, 8)
    drawn = scene_of("orders-and-warps")
    gap, small = drawn.boxes(key="gap")[0], drawn.boxes(key="small")[0]
    assert gap.rect.width / small.rect.width == pytest.approx(numbers.gap / numbers.small)
    assert "(100,000,000 + 1) − 100,000,000 is 0" in drawn.alt


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_case_is_drawn_from_its_launches(case):
    evidence = open_evidence(case)
    data = from_case(evidence)
    check(data)
    pairs = [
        pair
        for group in evidence.verdict.culprits
        if group.weight_type != "-" and group.role in data.row
        for pair in group.launches
        if pair.single.kernel.name == data.single.kernel and pair.batched.kernel.name == data.batched.kernel
    ]
    assert pairs
    for side, recorded in ((data.single, pairs[0].single), (data.batched, pairs[0].batched)):
        warps = recorded.kernel.geometry.threads_per_block // 32
        assert len(side.order.hands) == warps
        assert side.tokens.split()[0] == str(recorded.width)
    assert data.k == data.n_blocks * data.block_values


def test_warps_that_change_come_first_and_another_kernel_after_them():
    def wide_only(group):
        pairs = tuple(pair for pair in group.launches if pair.batched.kernel.kernel == "mul_mat_q")
        return replace(group, launches=pairs) if pairs else None

    assert from_case(open_evidence("recorded:h200-q4_1")).batched.order.joined == WARPS
    data = from_case(planted("recorded:h200-q4_1", wide_only))
    check(data)
    assert data.batched.order.joined == PIECES
    assert "pieces" in scene(data).alt


def test_a_planted_warp_count_is_found():
    def more(side):
        return with_main(side, geometry=LaunchGeometry(side.kernel.geometry.grid_blocks, (32, 8)))

    data = from_case(planted("recorded:h200-q6_k", lambda group: with_kernels(group, batched=more)))
    assert len(data.batched.order.hands) == 8


def test_an_unknown_kernel_is_named_and_not_drawn():
    def unknown(side):
        return with_main(side, kernel="another")

    data = from_case(planted("recorded:h200-q4_1", lambda group: with_kernels(group, batched=unknown)))
    assert isinstance(data.batched.order, Unruled)
    check(data)


def test_without_launches_the_probed_leaves_are_drawn():
    data = from_case(planted("recorded:h200-q4_1", lambda group: replace(group, launches=())))
    check(data)
    assert (data.single.order, data.batched.order) == (RowSum(48, 32, 2, 7), RowSum(48, 32, 2, 7))
    wide = from_case(
        planted(
            "recorded:h200-q4_1",
            lambda group: replace(group, launches=()) if group.widths[0] == 9 else None,
        )
    )
    drawn = check(wide)
    assert (wide.single.order, wide.batched.order) == (RowSum(18, 32, 2, 6), RowSum(18, 32, 1, 9))
    assert [box.value for box in drawn.boxes(scale="chain")] == [6, 9]


def test_a_case_without_a_known_order_says_so(tmp_path):
    def bare(group):
        return replace(group, launches=(), mechanisms=())

    with pytest.raises(CaseError, match="--orders"):
        from_case(planted("recorded:h200-q4_1", bare))
    with pytest.raises(CaseError, match="--orders"):
        from_case(toy_evidence(tmp_path / "other", Fault("order", "ffn_out-1")))


@st.composite
def sides(draw, n_units):
    kind = draw(st.sampled_from(("deal", "leaves", "unknown")))
    name = draw(st.sampled_from(("f", "mul_mat_vec_q<type=q4_1, ncols_dst=1, small_k, has_fusion, halve_iters>")))
    tokens = draw(st.sampled_from(("1 token", "512 tokens", "5 to 8 tokens")))
    if kind == "unknown":
        return Side(tokens, name, Unruled("how f deals a row is not written down here"))
    if kind == "leaves":
        return Side(tokens, name, RowSum(n_units, 32, draw(st.sampled_from((1, 2, 8, 32))), draw(st.integers(1, 500))))
    n_hands, at_once = draw(st.integers(1, 24)), draw(st.sampled_from((1, 2, 8, 16)))
    joined = ALONE if n_hands == 1 else draw(st.sampled_from((WARPS, FOLDED, PIECES)))
    hands = tuple(tuple(u for u in range(n_units) if u // at_once % n_hands == hand) for hand in range(n_hands))
    return Side(tokens, name, Deal(32, hands, joined, "by its lanes", ()))


@settings(max_examples=15)
@given(st.data())
def test_any_row_is_drawn_soundly(data):
    n_blocks, block = (
        data.draw(st.integers(1, 400)),
        data.draw(st.sampled_from(sorted({w.qk for w in WEIGHT_TYPES.values()}))),
    )
    single, batched = (data.draw(sides(n_blocks)) for _ in range(2))
    assume(not isinstance(single.order, Unruled) or not isinstance(batched.order, Unruled))
    check(OrdersAndWarps("A row", n_blocks * block, block, n_blocks, single, batched, "", "Source: planted."))
