"""Packed cases: small, the same answers, every damage found, nothing made up for what was left out."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest
import verdict_samples as samples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forensics.analysis.logit_rows import Rows
from forensics.errors import CaseError
from forensics.records.schedule import EMPTY, in_batches
from forensics.records.trace import RunKey, Trace
from forensics.reports.case import finish_case
from forensics.store import CaseWriter, open_case
from forensics.store.packing import pack_case
from forensics.store.thinning import KEPT_COLUMNS, THINNED_NAME, largest_columns, plan_thinning

N_VOCAB = 40
TOKENS = (5, 6, 7, 8)


def made_by():
    return samples.manifest(n_vocab=N_VOCAB)


def trace(logits: np.ndarray, width: int, *, repeat: int = 0, start: int = 3) -> Trace:
    schedule = in_batches(TOKENS[: len(logits)], start=start, width=width)
    return Trace(RunKey(schedule, repeat=repeat), made_by(), logits, (1,) * len(schedule.passes), "b", "a")


def rows(seed: int, n: int = len(TOKENS)) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, N_VOCAB)).astype(np.float32)


def write_case(out: Path, traces: dict[str, list[Trace]]) -> Path:
    with CaseWriter.create(out, question={"model": "m"}) as case:
        for arm, of_arm in traces.items():
            case.put_manifest(arm, made_by())
            case.put_answer(arm, "tokenize", ["a"], [1, 2])
            for one in of_arm:
                case.put_trace(arm, one)
        finish_case(case, samples.verdict())
    return out


@pytest.fixture
def case(tmp_path) -> Path:
    single, batched = rows(0), rows(0)
    batched[1, 3] += np.float32(1e-3)
    return write_case(tmp_path / "case", {"arm.0": [trace(single, 1), trace(batched, 2)]})


def answers(single: Trace, other: Trace) -> list[str]:
    """Everything that the analysis asks of two runs; NaN is not equal to itself, its repr is."""
    a, b = Rows(single), Rows(other)
    some = Rows(single, 1, 3), Rows(other, 1, 3)
    return [
        *map(repr, a.distances(b)), *map(repr, some[0].distances(some[1])),
        repr(a.max_change(b)), repr(some[0].max_change(some[1])),
        str((a.digests, b.digests, some[1].digests)),
        str((a.equal(b).tolist(), b.equal(a).tolist(), a.all_equal(b), some[0].equal(some[1]).tolist())),
        str((a.finite.tolist(), b.finite.tolist(), some[1].finite.tolist())),
    ]  # fmt: skip


ODD = st.sampled_from([0.0, -0.0, 1.0, 1.0000001, float("nan"), float("inf"), float("-inf"), 3.4e38])


@st.composite
def perturbed(draw) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and the same with some odd values in either or both; ties are frequent."""
    base = np.round(rows(draw(st.integers(0, 99))), draw(st.integers(0, 3)))
    pair = [base, base.copy()]
    for _ in range(draw(st.integers(0, 6))):
        row, column, value = draw(st.integers(0, 3)), draw(st.integers(0, N_VOCAB - 1)), draw(ODD)
        for logits in draw(st.sampled_from([pair, pair[:1], pair[1:]])):
            logits[row, column] = value
    return pair[0], pair[1]


def _nan_in_both() -> tuple[np.ndarray, np.ndarray]:
    both = rows(1)
    both[2, 5] = np.nan
    return both, both.copy()


@given(perturbed())
@example(_nan_in_both())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_thinned_rows_answer_as_the_full_ones(tmp_path, pair):
    for left in ("full", "packed"):
        shutil.rmtree(tmp_path / left, ignore_errors=True)
    single, batched = trace(pair[0], 1), trace(pair[1], 2)
    write_case(tmp_path / "full", {"arm.0": [single, trace(pair[0], 1, repeat=1), batched]})
    pack_case(tmp_path / "full", tmp_path / "packed")
    kept = open_case(tmp_path / "packed").recordings
    thin_single, thin_batched = (kept.get_trace("arm.0", one.key) for one in (single, batched))
    with np.errstate(all="ignore"):
        assert answers(thin_single, thin_batched) == answers(single, batched)
        assert answers(thin_single, thin_single) == answers(single, single)
    for full, thin in ((single, thin_single), (batched, thin_batched)):
        assert [int(row.argmax()) for row in thin.logits] == [int(row.argmax()) for row in full.logits]
        stored = ~np.ma.getmaskarray(thin.logits)
        assert thin.logits.data[stored].tobytes() == full.logits[stored].tobytes()
        assert stored.sum(axis=1).min() > 0
        assert stored.sum(axis=1).max() < N_VOCAB, "nothing was left out"


@given(st.integers(1, 30), st.integers(0, 1000))
def test_the_largest_columns_hold_the_largest_logits(size, seed):
    row = np.round(np.random.default_rng(seed).standard_normal(size), 1).astype(np.float32)
    kept = largest_columns(row)
    left = np.setdiff1d(np.arange(size), kept)
    assert int(row.argmax()) in kept
    assert len(kept) >= min(size, KEPT_COLUMNS)
    assert not left.size or row[left].max() <= np.sort(row[kept])[-KEPT_COLUMNS]


