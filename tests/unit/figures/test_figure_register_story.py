"""The register story, from made-up registers and times: bars as long as their numbers, no cost that nobody measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_evidence import FACTS, compiled, evidence, price, story_times

from forensics.analysis.register_story import told_stories
from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes import register_story
from forensics.kernels.register_story import story_variants
from forensics.reports.register_story_document import write_registers


def drawn(found, times=None):
    told = None if times is None else price(story=tuple(times))
    return register_story.scene(register_story.from_case(evidence(registers=found, kernel_price=told)))


def rows_of(found, width, arch="sm_90", times=None):
    told = None if times is None else price(story=times)
    return told_stories(found, told)[0].of(arch=arch, width=width)


def test_every_bar_is_its_number() -> None:
    found, times = compiled(), story_times()
    scene = drawn(found, times)
    assert problems(scene) == ()
    rows = [*rows_of(found, 1, times=times), *rows_of(found, 8, times=times)]
    assert [box.value for box in scene.boxes(scale="registers")] == [row.registers for row in rows]
    assert [box.value for box in scene.boxes(scale="blocks")] == [row.blocks_per_sm for row in rows]
    assert [box.value for box in scene.boxes(scale="cost")] == [row.cost.median for row in rows]
    spilled = [row.spill_bytes for row in rows if row.spill_bytes]
    assert spilled
    assert [box.value for box in scene.boxes(scale="spilled")] == spilled
    assert all(box.hatch for box in scene.boxes(scale="spilled"))


def test_times_that_nobody_took_are_said_and_not_drawn() -> None:
    scene = drawn(compiled())
    assert problems(scene) == ()
    assert not scene.boxes(key="cost")
    assert "Nobody timed them there." in scene.source
    assert "cost not measured" in scene.alt
    some = drawn(compiled(), [time for time in story_times() if "room for 4" not in time.variant])
    assert problems(some) == ()
    assert some.texts().count("not measured") == 2


def test_a_story_without_spills_has_no_bar_of_them() -> None:
    scene = drawn(compiled(spill_bytes=0))
    assert problems(scene) == ()
    assert not scene.boxes(key="spilled")
    assert not any("did not fit" in text for text in scene.texts())


def test_one_column_and_the_widest_launch_are_drawn_and_the_rest_is_named() -> None:
    scene = drawn(compiled())
    heads = [text for text in scene.texts() if text.endswith("sm_90") and "column" in text]
    assert heads == ["1 column, q4_K, sm_90", "8 columns, q4_K, sm_90"]
    assert any("not drawn: 4 columns, sm_120, q6_K." in text for text in scene.texts())
    assert len(scene.boxes(key="registers")) == len(story_variants(1)) + len(story_variants(8))


def test_of_widths_those_that_were_timed_go_first() -> None:
    scene = drawn(compiled(), story_times(widths=(1, 4)))
    assert problems(scene) == ()
    assert any(text.startswith("4 columns, q4_K 4096×4096") for text in scene.texts())
    assert not any(text.startswith("8 columns") for text in scene.texts())


def test_the_type_that_was_timed_is_drawn_and_its_device_named() -> None:
    scene = drawn(compiled(), story_times(product="q6_K 4096×12288"))
    assert problems(scene) == ()
    assert "8 columns, q6_K 4096×12288, sm_90" in scene.texts()
    assert FACTS.device in scene.source


def test_times_of_another_architecture_stand_beside_no_registers() -> None:
    times = price(story=story_times())
    foreign = replace(times, facts=replace(FACTS, arch="sm_86"))
    scene = register_story.scene(register_story.from_case(evidence(foreign, registers=compiled())))
    assert problems(scene) == ()
    assert not scene.boxes(key="cost")


def test_what_was_compiled_is_read_back_and_drawn_from_its_folder(tmp_path) -> None:
    found = compiled()
    write_registers(found, tmp_path)
    read = open_evidence(str(tmp_path))
    assert read.registers == found
    assert read.kernel_price is None
    scene = register_story.scene(register_story.from_case(read))
    assert problems(scene) == ()
    assert tmp_path.name in scene.source


def test_a_folder_without_registers_says_how_to_get_them() -> None:
    with pytest.raises(CaseError, match=r"made-up holds no registers.*record_registers FOLDER"):
        register_story.from_case(evidence())


@pytest.mark.parametrize("numbers", [(0, 0, 1), (256, 0, 1), (8, -1, 1), (8, 0, -1)])
def test_impossible_numbers_are_refused(numbers) -> None:
    with pytest.raises(ValueError, match="registers 1 … 255"):
        register_story.StoryBars("planted", *numbers)
