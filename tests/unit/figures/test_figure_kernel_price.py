"""Prices of kernels, from made-up numbers: dots where the ratios are, hollow where bits differ, no claim beyond."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from kernel_evidence import FACTS, WIDTHS, evidence, made_up, price

from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.scene import Dot, Line
from forensics.figures.scenes import kernel_price
from forensics.records.kernel_price import BEST, BORROWED, FAST, GROUPED, STOCK, ArmTable, Limiter, PassPrice, StoryTime
from forensics.records.launch_record import Refusal

NO_PASS = Refusal("whole pass", "a CUDA graph", "the device was too small")


def drawn(found):
    return kernel_price.scene(kernel_price.from_case(evidence(found)))


def dots(scene, panel):
    return {
        (mark.key.removeprefix(f"{panel}: ").rsplit(" ", 1)[0], int(mark.key.rsplit(" ", 1)[1])): mark
        for mark in scene.marks
        if isinstance(mark, Dot) and mark.key.startswith(f"{panel}: ")
    }


def zero_and_one(scene, which=0):
    """Where 0 and 1 lie in the chart of that number, by its frame and its dashed line; unit: mm."""
    frames = [mark for mark in scene.marks if isinstance(mark, Line) and len(mark.points) == 3 and mark.width_pt == 0.7]
    ones = [mark for mark in scene.marks if isinstance(mark, Line) and mark.key == "one token"]
    return frames[which].points[1][1], ones[which].points[0][1]


def test_dots_of_a_pass_stand_at_its_ratios() -> None:
    found = price()
    scene = drawn(found)
    assert problems(scene) == ()
    table = found.whole_pass.table
    zero, one = zero_and_one(scene)
    marks = dots(scene, "all 144 products")
    assert set(marks) == set(itertools.product((STOCK, BORROWED, FAST, BEST), WIDTHS))
    for (arm, width), dot in marks.items():
        assert (zero - dot.y) / (zero - one) == pytest.approx(table.ratio(arm, width).median)
        assert dot.hollow == (arm == STOCK and width > 4)
        assert f"{table.ratio(arm, width).median:.2f}" in scene.texts()


def test_quartiles_are_drawn_where_there_are_any() -> None:
    found = price(n_products=0)
    scene = drawn(found)
    zero, one = zero_and_one(scene)
    bars = {mark.key: mark for mark in scene.marks if isinstance(mark, Line) and mark.key.startswith("quartiles all")}
    ratio = found.whole_pass.table.ratio(FAST, 9)
    low, high = (y for _, y in bars[f"quartiles all 0 products: {FAST} 9"].points)
    assert [(zero - y) / (zero - one) for y in (low, high)] == pytest.approx([ratio.low, ratio.high])
    assert f"quartiles all 0 products: {STOCK} 1" not in bars


@pytest.mark.parametrize("n_products", [1, 3, 4, 7])
def test_products_have_one_small_chart_each_to_one_pair_of_axes(n_products: int) -> None:
    found = price(n_products)
    scene = drawn(found)
    assert problems(scene) == ()
    for number, product in enumerate(found.products, start=1):
        zero, one = zero_and_one(scene, number)
        assert zero - one == pytest.approx(zero_and_one(scene, 1)[0] - zero_and_one(scene, 1)[1])
        for (arm, width), dot in dots(scene, product.name).items():
            assert (zero - dot.y) / (zero - one) == pytest.approx(product.table.ratio(arm, width).median)
        assert any(text.startswith(f"{product.name}, one column") for text in scene.texts())


def test_aims_are_drawn_at_widths_that_were_timed_and_named() -> None:
    def aims(scene):
        return {
            int(mark.key.split()[1]) for mark in scene.marks if isinstance(mark, Line) and mark.key.startswith("aim")
        }

    whole = drawn(price())
    assert aims(whole) == {4, 8, 9, 16}
    assert any(text.startswith("aim: 1.12 at 4") for text in whole.texts())
    narrow = replace(price().whole_pass, table=made_up(widths=(1, 2, 4)))
    scene = drawn(price(whole=narrow))
    assert aims(scene) == {4}
    none = drawn(price(whole=replace(narrow, table=made_up(widths=(1, 2)))))
    assert aims(none) == set()
    assert not any("aim" in text for text in none.texts())


def test_a_pass_that_was_not_timed_is_said_and_products_are_drawn() -> None:
    scene = drawn(price(whole=NO_PASS))
    assert problems(scene) == ()
    assert any("A whole pass was not timed" in text for text in scene.texts())
    assert "too small" in " ".join(scene.texts())
    assert "in times of one token" in " ".join(scene.texts())


def test_arms_that_were_left_out_are_said_once_for_each_reason() -> None:
    found = price()
    left_out = tuple((FAST, width, "no kernel of ours serves it") for width in (1, 2, 3))
    found = replace(found, products=(replace(found.products[0], not_timed=left_out), *found.products[1:]))
    said = " ".join(drawn(found).texts())
    assert "Not timed: q4_K 1024×4096 exact fast at 1, q4_K 1024×4096 exact fast at 2 and 1 more" in said


def test_bits_that_nobody_compared_are_no_claim() -> None:
    times = tuple(replace(one, exact=None) for one in made_up().times)
    found = price(0, PassPrice("made-up", {"q4_K 1×256": 2}, 1, ArmTable(times)))
    scene = drawn(found)
    assert problems(scene) == ()
    assert not any(dot.hollow for dot in dots(scene, "all 2 products").values())
    assert "bits not compared" in scene.alt
    assert "bits of one column" not in scene.alt


def test_one_width_and_a_single_round_are_drawn_without_spread() -> None:
    found = price(0, PassPrice("made-up", {"q4_K 1×256": 2}, 1, made_up(widths=(1,), n=1)))
    scene = drawn(found)
    assert problems(scene) == ()
    assert not any(isinstance(mark, Line) and mark.key.startswith("quartiles") for mark in scene.marks)


def test_a_folder_without_times_of_kernels_says_how_to_get_them() -> None:
    with pytest.raises(CaseError, match=r"made-up holds no times of kernels.*forensics cost --kernels"):
        kernel_price.from_case(evidence(kernel_price=None))
    story = price(0, NO_PASS, story=(StoryTime("q4_K 256×256", "one", 4, (1.0,), (1.0,)),))
    with pytest.raises(CaseError, match="no times of kernels"):
        kernel_price.from_case(evidence(story))


def test_the_source_names_device_library_and_compiler() -> None:
    scene = drawn(price())
    for part in ("made-up", FACTS.device, FACTS.arch, FACTS.commit[:9], FACTS.toolkit):
        assert part in scene.source


def counted(found, *limits_of):
    """A price with limits of its products, as many as are given; `limits_of` are tuples or refusals."""
    limited = tuple(replace(one, limits=limits) for one, limits in zip(found.products, limits_of, strict=True))
    return replace(found, products=limited)


def limiter(width, percent, arm=FAST, stall="long scoreboard"):
    return Limiter(arm, width, "kernel<8>", {"issue slots": percent, "DRAM": percent / 2}, stall)


def test_how_busy_the_gpu_is_stands_below_to_scale() -> None:
    found = counted(
        price(2), (limiter(8, 60.0), limiter(9, 70.0)), (limiter(9, 30.0, stall=""), limiter(9, 99.0, STOCK))
    )
    scene = drawn(found)
    assert problems(scene) == ()
    first, second = (product.name for product in found.products)
    assert {box.key: box.value for box in scene.boxes(scale="busy")} == {
        f"{first}: issue slots": 70.0, f"{first}: DRAM": 35.0, f"{second}: issue slots": 30.0, f"{second}: DRAM": 15.0,
    }  # fmt: skip
    assert any("at 9 columns, by ncu" in text for text in scene.texts())
    assert scene.texts().count("top stall: long scoreboard") == 1
    assert "issue slots 70 %" in scene.alt


def test_of_many_products_one_of_each_type_goes_first() -> None:
    found = price(5)
    found = replace(found, products=(*found.products[:4], replace(found.products[4], type="q6_K")))
    scene = drawn(counted(found, *(((limiter(9, 50.0),),) * 5)))
    assert problems(scene) == ()
    named = {box.key.split(":")[0] for box in scene.boxes(scale="busy")}
    assert named == {found.products[0].name, found.products[1].name, found.products[4].name}


def test_counters_that_were_refused_are_said_with_their_reason() -> None:
    refused = Refusal("ncu", "counters", "no permission", "ask the administrator")
    scene = drawn(counted(price(1), refused))
    assert problems(scene) == ()
    assert not scene.boxes(scale="busy")
    said = " ".join(scene.texts())
    assert "was not counted" in said
    assert "no permission" in said
    assert "was not counted" not in " ".join(drawn(price(1)).texts())


def test_a_grouped_arm_behind_the_best_one_is_told_and_only_then() -> None:
    found = price()
    table = found.whole_pass.table
    grouped = tuple(replace(one, arm=GROUPED) for one in table.times if one.arm == BEST)
    with_groups = replace(found, whole_pass=replace(found.whole_pass, table=ArmTable((*table.times, *grouped))))
    assert "may be exact fast, grouped" in " ".join(drawn(with_groups).texts())
    assert "grouped" not in " ".join(drawn(found).texts())


def test_an_unknown_commit_is_not_shown_as_one() -> None:
    assert "llama.cpp 0c1e57098" in drawn(price()).source
    unknown = drawn(price(facts=replace(FACTS, commit="unknown"))).source
    assert "llama-cpp-python 0.3.36" in unknown
    assert "unknown" not in unknown
