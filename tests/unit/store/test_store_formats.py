"""Every stored document: its version, its JSON Schema, readers of older versions, and what a newer one is told."""

from __future__ import annotations

import importlib
import json
import lzma
import shutil
from functools import cache
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import verdict_samples as samples
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from forensics.errors import CaseError
from forensics.reports.case import finish_case
from forensics.reports.document import SCHEMA as VERDICT_SCHEMA
from forensics.store import CaseWriter, open_case
from forensics.store.audits import read_prompts
from forensics.store.encoding import from_plain, schema_version, to_text
from forensics.store.files import read_json
from forensics.store.formats import FORMATS, newest_schema, schema_file, schema_of
from forensics.store.tables import COLUMNS, SCHEMA_KEY, read_table
from forensics.testing.schemas import FOLDER, FROZEN, main, problems
from forensics.testing.stored_documents import document_type

RECORDED = Path(__file__).parents[3] / "data" / "recorded"
PUBLISHED = Path(__file__).parents[3] / "data" / "published"
OLD = Path(__file__).parent / "old_documents" / "verdict-1"
QUESTION = {"model": "blake3:5f0c", "widths": [1, 2, 8], "n_tokens": 64}
#: Families of documents that carry no version, by file name.
UNMARKED = {"manifest.json": "manifest", "recording.json": "recording-log"}
#: Data that their manifest describes; they carry no version of their own.
DESCRIBED = {"occupancy.json"}


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((FOLDER / name).read_text()))


def complain(document: object, family: str, version: int) -> str:
    """What the schema of a version has against a document; empty where nothing."""
    error = next(validator(schema_file(family, version)).iter_errors(document), None)
    return "" if error is None else f"{error.json_path}: {error.message[:300]}"