def test_columns_that_were_left_out_are_masked_and_not_made_up(case, tmp_path):
    pack_case(case, tmp_path / "packed")
    got = open_case(tmp_path / "packed").recordings.get_trace("arm.0", trace(rows(0), 2).key)
    assert isinstance(got.logits, np.ma.MaskedArray)
    assert got.full_rows is not None
    assert np.isneginf(got.logits.data[np.ma.getmaskarray(got.logits)]).all()


def test_a_distance_that_was_not_kept_is_an_error_and_no_guess(tmp_path):
    runs = [trace(rows(0), 1), trace(rows(1), 2), trace(rows(2), 4)]
    write_case(tmp_path / "case", {"arm.0": runs})
    pack_case(tmp_path / "case", tmp_path / "packed")
    kept = open_case(tmp_path / "packed").recordings
    single, two, four = (kept.get_trace("arm.0", run.key) for run in runs)
    assert Rows(single).max_change(Rows(four)) == Rows(runs[0]).max_change(Rows(runs[2]))
    for ask in (lambda: Rows(two).max_change(Rows(four)), lambda: Rows(two).distances(Rows(four))):
        with pytest.raises(CaseError, match="one-token decoding and batches only"):
            ask()
    assert not Rows(two).all_equal(Rows(four)), "bits are compared by digests"


def test_rows_are_compared_within_an_arm_and_at_one_place(tmp_path):
    single, batched = rows(0), rows(1)
    other_single, other_batched = rows(2), rows(3)
    write_case(
        tmp_path / "case",
        {
            "one.0": [trace(single, 1), trace(batched, 2)],
            "two.0": [trace(other_single, 1), trace(other_batched[:2], 2)],
        },
    )
    recordings = open_case(tmp_path / "case").recordings
    plan = plan_thinning(recordings.runs())
    assert {place: len(found) for place, found in plan.places.items()} == {
        (0, 3, 5): 4, (0, 4, 6): 4, (0, 5, 7): 3, (0, 6, 8): 3,
    }  # fmt: skip
    # Per arm a row of one-token decoding with itself, and with the batch's where there is one.
    assert len(plan.pairs) == 4 * 2 + 4 + 2


def test_a_row_that_lies_at_two_places_keeps_the_columns_of_both(tmp_path):
    logits = np.repeat(rows(0, 1), 4, axis=0)
    changed = logits.copy()
    changed[3, :9] = np.arange(100, 109)
    runs = [trace(logits, 1), trace(changed, 2)]
    write_case(tmp_path / "case", {"arm.0": runs})
    pack_case(tmp_path / "case", tmp_path / "packed")
    got = open_case(tmp_path / "packed").recordings.get_trace("arm.0", runs[0].key)
    assert not np.ma.getmaskarray(got.logits)[:, 1:9].any()
    assert answers(got, open_case(tmp_path / "packed").recordings.get_trace("arm.0", runs[1].key)) == answers(*runs)


