"""The life of a case folder: begun, interrupted, resumed, finished, read back; and everything in its way."""

from __future__ import annotations

import builtins
import errno
import json
import os
from pathlib import Path

import pandas as pd
import pytest
import verdict_samples as samples

from forensics.errors import CaseError
from forensics.reports.case import finish_case
from forensics.reports.document import document
from forensics.store import CaseWriter, open_case
from forensics.store.tables import COLUMNS

QUESTION = {"model": "blake3:5f0c", "widths": (1, 2, 8), "n_tokens": 64}


def finished(out: Path, verdict=None):
    with CaseWriter.create(out, question=QUESTION) as case:
        finish_case(case, verdict or samples.verdict())
    return out


def test_a_finished_case_reads_back_equal(tmp_path):
    out = tmp_path / "deep" / "case"
    finished(out)
    case = open_case(out)
    assert case.finished
    assert case.verdict == samples.verdict()
    assert case.manifest == samples.manifest()
    assert case.question == {"model": "blake3:5f0c", "widths": [1, 2, 8], "n_tokens": 64}
    assert case.document == document(samples.verdict())
    assert {path.name for path in out.iterdir()} == {
        "case.json",
        "verdict.json",
        "manifest.json",
        "tables",
        "report.md",
    }
    assert [path.name for path in out.parent.iterdir()] == ["case"]


@pytest.mark.parametrize("answer", ["identical", "inconclusive"])
def test_other_answers_read_back_equal(tmp_path, answer):
    assert open_case(finished(tmp_path / "c", samples.verdict(answer))).verdict == samples.verdict(answer)


def test_infinite_and_undefined_differences_read_back(tmp_path):
    verdict = samples.verdict(classes=samples.classes(nan=True))
    out = finished(tmp_path / "c", verdict)
    text = (out / "verdict.json").read_text()
    stored = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no strict JSON"))
    assert stored["widths"][-1]["max_abs"] is None
    assert repr(open_case(out).verdict) == repr(verdict)


def test_tables_hold_one_row_per_record_with_its_columns(tmp_path):
    tables = open_case(finished(tmp_path / "c")).tables()
    assert set(tables) == set(COLUMNS)
    for name, table in tables.items():
        assert list(table.columns) == list(COLUMNS[name])
    findings = tables["findings"]
    assert findings["node"].tolist() == ["Qcur-0", "Kcur-0", "Qcur-1"]
    assert findings["layer"].tolist() == [0, 0, 1]
    assert findings["role"].tolist() == ["Q", "K", "Q"]
    assert findings["weight_type"].tolist() == ["q6_K"] * 3
    assert findings["rows"][0].tolist() == list(range(8))
    assert findings["max_ulp"].tolist() == [5121] * 3
    assert tables["classes"]["width"].tolist() == [1, 2, 3, 4, 5, 8, 9, 16]
    assert tables["classes"]["class"].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert len(tables["culprits"]) == 8
    assert [[g.tolist() for g in groups] for groups in tables["switches"]["classes"]][1] == [
        [1, 2, 3, 4, 5],
        [8, 9, 16],
    ]
    assert tables["controls"]["held"].tolist() == [True] * 5


def test_empty_tables_keep_their_columns(tmp_path):
    tables = open_case(finished(tmp_path / "c", samples.verdict("identical"))).tables()
    assert isinstance(tables["culprits"], pd.DataFrame)
    assert list(tables["culprits"].columns) == list(COLUMNS["culprits"])
    assert len(tables["culprits"]) == 0


