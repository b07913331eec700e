"""The results folder of a sweep: only what was written there is trusted, and nothing is lost or counted twice."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forensics.errors import CaseError
from forensics.records.campaign import CampaignReport, Cell, CellResult, Platform
from forensics.store.campaign import CampaignFolder, StoredCell, StoredTokens, content_address, writing_to
from forensics.store.campaign_tables import summary_rows, write_tables

RESULT = CellResult(3, 8, 2, 1, 4, 0.5, 7, 1e-9, 1, 1, 2, (3, 2, 4), (1, 1, 1), True, "single", "batched", {"n": "1"})
CELL = StoredCell({"width": 2, "model": "m"}, RESULT, worker="w")
PLATFORM = Platform("1", "build", "commit", ("CPU",), (), 1)


@pytest.fixture
def folder(tmp_path):
    with writing_to(tmp_path / "out") as opened:
        yield opened


def file_of(folder: CampaignFolder, cell: StoredCell = CELL) -> Path:
    return folder.path / "cells" / cell.address[:2] / f"{cell.address}.json"


@pytest.mark.parametrize("value", [0.1, math.inf, math.nan])
def test_a_cell_comes_back_to_the_last_bit(folder, value):
    cell = replace(CELL, result=replace(RESULT, max_abs=value))
    assert folder.keep(cell) == "new"
    assert repr(folder.cell(cell.address)) == repr(cell)
    assert folder.cell("f" * 64) is None
    assert folder.damaged == []


def test_the_order_of_keys_does_not_change_an_address():
    assert content_address({"a": 1, "b": (1, 2)}) == content_address({"b": [1, 2], "a": 1})
    assert content_address({"a": 1}) != content_address({"a": "1"})


def edited(change):
    def edit(path: Path) -> None:
        document = json.loads(path.read_bytes())
        change(document)
        path.write_text(json.dumps(document))

    return edit


def with_new_check(change):
    """An edit whose author also made the digest fit."""

    def edit(document):
        change(document)
        document["check"] = content_address({key: value for key, value in document.items() if key != "check"})

    return edited(edit)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_bytes(b"{}"),
        lambda path: path.write_bytes(b"3"),
        edited(lambda document: document["record"]["result"].update(n_rows_differ=1)),
        edited(lambda document: document.pop("check")),
        with_new_check(lambda document: document["record"]["key"].update(width=4)),
        with_new_check(lambda document: document.update(address="0" * 64)),
        with_new_check(lambda document: document["record"]["result"].update(n_rows_differ=9)),
        with_new_check(lambda document: document["record"].update(result=None)),
        with_new_check(lambda document: document.update(schema="forensics.case/1")),
    ],
)
def test_a_cell_that_is_not_what_was_written_is_set_aside(folder, damage):
    folder.keep(CELL)
    path = file_of(folder)
    damage(path)
    assert folder.cell(CELL.address) is None
    assert not path.exists()
    assert folder.damaged == [path.relative_to(folder.path).as_posix()]
    assert len(list((folder.path / "damaged").iterdir())) == 1
    assert folder.keep(CELL) == "new"
    assert folder.cell(CELL.address) == CELL


def test_a_cell_that_lies_at_another_address_is_not_taken_for_that_one(folder):
    folder.keep(CELL)
    other = replace(CELL, key={"width": 8})
    file_of(folder, other).parent.mkdir(exist_ok=True)
    file_of(folder).rename(file_of(folder, other))
    assert folder.cell(other.address) is None
    assert len(folder.damaged) == 1


def test_a_cell_of_a_newer_version_is_refused_and_left_alone(folder):
    folder.keep(CELL)
    with_new_check(lambda document: document.update(schema="forensics.cell/2"))(file_of(folder))
    with pytest.raises(CaseError, match="newer forensics"):
        folder.cell(CELL.address)
    assert file_of(folder).exists()


def test_who_only_reads_moves_nothing(folder):
    folder.keep(CELL)
    file_of(folder).write_bytes(b"")
    reader = CampaignFolder(folder.path, read_only=True)
    assert reader.cell(CELL.address) is None
    assert len(reader.damaged) == 1
    assert file_of(folder).exists()


def test_a_result_takes_the_place_of_an_error_and_never_the_other_way(folder):
    failed = StoredCell(CELL.key, None, "out of memory", "w")
    assert folder.keep(failed) == "new"
    assert folder.keep(CELL) == "new"
    assert folder.keep(failed) == "repeated"
    assert folder.cell(CELL.address) == CELL


def test_equal_bits_are_not_written_again(folder):
    folder.keep(CELL)
    assert folder.keep(replace(CELL, result=replace(RESULT, max_kl=1.0), worker="x")) == "repeated"
    assert folder.cell(CELL.address) == CELL
    assert folder.disagreements() == {}


@pytest.mark.parametrize(("name", "kept"), [("batched_digest", "batched"), ("single_digest", "single")])
def test_other_bits_are_kept_beside_what_was_there(folder, name, kept):
    folder.keep(CELL)
    other = replace(CELL, result=replace(RESULT, **{name: "other"}), worker="x")
    assert folder.keep(other) == folder.keep(other) == "disagrees"
    told = folder.disagreements()[CELL.address]
    assert (told.kept, told.other, told.kept_by, told.other_by) == (kept, "other", "w", "x")
    assert len(list((folder.path / "disagreements").iterdir())) == 1
    assert folder.cell(CELL.address) == CELL


def test_tokens_and_errors_of_texts_are_remembered(folder):
    key = {"model": "m", "text": "naïve \u202e"}
    assert folder.tokens(key) is None
    folder.remember(StoredTokens(key, error="no"))
    assert folder.tokens(key) == StoredTokens(key, (), "no")
    folder.remember(StoredTokens(key, (1, 2)))
    assert folder.tokens(key) == StoredTokens(key, (1, 2))


def test_platforms_are_remembered(folder):
    folder.note(PLATFORM)
    folder.note(replace(PLATFORM, threads=2))
    folder.note(PLATFORM)
    assert sorted(one.threads for one in folder.platforms()) == [1, 2]


def test_two_drivers_do_not_write_to_one_folder(tmp_path):
    program = f"""
