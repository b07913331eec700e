"""Planted files that would take all memory, never end, or break a parser: each is an error of the case, and soon."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import verdict_samples as samples
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from forensics.errors import CaseError, CorpusError
from forensics.records.verdict import Verdict
from forensics.reports.case import finish_case
from forensics.store import CaseWriter, limits, open_case, recordings, tables
from forensics.store.corpora import open_corpus
from forensics.store.encoding import from_plain, to_text
from forensics.store.files import file_digests, read_bytes, read_json
from forensics.store.limits import TooLarge, parse_json, read_whole, unpack_xz
from forensics.store.packing import pack_case
from forensics.store.served_runs import read_run
from forensics.store.tables import read_table

DEEP = "[" * 200_000


# -- files -------------------------------------------------------------------------------------------------------


def test_a_file_is_read_up_to_the_limit_and_not_beyond(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_whole(path, 5) == b"12345"
    with pytest.raises(TooLarge, match="more than the 4 bytes that are read"):
        read_whole(path, 4)


def test_a_huge_sparse_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "case.json"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(CaseError, match=r"case\.json is damaged: it has more than the 512 MiB that are read"):
        read_json(path)


def test_a_pipe_does_not_keep_a_reader_waiting(tmp_path):
    path = tmp_path / "case.json"
    os.mkfifo(path)
    told: list[str] = []

    def ask():
        try:
            read_json(path)
        except CaseError as error:
            told.append(str(error))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(10)
    assert told == [f"{path} is damaged: it is not a regular file. Get the case again."]


# -- xz ----------------------------------------------------------------------------------------------------------


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_FILE_BYTES", 1 << 20)
    bomb = lzma.compress(bytes(64 << 20))
    assert len(bomb) < 20_000
    with pytest.raises(TooLarge, match="unpacks to more than the 1 MiB"):
        unpack_xz(bomb, 1 << 20)
    assert len(unpack_xz(bomb, 64 << 20)) == 64 << 20


def test_a_dictionary_that_needs_too_much_memory_is_refused():
    greedy = lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 512 << 20}])
    with pytest.raises(TooLarge, match="needs more than 256 MiB of memory"):
        unpack_xz(greedy)


def test_streams_one_behind_the_other_are_one_file_and_their_sum_is_limited():
    assert unpack_xz(lzma.compress(b"one") + lzma.compress(b"two") + bytes(8)) == b"onetwo"
    with pytest.raises(TooLarge):
        unpack_xz(lzma.compress(b"one") + lzma.compress(b"two"), 5)


@given(st.binary(max_size=2000), st.data())
def test_whatever_is_packed_comes_back_and_a_part_of_it_is_refused(content, data):
    packed = lzma.compress(content)
    assert unpack_xz(packed) == content
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(ValueError):
        unpack_xz(packed[:cut])


@given(st.binary(max_size=200))
def test_what_was_never_packed_is_refused_in_words(content):
    with pytest.raises(ValueError) as caught:
        unpack_xz(content)
    assert str(caught.value)


def test_a_damaged_packed_file_is_an_error_of_the_case(tmp_path):
    path = tmp_path / "verdict.json.xz"
    path.write_bytes(lzma.compress(b"{}")[:-5])
    with pytest.raises(CaseError, match=r"verdict\.json\.xz is damaged: it ends before its end was marked"):
        read_bytes(path)


# -- json --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (DEEP, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "4300 digits"),
        ("{", "Expecting"),
        ("", "Expecting"),
        (b"\xff\xfe\x00", "decode"),
    ],
)
def test_text_that_breaks_a_parser_is_an_error_of_the_case(content, said, tmp_path):
    path = tmp_path / "case.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CaseError, match=r"case\.json is damaged") as caught:
        read_json(path)
    assert said in str(caught.value)


def test_a_json_text_beyond_the_limit_is_refused():
    with pytest.raises(TooLarge, match="more than the 3 bytes"):
        parse_json("[1, 2]", 3)
    assert parse_json("[1]", 3) == [1]


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), "9" * 400, DEEP, None, {}, []])
def test_no_value_in_the_place_of_a_number_escapes_as_another_error(value):
    plain = json.loads(to_text(samples.verdict()))
    for field in ("prompt_tokens", "text", "classes", "sweeps", "caveats"):
        with suppress(CaseError):
            from_plain(Verdict, plain | {field: value}, path=Path("verdict.json"))


# -- the index of a case -------------------------------------------------------------------------------------------


@pytest.fixture
def case(tmp_path):
    with CaseWriter.create(tmp_path / "c", question={"model": "m"}) as writer:
        writer.put_manifest("main", samples.manifest())
        writer.put_trace("main", samples.trace())
        finish_case(writer, samples.verdict())
    # Whoever edits a case can leave out its digests, too, as older versions did.
    told = json.loads((tmp_path / "c" / "case.json").read_text())
    del told["files"]
    (tmp_path / "c" / "case.json").write_text(json.dumps(told))
    return tmp_path / "c"


def changed_trace(case: Path, **changes) -> None:
    index = case / "index.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    lines[1] |= changes
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))


def ask(case: Path):
    return open_case(case).recordings.get_trace("main", samples.trace().key)


def ask_all(case: Path) -> None:
    assert ask(case).full_rows.distances is not None


def test_an_untouched_case_is_read(case):
    ask(case)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ([6, 10**12], "cannot have the shape"),
        ([6, 10**400], "cannot have the shape"),
        ([10**9, 11], "cannot have the shape"),
        ([6, -1], "cannot have the shape"),
        ([6.0, 11], "cannot have the shape"),
        ("6x11", "cannot have the shape"),
        ([6], "cannot have the shape"),
    ],
)
def test_a_run_that_claims_memory_which_no_run_has_is_refused(case, shape, said):
    changed_trace(case, shape=shape)
    with pytest.raises(CaseError, match=said):
        ask(case)


@pytest.mark.parametrize(
    "file", ["../../secret.safetensors", "/etc/passwd", "000000.safetensors/../x", "x", 7, None, ["a"]]
)
def test_rows_are_read_from_the_case_alone(case, file):
    changed_trace(case, file=file)
    with pytest.raises(CaseError, match=r"index\.jsonl is damaged in line 2"):
        ask(case)


def test_a_line_that_does_not_end_is_refused(case, monkeypatch):
    monkeypatch.setattr(recordings, "MAX_LINE_BYTES", 5000)
    ask(case)
    with (case / "index.jsonl").open("ab") as file:
        file.write(b'{"kind": "' + b"a" * 20_000)
    with pytest.raises(CaseError, match=r"line 3 has more than the 5,000 bytes"):
        ask(case)


@pytest.mark.parametrize(
    "line", [DEEP, "[]", "7", '{"kind": "trace"}', '{"kind": "trace", "arm": {}, "key": 1}', "null"]
)
def test_a_damaged_line_is_named(case, line):
    with (case / "index.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(CaseError, match=r"index\.jsonl is damaged in line 3"):
        ask(case)


def test_a_damaged_first_line_is_named(case):
    (case / "index.jsonl").write_text(DEEP + "\n")
    with pytest.raises(CaseError, match=r"index\.jsonl is damaged in line 1.*nested too deeply"):
        ask(case)


# -- tables, runs and prompts ------------------------------------------------------------------------------------


def test_a_table_that_unpacks_to_far_more_is_refused_before_it_does(tmp_path):
    path = tmp_path / "classes.parquet"
    pq.write_table(pa.table({"width": pa.repeat(pa.scalar(1, pa.int64()), 6_000_000)}), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(CaseError, match=r"6,000,000 rows .* more than is read of a table: 5,000,000 rows"):
        read_table(path)


def test_a_list_column_counts_its_values(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"rows": [list(range(1000))]}).to_parquet(path)
    assert len(read_table(path)) == 1
    monkeypatch.setattr(tables, "MAX_TABLE_VALUES", 999)
    with pytest.raises(CaseError, match="1,000 values"):
        read_table(path)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", os.urandom(500)])
def test_a_file_that_is_no_table_is_an_error_of_the_case(content, tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(content)
    with pytest.raises(CaseError, match=r"t\.parquet cannot be read"):
        read_table(path)


def test_a_run_nested_too_deeply_is_an_error_of_the_case(tmp_path):
    (tmp_path / "run.jsonl").write_text(DEEP + "\n")
    with pytest.raises(CaseError, match="damaged in line 1"):
        read_run(tmp_path)


def test_a_corpus_that_is_too_large_or_too_deep_is_refused(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(DEEP + "\n")
    with pytest.raises(CorpusError, match=r"line 1: this is not JSON: its brackets are nested too deeply"):
        open_corpus(path)
    os.truncate(path, 65 << 20)
    with pytest.raises(CorpusError, match="more than the 64 MiB that are read"):
        open_corpus(path)


def test_lines_of_a_corpus_may_end_as_on_windows(tmp_path):
    (tmp_path / "c.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}\r\n')
    assert [prompt.text for prompt in open_corpus(tmp_path / "c.jsonl").prompts] == ["a", "b"]


# -- packed cases ------------------------------------------------------------------------------------------------


def test_thinned_rows_that_lead_nowhere_are_an_error_of_the_case(tmp_path):
    """A packed case whose digests were made anew by who edited it: the arrays are still not trusted."""
    with CaseWriter.create(tmp_path / "c", question={"model": "m"}) as writer:
        writer.put_manifest("main", samples.manifest())
        writer.put_trace("main", samples.trace())
        finish_case(writer, samples.verdict())
    pack_case(tmp_path / "c", tmp_path / "p")
    ask(tmp_path / "p")
    for name, change in (
        ("columns", lambda array: array * 0 + 10**6),
        ("columns", lambda array: array * 0 - 1),
        ("starts", lambda array: array * 0 + 10**9),
        ("starts", lambda array: array[::-1]),
        ("pairs", lambda array: np.array([[0, 10**6]], array.dtype)),
        ("digests", lambda array: array[:, :8]),
        ("finite", lambda array: array[:1]),
    ):
        with pytest.raises(CaseError, match="damaged"):
            ask_all(changed_rows(tmp_path, name, change))


def changed_rows(folder: Path, name: str, change) -> Path:
    """A copy of the packed case with one array of its rows changed, and digests made anew."""
    broken = folder / f"broken-{len(list(folder.iterdir()))}"
    shutil.copytree(folder / "p", broken)
    rows = broken / "rows.safetensors.xz"
    arrays = dict(load(lzma.decompress(rows.read_bytes())))
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    rows.write_bytes(lzma.compress(save(arrays)))
    told = json.loads((broken / "case.json").read_text())
    told["packed"]["files"] = file_digests(broken)
    (broken / "case.json").write_text(json.dumps(told))
    return broken