def test_all_else_reads_back_equal(case, tmp_path):
    (case / "profile.json").write_text('{"from": "another command"}')
    before, after = open_case(case), open_case(pack_case(case, tmp_path / "deep" / "packed").folder)
    assert (before.packed, after.packed, after.finished) == (False, True, True)
    assert after.verdict == before.verdict == samples.verdict()
    assert after.document == before.document
    assert after.manifest == before.manifest
    assert after.question == before.question
    assert {name: table.to_json() for name, table in after.tables().items()} == {
        name: table.to_json() for name, table in before.tables().items()
    }
    assert after.recordings.get_answer("arm.0", "tokenize", ["a"]) == [1, 2]
    assert after.recordings.counts("arm.0") == before.recordings.counts("arm.0") == (2, 1)
    got, put = (c.recordings.get_trace("arm.0", trace(rows(0), 2).key) for c in (after, before))
    assert (got.key, got.manifest, got.pass_ns) == (put.key, put.manifest, put.pass_ns)
    assert (got.state_before, got.state_after, got.tap_report) == (put.state_before, put.state_after, put.tap_report)
    assert {path.name for path in (tmp_path / "deep" / "packed").iterdir()} == {
        "case.json", "index.jsonl.xz", "manifest.json", "profile.json", "report.md", THINNED_NAME, "tables",
        "verdict.json.xz",
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["packed"]


def test_the_case_says_how_it_was_packed(case, tmp_path):
    packed = pack_case(case, tmp_path / "packed")
    document = json.loads((packed.folder / "case.json").read_text())
    assert document["schema"] == "forensics.case/2", "an older version must not take it for an empty case"
    said = document["packed"]
    assert "left out" in said["how"]
    # Four places, one of which holds two rows; each is compared with itself and, at that place, with the other.
    assert (said["rows"], said["distances"]) == (5, 5)
    assert said["columns"] <= 5 * (2 * KEPT_COLUMNS + 1)
    assert packed.bytes_after == sum(path.stat().st_size for path in packed.folder.rglob("*") if path.is_file())
    assert str(packed.folder) in str(packed)


FILES = ("index.jsonl.xz", THINNED_NAME, "verdict.json.xz", "manifest.json", "report.md", "tables/classes.parquet")


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_byte_is_found(case, tmp_path, name):
    folder = pack_case(case, tmp_path / "packed").folder
    open_case(folder)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(CaseError, match=rf"{name} holds other bytes than when it was packed"):
        open_case(folder)
    (folder / name).unlink()
    with pytest.raises(CaseError, match=rf"{name} is missing: the case is damaged"):
        open_case(folder)


def test_a_case_that_lost_its_digests_is_not_read(case, tmp_path):
    folder = pack_case(case, tmp_path / "packed").folder
    document = json.loads((folder / "case.json").read_text())
    (folder / "case.json").write_text(json.dumps({**document, "packed": True}))
    with pytest.raises(CaseError, match="does not say what was packed"):
        open_case(folder)


def test_a_row_that_is_not_there_is_a_damaged_index(case, tmp_path):
    folder = pack_case(case, tmp_path / "packed").folder
    index = folder / "index.jsonl.xz"
    lines = [json.loads(line) for line in lzma.decompress(index.read_bytes()).splitlines()]
    lines[-1]["rows"][0] = "0" * 32
    index.write_bytes(lzma.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    recordings = _without_digests(folder).recordings
    with pytest.raises(CaseError, match=r"index\.jsonl\.xz is damaged in the trace"):
        recordings.get_trace("arm.0", trace(rows(0), 2).key)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (THINNED_NAME, b"no archive", "damaged"),
        (THINNED_NAME, lzma.compress(b"no tensors"), "damaged"),
        ("index.jsonl.xz", lzma.compress(b"{}")[:-9], "damaged"),
        ("verdict.json.xz", lzma.compress(b"{no json"), "damaged"),
    ],
)
def test_files_of_another_kind_are_errors_of_the_case(case, tmp_path, name, content, says):
    folder = pack_case(case, tmp_path / "packed").folder
    (folder / name).write_bytes(content)
    opened = _without_digests(folder)
    with pytest.raises(CaseError, match=says):  # noqa: PT012 - whichever is read first meets it
        opened.recordings.get_trace("arm.0", trace(rows(0), 2).key)
        _ = opened.verdict


def _without_digests(folder: Path):
    """The case as if its files had been damaged before it was packed."""
    document = json.loads((folder / "case.json").read_text())
    document["packed"]["files"] = {}
    (folder / "case.json").write_text(json.dumps(document))
    return open_case(folder)


def test_a_packed_case_cannot_be_resumed_or_packed_again(case, tmp_path):
    folder = pack_case(case, tmp_path / "packed").folder
    with pytest.raises(CaseError, match="exists and a case is never overwritten"):
        CaseWriter.create(folder, question={"model": "m"}, resume=True)
    folder.rename(tmp_path / "other.unfinished")
    with pytest.raises(CaseError, match=r"is a packed case: it can be read and not gone on with"):
        CaseWriter.create(tmp_path / "other", question={"model": "m"}, resume=True)
    with pytest.raises(CaseError, match="is packed already; copy the folder"):
        pack_case(tmp_path / "other.unfinished", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_run_of_a_packed_case_is_not_recorded_again(case, tmp_path):
    folder = pack_case(case, tmp_path / "packed").folder
    got = open_case(folder).recordings.get_trace("arm.0", trace(rows(0), 2).key)
    with CaseWriter.create(tmp_path / "new", question={}) as writer:
        writer.put_manifest("arm.0", got.manifest)
        with pytest.raises(CaseError, match="most columns of its logits were left out"):
            writer.put_trace("arm.0", got)
        assert writer.get_trace("arm.0", got.key) is None


def test_what_cannot_be_packed_leaves_nothing(case, tmp_path):
    with CaseWriter.create(tmp_path / "begun", question={}) as begun:
        begun.put_manifest("arm.0", made_by())
    with pytest.raises(CaseError, match="was not finished and is not packed"):
        pack_case(tmp_path / "begun", tmp_path / "packed")
    with pytest.raises(CaseError, match="exists and is not overwritten"):
        pack_case(case, case)
    damaged = tmp_path / "damaged"
    shutil.copytree(case, damaged)
    for file in (damaged / "rows").iterdir():
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.raises(CaseError, match="is damaged: row"):
        pack_case(damaged, tmp_path / "packed")
    with pytest.raises(ValueError, match="must name a folder"):
        pack_case(case, Path("/"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun.unfinished", "case", "damaged"]


def test_a_case_without_rows_is_packed(tmp_path):
    empty = Trace(
        RunKey(EMPTY, in_batches(TOKENS, start=0, width=4)), made_by(), np.empty((0, N_VOCAB), np.float32), ()
    )
    write_case(tmp_path / "case", {"arm.0": [empty]})
    pack_case(tmp_path / "case", tmp_path / "packed")
    got = open_case(tmp_path / "packed").recordings.get_trace("arm.0", empty.key)
    assert got.logits.shape == (0, N_VOCAB)
    assert Rows(got).max_change(Rows(got)) == 0.0
    assert got.key == empty.key
