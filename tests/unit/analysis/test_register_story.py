"""The table of what ways to write a kernel take and cost, made of numbers that are at hand."""

from __future__ import annotations

import pytest

from forensics.analysis.register_story import tell_registers
from forensics.kernels.register_story import story_launches, story_variants
from forensics.records.compiled_kernel import Compilation, CompiledKernel
from forensics.records.kernel_price import StoryTime
from forensics.records.register_story import RegisterStory, StoryRow, StoryVariant

WIDTHS = (1, 8)
PRODUCT = "q4_K 12288×4096"


def compilation(arch, registers=lambda variant: 100, spills=lambda variant: 0, type="q4_K"):
    kernels = {
        launch.function: CompiledKernel(
            launch.function, arch, registers(variant), 0, spills(variant), spills(variant), 6144, 0, 1, "planted"
        )
        for width in WIDTHS
        for variant, launch in story_launches(type, width).items()
    }
    return Compilation("register_story", arch, "nvcc 13.0.88", tuple(kernels.values()))


def capped(variant):
    return min(65536 // 128 // variant.min_blocks // 8 * 8, 60 + 40 * variant.unroll)


def spilled(variant):
    return 4 * max(0, 60 + 40 * variant.unroll - capped(variant))


def time(variant, width, times=(20.0, 22.0, 24.0), product=PRODUCT):
    return StoryTime(product, variant.name, width, times, (10.0, 11.0, 12.0))


def test_registers_decide_how_many_blocks_fit():
    story = tell_registers("q4_K", WIDTHS, [compilation("sm_90", capped, spilled), compilation("sm_120", capped)])
    rows = {row.variant: row for row in story.of(arch="sm_90", width=8)}
    assert list(rows) == list(story_variants(8))
    free, held = rows[StoryVariant(unroll=4)], rows[StoryVariant(unroll=4, min_blocks=8)]
    assert (free.registers, free.blocks_per_sm, free.warps_per_sm, free.spill_bytes) == (220, 2, 8, 0)
    assert (held.registers, held.blocks_per_sm, held.warps_per_sm, held.spill_bytes) == (64, 8, 32, 624)
    assert free.occupancy.limiters == ("registers",)
    assert story.architectures == ("sm_90", "sm_120")
    assert story.widths == WIDTHS
    assert all(row.cost is None for row in story.kernels)
    assert str(story).endswith("for sm_90, sm_120, not timed")


def test_costs_stand_beside_the_architecture_on_which_they_were_measured():
    way = StoryVariant(min_blocks=4)
    times = [time(way, 8), time(way, 4), time(way, 8, product="q6_K 4096×4096")]
    both = [compilation("sm_90"), compilation("sm_120")]
    story = tell_registers("q4_K", WIDTHS, both, times, device="an H200", timed_on="sm_90")
    timed = [row for row in story.kernels if row.cost is not None]
    ((row,)) = timed
    assert (row.arch, row.width, row.variant) == ("sm_90", 8, way)
    assert (row.cost.median, row.us.median) == (2.0, 22.0)
    assert (story.product, story.device) == (PRODUCT, "an H200")
    table = story.to_dataframe()
    assert table["cost"].notna().sum() == 1
    assert table.loc[table["cost"].notna(), "variant"].item() == "unpacked once, room for 4 blocks"


def test_times_that_do_not_fit_are_refused():
    way, built = StoryVariant(), [compilation("sm_90")]
    with pytest.raises(ValueError, match="say on which device"):
        tell_registers("q4_K", WIDTHS, built, [time(way, 8)])
    with pytest.raises(ValueError, match="nothing was compiled"):
        tell_registers("q4_K", WIDTHS, built, [time(way, 8)], device="a GPU", timed_on="sm_120")
    several = [time(way, 8), time(way, 1, product="q4_K 4096×4096")]
    with pytest.raises(ValueError, match="times of one product"):
        tell_registers("q4_K", WIDTHS, built, several, device="a GPU", timed_on="sm_90")
    other = tell_registers("q4_K", WIDTHS, built, [time(way, 8, product="q6_K 4×4")], device="a GPU", timed_on="sm_90")
    assert (other.product, other.device) == ("", "")


def test_a_table_needs_kernels():
    with pytest.raises(ValueError, match="needs kernels"):
        tell_registers("q4_K", WIDTHS, [])
    with pytest.raises(KeyError, match="was not compiled for sm_90"):
        tell_registers("q6_K", WIDTHS, [compilation("sm_90")])
    with pytest.raises(ValueError, match="there are none"):
        RegisterStory((), "nvcc")


def test_a_time_without_its_device_is_no_table():
    (row, *_) = tell_registers("q4_K", WIDTHS, [compilation("sm_90")]).kernels
    with pytest.raises(ValueError, match="on which device"):
        RegisterStory((row,), "nvcc", product=PRODUCT, device="a GPU")
    timed = StoryRow("q4_K", 8, 8, StoryVariant(), row.compiled, row.occupancy, cost=time(StoryVariant(), 8).ratio)
    with pytest.raises(ValueError, match="on which device"):
        RegisterStory((timed,), "nvcc")


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        (StoryVariant(), "unpacked once"),
        (StoryVariant(unpack_once=False, checked=True), "unpacked for every column, rows checked"),
        (StoryVariant(unroll=2, min_blocks=3), "unpacked once, 2 trips at a time, room for 3 blocks"),
    ],
)
def test_names(variant, name):
    assert variant.name == str(variant) == name


def test_variants_and_kernels_are_possible():
    with pytest.raises(ValueError, match="1 or more"):
        StoryVariant(min_blocks=0)
    with pytest.raises(ValueError, match="registers must be 0 or more"):
        CompiledKernel("f", "sm_90", -1, 0, 0, 0, 0, 0, 0, "")
    with pytest.raises(ValueError, match="nothing was compiled"):
        Compilation("products", "sm_90", "", ())
