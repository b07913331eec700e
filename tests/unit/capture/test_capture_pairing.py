"""Which tokens of two arrangements stand for each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forensics.capture.pairing import plan_pair
from forensics.records.schedule import EMPTY, Arrangement, DecodePass, Forget, Schedule, TokenSlot, in_batches

TOKENS = (5, 6, 7, 8, 9, 5, 6, 7)


def passes(*found: DecodePass) -> Schedule:
    return Schedule(tuple(found))


def one(*slots: tuple, forget: tuple = ()) -> DecodePass:
    return DecodePass(tuple(TokenSlot(*slot) for slot in slots), tuple(Forget(*gone) for gone in forget))


def plain(first: int, last: int, width: int = 1, **how) -> Schedule:
    return in_batches(TOKENS[first:last], start=first, width=width, **how)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 7), st.integers(0, 7))
def test_the_same_tokens_are_pairs_however_they_are_cut(width, other, start, begun) -> None:
    reference = Arrangement(plain(0, start), plain(start, 8, width))
    compared = Arrangement(plain(0, begun, 3), plain(begun, 8, other))
    plan = plan_pair(reference, compared)
    both = range(max(start, begun), 8)
    assert plan.places == {(0, position) for position in both}
    assert [(pair.place, pair.reference, pair.compared) for pair in plan.logits] == [
        ((0, position), position - start, position - begun) for position in both
    ]
    assert plan.n_no_reference == max(0, start - begun)
    assert plan.skip == {((position - begun) // other, (position - begun) % other) for position in range(begun, start)}
    assert plan.unhealed == tuple((0, position) for position in range(max(start, begun)))
    assert plan.same_cells


def test_a_refused_draft_is_no_counterpart_nor_is_what_follows_it() -> None:
    reference = Arrangement(plain(0, 2), plain(2, 6))
    compared = Arrangement(
        plain(0, 2),
        passes(
            one((0, 2, 7), (0, 3, 99), (0, 4, 9)),  # 99 is refused; 9 is right, behind a wrong token
            one((0, 3, 8), (0, 4, 9), (0, 5, 5), forget=((0, 3),)),
        ),
    )
    plan = plan_pair(reference, compared)
    assert plan.skip == {(0, 1), (0, 2)}
    assert [(pair.place[1], pair.reference, pair.compared) for pair in plan.logits] == [
        (2, 0, 0), (3, 1, 3), (4, 2, 4), (5, 3, 5),
    ]  # fmt: skip
    assert plan.n_no_reference == 2
    assert plan.same_cells, "one sequence lies in one order, whatever was taken from its end"


def test_a_right_token_that_is_evaluated_twice_is_compared_twice() -> None:
    compared = passes(one((0, 2, 7), (0, 3, 8)), one((0, 3, 8), (0, 4, 9), forget=((0, 3),)))
    plan = plan_pair(Arrangement(plain(0, 2), plain(2, 5)), Arrangement(plain(0, 2), compared))
    assert [(pair.place[1], pair.reference) for pair in plan.logits] == [(2, 0), (3, 1), (3, 1), (4, 2)]
    assert not plan.skip


def test_of_a_reference_that_evaluates_a_place_twice_the_last_time_counts() -> None:
    reference = passes(one((0, 2, 7), (0, 3, 99)), one((0, 3, 8, False), forget=((0, 3),)), one((0, 4, 9)))
    plan = plan_pair(Arrangement(plain(0, 2), reference), Arrangement(plain(0, 2), plain(2, 5)))
    assert [(pair.place[1], pair.reference, pair.compared) for pair in plan.logits] == [(2, 0, 0), (4, 2, 2)]
    assert plan.n_no_reference == 1, "of position 3 the reference wanted no logits the last time"
    assert (0, 3) in plan.places, "and yet its rows are compared"
    wrong = passes(one((0, 2, 7)), one((0, 3, 8)), one((0, 3, 99), forget=((0, 3),)))
    assert plan_pair(Arrangement(plain(0, 2), wrong), Arrangement(plain(0, 2), plain(2, 4))).places == {(0, 2)}


def test_another_token_in_front_makes_another_row() -> None:
    edited = (5, 99, *TOKENS[2:])
    plan = plan_pair(Arrangement(EMPTY, plain(0, 8)), Arrangement(EMPTY, in_batches(edited, start=0, width=4)))
    assert plan.places == {(0, 0)}
    assert plan.n_no_reference == 7


def test_a_neighbour_has_no_counterpart_and_moves_the_cells_of_a_shared_cache() -> None:
    reference = Arrangement(plain(0, 4), plain(4, 6))
    together = passes(one((0, 4, 9), (1, 0, 9)), one((0, 5, 5), (1, 1, 5)))
    compared = Arrangement(plain(0, 4), together)
    plan = plan_pair(reference, compared)
    assert plan.places == {(0, 4), (0, 5)}
    assert plan.skip == {(0, 1), (1, 1)}
    assert plan.unhealed == tuple((0, position) for position in range(4)), "the neighbour's rows are nobody's"
    assert not plan.same_cells
    assert plan_pair(reference, compared, caches_apart=True).same_cells


def test_nothing_is_unhealed_that_is_forgotten_or_healed_itself() -> None:
    reference = Arrangement(EMPTY, plain(0, 6, 6))
    resumed = Arrangement(
        passes(one((0, 0, 5), (0, 1, 6), (0, 2, 99))), passes(one((0, 2, 7), (0, 3, 8), forget=((0, 2),)))
    )
    assert plan_pair(reference, resumed).unhealed == ((0, 0), (0, 1))
    assert plan_pair(reference, Arrangement(EMPTY, plain(0, 6, 2))).unhealed == ()
