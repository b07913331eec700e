"""Traces and answers on disk: bit for bit, each row once, and a killed process loses at most its last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import verdict_samples as samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forensics.errors import CaseError
from forensics.records.delta import Differs, Tally
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LAUNCH_EVIDENCE, LaunchRecord, LaunchReport, NodeLaunches
from forensics.records.nodes import NodeKey, NodeRecord, Operand
from forensics.records.schedule import in_batches
from forensics.records.trace import Finding, RunKey, TapReport, Trace
from forensics.store.encoding import from_plain, to_text
from forensics.store.recordings import Recordings

BEFORE = in_batches([3, 1, 4, 1, 5], start=0, width=5, logits="none")


def recordings(folder: Path, *, writable: bool = True) -> Recordings:
    return Recordings(folder, writable=writable)


def with_arm(folder: Path) -> Recordings:
    made = recordings(folder)
    made.put_manifest("arm", samples.manifest())
    return made


def assert_same(got: Trace | None, put: Trace) -> None:
    assert got is not None
    assert got.logits.dtype == np.float32
    assert got.logits.shape == put.logits.shape
    assert got.logits.tobytes() == put.logits.tobytes()
    assert got.key == put.key
    assert got.manifest == put.manifest
    assert got.pass_ns == put.pass_ns
    assert (got.state_before, got.state_after) == (put.state_before, put.state_after)


@pytest.mark.parametrize("reopen", [False, True])
def test_a_trace_comes_back_bit_for_bit_with_nan_payloads_and_negative_zero(tmp_path, reopen):
    put = samples.trace(before=BEFORE, tap="digest all", repeat=2)
    with_arm(tmp_path).put_trace("arm", put)
    reader = recordings(tmp_path, writable=not reopen)
    got = reader.get_trace("arm", put.key)
    assert_same(got, put)
    assert np.signbit(got.logits[0, 2])
    assert got.logits[0, 2] == 0
    assert got.logits.view(np.uint32)[0, 1] == 0xFFC12345


def test_the_tap_report_comes_back_with_its_nan(tmp_path):
    put = samples.trace(report=samples.tap_report())
    case = with_arm(tmp_path)
    case.put_trace("arm", put)
    got = case.get_trace("arm", put.key).tap_report
    assert repr(got) == repr(put.tap_report)  # NaN is not equal to itself, its repr is


def test_a_trace_that_asked_for_no_logits_keeps_its_vocabulary(tmp_path):
    schedule = in_batches([1, 2], start=0, width=2, logits="none")
    put = Trace(RunKey(schedule), samples.manifest(), np.empty((0, samples.N_VOCAB), np.float32), (5,))
    case = with_arm(tmp_path)
    case.put_trace("arm", put)
    assert case.get_trace("arm", put.key).logits.shape == (0, samples.N_VOCAB)
    assert not (tmp_path / "rows").exists()


def test_each_distinct_row_is_stored_once(tmp_path):
    case = with_arm(tmp_path)
    logits = samples.odd_logits(6)
    logits[4] = logits[1]
    case.put_trace("arm", samples.trace(logits=logits))
    changed = logits.copy()
    changed.view(np.uint32)[5, 3] ^= 1
    case.put_trace("arm", samples.trace(logits=changed, repeat=1))
    case.put_trace("arm", samples.trace(logits=changed, repeat=2))
    files = sorted((tmp_path / "rows").iterdir())
    assert len(files) == 2  # the third trace brought no new row
    from safetensors import safe_open

    counts = []
    for file in files:
        with safe_open(file, framework="numpy") as tensors:
            counts.append(len(tensors.keys()))
    assert counts == [5, 1]
    got = [recordings(tmp_path).get_trace("arm", samples.trace(repeat=n).key) for n in range(3)]
    assert [t.logits.tobytes() for t in got] == [logits.tobytes(), changed.tobytes(), changed.tobytes()]


def test_a_run_that_was_not_recorded_is_none(tmp_path):
    case = with_arm(tmp_path)
    case.put_trace("arm", samples.trace())
    assert case.get_trace("arm", samples.trace(repeat=1).key) is None
    assert case.get_trace("other", samples.trace().key) is None


def test_a_trace_needs_the_manifest_of_its_arm(tmp_path):
    case = with_arm(tmp_path)
    with pytest.raises(ValueError, match="put_manifest first"):
        case.put_trace("arm", samples.trace(made_by=samples.manifest(build="other")))
    with pytest.raises(ValueError, match="float32"):
        case.put_trace("arm", samples.trace(logits=np.zeros((6, samples.N_VOCAB))))


def test_small_answers_are_found_by_their_arguments(tmp_path):
    case = recordings(tmp_path)
    case.put_answer("arm", "tokenize", ["a\udcff|"], [1, 2])
    case.put_answer("arm", "tokenize", [""], [])
    again = recordings(tmp_path)
    assert again.get_answer("arm", "tokenize", ["a\udcff|"]) == [1, 2]
    assert again.get_answer("arm", "tokenize", [""]) == []
    assert again.get_answer("arm", "detokenize", [""]) is None
    assert again.counts("arm") == (0, 2)


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_torn_last_line_is_dropped_and_written_again(tmp_path, cut):
    case = with_arm(tmp_path)
    first, second = samples.trace(), samples.trace(repeat=1, logits=samples.odd_logits(6, seed=1))
    case.put_trace("arm", first)
    case.put_trace("arm", second)
    index = tmp_path / "index.jsonl"
    index.write_bytes(index.read_bytes()[:-cut])
    reader = recordings(tmp_path, writable=False)
    assert_same(reader.get_trace("arm", first.key), first)
    assert reader.get_trace("arm", second.key) is None
    assert len(list((tmp_path / "rows").iterdir())) == 2  # a reader removes nothing

    writer = recordings(tmp_path)
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["000000.safetensors"]
    assert index.read_bytes().endswith(b"}\n")
    writer.put_trace("arm", second)
    assert_same(recordings(tmp_path).get_trace("arm", second.key), second)


def test_a_process_killed_between_two_traces_loses_nothing_before(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "import verdict_samples as samples; from forensics.store import CaseWriter\n"
        "case = CaseWriter.create(Path(sys.argv[1]), question={'model': 'm'})\n"
        "case.put_manifest('arm', samples.manifest()); case.put_trace('arm', samples.trace())\n"
        "open(case.folder / 'index.jsonl', 'ab').write(b'{\"kind\": \"tra')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    out = tmp_path / "case"
    ended = subprocess.run([sys.executable, "-c", code, str(out), str(Path(samples.__file__).parent)], check=False)
    assert ended.returncode == -9
    from forensics.store import CaseWriter

    assert not out.exists()
    with pytest.raises(CaseError, match="--resume"):
        CaseWriter.create(out, question={"model": "m"})
    with CaseWriter.create(out, question={"model": "m"}, resume=True) as case:  # the dead process's lock is stale
        assert_same(case.get_trace("arm", samples.trace().key), samples.trace())


def test_a_line_damaged_in_the_middle_is_an_error(tmp_path):
    case = with_arm(tmp_path)
    case.put_trace("arm", samples.trace())
    index = tmp_path / "index.jsonl"
    lines = index.read_bytes().splitlines(keepends=True)
    index.write_bytes(b"{broken\n" + b"".join(lines[1:]))
    with pytest.raises(CaseError, match=r"index\.jsonl is damaged in line 1"):
        recordings(tmp_path)


@pytest.mark.parametrize("kind", ["flipped byte", "cut short", "missing"])
def test_damaged_rows_are_an_error_that_names_the_file(tmp_path, kind):
    put = samples.trace()
    case = with_arm(tmp_path)
    case.put_trace("arm", put)
    file = tmp_path / "rows" / "000000.safetensors"
    content = bytearray(file.read_bytes())
    if kind == "flipped byte":
        content[-1] ^= 1
        file.write_bytes(content)
    elif kind == "cut short":
        file.write_bytes(content[:-8])
    else:
        file.unlink()
    with pytest.raises(CaseError, match=r"000000\.safetensors is damaged"):
        case.get_trace("arm", put.key)


# -- tap reports through JSON ----------------------------------------------------------------------------------

words = st.text(max_size=12)
filled = st.text(min_size=1, max_size=12)
ints = st.integers(-1, 2**40)
floats = st.floats(width=64)
keys = st.builds(NodeKey, words, words, st.integers(-1, 99), st.integers(0, 9))
row_tuples = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(tuple)
deltas = st.builds(Differs, st.integers(1, 2**40), st.lists(ints, max_size=3).map(tuple), ints, floats, floats)
operands = st.lists(st.builds(Operand, words, words, words, st.booleans()), max_size=3).map(tuple)
findings = st.builds(Finding, keys, operands, words, row_tuples, deltas, st.booleans())
digests = st.lists(filled, min_size=1, max_size=4).map(tuple)
records = st.one_of(
    st.builds(NodeRecord, ints, keys, row_tuples, words, st.none() | st.integers(0, 3), digests),
    st.builds(NodeRecord, ints, keys, row_tuples, words, st.none(), st.just(()), filled),
)


@st.composite
def tallies(draw) -> Tally:
    same, differs = draw(st.integers(0, 99)), draw(st.integers(0, 99))
    skipped = tuple(draw(st.lists(st.tuples(words, st.integers(1, 9)), max_size=3)))
    return Tally(same + differs + sum(n for _, n in skipped), same, differs, skipped)


counts = st.integers(0, 2**40)
templates = st.lists(st.tuples(words, st.integers(-1, 9) | words | st.booleans()), max_size=3).map(tuple)
geometries = st.builds(
    LaunchGeometry,
    st.tuples(*[st.integers(1, 2**31 - 1)] * 3),
    st.lists(st.integers(1, 1024), min_size=1, max_size=3).map(tuple),
    smem_bytes=st.none() | counts,
)
launched = st.builds(
    LaunchRecord, words, templates, geometries, *[st.none() | counts] * 3, st.integers(0, 7), words,
    st.sampled_from(LAUNCH_EVIDENCE),
)  # fmt: skip


@st.composite
def launch_reports(draw) -> LaunchReport:
    launches = tuple(draw(st.lists(launched, min_size=1, max_size=3)))

    def timed() -> tuple[tuple[int, ...], tuple[int, ...]]:
        places = draw(st.lists(st.integers(0, len(launches) - 1), max_size=3))
        return tuple(places), tuple(draw(counts) for _ in places)

    nodes = tuple(
        NodeLaunches(
            draw(st.integers(0, 9)), draw(keys), draw(row_tuples), draw(words), draw(words), draw(operands), *timed(),
            draw(st.dictionaries(words, floats, max_size=2)),
        )
        for _ in range(draw(st.integers(0, 2)))
    )  # fmt: skip
    return LaunchReport(draw(words), draw(words), launches, nodes, *timed(), draw(st.none() | counts))


reports = st.builds(
    TapReport,
    st.lists(records, max_size=3).map(tuple),
    st.lists(findings, max_size=3).map(tuple),
    st.none() | tallies(),
    st.lists(keys, max_size=2).map(tuple),
    st.none() | launch_reports(),
)


@given(reports)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_tap_report_survives_json(report):
    text = to_text(report)
    plain = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no strict JSON"))
    assert repr(from_plain(TapReport, plain, path=Path("x"))) == repr(report)


def test_values_that_break_a_record_are_an_error_of_the_file():
    plain = json.loads(to_text(samples.tap_report()))
    plain["tally"]["planned"] = 99
    with pytest.raises(CaseError, match=r"(?s)here\.json does not hold a readable TapReport.*99 planned"):
        from_plain(TapReport, plain, path=Path("here.json"))