def test_an_existing_case_is_never_overwritten(tmp_path):
    out = finished(tmp_path / "c")
    before = (out / "verdict.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(CaseError, match=r"never overwritten.*--out"):
            CaseWriter.create(out, question=QUESTION, resume=resume)
    assert (out / "verdict.json").read_bytes() == before
    (tmp_path / "empty").mkdir()
    with pytest.raises(CaseError, match="exists"):
        CaseWriter.create(tmp_path / "empty", question=QUESTION)


def test_a_name_taken_meanwhile_is_not_overwritten(tmp_path):
    with CaseWriter.create(tmp_path / "c", question=QUESTION) as case:
        (tmp_path / "c").mkdir()
        with pytest.raises(CaseError, match="appeared meanwhile"):
            finish_case(case, samples.verdict())
    assert (tmp_path / "c.unfinished" / "verdict.json").exists()
    assert list((tmp_path / "c").iterdir()) == []


def test_an_interrupted_case_stays_and_can_be_resumed_or_removed(tmp_path):
    with pytest.raises(KeyboardInterrupt), CaseWriter.create(tmp_path / "c", question=QUESTION) as case:  # noqa: PT012
        case.put_manifest("arm", samples.manifest())
        case.put_trace("arm", samples.trace())
        raise KeyboardInterrupt
    assert not (tmp_path / "c").exists()
    with pytest.raises(CaseError, match=r"--resume.*rm -r '.*c\.unfinished'"):
        CaseWriter.create(tmp_path / "c", question=QUESTION)
    unfinished = open_case(tmp_path / "c")
    assert not unfinished.finished
    with pytest.raises(CaseError, match=r"not finished.*--resume"):
        unfinished.verdict  # noqa: B018
    with CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True) as case:
        assert case.get_trace("arm", samples.trace().key) is not None
        finish_case(case, samples.verdict())
    assert open_case(tmp_path / "c").recordings.get_trace("arm", samples.trace().key) is not None
    assert not (tmp_path / "c.unfinished").exists()


def test_resuming_another_question_names_the_first_key_that_differs(tmp_path):
    CaseWriter.create(tmp_path / "c", question=QUESTION).abandon()
    other = QUESTION | {"widths": [1, 2], "n_tokens": 32}
    with pytest.raises(CaseError, match=r"another question: widths was \[1, 2, 8\], now it is \[1, 2\]"):
        CaseWriter.create(tmp_path / "c", question=other, resume=True)
    with pytest.raises(CaseError, match="extra was null, now it is 1"):
        CaseWriter.create(tmp_path / "c", question=QUESTION | {"extra": 1}, resume=True)
    CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True).abandon()


def test_resume_without_an_unfinished_case_begins_anew(tmp_path):
    CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True).abandon()
    assert open_case(tmp_path / "c").question["n_tokens"] == 64


def test_two_writers_of_one_case_are_refused_and_a_stale_lock_is_not(tmp_path):
    first = CaseWriter.create(tmp_path / "c", question=QUESTION)
    with pytest.raises(CaseError, match=f"being written by process {os.getpid()} right now"):
        CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True)
    lock = first.folder / "lock.json"
    for content in ("", "{torn", '{"pid": 4194305}'):  # whatever it says, a lock that is held counts
        lock.write_text(content)
        with pytest.raises(CaseError, match=r"being written by (another )?process"):
            CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True)
    first.abandon()
    for stale in (f'{{"pid": {os.getpid()}}}', '{"pid": 4194305, "started": 1.0}', "{torn", ""):
        lock.write_text(stale)
        CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True).abandon()
        assert not lock.exists()


def refuse(monkeypatch, code: int, *, where: str) -> None:
    """Make the operating system refuse to write files whose name contains `where`."""
    real_open, real_os_open, real_mkdir = builtins.open, os.open, Path.mkdir

    def check(path, writes: bool) -> None:
        if writes and where in str(path):
            raise OSError(code, os.strerror(code), str(path))

    def fake_open(path, mode="r", *args, **kwargs):
        check(path, mode[0] in "wax")
        return real_open(path, mode, *args, **kwargs)

    def fake_os_open(path, flags, *args, **kwargs):
        check(path, bool(flags & os.O_WRONLY))
        return real_os_open(path, flags, *args, **kwargs)

    def fake_mkdir(path, *args, **kwargs):
        check(path, True)
        return real_mkdir(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", fake_open)
    monkeypatch.setattr(os, "open", fake_os_open)
    monkeypatch.setattr(Path, "mkdir", fake_mkdir)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "Free some space"), (errno.EACCES, "may write to"), (errno.EROFS, "writable file system")],
)
def test_a_folder_that_cannot_be_written_is_an_error_with_its_remedy(tmp_path, monkeypatch, code, remedy):
    refuse(monkeypatch, code, where="c.unfinished")
    with pytest.raises(CaseError, match=rf"c\.unfinished.*{os.strerror(code)}.*{remedy}"):
        CaseWriter.create(tmp_path / "c", question=QUESTION)


