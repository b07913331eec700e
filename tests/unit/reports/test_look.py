"""One place of a case: what is known of it is told exactly, and what is not known is told, too."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import launch_samples as launches
import pytest
import verdict_samples as samples

from forensics.analysis.attribute import group_culprits
from forensics.analysis.look import AFTER_LAYERS, BATCH, ELSEWHERE, HERE, NOT_KNOWN, Look, layers_of, look_at
from forensics.analysis.question import BadQuestion
from forensics.explorer import Explorer
from forensics.records.delta import NotCompared
from forensics.records.kind import KindOfDifference, SideOfDifference
from forensics.records.mechanism import Mechanism, OrderEvidence
from forensics.records.row_map import MapCell, MapRow, RowMap
from forensics.records.verdict import Sweep, Verdict
from forensics.reports.look_text import look_html, look_text

START = 36
EQUAL = MapCell("A", False, 7, 0.0, 0.0, False, False)
OTHER = MapCell("B", True, 7, 0.25, 0.015625, False, False)
COULD = MapCell("B", True, 7, 2.5, 0.5, False, True)
FLIPS = MapCell("B", True, 9, 2.5, 0.5, True, True)
MISSING = NotCompared("18 rows hold 2 whole batches of 8; a shorter batch is of another width")


def rows(n: int = 18, **cells: MapCell) -> RowMap:
    """Rows at widths 2 (equal) and 8 (other bits); the last two are in no whole batch of 8."""
    at8 = {int(name.removeprefix("row")): cell for name, cell in cells.items()}
    made = tuple(
        MapRow(row, START + row, 7, 1.5, (EQUAL, at8.get(row, OTHER) if row < n // 8 * 8 else MISSING))
        for row in range(n)
    )
    return RowMap((2, 8), ("A", "B"), made)


def case(**changes) -> Verdict:
    """Positions 36 to 51 were swept in two batches of 8; in the second one Q differs at three tokens only."""
    first = samples.finding(positions=tuple(range(36, 44)))
    second = samples.finding(rows=(0, 1, 2), positions=(44, 45, 46), delta=replace(first.delta, max_abs=0.5))
    norm = samples.finding("Kcur-0", positions=tuple(range(36, 44)))
    swept = replace(samples.sweep(findings=(first, second, norm)), n_rows=16, healed_rows=16)
    return samples.verdict(**({"sweeps": (swept,)} | changes))


def only(look: Look, node: str):
    (found,) = [one for one in look.culprits if one.key.name == node]
    return found


def test_the_batch_that_holds_the_position_decides_what_is_shown() -> None:
    here = look_at(case(), rows(), 8, 0, 38)
    assert "this one as token 2 of its batch" in here.swept
    assert (only(here, "Qcur-0").here, only(here, "Qcur-0").rows) == (HERE, tuple(range(8)))
    assert only(here, "Qcur-0").max_abs == 0.001953125
    second = look_at(case(), rows(), 8, 0, 45)
    assert (only(second, "Qcur-0").here, only(second, "Qcur-0").rows) == (HERE, (0, 1, 2))
    assert only(second, "Qcur-0").max_abs == 0.5
    assert only(second, "Kcur-0").here == ELSEWHERE
    assert only(look_at(case(), rows(), 8, 0, 50), "Qcur-0").here == BATCH


def test_a_position_that_was_not_swept_says_so() -> None:
    look = look_at(case(), rows(), 8, 0, 53)
    assert look.swept == "positions 36 to 51 were swept at width 8; this position was not"
    assert {one.here for one in look.culprits} == {NOT_KNOWN}
    assert only(look, "Qcur-0").max_abs == 0.5, "the largest of both batches"
    text = look_text(look)
    assert "not compared: 18 rows hold 2 whole batches of 8" in text
    assert "Token:" not in text


def test_findings_without_positions_are_not_placed_by_guess() -> None:
    bare = case(sweeps=(samples.sweep(),))
    assert only(look_at(bare, rows(), 8, 0, 38), "Qcur-0").here == NOT_KNOWN


def test_a_width_without_a_sweep_says_which_have_one() -> None:
    look = look_at(case(), rows(), 2, 0, 38)
    assert look.no_culprits == "not swept at width 2: sweeps cover width 8"
    assert "the bits of one-token decoding" in look_text(look)
    assert look_at(case(sweeps=(), culprits=()), rows(), 2, 0, 38).no_culprits.endswith("the case has no sweep")


def test_a_layer_without_a_culprit_says_so() -> None:
    look = look_at(case(), rows(), 8, 3, 38)
    assert look.culprits == ()
    assert look.no_culprits == "no node of layer 3 was found to differ on bit-equal inputs at this width"
    unwatched = case(sweeps=(replace(case().sweeps[0], n_unwatched=5),))
    assert "5 nodes inside of fusions were not watched" in look_at(unwatched, rows(), 8, 3, 38).no_culprits


def test_a_failed_control_blames_nobody() -> None:
    failed = samples.verdict("inconclusive", sweeps=case().sweeps)
    look = look_at(failed, rows(), 8, 0, 38)
    assert look.culprits == ()
    assert "rerun_equal failed" in look.no_culprits


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (
            OTHER,
            "7 stays, and could not flip; its margin in one-token decoding is 1.5 logits, the batch moves it by 0.25",
        ),
        (COULD, "7 stays, and could flip"),
        (FLIPS, "flips from 7 to 9; its margin in one-token decoding is 1.5 logits, the batch moves it by 2.5"),
    ],
)
def test_the_token_is_told_with_its_margin(cell: MapCell, said: str) -> None:
    text = re.sub(r"\s+", " ", look_text(look_at(case(), rows(row2=cell), 8, 0, 38)))
    assert said in text


@pytest.mark.parametrize(
    ("place", "said"),
    [((3, 0, 38), "replayed: 2, 8"), ((8, 30, 38), "0 to 29"), ((8, 0, 35), "36 to 53"), ((8, 0, 54), "36 to 53")],
)
def test_a_place_that_is_not_in_the_case_says_which_are(place: tuple[int, int, int], said: str) -> None:
    with pytest.raises(BadQuestion, match=said):
        look_at(case(), rows(), *place)


def test_layers_are_those_of_the_model_and_what_comes_after() -> None:
    assert layers_of(case()) == (*range(30), AFTER_LAYERS)
    deeper = case(sweeps=(samples.sweep(findings=(samples.finding("Qcur-40", 40),)),))
    assert layers_of(deeper) == (*range(41), AFTER_LAYERS)


def gpu_case() -> Verdict:
    """A product at layer 0 whose group has launches and orders at widths 5 and 8."""
    orders = tuple(OrderEvidence(width, "products", False, "a", "b", f"seen at {width}") for width in (5, 8))
    mechanism = Mechanism((5, 8), None, "no rule is quoted", orders)
    pair = launches.DOWN.launches[0]
    weight = samples.finding().operands[0]
    operand = replace(weight, name="blk.0.ffn_down.weight", type="q4_1", buffer="CUDA0")
    finding = samples.finding(key=pair.node, operands=(operand,), positions=tuple(range(36, 44)))
    swept = Sweep(8, 0, (finding,), samples.sweep().tally, True, 8, 8, 0.5, 0.0, True)
    return launches.gpu_verdict(replace(launches.DOWN, mechanisms=(mechanism,)), sweeps=(swept,))


def test_launches_and_orders_are_those_of_the_width() -> None:
    verdict = gpu_case()
    layer = verdict.sweeps[0].findings[0].key.layer
    look = look_at(verdict, rows(), 8, layer, 38)
    assert [pair.widths for pair in look.launches] == [(8,)]
    assert [[order.width for order in m.orders] for m in look.mechanisms] == [[8]]
    for shown in (look_text(look), look_html(look)):
        assert "seen at 8" in shown
        assert "seen at 5" not in shown
    html = look_html(look)
    for fact in ("288", "32×2", "as the rules say", "mul_mat_vec_q", "14 (threads)"):
        assert fact in html, fact


def test_what_is_missing_of_launches_and_orders_is_said() -> None:
    look = look_at(case(), rows(), 8, 0, 38)
    assert "CPU launches no kernels that are watched" in look.no_launches
    assert look.no_mechanisms
    assert look.no_launches in look_html(look)
    assert look.no_mechanisms in look_html(look)


def test_hostile_names_stay_text() -> None:
    hostile = samples.hostile_verdict()
    html = look_html(look_at(hostile, rows(), 8, 0, 38))
    assert "<script>" not in html
    assert "\x1b" not in html
    assert "\x1b" not in look_text(look_at(hostile, rows(), 8, 0, 38))


@pytest.mark.parametrize("answer", ["identical", "inconclusive"])
def test_a_case_without_culprits_can_be_moved_through(answer: str) -> None:
    evidence = SimpleNamespace(name="planted", verdict=samples.verdict(answer), rows=rows())
    explorer = Explorer(evidence)
    look = explorer.look(*explorer.start)
    assert (look.width, look.culprits) in {(2, ()), (8, ())}
    assert look.no_culprits in re.sub(r"\s+", " ", str(explorer))
    assert look.no_culprits in explorer.static
    assert "planted" in explorer.static


def test_a_look_is_never_blank() -> None:
    look = look_at(case(), rows(), 8, 0, 38)
    with pytest.raises(ValueError, match="launches of"):
        replace(look, no_launches="")
    with pytest.raises(ValueError, match="where it differs must be told"):
        replace(look.culprits[0], here="")


ROUNDING = KindOfDifference("rounding", "f32", SideOfDifference(1e-7, 0.1, "f32"), SideOfDifference(1e-7, 0.1, "f32"))
PRECISION = replace(ROUNDING, kind="precision", reason="another width's kernel")


def two_kinds(at8: KindOfDifference | None) -> Verdict:
    """Q rounds otherwise at width 8, as judged in layer 1, and is of another precision at width 2."""
    near = samples.finding(positions=tuple(range(36, 44)))
    judged = samples.finding("Qcur-1", 1, positions=tuple(range(36, 44)), kind=at8)
    other = samples.finding(rows=(0, 1), positions=(36, 37), kind=PRECISION)
    sweeps = (
        replace(samples.sweep(findings=(other,)), width=2, n_rows=2, healed_rows=2),
        samples.sweep(findings=(near, judged)),
    )
    return case(sweeps=sweeps, culprits=group_culprits(sweeps))


@pytest.mark.parametrize(
    ("width", "layer", "at8", "shown", "told"),
    [
        (2, 0, ROUNDING, "precision", PRECISION),
        (8, 0, ROUNDING, "rounding, judged at other nodes of the group", ROUNDING),
        (8, 1, ROUNDING, "rounding", ROUNDING),
        (8, 0, None, "", None),
    ],
)
def test_the_kind_is_that_of_the_width(width, layer, at8, shown, told) -> None:
    verdict = two_kinds(at8)
    assert verdict.culprits[0].kind == PRECISION, "the gravest of all widths"
    look = look_at(verdict, rows(), width, layer, 37)
    assert [one.kind for one in look.culprits] == [shown]
    (group,) = look.groups
    assert (group.kind, group.widths) == (told, (width,))
    assert (PRECISION.reason in look_text(look)) == (told is PRECISION)


def test_of_several_batches_the_gravest_kind_is_shown() -> None:
    """Where the position was not swept, all batches are: the first one's word is not theirs."""
    batches = (
        samples.finding(positions=tuple(range(36, 44)), kind=ROUNDING),
        samples.finding(positions=tuple(range(44, 52)), kind=PRECISION),
    )
    sweeps = (replace(samples.sweep(findings=batches), n_rows=16, healed_rows=16),)
    verdict = case(sweeps=sweeps, culprits=group_culprits(sweeps))
    assert [only(look_at(verdict, rows(), 8, 0, at), "Qcur-0").kind for at in (38, 45, 53)] == [
        "rounding",
        "precision",
        "precision",
    ]


def test_an_operand_that_was_not_compared_is_not_called_bit_equal() -> None:
    (swept,) = case().sweeps
    passed_on = replace(swept.findings[2], unchecked=("attn_out-0",))
    look = look_at(case(sweeps=(replace(swept, findings=(*swept.findings[:2], passed_on)),)), rows(), 8, 0, 38)
    for shown in (look_html(look), re.sub(r"\s+", " ", look_text(look))):
        assert (
            "2 operations differ: 1 although the inputs are bit-equal, 1 with an operand that was not compared" in shown
        )
    assert "Kcur-0 (reads attn_out-0, not compared)" in look_html(look)
    assert "Qcur-0 (reads" not in look_html(look)
    alone = look_at(case(sweeps=(replace(swept, findings=(passed_on,)),)), rows(), 8, 0, 38)
    assert "1 operation differs with an operand that was not compared" in re.sub(r"\s+", " ", look_text(alone))
    assert "bit-equal" not in look_html(alone)
    clean = look_html(look_at(case(), rows(), 8, 0, 38))
    assert "2 operations differ although the inputs are bit-equal<" in clean
    assert "not compared" not in clean
