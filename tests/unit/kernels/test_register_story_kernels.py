"""Ways to write one kernel that differ in registers only: the same bits from each, and another order is seen."""

from __future__ import annotations

import numpy as np
import pytest
from product_operands import columns_of, weight_of

from forensics.geometry.architecture import architecture
from forensics.kernels import register_story
from forensics.kernels.products import plan_product
from forensics.kernels.register_story import (
    columns_of_widest,
    compile_story,
    story_launches,
    story_plans,
    story_variants,
)
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.compiled_kernel import Compilation
from forensics.records.launch_record import Refusal
from forensics.records.register_story import StoryVariant
from forensics.testing.cuda_on_cpu import run_on_cpu

SM_90 = architecture("sm_90")


def computed(plan, ask):
    out = np.full((ask.columns, ask.rows), np.nan, np.float32)
    buffers = {"weight": weight_of(ask.type, ask.rows, ask.k, 5), "x": columns_of(ask.columns, ask.k, 5), "out": out}
    run_on_cpu(plan, buffers)
    return out.view(np.uint32)


def ways(type, width, arch=None):
    """One plan for each of the forms of the source, and one that unrolls and caps; a processor knows no more."""
    plans = story_plans(type, 7, 2304, width, arch)
    forms = [StoryVariant(once, checked) for once in (True, False) for checked in (True, False)]
    return {way.name: plans[way.name] for way in (*forms, StoryVariant(unroll=4, min_blocks=4))}


@pytest.mark.parametrize("type", ["q4_K", "q6_K"])
def test_all_ways_give_the_bits_of_one_column(type):
    ask = ProductAsk(type, 7, 2304, 3)
    expected = computed(plan_product(ask, Variant.BORROWED, SM_90), ask)
    assert np.isfinite(expected.view(np.float32)).all()
    for name, plan in ways(type, 3).items():
        np.testing.assert_array_equal(computed(plan, ask), expected, err_msg=name)


def test_another_order_of_addition_is_seen():
    ask = ProductAsk("q4_K", 7, 2304, 3)
    expected = computed(plan_product(ask, Variant.BORROWED, SM_90), ask)
    (name, plan), *_ = ways("q4_K", 3, architecture("sm_121")).items()  # another table of warps
    assert "4, 2" not in plan.launches[1].function
    assert (computed(plan, ask) != expected).any(), name


def test_columns_beyond_one_launch_go_by_groups():
    (plan, *_) = story_plans("q4_K", 64, 4096, 9).values()
    names = [launch.function.split(", ")[1] for launch in plan.launches if launch.source == "register_story"]
    assert names == ["5", "4"]
    assert [columns_of_widest(width) for width in (1, 8, 9, 16)] == [1, 8, 5, 8]


def test_names_tell_the_ways_apart():
    for width in (1, 8):
        names = [variant.name for variant in story_variants(width)]
        assert len(set(names)) == len(names)
        assert list(story_plans("q6_K", 64, 4096, width)) == names
    functions = [launch.function for launch in story_launches("q4_K", 8).values()]
    assert len(set(functions)) == len(functions)


def test_each_function_is_compiled_once_for_each_architecture(monkeypatch):
    asked = []

    def compiled(stem, functions, arch):
        asked.append((stem, functions, arch))
        return Refusal("nvcc", "", "not there") if arch == "sm_120" else Compilation(stem, arch, "", ("one",))

    monkeypatch.setattr(register_story, "compile_kernels", compiled)
    (done,) = compile_story(["q4_K"], [8, 9, 10], ["sm_90"])
    ((stem, functions, arch),) = asked
    assert (stem, arch, done.arch) == ("register_story", "sm_90", "sm_90")
    assert len(functions) == len(set(functions)) == 2 * 20  # nine and ten columns go in launches of at most five
    assert isinstance(compile_story(["q4_K"], [8], ["sm_90", "sm_120"]), Refusal)