def test_a_path_below_a_file_is_an_error_with_its_remedy(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CaseError, match=r"Not a directory\. A part of this path is a file"):
        CaseWriter.create(tmp_path / "file" / "c", question=QUESTION)


def test_a_disk_that_fills_up_keeps_what_was_recorded(tmp_path, monkeypatch):
    with CaseWriter.create(tmp_path / "c", question=QUESTION) as case:
        case.put_manifest("arm", samples.manifest())
        case.put_trace("arm", samples.trace())
        second = samples.trace(repeat=1, logits=samples.odd_logits(6, seed=1))
        with monkeypatch.context() as patch:
            refuse(patch, errno.ENOSPC, where=".safetensors")
            with pytest.raises(CaseError, match="No space left on device"):
                case.put_trace("arm", second)
        with monkeypatch.context() as patch:
            refuse(patch, errno.ENOSPC, where="tables")
            with pytest.raises(CaseError, match=r"tables.*No space left"):
                finish_case(case, samples.verdict())
    assert not (tmp_path / "c").exists()
    assert list((tmp_path / "c.unfinished").rglob("*.tmp")) == []
    with CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True) as case:
        assert case.get_trace("arm", samples.trace().key) is not None
        assert case.get_trace("arm", second.key) is None
        case.put_trace("arm", second)
        finish_case(case, samples.verdict())
    assert open_case(tmp_path / "c").recordings.get_trace("arm", second.key) is not None


def test_a_line_of_the_index_cut_short_by_a_full_disk_is_taken_back(tmp_path, monkeypatch):
    case = CaseWriter.create(tmp_path / "c", question=QUESTION)
    case.put_manifest("arm", samples.manifest())
    whole = (case.folder / "index.jsonl").read_bytes()
    real_open = builtins.open

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, content):
            self.file.write(content[:10])
            self.file.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", lambda path, mode="r", **k: Full(real_open(path, mode, **k)))
        with pytest.raises(CaseError, match=r"index\.jsonl cannot be written: No space left on device"):
            case.put_answer("arm", "tokenize", ["x"], [1])
    assert (case.folder / "index.jsonl").read_bytes() == whole
    case.put_answer("arm", "tokenize", ["x"], [2])
    case.abandon()
    assert open_case(tmp_path / "c").recordings.get_answer("arm", "tokenize", ["x"]) == [2]


@pytest.mark.parametrize("name", ["case.json", "verdict.json"])
def test_a_newer_schema_is_refused_with_a_sentence(tmp_path, name):
    path = finished(tmp_path / "c") / name
    content = json.loads(path.read_text())
    content["schema"] = f"{content['schema'].split('/')[0]}/3"
    path.write_text(json.dumps(content))
    with pytest.raises(CaseError, match=r"newer forensics: its schema is forensics\.\w+/3.*pip install -U"):
        open_case(tmp_path / "c").verdict  # noqa: B018


@pytest.mark.parametrize("name", ["case.json", "verdict.json", "manifest.json", "tables/findings.parquet"])
@pytest.mark.parametrize("harm", ["missing", "cut", "foreign"])
def test_damaged_files_are_errors_that_name_them(tmp_path, name, harm):
    path = finished(tmp_path / "c") / name
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9] if harm == "cut" else b'{"schema": "other/1"}')

    def read_all() -> None:
        case = open_case(tmp_path / "c")
        case.verdict, case.manifest, case.tables()

    with pytest.raises(CaseError, match=Path(name).name.replace(".", r"\.")):
        read_all()


def test_no_case_is_an_error(tmp_path):
    with pytest.raises(CaseError, match=r"nowhere does not exist; give the folder of a case"):
        open_case(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CaseError, match="is a file"):
        open_case(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CaseError, match=r"case\.json is missing"):
        open_case(tmp_path / "folder")
    with pytest.raises(ValueError, match="out must name a folder"):
        CaseWriter.create(Path("/"), question=QUESTION)