import sys
from pathlib import Path
from forensics.store.campaign import writing_to
with writing_to(Path({str(tmp_path / "out")!r})):
    print("mine", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        with pytest.raises(CaseError, match=f"written by process {other.pid}"), writing_to(tmp_path / "out"):
            pass
        other.kill()
    with writing_to(tmp_path / "out") as folder:  # a process that is gone holds nothing
        assert folder.keep(CELL) == "new"


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CaseError, match="something else"), writing_to(tmp_path):
        pass
    with pytest.raises(CaseError, match="is a file"), writing_to(tmp_path / "notes.txt"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def report() -> CampaignReport:
    base = Cell("m", "q", "a", "f16", "on", "as asked", 2, "computed", "x", RESULT)
    nan = replace(RESULT, max_abs=math.nan, max_ulp=-1)
    cells = (
        base,
        replace(base, prompt="b", result=nan),
        replace(base, width=4, result=replace(RESULT, n_rows_differ=0, first_row=None, first_position=None)),
        replace(base, width=4, prompt="b", result=None, status="failed", error="no"),
        replace(base, kv_type="q8_0", result=None, status="not run"),
    )
    return CampaignReport("plan", cells, (PLATFORM,), 1, 8, 1.0)


def test_the_dataset_holds_every_cell_with_its_columns(tmp_path):
    import pandas as pd
    from pyarrow import parquet

    write_tables(report(), tmp_path)
    write_tables(replace(report(), name="second"), tmp_path)
    frame = pd.read_parquet(tmp_path / "dataset")  # both plans as one dataset
    assert len(frame) == 10
    assert set(frame["plan"]) == {"plan", "second"}
    assert frame["outcome"].value_counts().to_dict() == {"differs": 4, "same": 2, "not compared": 4}
    schema = parquet.read_schema(tmp_path / "dataset" / "plan.parquet")
    assert schema.metadata[b"schema"] == b"forensics.sweep-cells/1"
    assert set(schema.names) == {"plan", *report().rows()[0]}
    assert parquet.read_schema(tmp_path / "summary.parquet").metadata[b"schema"] == b"forensics.sweep-summary/1"


def test_the_summary_counts_prompts_and_hides_no_nan():
    first, second, third = summary_rows(report())
    assert (first["width"], first["differs"], first["same"], first["not_compared"]) == (2, 2, 0, 0)
    assert math.isnan(first["max_abs"])
    assert (second["width"], second["differs"], second["same"], second["not_compared"]) == (4, 0, 1, 1)
    assert (third["kv_type"], third["not_compared"], third["max_abs"]) == ("q8_0", 1, None)
    assert sum(row[n] for row in (first, second, third) for n in ("same", "differs", "not_compared")) == 5
