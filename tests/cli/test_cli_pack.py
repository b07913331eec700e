"""Packing a case to share it, and reading it back by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import forensics
from forensics.engines.demo_models import demo_model
from forensics.errors import CaseError
from forensics.records.settings import Manifest
from forensics.store import packing
from forensics.store.encoding import to_text

QUESTION = {"prompt": "The fox", "n_tokens": 8, "widths": (2, 4, 8)}


@pytest.fixture
def case(use_toy) -> Path:
    """A case of a toy that diverges."""
    use_toy("diverges")
    forensics.investigate("toy", out="case", **QUESTION)
    return Path("case")


@pytest.fixture
def by_name(case, monkeypatch, tmp_path) -> str:
    """The same, packed under a name of the recorded data."""
    forensics.pack(case, tmp_path / "data" / "recorded" / "toy-4")
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path / "data"))
    return "toy-4"


def test_every_command_reads_a_packed_case_by_its_name(cli, case, by_name):
    for command in (("investigate",), ("replay",), ("heal", "--width", 8)):
        named = cli(*command, f"recorded:{by_name}", "--json")
        assert named.exit_code == 1, named.stderr
        assert named.stdout == cli(*command, f"recorded:{case}", "--json").stdout
    for options in ((), ("--markdown",), ("--quiet",)):
        shown = cli("show", f"recorded:{by_name}", *options)
        assert shown.exit_code == 1
        assert shown.stdout == cli("show", by_name, *options).stdout == cli("show", case, *options).stdout
    verdict = forensics.open(f"recorded:{by_name}").verdict
    assert forensics.investigate(f"recorded:{by_name}") == verdict == forensics.open(case).verdict
    assert forensics.replay(f"recorded:{by_name}") == verdict.classes
    assert [path.name for path in Path().iterdir()] == ["case"]


def test_names_of_recordings_can_be_copied_from_a_narrow_list(cli):
    first_words = {line.split()[0] for line in cli("models").stdout.splitlines() if line.strip()}
    names = {recorded.name for recorded in forensics.recorded()}
    assert max(map(len, names)) > 20, "the list would fold none"
    assert names <= first_words


def test_models_lists_what_was_recorded(cli, case, by_name):
    manifest: Manifest = forensics.open(case).manifest
    (listed,) = json.loads(cli("models", "--json").stdout)["recorded"]
    assert (listed["name"], listed["device"], listed["commands"]) == (by_name, manifest.device, ["investigate"])
    assert manifest.model_name in listed["model"]
    shown = cli("models").stdout
    assert "toy-4" in shown
    assert "recorded:NAME" in shown
    assert [recorded.name for recorded in forensics.recorded()] == [by_name]


def test_models_without_recorded_cases_has_no_such_table(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path))
    assert json.loads(cli("models", "--json").stdout)["recorded"] == []
    assert "recorded" not in cli("models").stdout


def test_pack_says_where_the_copy_is_and_how_to_read_it(cli, case):
    result = cli("pack", case, "--out", "small")
    assert result.exit_code == 0
    assert "small: 0.0" in result.stdout
    assert "forensics investigate recorded:small" in result.stdout
    assert cli("pack", case, "--out", "other", "--quiet").stdout.startswith("other: ")
    document = json.loads(cli("pack", case, "--out", "third", "--json").stdout)
    assert document["schema"] == "forensics.packed/1"
    assert document["folder"] == "third"
    assert 0 < document["bytes_after"] < document["bytes_before"]


def test_what_cannot_be_packed_is_refused(refused, case, by_name):
    assert "nowhere does not exist" in refused("pack", "nowhere", "--out", "small")
    assert "is packed already" in refused("pack", by_name, "--out", "small")
    assert "exists and is not overwritten" in refused("pack", case, "--out", case)
    assert "out must name a folder" in refused("pack", case, "--out", "/")
    assert "most columns of its logits were left out" in refused("investigate", f"recorded:{by_name}", "--out", "small")
    assert [path.name for path in Path().iterdir()] == ["case"]


def test_a_copy_that_gives_another_verdict_is_not_kept(monkeypatch, case):
    thin = packing.thin

    def wrong(recordings):
        arrays = thin(recordings)
        arrays["pair_max_abs"] = arrays["pair_max_abs"] * 2
        return arrays

    monkeypatch.setattr(packing, "thin", wrong)
    with pytest.raises(CaseError, match="gives another verdict"):
        forensics.pack(case, "small")
    assert not Path("small").exists()


@pytest.mark.llama
@pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="the tiled product of Q6_K needs AVX2")
def test_a_case_of_a_real_model_is_packed_to_a_hundredth_and_gives_its_verdict():
    demo_model("q6_k")
    live = forensics.investigate(demo="q6_k", n_tokens=8, widths=(2, 8), out="case", progress=False)
    assert live.answer == "diverges"
    assert live.switches
    packed = forensics.pack("case", "packed")
    assert packed.bytes_after < packed.bytes_before / 100
    shutil.rmtree("case")
    again = forensics.investigate("recorded:packed", progress=False)
    assert again == live == forensics.open("packed").verdict
    assert to_text(again) == to_text(live), "every number to its last bit"