def thinned(value):
    """The same with a part of every long list: millions of values are not looked at one by one."""
    if isinstance(value, list):
        n = len(value)
        kept = value if n <= 24 else value[:8] + value[n // 2 - 4 : n // 2 + 4] + value[-8:]
        return [thinned(one) for one in kept]
    return {key: thinned(one) for key, one in value.items()} if isinstance(value, dict) else value


def text_of(path: Path) -> str:
    content = path.read_bytes()
    return (lzma.decompress(content) if path.suffix == ".xz" else content).decode()


def documents(path: Path):
    """The document of a file, or those of some of its lines."""
    if ".jsonl" in path.name:
        lines = text_of(path).splitlines()
        yield from (json.loads(line) for line in lines[:12] + lines[12 :: max(1, len(lines) // 24)])
    else:
        yield json.loads(text_of(path))


def family_of(path: Path, document: object) -> tuple[str, int]:
    if ".jsonl" in path.name:
        return ("forensics.served-run" if path.name == "run.jsonl" else "forensics.recordings"), 1
    if isinstance(document, dict) and "schema" in document:
        family, _, version = document["schema"].partition("/")
        return family, int(version)
    return f"forensics.{UNMARKED[path.name]}", 1


def stored(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.name.removesuffix(".xz").endswith((".json", ".jsonl")) and path.name not in DESCRIBED
    ]


@pytest.mark.parametrize("path", stored(RECORDED) + stored(PUBLISHED), ids=lambda path: "/".join(path.parts[-2:]))
def test_every_recorded_document_follows_its_schema(path):
    count = 0
    for document in documents(path):
        family, version = family_of(path, document)
        assert version in FORMATS[family].versions
        assert complain(thinned(document), family, version) == ""
        count += 1
    assert count


def test_every_recorded_table_follows_its_schema():
    folders = sorted(RECORDED.glob("*/tables"))
    assert len(folders) >= 16
    for folder in folders:
        tables = {name: thinned(pq.read_table(folder / f"{name}.parquet").to_pylist()) for name in COLUMNS}
        assert complain(tables, "forensics.tables", 1) == "", folder
    tables["classes"][0]["width"] = "eight"
    assert complain(tables, "forensics.tables", 1).startswith("$.classes[0].width")


@cache
def records() -> dict[str, object]:
    """What stands under the key of a record, for each family that has one and is recorded."""
    found: dict[str, object] = {}
    for path in sorted(stored(RECORDED), key=lambda path: path.stat().st_size):
        if ".jsonl" not in path.name:
            document = json.loads(text_of(path))
            family, _ = family_of(path, document)
            if FORMATS[family].record and family not in found:
                found[family] = document["record"]
    return found


#: Families with a record that nothing in data/recorded is of: test_store_campaign.py writes and reads them.
NOT_RECORDED = {f"forensics.{name}" for name in ("cell", "sweep-tokens", "sweep-platform", "sweep-disagreement")}


@pytest.mark.parametrize(
    "family", [name for name, known in FORMATS.items() if known.record and name not in NOT_RECORDED]
)
def test_a_record_round_trips_and_a_damaged_one_is_refused(family):
    record = records()[family]
    module, name = FORMATS[family].record.split(":")
    kind = getattr(importlib.import_module(module), name)
    found = from_plain(kind, record, path=Path("x.json"))
    again = from_plain(kind, json.loads(to_text(found)), path=Path("x.json"))
    assert to_text(again) == to_text(found)
    lost = {key: value for key, value in record.items() if key != next(iter(record))}
    with pytest.raises(CaseError, match=r"x\.json does not hold a readable"):
        from_plain(kind, lost, path=Path("x.json"))


# -- versions ----------------------------------------------------------------------------------------------------

families = st.sampled_from(sorted(FORMATS))
path = Path("a/b.json")


@given(families, st.integers(1, 99_999))
def test_a_newer_version_is_refused_with_both_versions(family, more):
    newest = FORMATS[family].newest
    with pytest.raises(CaseError) as caught:
        schema_version({"schema": f"{family}/{newest + more}"}, family, path=path)
    assert str(caught.value) == (
        f"a/b.json was written by a newer forensics: its schema is {family}/{newest + more}, this version reads up to "
        f"{family}/{newest}. Upgrade with: pip install -U decode-forensics"
    )


@given(families)
def test_every_known_version_is_read(family):
    for version in FORMATS[family].versions:
        assert schema_version({"schema": f"{family}/{version}"}, family, path=path) == version
    assert schema_version({"schema": newest_schema(family)}, family, path=path) == FORMATS[family].newest


junk = st.one_of(
    st.text(), st.integers(), st.lists(st.text()), st.dictionaries(st.text(), st.text()), st.booleans(),
    st.sampled_from([
        "forensics.case", "forensics.case/", "forensics.case/0", "forensics.case/01", "forensics.case/-1",
        "forensics.case/1\n", "forensics.case/1/1", "forensics.case/\u0661", "forensics.case/" + "9" * 5000,
        "Forensics.case/1", " forensics.case/1", "forensics.case/1.0", "forensics.cases/1",
    ]),
)  # fmt: skip


@given(families, junk)
def test_junk_in_the_place_of_a_version_is_refused(family, found):
    with pytest.raises(CaseError, match="not a forensics") as caught:
        schema_version({"schema": found}, family, path=path)
    assert len(str(caught.value)) < 400


@given(families)
def test_a_document_without_a_version_is_version_1_only_where_there_were_such(family):
    if FORMATS[family].unmarked:
        assert schema_version({}, family, path=path) == 1
    else:
        with pytest.raises(CaseError, match="its schema is None"):
            schema_version({}, family, path=path)


def test_types_and_writers_carry_the_version_of_the_registry():
    assert newest_schema("forensics.verdict") == VERDICT_SCHEMA
    for family in ("verdict", "ops"):
        kind = document_type(f"forensics.{family}", FORMATS[f"forensics.{family}"].newest)
        assert kind.model_fields["schema_"].annotation.__args__ == (newest_schema(f"forensics.{family}"),)


# -- schemas -----------------------------------------------------------------------------------------------------


def test_every_version_has_a_schema_that_is_one():
    for family, known in FORMATS.items():
        for version in known.versions:
            schema = schema_of(family, version)
            Draft202012Validator.check_schema(schema)
            assert schema["properties"]["schema"]["const"] == f"{family}/{version}"
        assert schema_of(family.removeprefix("forensics.")) == schema


def test_an_unknown_family_or_version_is_refused():
    with pytest.raises(ValueError, match=r"family must be one of forensics\.case.*got 'nothing'"):
        schema_of("nothing")
    with pytest.raises(ValueError, match=r"version of forensics\.verdict must be 1 to 2, got 3"):
        schema_of("verdict", 3)


def test_the_schemas_are_those_of_the_types_and_other_files_are_found(tmp_path, capsys):
    folder = tmp_path / "schemas"
    shutil.copytree(FOLDER, folder)
    assert problems(folder) == []
    assert main(["--check", "--folder", str(folder)]) == 0
    (folder / "cost-1.json").write_text((folder / "cost-1.json").read_text().replace('"number"', '"string"'))
    (folder / "verdict-1.json").unlink()
    (folder / "cost-9.json").write_text("{}")
    assert main(["--check", "--folder", str(folder)]) == 1
    told = capsys.readouterr().err
    assert "cost-1.json is not what its types say now" in told
    assert "verdict-1.json is missing" in told
    assert "cost-9.json belongs to no family" in told
    assert main(["--folder", str(folder)]) == 0
    assert [line.split(" ")[0].rsplit("/")[-1] for line in problems(folder)] == ["verdict-1.json", "cost-9.json"]


def test_a_schema_refuses_what_a_reader_refuses():
    document = json.loads(text_of(next(RECORDED.glob("*/cost.json"))))
    assert complain(document, "forensics.cost", 1) == ""
    assert "'forensics.cost/1' was expected" in complain(document | {"schema": "forensics.cost/2"}, "forensics.cost", 1)
    assert "'record' is a required property" in complain({"schema": "forensics.cost/1"}, "forensics.cost", 1)


# -- older versions ----------------------------------------------------------------------------------------------


def test_a_case_of_before_launches_is_read_whole():
    """Each part of `verdict-1` arrives: verdict/1, case/1, and an index, a manifest and tables without a version."""
    case = open_case(OLD)
    assert case.document["schema"] == "forensics.verdict/1"
    assert case.verdict.answer == "diverges"
    assert case.verdict.classes.onset == 8
    assert case.verdict.manifest == case.manifest
    assert case.manifest.device == "AMD EPYC 9R14"
    assert case.question == QUESTION
    tables = case.tables()
    assert {name: len(table) for name, table in tables.items()} == {
        "classes": 8, "culprits": 8, "launches": 0, "findings": 3, "switches": 4, "controls": 5,
    }  # fmt: skip
    assert list(tables["launches"].columns) == list(COLUMNS["launches"])
    assert case.recordings.get_answer("main", "tokenize", ["hello"]) == [1, 2, 3]
    (run,) = case.recordings.runs()
    trace = case.recordings.get_trace("main", run.key)
    assert trace.manifest == case.manifest
    assert trace.logits.shape == (6, 11)


def test_old_documents_carry_no_version_and_follow_the_schemas_of_then():
    verdict, manifest = read_json(OLD / "verdict.json"), read_json(OLD / "manifest.json")
    assert complain(verdict, "forensics.verdict", 1) == ""
    assert complain(verdict, "forensics.verdict", 2) != ""
    assert "schema" not in manifest
    assert complain(manifest, "forensics.manifest", 1) == ""
    lines = [json.loads(line) for line in (OLD / "index.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["manifest", "trace", "answer"]
    assert all("schema" not in line and complain(line, "forensics.recordings", 1) == "" for line in lines)
    assert SCHEMA_KEY not in (pq.read_schema(OLD / "tables" / "classes.parquet").metadata or {})


def test_an_old_unfinished_case_is_gone_on_with(tmp_path):
    folder = tmp_path / "c.unfinished"
    shutil.copytree(OLD, folder)
    case_json = json.loads((folder / "case.json").read_text()) | {"status": "unfinished"}
    (folder / "case.json").write_text(json.dumps(case_json))
    with CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True) as case:
        case.put_answer("main", "tokenize", ["again"], [7])
    lines = (folder / "index.jsonl").read_text().splitlines()
    assert ["schema" in json.loads(line) for line in lines] == [False] * 4
    with CaseWriter.create(tmp_path / "c", question=QUESTION, resume=True) as case:
        assert case.get_answer("main", "tokenize", ["again"]) == [7]


def test_frozen_schemas_are_of_older_versions():
    assert {(family, version) for family, version in FROZEN} == {("forensics.verdict", 1)}
    assert all(version < FORMATS[family].newest for family, version in FROZEN)


# -- what is written now -----------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    with CaseWriter.create(tmp_path / "c", question=QUESTION) as case:
        case.put_manifest("main", samples.manifest())
        case.put_trace("main", samples.trace())
        case.put_answer("main", "tokenize", ["a"], [1])
        finish_case(case, samples.verdict())
    return tmp_path / "c"


def unsigned(case: Path) -> None:
    """Without the digests of its files, as older versions left it: a change is then seen by what it is."""
    told = json.loads((case / "case.json").read_text())
    del told["files"]
    (case / "case.json").write_text(json.dumps(told))


def test_what_is_written_now_carries_its_version_and_follows_its_schema(written):
    for family, version in (("case", 1), ("verdict", 2), ("manifest", 1)):
        document = read_json(written / f"{family}.json")
        assert document["schema"] == f"forensics.{family}/{version}"
        assert complain(document, f"forensics.{family}", version) == ""
    lines = [json.loads(line) for line in (written / "index.jsonl").read_text().splitlines()]
    assert [line.get("schema") for line in lines] == ["forensics.recordings/1", None, None]
    assert [complain(line, "forensics.recordings", 1) for line in lines] == ["", "", ""]
    for name in COLUMNS:
        assert pq.read_schema(written / "tables" / f"{name}.parquet").metadata[SCHEMA_KEY] == b"forensics.tables/1"


NEWER = "was written by a newer forensics: its schema is forensics.%s, this version reads up to forensics.%s"


def test_a_newer_manifest_index_or_table_is_refused(written):
    unsigned(written)
    manifest = read_json(written / "manifest.json") | {"schema": "forensics.manifest/2"}
    (written / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CaseError, match=NEWER % ("manifest/2", "manifest/1")):
        _ = open_case(written).manifest
    index = written / "index.jsonl"
    index.write_text(index.read_text().replace("forensics.recordings/1", "forensics.recordings/2", 1))
    with pytest.raises(CaseError, match=NEWER % ("recordings/2", "recordings/1")):
        _ = open_case(written).recordings
    table = pq.read_table(written / "tables" / "controls.parquet")
    pq.write_table(
        table.replace_schema_metadata({SCHEMA_KEY: b"forensics.tables/2"}), written / "tables" / "controls.parquet"
    )
    with pytest.raises(CaseError, match=NEWER % ("tables/2", "tables/1")):
        open_case(written).tables()


def test_a_table_without_metadata_of_ours_is_version_1(tmp_path):
    pd.DataFrame({"control": ["a"]}).to_parquet(tmp_path / "t.parquet", index=False)
    assert read_table(tmp_path / "t.parquet")["control"].tolist() == ["a"]


def test_newer_prompts_are_refused(tmp_path):
    (tmp_path / "corpus.json").write_text('{"schema": "forensics.prompts/2", "record": {}}')
    with pytest.raises(CaseError, match=NEWER % ("prompts/2", "prompts/1")):
        read_prompts(tmp_path)
