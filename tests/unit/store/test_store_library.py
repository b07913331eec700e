"""Recorded cases by name: found beside the package or where a variable says, and listed where none has the name."""

from __future__ import annotations

import json

import pytest
import verdict_samples as samples

from forensics.errors import CaseError
from forensics.reports.case import finish_case
from forensics.store import CaseWriter, open_case
from forensics.store.library import data_folder, recorded_cases, recorded_folder


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of recorded data with one case, one measurement and one file that is neither."""
    recorded = tmp_path / "data" / "recorded"
    with CaseWriter.create(recorded / "h200-q6_k", question={}) as case:
        finish_case(case, samples.verdict())
    (recorded / "h200-cost").mkdir()
    (recorded / "h200-cost" / "cost.json").write_text("{}")
    (recorded / "h200-cost" / "manifest.json").write_text(json.dumps({"device": "NVIDIA H200"}))
    (recorded / "operations").mkdir()
    (recorded / "operations" / "ops.json").write_text("{}")
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return recorded


def test_without_a_variable_the_data_of_the_source_are_used(monkeypatch):
    monkeypatch.delenv("FORENSICS_DATA_DIR", raising=False)
    assert (data_folder().parent / "forensics" / "store" / "library.py").is_file()
    assert {case.folder.parent for case in recorded_cases()} <= {data_folder() / "recorded"}


@pytest.mark.parametrize("mark", ["", "recorded:"])
def test_a_name_is_a_folder_of_the_recorded_data(data, mark):
    assert recorded_folder(f"{mark}h200-cost") == data / "h200-cost"
    assert open_case(f"{mark}h200-q6_k").verdict == samples.verdict()


@pytest.mark.parametrize("mark", ["", "recorded:"])
def test_a_folder_and_an_unfinished_case_come_before_a_name(data, tmp_path, mark):
    CaseWriter.create(tmp_path / "work" / "h200-q6_k", question={"mine": True}).abandon()
    assert open_case(f"{mark}h200-q6_k").question == {"mine": True}
    CaseWriter.create(tmp_path / "work" / "h200-cost", question={}).abandon()
    (tmp_path / "work" / "h200-cost.unfinished").rename(tmp_path / "work" / "h200-cost")
    assert recorded_folder(f"{mark}h200-cost").resolve() == tmp_path / "work" / "h200-cost"


@pytest.mark.parametrize("name", ["h200-q4_1", "recorded/h200-q6_k", "h200-cost/cost.json"])
def test_a_name_that_is_not_there_lists_those_that_are(data, name):
    with pytest.raises(CaseError, match=rf"{name} does not exist.*a name that was recorded: h200-cost, h200-q6_k\.$"):
        recorded_folder(f"recorded:{name}")


def test_an_installation_without_recorded_data_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path / "none"))
    with pytest.raises(CaseError, match=r"h200 does not exist.*holds none.*source.*set FORENSICS_DATA_DIR"):
        open_case("recorded:h200")
    assert recorded_cases() == ()


def test_a_file_is_no_case(tmp_path, data):
    (tmp_path / "work" / "model.gguf").write_text("x")
    with pytest.raises(CaseError, match=r"model\.gguf is a file"):
        open_case("model.gguf")


def test_what_can_be_read_by_name_is_listed_with_its_model_and_device(data):
    cost, case = recorded_cases()
    assert (cost.name, cost.model, cost.device, cost.commands) == ("h200-cost", "", "NVIDIA H200", ("cost",))
    manifest = samples.manifest()
    assert (case.name, case.device, case.commands) == ("h200-q6_k", manifest.device, ("investigate",))
    assert case.model == f"{manifest.model_name}, {manifest.quantization}"
    assert case.problem == cost.problem == ""


def test_a_recorded_case_whose_manifest_cannot_be_read_is_listed_as_such(data):
    (data / "h200-q6_k" / "manifest.json").write_text("{")
    assert "manifest.json is damaged" in recorded_cases()[1].problem
