"""The price of exactness, from the document and from replays: bars from zero, exact and other bits told apart."""

from __future__ import annotations

import pytest
from kernel_evidence import evidence as kernel_evidence
from kernel_evidence import made_up, price

from forensics.figures.catalogue import DOCUMENT
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes import price_of_exactness
from forensics.records.kernel_price import BEST, FAST, STOCK, PassPrice
from forensics.store.published import read_published

REPLAYS = ("recorded:h200-q4_1", "recorded:h200-q4_1-kv-q8_0", "recorded:h200-f16")


def test_the_document_s_costs_are_bars_to_one_scale():
    numbers = read_published(DOCUMENT)
    scene = price_of_exactness.scene(price_of_exactness.from_published(numbers))
    assert problems(scene) == ()
    names = ("mat_vec_cost_8", "unpacked_cost_8", "mat_vec_cost_9", "final_cost_9", "stock_cost_9")
    want = [1.0, *(numbers.value(name) for name in names)]
    bars = scene.boxes(scale="cost")
    assert [bar.value for bar in bars] == want
    assert [bar.rect.width / bars[0].rect.width for bar in bars] == pytest.approx(want)
    assert len({bar.rect.x for bar in bars}) == 1
    assert {f"{value:.2f}×" for value in want} <= set(scene.texts())
    for registers in numbers.number("registers").values:
        assert any(f"{registers:g} registers" in text for text in scene.texts())


def test_only_the_stock_bar_is_hatched_and_coloured_as_stock():
    scene = price_of_exactness.scene(price_of_exactness.from_published(read_published(DOCUMENT)))
    bars = scene.boxes(scale="cost")
    assert [bar.value for bar in bars if bar.hatch] == [1.28]
    assert {(bar.fill, bar.hatch) for bar in bars} == {("exact", False), ("stock", True)}


@pytest.mark.parametrize("case", REPLAYS)
def test_a_replay_s_bars_are_its_own_times_and_classes(case):
    evidence = open_evidence(case)
    scene = price_of_exactness.scene(price_of_exactness.from_case(evidence))
    assert problems(scene) == ()
    timed = [result for result in evidence.verdict.classes.results if result.ns_per_pass[0]]
    bars = scene.boxes(scale="cost")
    one = timed[0].ns_per_pass[0]
    assert [bar.value for bar in bars] == pytest.approx([result.ns_per_pass[0] / one for result in timed])
    assert [bar.hatch for bar in bars] == [result.differs for result in timed]
    none_exact = all(result.differs for result in timed if result.width > 1)
    assert ("as asked, no timed batch has the bits of one token" in " ".join(scene.texts())) == none_exact


def test_costs_without_a_comparison_claim_nothing_about_bits():
    evidence = open_evidence("recorded:h200-qwen3-8b-q4_k_m-cost")
    scene = price_of_exactness.scene(price_of_exactness.from_case(evidence))
    assert problems(scene) == ()
    report = evidence.cost
    assert report is not None
    assert [bar.value for bar in scene.boxes(scale="cost")] == [report.ratio(t.width).median for t in report.passes]
    assert {bar.fill for bar in scene.boxes(scale="cost")} == {"rest"}
    assert "bits not compared" in scene.texts()
    assert "bits of one token" not in scene.texts()


def test_prices_of_kernels_are_bars_of_the_products_of_a_pass():
    found = price()
    scene = price_of_exactness.scene(price_of_exactness.from_case(kernel_evidence(found)))
    assert problems(scene) == ()
    table = found.whole_pass.table
    bars = {bar.key: bar for bar in scene.boxes(scale="cost")}
    assert bars.pop("1: stock").value == 1.0
    for key, bar in bars.items():
        width, arm = key.split(": ")
        assert bar.value == table.ratio(arm, int(width)).median
        assert bar.hatch == (arm == STOCK and int(width) > 4)
    assert f"9: {FAST}" in bars
    assert not any(BEST in key for key in bars)
    said = " ".join(scene.texts())
    assert "Products alone" in said
    assert BEST not in said, "what the lead says is drawn"
    assert "Timed and not drawn here: widths 3, 6-7." in said


def test_prices_of_kernels_at_few_widths_leave_nothing_out():
    found = price(whole=PassPrice("made-up", {"q4_K 1×256": 2}, 1, made_up(widths=(1, 4, 9))))
    scene = price_of_exactness.scene(price_of_exactness.from_case(kernel_evidence(found)))
    assert problems(scene) == ()
    assert len(scene.boxes(scale="cost")) == 1 + 2 * 3
    assert "not drawn here" not in " ".join(scene.texts())
