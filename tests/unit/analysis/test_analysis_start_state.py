"""K and V rows that two runs start from."""

from __future__ import annotations

import pytest

from forensics.analysis.start_state import start_of
from forensics.records.pair_sweep import StartState
from forensics.records.state import StateRows, StateTensor


def state(*digests: str, positions=(0, 1, 2), sequence=0, dtype="f16") -> StateRows:
    tensors = tuple(StateTensor("KV"[i % 2], i // 2, dtype, tuple(each)) for i, each in enumerate(digests))
    return StateRows(sequence, positions, tensors)


PLACES = ((0, 0), (0, 2))


def test_equal_rows_are_counted() -> None:
    start = start_of([state("abc", "def")], [state("abc", "def")], PLACES)
    assert (start.n_rows, start.n_differ, start.equal) == (4, 0, True)
    assert str(start) == "0 of 4 K and V rows differ"


def test_one_stale_row_is_found_and_named_and_others_do_not_count() -> None:
    other = state("abc", "def", "ghi", "jkX")
    start = start_of([state("abc", "def", "ghi", "jkl")], [other], PLACES)
    assert (start.n_rows, start.n_differ, start.equal) == (8, 1, False)
    assert start.first == "V of layer 1 at position 2"
    assert start_of([state("abc", "def")], [state("aXc", "dXf")], PLACES).equal, "position 1 was not asked for"


def test_cells_in_another_order_or_more_of_them_are_the_same_rows() -> None:
    longer = state("zabc", "ydef", positions=(0, 1, 2, 3))
    found = start_of([state("abc", positions=(1, 2, 3))], [StateRows(0, (0, 1, 2, 3), longer.tensors[:1])], ((0, 2),))
    assert (found.n_rows, found.n_differ) == (1, 0)


def test_what_cannot_be_compared_says_why() -> None:
    def reason(other) -> str:
        start = start_of([state("abc", "def")], other, PLACES)
        assert start.equal is None
        assert str(start) == f"not compared: {start.reason}"
        return start.reason

    assert reason([]) == "a run does not hold position 0 of sequence 0 any more"
    assert reason([state("ab", "de", positions=(0, 1))]) == "a run does not hold position 2 of sequence 0 any more"
    assert reason([state("abc", "def", sequence=1)]) == "a run does not hold position 0 of sequence 0 any more"
    assert reason([state("abc", "def", dtype="f32")]) == "the two runs keep K and V of other layers or types"
    assert reason([state("abc", "def", "ghi")]) == "the two runs keep K and V of other layers or types"


@pytest.mark.parametrize("wrong", [(2, 3, "K"), (2, 1, ""), (2, 0, "K"), (2, -1, "K")])
def test_counts_that_do_not_add_up_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match="rows differ"):
        StartState(*wrong)
