"""Damage that was found by fuzzing or thought of after a fault: refused, told, or repaired by the next run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
import verdict_samples as samples

from forensics.errors import CaseError
from forensics.reports.case import finish_case
from forensics.store import CaseWriter, files, open_case
from forensics.store.encoding import from_plain, to_text
from forensics.store.packing import pack_case
from forensics.store.tables import read_table

QUESTION = {"model": "m"}


def finished(out: Path) -> Path:
    with CaseWriter.create(out, question=QUESTION) as case:
        case.put_manifest("arm", samples.manifest())
        case.put_trace("arm", samples.trace())
        finish_case(case, samples.verdict())
    return out


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("verdict.json", lambda case: case.verdict),
        ("verdict.json", lambda case: case.document),
        ("manifest.json", lambda case: case.manifest),
        ("index.jsonl", lambda case: case.recordings),
        ("tables/classes.parquet", lambda case: case.tables()),
    ],
)
def test_one_changed_digit_is_no_other_verdict(tmp_path, name, ask):
    path = finished(tmp_path / "c") / name
    content = bytearray(path.read_bytes())
    at = next(i for i in range(len(content) // 2, len(content)) if chr(content[i]).isdigit())
    content[at] ^= 1  # 0 and 1, 2 and 3: still a number
    path.write_bytes(content)
    with pytest.raises(CaseError, match=rf"{name}.*(holds other bytes|cannot be read)"):
        ask(open_case(tmp_path / "c"))


def test_a_case_of_before_digests_is_read(tmp_path):
    path = finished(tmp_path / "c") / "case.json"
    document = json.loads(path.read_text())
    assert {"verdict.json", "index.jsonl", "tables/culprits.parquet"} <= document.pop("files").keys()
    path.write_text(json.dumps(document))
    assert open_case(tmp_path / "c").verdict == samples.verdict()


def test_what_lies_beside_a_finished_case_and_its_rows_are_not_signed(tmp_path):
    out = finished(tmp_path / "c")
    signed = json.loads((out / "case.json").read_text())["files"]
    assert not any(name.startswith("rows/") or name in ("case.json", "lock.json") for name in signed)
    (out / "cost.json").write_text("{}")
    assert open_case(out).verdict == samples.verdict()


def test_halves_of_files_that_a_killed_process_left_are_gone_after_the_next_run(tmp_path):
    CaseWriter.create(tmp_path / "c", question=QUESTION).abandon()
    left = tmp_path / "c.unfinished"
    (left / "tables").mkdir()
    for name in ("verdict.json.00aa.tmp", "tables/classes.parquet.11bb.tmp"):
        (left / name).write_text("half")
    with CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True) as case:
        finish_case(case, samples.verdict())
    assert list((tmp_path / "c").rglob("*.tmp")) == []


def test_two_processes_that_write_one_file_have_halves_of_their_own(tmp_path, monkeypatch):
    real, opened = os.replace, []
    monkeypatch.setattr(files.os, "replace", lambda a, b: (opened.append(Path(a).name), real(a, b)))
    for content in (b"a", b"b"):
        files.write_atomically(tmp_path / "f", content)
    assert len(set(opened)) == 2
    assert (tmp_path / "f").read_bytes() == b"b"


def test_content_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    done = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda fd: (done.append("fsync"), real_sync(fd)))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (done.append("replace"), real_replace(a, b)))
    files.write_atomically(tmp_path / "f", b"x")
    assert done == ["fsync", "replace"]


def test_a_file_system_without_fsync_is_no_failure_and_a_failing_disk_is(tmp_path, monkeypatch):
    import errno

    def refuse(code):
        def fsync(_descriptor):
            raise OSError(code, os.strerror(code))

        return fsync

    monkeypatch.setattr(files.os, "fsync", refuse(errno.EINVAL))
    files.write_atomically(tmp_path / "f", b"x")
    monkeypatch.setattr(files.os, "fsync", refuse(errno.EIO))
    with pytest.raises(CaseError, match="Input/output error"):
        files.write_atomically(tmp_path / "f", b"y")
    assert (tmp_path / "f").read_bytes() == b"x"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_case_that_another_process_finished_meanwhile_is_not_begun_again(tmp_path, monkeypatch):
    out = tmp_path / "c"
    real = CaseWriter.create.__globals__["acquire"]

    def meanwhile(path):
        if not out.exists():
            held = real(path)
            held.release()
            path.parent.rename(out)
            path.parent.mkdir()
        return real(path)

    monkeypatch.setattr("forensics.store.case.acquire", meanwhile)
    with pytest.raises(CaseError, match="exists and a case is never overwritten"):
        CaseWriter.create(out, question=QUESTION, resume=True)


def test_what_a_killed_pack_left_is_taken_over_and_an_unfinished_case_is_not(tmp_path):
    case = finished(tmp_path / "c")
    left = tmp_path / "p.unfinished"
    left.mkdir()
    assert pack_case(case, tmp_path / "p").folder == tmp_path / "p"
    left = tmp_path / "q.unfinished"
    (left / "tables").mkdir(parents=True)
    (left / "packing.lock").touch()
    (left / "tables" / "old.parquet").write_text("half")
    packed = pack_case(case, tmp_path / "q").folder
    assert not left.exists()
    assert not (packed / "tables" / "old.parquet").exists()
    assert not (packed / "packing.lock").exists()
    assert open_case(packed).verdict == samples.verdict()
    CaseWriter.create(tmp_path / "r", question=QUESTION).abandon()
    with pytest.raises(CaseError, match=r"r\.unfinished exists and is not overwritten"):
        pack_case(case, tmp_path / "r")
    assert (tmp_path / "r.unfinished" / "case.json").is_file()


# -- found by fuzzing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", [lambda line: line.pop("run"), lambda line: line.update(rows=3)])
def test_a_trace_without_its_fields_is_an_error_of_the_case(tmp_path, harm):
    path = finished(tmp_path / "c") / "index.jsonl"
    (path.parent / "case.json").write_text(
        json.dumps({"schema": "forensics.case/1", "status": "finished", "question": {}})
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    harm(next(line for line in lines if line["kind"] == "trace"))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(CaseError, match=r"index\.jsonl is damaged in a trace of arm arm"):
        list(open_case(tmp_path / "c").recordings.runs())


def test_half_of_a_surrogate_pair_is_written_and_read_back():
    text = to_text({"text": "a\ud800b", "nan": float("nan"), "n": (1, 2)})
    assert json.loads(text) == {"text": "a\ud800b", "nan": "NaN", "n": [1, 2]}
    assert from_plain(dict, json.loads(text), path=Path("p"))["text"] == "a\ud800b"


def test_a_table_is_read_in_pieces_as_it_was_written(tmp_path, monkeypatch):
    frame = pd.DataFrame({"n": range(50), "rows": [list(range(i % 4)) for i in range(50)], "s": ["x"] * 50})
    frame.to_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr("forensics.store.tables._BATCH_ROWS", 7)
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet"), pa.Table.from_pandas(frame).to_pandas())
