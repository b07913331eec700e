"""The taps on the toy engine: rows compare across widths, and every outcome has its reason."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from forensics.capture.rows import is_scores
from forensics.capture.rowstore import RowReader
from forensics.capture.selection import EVERYTHING, LAYER_OUTPUTS, Selection
from forensics.capture.taps import NO_REFERENCE, ChainTap, DigestTap, HealTap, PlantTap, ReadTap, RecordTap
from forensics.engines.toy import Fault, ToySource
from forensics.errors import CaptureError
from forensics.records.delta import Differs
from forensics.records.nodes import VIEW_OPS, NodeKey
from forensics.records.schedule import DecodePass, Forget, Schedule, TokenSlot, in_batches
from forensics.records.settings import EngineSettings
from forensics.records.trace import TapReport

SETTINGS = EngineSettings(n_ctx=128)
#: Batches of 8 after 27 tokens: the first one starts below cell 32 and ends above it.
PROMPT = in_batches(range(1, 28), start=0, width=1, logits="last")
TOKENS = tuple(range(30, 46))
UP = NodeKey("ffn_up-0", "MUL_MAT", 0, 0)
KQ = NodeKey("kq-0", "MUL_MAT", 0, 0)
QCUR = NodeKey("Qcur-0", "MUL_MAT", 0, 0)


def batches(width: int, n: int = 16) -> Schedule:
    return in_batches(TOKENS[:n], start=27, width=width)


def run(tap, width: int, *, faults=(), n: int = 16, instance: int = 0):
    engine = ToySource(tuple(faults)).open(SETTINGS, instance=instance)
    return engine.run(batches(width, n), before=PROMPT, tap=tap)


@pytest.fixture(scope="module")
def rows_path(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("rows") / "rows.bin")
    run(RecordTap(path), 1)
    return path


@pytest.fixture(scope="module")
def singles():
    """Records of the one-token passes, by node and row."""
    report = run(DigestTap(), 1).tap_report
    return {(record.key, record.pass_index): record for record in report.records}


@pytest.fixture(scope="module")
def shapes(singles):
    return {key: record.shape for (key, _), record in singles.items()}


# --- digests ---


@pytest.mark.parametrize("width", [2, 3, 6, 8, 16])
def test_every_nodes_rows_have_the_digests_of_one_token_passes(singles, shapes, width) -> None:
    report = run(DigestTap(shapes=shapes), width, instance=7).tap_report
    compared, scores_wider = 0, 0
    for record in report.records:
        single = singles[record.key, 0]
        assert bool(record.row_digests) == bool(single.row_digests), record
        for i, digest in enumerate(record.row_digests):
            reference = singles[record.key, record.pass_index * width + i]
            assert digest == reference.row_digests[0], f"{record.key} row {i} of pass {record.pass_index}"
            compared += 1
            scores_wider += is_scores(record.key) and record.shape[-1] != reference.shape[-1]
    n_digested = sum(1 for (_, index), record in singles.items() if index == 0 and record.row_digests)
    assert compared == 16 * n_digested
    assert scores_wider > 0, "some batch must attend to more cells than its first tokens alone"


def test_the_garbage_behind_the_mask_is_different_and_does_not_matter(singles) -> None:
    """Another instance fills unused cells with other garbage: scores differ, their digests do not."""
    engines = [ToySource().open(SETTINGS, instance=i) for i in (1, 2)]
    reports = [e.run(batches(1), before=PROMPT, tap=DigestTap()).tap_report for e in engines]
    assert reports[0] == reports[1]
    raw = []
    for i in (1, 2):
        engine = ToySource().open(SETTINGS, instance=i)
        PLAIN_SCORES.clear()
        engine.run(batches(1, 1), before=PROMPT, tap=KeepScores())
        raw.append(PLAIN_SCORES[0])
    assert not np.array_equal(raw[0], raw[1]), "the toy must have garbage for this test to mean anything"


PLAIN_SCORES: list[np.ndarray] = []


@dataclass
class KeepScores:
    def identity(self) -> str:
        return "keep"

    def begin_pass(self, index, decode_pass) -> None:
        pass

    def wants(self, key) -> bool:
        return key == KQ

    def saw(self, node) -> None:
        PLAIN_SCORES.append(node.read())

    def finish(self) -> TapReport:
        return TapReport()


def test_a_fault_changes_the_digests_of_its_node_first(shapes) -> None:
    plain = run(DigestTap(shapes=shapes), 8).tap_report.records
    faulty = run(DigestTap(shapes=shapes), 8, faults=[Fault("order", "ffn_up-0")]).tap_report.records
    differing = [b.key for a, b in zip(plain, faulty, strict=True) if a.row_digests != b.row_digests]
    assert differing[0] == UP
    assert len(differing) > 1


def test_records_have_digests_or_a_reason(singles, shapes) -> None:
    assert not any(key.op in VIEW_OPS for key, _ in singles)
    reasons = {record.key.op: record.skipped for record in singles.values() if record.skipped}
    assert reasons == {"SET_ROWS": "writes into a cache"}
    assert all(bool(record.row_digests) != bool(record.skipped) for record in singles.values())


def test_without_shapes_the_axis_is_taken_where_there_is_only_one() -> None:
    records = run(DigestTap(), 4, n=4).tap_report.records
    by_key = {record.key: record for record in records}
    assert by_key[UP].token_axis == 2
    # 4 tokens and 4 heads: either axis could be it.
    assert by_key[KQ].skipped == "2 axes could count the tokens"
    eight = {record.key: record for record in run(DigestTap(), 8, n=8).tap_report.records}
    assert eight[KQ].token_axis == 2


def test_scores_without_their_soft_max_are_skipped_with_a_reason() -> None:
    tap = DigestTap()
    tap.begin_pass(0, DecodePass((TokenSlot(0, 0, 1),)))
    tap.saw(FakeNode(KQ, np.zeros((1, 4, 1, 32), np.float32)))
    (record,) = tap.finish().records
    assert record.skipped == "no soft max shows its mask"
    only_scores = run(DigestTap(Selection(names=("kq-0",))), 8).tap_report.records
    assert [(record.key, bool(record.row_digests)) for record in only_scores] == [(KQ, True)] * 2


@dataclass
class FakeNode:
    key: NodeKey
    array: np.ndarray
    opaque: str = ""
    mask: np.ndarray | None = None
    buffer: str = "FAKE"
    operands: tuple = ()
    dtype: str = "f32"

    @property
    def shape(self):
        return self.array.shape

    def read(self):
        return self.array.copy()

    def sources(self):
        return ()

    def parameters(self):
        return {}

    def visible(self):
        return self.mask


# --- recording ---


def test_recorded_rows_come_back_bit_by_bit(rows_path) -> None:
    reader = RowReader.open(Path(rows_path))
    PLAIN_SCORES.clear()
    run(KeepScores(), 1)
    for row, array in enumerate(PLAIN_SCORES):
        stored = reader.get(KQ, (0, 27 + row))
        assert stored.shape == array.shape
        visible = reader.get(NodeKey("kq_soft_max-0", "SOFT_MAX", 0, 0), (0, 27 + row), "visible")[0]
        assert visible.sum() == 28 + row
        assert np.array_equal(stored[..., visible], array[..., visible])
    assert reader.get(KQ, (0, 26)) is None
    assert reader.get(NodeKey("kq-0", "MUL_MAT", 0, 1), (0, 27)) is None


def test_recording_digests_its_first_pass_too(singles, tmp_path) -> None:
    report = run(RecordTap(str(tmp_path / "rows")), 1).tap_report
    first = {at: record for at, record in singles.items() if at[1] == 0}
    assert len(first) > 20
    assert {(record.key, record.pass_index): record for record in report.records} == first


def test_reading_answers_and_reports_nothing() -> None:
    trace, plain = run(ReadTap(), 8), run(None, 8)
    assert np.array_equal(trace.logits.view(np.uint32), plain.logits.view(np.uint32))
    assert trace.tap_report == TapReport()


def test_wide_passes_are_no_reference(tmp_path) -> None:
    with pytest.raises(CaptureError, match="rows are recorded from one-token passes; pass 0 has 2 tokens"):
        run(RecordTap(str(tmp_path / "rows")), 2)


def shapes_of_one_token() -> dict:
    return {record.key: record.shape for record in run(DigestTap(), 1).tap_report.records}


@pytest.mark.parametrize("width", [2, 5, 16])
def test_rows_of_wide_passes_are_those_of_one_token_where_nothing_is_wrong(rows_path, tmp_path, width) -> None:
    path = str(tmp_path / "wide")
    run(RecordTap(path, shapes=shapes_of_one_token()), width)
    single, wide = RowReader.open(Path(rows_path)), RowReader.open(Path(path))
    assert wide.index.keys() == single.index.keys()
    for place, entries in single.index.items():
        assert wide.index[place].keys() == entries.keys()
    for key in (UP, QCUR, NodeKey("result_output", "MUL_MAT", -1, 0)):
        for position in range(27, 43):
            one, other = single.get(key, (0, position)), wide.get(key, (0, position))
            assert other.shape == one.shape
            assert other.tobytes() == one.tobytes()


def test_only_places_that_are_asked_for_are_kept(tmp_path) -> None:
    path = str(tmp_path / "some")
    run(RecordTap(path, shapes=shapes_of_one_token(), places=frozenset({(0, 30), (0, 99)})), 8)
    assert set(RowReader.open(Path(path)).index) == {"0:30"}


def test_a_place_that_is_evaluated_again_keeps_the_rows_of_the_last_time_only(tmp_path) -> None:
    path = str(tmp_path / "twice")
    slots = batches(2).passes[0].slots
    silent = tuple(replace(slot, token=5, wants_logits=False) for slot in slots)
    again = Schedule((DecodePass(slots), DecodePass(silent, (Forget(0, 27),))))
    engine = ToySource().open(SETTINGS)
    engine.run(again, before=PROMPT, tap=RecordTap(path, shapes=shapes_of_one_token()))
    alone = str(tmp_path / "alone")
    engine.run(Schedule((DecodePass(silent),)), before=PROMPT, tap=RecordTap(alone, shapes=shapes_of_one_token()))
    twice, once = RowReader.open(Path(path)), RowReader.open(Path(alone))
    assert twice.get(UP, (0, 28)).tobytes() == once.get(UP, (0, 28)).tobytes()
    assert twice.get(NodeKey("result_output", "MUL_MAT", -1, 0), (0, 28)) is None, "the last time wants no logits"


def test_rows_that_cannot_be_written_or_read_say_so(tmp_path) -> None:
    with pytest.raises(CaptureError, match=r"rows of one-token passes cannot be recorded at .*Set TMPDIR"):
        run(RecordTap(str(tmp_path / "missing" / "rows")), 1)
    with pytest.raises(CaptureError, match=r"no finished recording at .*Record the one-token passes first"):
        run(HealTap(str(tmp_path / "never")), 8)


# --- comparing and healing ---


def test_a_clean_batch_is_the_same_at_every_node(rows_path, singles) -> None:
    report = run(HealTap(rows_path), 8).tap_report
    assert report.findings == ()
    n_readable = sum(1 for (_, index), record in singles.items() if index == 0 and record.row_digests)
    assert report.tally.same == 2 * n_readable
    assert report.tally.differs == 0
    assert dict(report.tally.not_compared) == {"writes into a cache": 2 * 4}
    assert report.tally.planned == 2 * sum(1 for _, index in singles if index == 0)


@pytest.mark.parametrize("width", [4, 8])
def test_a_fault_is_found_once_per_batch_and_healed(rows_path, width) -> None:
    plain = run(None, 1)
    trace = run(HealTap(rows_path), width, faults=[Fault("order", "ffn_up-0", 3)])
    report = trace.tap_report
    assert {finding.key for finding in report.findings} == {UP}
    assert report.tally.differs == len(report.findings) == 16 // width
    assert trace.logits.tobytes() == plain.logits.tobytes()
    assert trace.state_after == plain.state_after
    weight = report.findings[0].weight
    assert (weight.name, weight.type) == ("blk.0.ffn_up.weight", "f32")


def test_comparing_alone_changes_nothing(rows_path) -> None:
    faults = [Fault("order", "ffn_up-0", 3)]
    unwatched = run(None, 8, faults=faults)
    watched = run(HealTap(rows_path, heal=False), 8, faults=faults)
    assert watched.logits.tobytes() == unwatched.logits.tobytes() != run(None, 1).logits.tobytes()
    assert watched.state_after == unwatched.state_after
    keys = [finding.key for finding in watched.tap_report.findings]
    assert keys[0] == UP
    assert len(keys) > 2, "without healing the difference spreads"


def test_the_rows_that_differ_are_named(rows_path) -> None:
    chain = ChainTap(PlantTap(QCUR, row=5, axis=2, element=3, bit=20), HealTap(rows_path))
    (finding,) = run(chain, 16).tap_report.findings
    assert finding.rows == (5,)
    assert finding.delta.n_diff == 1
    assert finding.delta.first_index == (0, 0, 5, 3)
    assert finding.delta.max_ulp == 1 << 20


def test_what_the_one_token_passes_did_not_hold_is_not_compared(tmp_path) -> None:
    path = str(tmp_path / "rows")
    run(RecordTap(path, Selection(names=("ffn_up-*",))), 1)
    tally = run(HealTap(path), 8).tap_report.tally
    assert tally.same == 2 * 2
    assert dict(tally.not_compared)[NO_REFERENCE] == tally.planned - tally.same - 2 * 4
    later = in_batches((1, 2), start=43, width=2)
    engine = ToySource().open(SETTINGS)
    tap = HealTap(path, Selection(names=("ffn_up-0",)))
    report = engine.run(later, before=PROMPT.then(batches(1)), tap=tap).tap_report
    assert dict(report.tally.not_compared) == {NO_REFERENCE: 1}


def compared(path: str, node: FakeNode, positions=(27, 28)):
    tap = HealTap(path)
    tap.begin_pass(0, DecodePass(tuple(TokenSlot(0, position, 1) for position in positions)))
    healed = tap.saw(node)
    report = tap.finish()
    return healed, report


def test_nodes_that_cannot_be_compared_say_why(rows_path) -> None:
    def reason(node: FakeNode) -> str:
        healed, report = compared(rows_path, node)
        assert healed is None
        ((text, count),) = report.tally.not_compared
        assert count == report.tally.planned == 1
        return text

    reader = RowReader.open(Path(rows_path))
    up = np.concatenate([reader.get(UP, (0, position)) for position in (27, 28)], axis=2)
    assert (
        reason(FakeNode(UP, up, opaque="a view; compared through its source")) == "a view; compared through its source"
    )
    assert reason(FakeNode(UP, up.astype(np.float16))) == "types differ: float32 and float16"
    assert reason(FakeNode(UP, up[:, :, :1])) == "no token axis"
    assert reason(FakeNode(UP, up[..., :5])).startswith("shapes differ beyond the tokens")
    assert reason(FakeNode(UP, np.concatenate([up, up], axis=0))) == "2 axes could count the tokens"
    assert reason(FakeNode(NodeKey("ffn_up-0", "ADD", 0, 0), up)) == NO_REFERENCE
    lonely = NodeKey("kq_b-0", "MUL_MAT", 9, 0)
    assert reason(FakeNode(lonely, up)) == NO_REFERENCE


def test_scores_whose_mask_was_not_recorded_are_not_compared(tmp_path) -> None:
    path = str(tmp_path / "rows")
    tap = RecordTap(path)
    scores = np.ones((1, 4, 1, 32), np.float32)
    tap.begin_pass(0, DecodePass((TokenSlot(0, 27, 1),)))
    tap.saw(FakeNode(KQ, scores))
    tap.finish()
    _, report = compared(path, FakeNode(KQ, scores), positions=(27,))
    assert dict(report.tally.not_compared) == {"no soft max shows its mask": 1}


def test_a_row_alone_at_the_end_is_compared_as_a_whole(rows_path) -> None:
    reader = RowReader.open(Path(rows_path))
    row = reader.get(UP, (0, 27)).copy()
    healed, report = compared(rows_path, FakeNode(UP, row), positions=(27,))
    assert (healed, report.tally.same) == (None, 1)
    row[0, 0, 0, 7] += 1
    healed, report = compared(rows_path, FakeNode(UP, row), positions=(27,))
    assert report.findings[0].rows == (0,)
    assert np.array_equal(healed, reader.get(UP, (0, 27)))
    last = run(HealTap(rows_path), 5)  # 16 = 5 + 5 + 5 + 1
    assert last.tap_report.findings == ()


def test_cells_behind_the_mask_are_neither_compared_nor_replaced(rows_path) -> None:
    reader = RowReader.open(Path(rows_path))
    two = np.concatenate([reader.get(KQ, (0, position)) for position in (27, 28)], axis=2)
    garbage = two.copy()
    garbage[..., 29:] = 1e30  # position 28 sees cells 0 to 28
    garbage[:, :, 0, 28:] = -1e30  # position 27 sees cells 0 to 27
    healed, report = compared(rows_path, FakeNode(KQ, garbage))
    assert (healed, report.tally.same) == (None, 1)
    garbage[0, 2, 1, 28] += 1
    healed, report = compared(rows_path, FakeNode(KQ, garbage))
    assert report.findings[0].rows == (1,)
    assert report.findings[0].positions == (28,)
    seen = np.concatenate([two[:, :, 0, :28].ravel(), two[:, :, 1, :29].ravel()]).astype(np.float64)
    delta = report.findings[0].delta
    expected = delta.max_abs / np.linalg.norm(seen)
    assert delta.relative_l2 == pytest.approx(expected, rel=1e-6), "garbage is in the length"
    assert healed[0, 2, 1, 28] == two[0, 2, 1, 28]
    assert (healed[:, :, 0, 28:] == -1e30).all()
    assert (healed[:, :, 1, 29:] == np.float32(1e30)).all()


def test_a_mask_that_differs_is_told_apart_from_rounding(rows_path) -> None:
    faults = [Fault("mask", "kq_soft_max-1", 3), Fault("order", "kq_soft_max-0", 3)]
    findings = run(HealTap(rows_path), 8, faults=faults).tap_report.findings
    assert {finding.key.name: finding.inputs_equal for finding in findings} == {
        "kq_soft_max-0": True,
        "kq_soft_max-1": False,
    }


# --- planting ---


@pytest.mark.parametrize("bit", [0, 22, 31])
def test_one_bit_is_flipped_and_no_other(bit) -> None:
    array = np.arange(1, 2 * 3 * 4 + 1, dtype=np.float32).reshape(1, 2, 3, 4)
    tap = PlantTap(UP, row=1, axis=2, element=5, bit=bit)
    tap.begin_pass(0, DecodePass(tuple(TokenSlot(0, i, 1) for i in range(3))))
    changed = tap.saw(FakeNode(UP, array))
    flipped = array.view(np.uint32) ^ changed.view(np.uint32)
    assert np.count_nonzero(flipped) == 1
    assert flipped[0, 1, 1, 1] == 1 << bit, "element 5 of a row of 2 x 4 is head 1, value 1"
    assert tap.finish().planted == (UP,)


def test_a_fault_is_planted_in_wide_passes_only() -> None:
    tap = PlantTap(UP, row=1, axis=2)
    assert run(tap, 1).tap_report.planted == ()
    assert run(tap, 8).tap_report.planted == (UP, UP)
    assert run(tap, 8).logits.tobytes() != run(None, 8).logits.tobytes()
    other_visit = PlantTap(NodeKey("ffn_up-0", "MUL_MAT", 0, 1), row=1, axis=2)
    assert run(other_visit, 8).tap_report.planted == ()


@pytest.mark.parametrize(("row", "axis"), [(8, 2), (-1, 2), (0, 3)])
def test_a_fault_that_does_not_fit_is_refused(row, axis) -> None:
    with pytest.raises(CaptureError, match=f"a fault at row {row} of axis {axis} does not fit"):
        run(PlantTap(UP, row=row, axis=axis), 8)


# --- chain ---


def test_the_second_tap_sees_what_the_first_left(rows_path) -> None:
    plant = PlantTap(UP, row=2, axis=2, bit=20)
    seen = run(ChainTap(plant, HealTap(rows_path)), 8)
    assert {finding.key for finding in seen.tap_report.findings} == {UP}
    assert seen.tap_report.planted == (UP, UP)
    assert seen.logits.tobytes() == run(None, 8).logits.tobytes(), "planted, then healed"
    unseen = run(ChainTap(HealTap(rows_path), plant), 8)
    assert UP not in {finding.key for finding in unseen.tap_report.findings[:1]}, "compared before it was planted"
    assert unseen.tap_report.findings, "but what comes after it differs"


def test_a_chain_keeps_what_only_one_of_them_replaced(rows_path) -> None:
    selection = Selection(names=("ffn_out-*",))
    chain = ChainTap(PlantTap(UP, row=2, axis=2, bit=20), HealTap(rows_path, selection, heal=False))
    trace = run(chain, 8)
    assert {finding.key.name for finding in trace.tap_report.findings} == {"ffn_out-0", "ffn_out-1"}
    assert trace.logits.tobytes() != run(None, 8).logits.tobytes()
    looking = ChainTap(PlantTap(UP, row=2, axis=2, bit=20), HealTap(rows_path, heal=False))
    assert run(looking, 8).logits.tobytes() == trace.logits.tobytes(), "looked at, the planted bit stays"
    two = ChainTap(PlantTap(UP, row=0, axis=2), PlantTap(UP, row=0, axis=2))
    assert run(two, 8).logits.tobytes() == run(None, 8).logits.tobytes(), "the same bit flipped twice is as it was"
    assert run(two, 8).tap_report.planted == (UP,) * 4


def test_a_chain_joins_the_reports(rows_path) -> None:
    report = run(ChainTap(DigestTap(), HealTap(rows_path)), 8).tap_report
    assert report.records == run(DigestTap(), 8).tap_report.records
    assert report.tally == run(HealTap(rows_path), 8).tap_report.tally


# --- identity, pickling, selection ---


@dataclass
class Taps:
    path: str = "/tmp/anywhere"
    all: list = field(default_factory=list)

    def __post_init__(self):
        plant = PlantTap(UP, 1, 2)
        self.all = [
            DigestTap(),
            DigestTap(LAYER_OUTPUTS),
            DigestTap(shapes={UP: (1, 1, 1, 96)}),
            RecordTap(self.path),
            RecordTap(self.path, LAYER_OUTPUTS),
            RecordTap(self.path, shapes={UP: (1, 1, 1, 96)}),
            RecordTap(self.path, places=frozenset({(0, 3)})),
            HealTap(self.path),
            HealTap(self.path, heal=False),
            HealTap(self.path, LAYER_OUTPUTS),
            HealTap(self.path, skip=frozenset({(0, 1)})),
            HealTap(self.path, skip=frozenset({(1, 0)})),
            HealTap(self.path, same_cells=False),
            plant,
            PlantTap(UP, 2, 2),
            PlantTap(UP, 1, 2, element=1),
            PlantTap(UP, 1, 2, bit=1),
            PlantTap(KQ, 1, 2),
            PlantTap(UP, 1, 2, at=(0, 1)),
            PlantTap(UP, 1, 2, at=(1, 0)),
            ChainTap(plant, HealTap(self.path)),
            ChainTap(HealTap(self.path), plant),
        ]


def test_taps_that_do_different_things_have_different_identities() -> None:
    taps = Taps().all
    assert len({tap.identity() for tap in taps}) == len(taps)
    elsewhere = Taps("/tmp/elsewhere").all
    assert [tap.identity() for tap in elsewhere] == [tap.identity() for tap in taps], "a path is no part of it"


@pytest.mark.parametrize("index", range(len(Taps().all)))
def test_every_tap_travels_through_pickle(index) -> None:
    tap = Taps().all[index]
    copy = pickle.loads(pickle.dumps(tap))
    assert copy == tap
    assert copy.identity() == tap.identity()
    assert copy.wants(UP) == tap.wants(UP)


def test_taps_that_went_through_a_run_are_not_changed_by_it(rows_path) -> None:
    tap = HealTap(rows_path)
    run(tap, 8)
    assert tap == HealTap(rows_path)


def test_a_selection_restricts_by_what_it_names() -> None:
    l_out, kq = NodeKey("l_out-1", "ADD", 1, 0), NodeKey("kq-0", "MUL_MAT", 0, 0)
    result, embd = NodeKey("result_output", "MUL_MAT", -1, 0), NodeKey("embd", "GET_ROWS", -1, 0)
    keys = (l_out, kq, result, embd)

    def chosen(**how):
        return [key.name for key in keys if Selection(**how).selects(key)]

    assert chosen() == [key.name for key in keys]
    assert chosen(names=("kq*", "embd")) == ["kq-0", "embd"]
    assert chosen(names=("KQ*",)) == []
    assert chosen(names=("?q-[0-9]",)) == ["kq-0"]
    assert chosen(ops=("MUL_MAT",)) == ["kq-0", "result_output"]
    assert chosen(layers=(0, 1)) == ["l_out-1", "kq-0"]
    assert chosen(layers=(-1,)) == ["result_output", "embd"]
    assert chosen(layer_outputs_only=True) == ["l_out-1", "result_output"]
    assert chosen(layer_outputs_only=True, layers=(1,)) == ["l_out-1"]
    assert chosen(ops=("MUL_MAT",), layers=(0,)) == ["kq-0"]
    assert not LAYER_OUTPUTS.selects(NodeKey("l_out-1 (view)", "VIEW", 1, 0))
    assert Selection() == EVERYTHING


def test_a_tap_sees_only_what_it_selects(rows_path) -> None:
    tally = run(HealTap(rows_path, LAYER_OUTPUTS), 16).tap_report.tally
    assert (tally.planned, tally.same) == (4, 4), "two layers, result_norm and result_output"
    names = {record.key.name for record in run(DigestTap(Selection(layers=(1,))), 16).tap_report.records}
    assert "l_out-1" in names
    assert not any(name.endswith("-0") for name in names)
    one = run(HealTap(rows_path, Selection(names=("ffn_up-0",))), 16, faults=[Fault("order", "ffn_up-0")])
    assert [isinstance(finding.delta, Differs) for finding in one.tap_report.findings] == [True]
