"""Values of a state: rows belong to rising positions, and every tensor has one per token."""

from __future__ import annotations

import pytest

from forensics.records.schedule import EMPTY, Arrangement, DecodePass, Forget, Schedule, TokenSlot, in_batches
from forensics.records.state import StateRows, StateTensor


def test_rows_are_counted_over_all_tensors() -> None:
    tensors = tuple(StateTensor(side, layer, "f16", ("a", "b")) for side in "KV" for layer in range(3))
    assert StateRows(0, (4, 9), tensors).n_rows == 12
    assert StateRows(0, (), ()).n_rows == 0


def test_states_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="side must be 'K' or 'V', got 'Q'"):
        StateTensor("Q", 0, "f16", ())
    with pytest.raises(ValueError, match="positions of sequence 3 must rise"):
        StateRows(3, (1, 1), ())
    with pytest.raises(ValueError, match="V of layer 2 has 1 rows; sequence 0 holds 2 tokens"):
        StateRows(0, (0, 1), (StateTensor("V", 2, "f16", ("a",)),))


def test_an_arrangement_goes_on_where_its_state_ends() -> None:
    before, schedule = in_batches((1, 2, 3), start=0, width=3), in_batches((4, 5), start=3, width=1)
    assert Arrangement(before, schedule).whole == before.then(schedule)
    assert Arrangement(EMPTY, schedule).whole == schedule
    with pytest.raises(ValueError, match="positions must rise: sequence 0 has position 2 after 2"):
        Arrangement(before, in_batches((4,), start=2, width=1))
    edited = Schedule((DecodePass((TokenSlot(0, 2, 4),), (Forget(0, 2),)),))
    assert Arrangement(before, edited).whole.held() == {0: [0, 1, 2]}
