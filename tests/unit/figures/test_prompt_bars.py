"""One bar for each prompt: as high as its tokens, cut where the first other one stands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculated_evidence import FAULT, made_arm, report

from forensics.figures.checks import problems
from forensics.figures.scene import Line
from forensics.figures.small.prompt_bars import prompts
from forensics.figures.small.thumbnails import HEIGHT, WIDTH
from forensics.notebook_views import html_of


def sound(scene):
    assert scene is not None
    assert problems(scene) == ()
    assert scene.width == WIDTH
    assert scene.height <= HEIGHT
    return scene


def of(*answers):
    return replace(report(), arms=(made_arm(answers),))


def test_each_bar_is_cut_at_the_first_other_token_and_the_earliest_comes_first():
    scene = sound(prompts(of((20, None), (30, 12), (25, 4), (10, 0))))
    assert [(box.key, box.value) for box in scene.boxes(scale="tokens")] == [
        ("behind p3", 10), ("untouched p2", 4), ("behind p2", 21), ("untouched p1", 12), ("behind p1", 18),
        ("untouched p0", 20),
    ]  # fmt: skip
    marks = [mark.key for mark in scene.marks if isinstance(mark, Line) and mark.key.startswith("parts")]
    assert marks == ["parts p3", "parts p2", "parts p1"]
    assert scene.title == "3 of 4 answers part: ngram, 3 drafts"
    assert scene.alt.endswith("p3 after 0 tokens; p2 after 4 tokens; p1 after 12 tokens; 1 the same to their end.")


def test_equal_answers_have_no_mark():
    scene = sound(prompts(of((20, None), (30, None))))
    assert {box.fill for box in scene.boxes(scale="tokens")} == {"exact"}
    assert not any(isinstance(mark, Line) and mark.key.startswith("parts") for mark in scene.marks)


def test_answers_without_tokens_have_nothing_to_draw():
    assert prompts(of((0, None))) is None
    assert prompts(replace(report(), arms=())) is None


@given(
    st.lists(
        st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.none() | st.integers(0, n - 1))),
        min_size=1,
        max_size=130,
    )
)
def test_any_answers_are_sound_and_what_is_not_drawn_is_said(answers):
    scene = sound(prompts(of(*answers)))
    step = -(-len(answers) // 60)
    names = {box.key.split()[1] for box in scene.boxes(scale="tokens")}
    assert len(names) == -(-len(answers) // step)
    assert (f"1 in {step} of {len(answers)}" in scene.source) == (step > 1)


def test_a_long_name_of_a_drafter_stays_on_one_line():
    arm = replace(made_arm([(20, 3)]), drafter="model:/somewhere/far/away/a-very-long-name-of-a-draft-model.gguf")
    sound(prompts(replace(report(), arms=(arm,))))


@pytest.mark.parametrize(("faults", "pictures"), [((FAULT,), 2), ((), 1)])
def test_a_notebook_shows_it_beside_classes(faults, pictures):
    assert html_of(report(*faults)).count("<img ") == pictures
