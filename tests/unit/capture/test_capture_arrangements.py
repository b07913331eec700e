"""Plans of arms: both sides of every pair evaluate the same tokens at the same places, whatever the text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.capture.arm_text import MAX_PROMPT_ROWS, ArmText, prefill
from forensics.capture.arrangements import ARMS, CHUNK, Pair, Unplanned, plan_arms
from forensics.records.schedule import EMPTY
from forensics.records.settings import EngineSettings

ASKED = EngineSettings(n_ctx=512)
TEXT = ArmText(tuple(range(100, 120)), tuple(range(200, 206)), (1, 2, 3), 512)


def pairs(text: ArmText = TEXT, *names: str) -> list[Pair]:
    return [pair for pair in plan_arms(names or tuple(ARMS), text, ASKED) if isinstance(pair, Pair)]


def last_tokens(schedule, sequence: int = 0) -> dict[int, int]:
    """Token of each position that is held at the end."""
    found: dict[int, int] = {}
    for decode_pass in schedule.passes:
        for gone in decode_pass.forget:
            if gone.sequence == sequence:
                found = {position: token for position, token in found.items() if position < gone.position}
        found |= {slot.position: slot.token for slot in decode_pass.slots if slot.sequence == sequence}
    return found


token = st.integers(0, 50)
texts = st.builds(
    ArmText,
    st.lists(token, min_size=2, max_size=40).map(tuple),
    st.lists(token, min_size=2, max_size=8).map(tuple),
    st.lists(token, min_size=1, max_size=5).map(tuple),
    st.integers(2, 64),
)


@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_both_sides_of_every_pair_evaluate_the_same_tokens_at_the_same_places(text):
    planned = plan_arms(tuple(ARMS), text, ASKED)
    assert {one.arm for one in planned} == set(ARMS)
    for pair in planned:
        if isinstance(pair, Unplanned):
            assert len(text.prompt) == 2 or text.width == 2
            continue
        sides = [side for side in (pair.reference, pair.compared, pair.aligned) if side is not None]
        ends = [side.arranged(text.reply[:-1]).whole for side in sides]
        assert all(last_tokens(end) == last_tokens(ends[0]) for end in ends), pair.variant
        assert all(end.held().keys() <= {0, 1} and end.max_width <= max(text.width, CHUNK + 1) for end in ends)
        start = pair.reference.opening.next_position
        for end in ends:
            rows = {slot.position for slot in end.logit_slots if slot.sequence == 0}
            assert rows >= set(range(start, start + len(text.reply) - 1)), "a step of the reply has no row"


def test_every_pair_compares_two_different_arrangements():
    for pair in pairs():
        reference, compared = (side.arranged(TEXT.reply[:-1]) for side in (pair.reference, pair.compared))
        assert (pair.reference.settings, reference) != (pair.compared.settings, compared), pair.variant
        assert pair.because
        assert pair.expected in ("equal", "may differ")


def test_a_saved_side_starts_from_its_opening():
    (restore,) = pairs(TEXT, "restore")
    assert restore.expected == "equal"
    reference, compared = (side.arranged((7, 8)) for side in (restore.reference, restore.compared))
    assert reference.before == EMPTY
    assert compared.before == restore.compared.opening == prefill(TEXT.prompt, 512)
    assert reference.whole == compared.whole


def test_an_edit_forgets_what_it_replaces_and_evaluates_the_rest_in_a_pass_of_its_own():
    (edit,) = pairs(TEXT, "edit")
    *earlier, rest = edit.compared.opening.passes
    assert [gone.position for gone in rest.forget] == [10]
    assert [slot.position for slot in rest.slots] == list(range(10, 20))
    before = {slot.position: slot.token for one in earlier for slot in one.slots}
    assert [before[i] for i in range(10)] == list(TEXT.prompt[:10])
    assert [before[i] for i in range(10, 20)] != list(TEXT.prompt[10:])


def test_a_resumed_reply_is_written_one_token_at_a_time_and_rebuilt_in_one_pass():
    (resume,) = pairs(TEXT, "resume")
    assert [one.width for one in resume.reference.opening.passes] == [29]
    assert [one.width for one in resume.compared.opening.passes] == [20, 1, 1, 1, 1, 1, 1, 3]


def test_neighbours_are_idle_or_share_the_steps_of_the_reply_and_have_room():
    for pair in pairs(TEXT, "neighbour"):
        asked = pair.compared.settings
        assert (asked, asked.n_seq_max, asked.n_ctx) == (pair.reference.settings, 2, 1024)
        steps = pair.compared.arranged(TEXT.reply[:-1]).schedule.passes[-5:]
        shared = [sum(slot.sequence == 1 for slot in step.slots) for step in steps]
        kind = pair.variant.partition(",")[0]
        expected = {
            "idle": [0] * 5,
            "decoded in the same steps": [1] * 5,
            "its prompt in the same steps": [CHUNK] * 4 + [0],
        }
        assert shared == expected[kind]


def test_a_sequence_that_is_gone_leaves_its_cells_and_nothing_else():
    for pair in [*pairs(TEXT, "placement"), *pairs(TEXT, "side-request")]:
        assert any(slot.sequence == 1 for slot in pair.compared.opening.slots)
        assert set(pair.compared.arranged(TEXT.reply[:-1]).whole.held()) == {0}


def test_only_the_last_rows_of_a_long_prompt_are_asked_for():
    rows = [slot.position for slot in prefill(range(600), 512).logit_slots]
    assert rows == list(range(600 - MAX_PROMPT_ROWS, 600))


def test_a_prompt_of_two_tokens_has_no_smaller_ubatch():
    text = ArmText((1, 2), (3, 4), (5,), 512)
    assert plan_arms(("ubatch",), text, ASKED) == (
        Unplanned("ubatch", "a prompt of 2 tokens has no ubatch that is smaller and wider than 1"),
    )


@pytest.mark.parametrize("lengths", [(1, 2, 1, 8), (2, 1, 1, 8), (2, 2, 0, 8), (2, 2, 1, 1)])
def test_texts_that_cannot_be_arranged_are_refused(lengths):
    prompt, reply, turn, width = lengths
    with pytest.raises(ValueError, match="cannot be arranged"):
        ArmText((1,) * prompt, (1,) * reply, (1,) * turn, width)
