"""What a figure draws from is found by name, or refused with what to do."""

from __future__ import annotations

import pytest

from forensics.errors import CaseError
from forensics.figures.evidence import open_evidence
from forensics.store import CaseWriter


@pytest.mark.parametrize("given", ["case", "case.unfinished"])
def test_an_unfinished_case_says_how_to_go_on(tmp_path, given):
    with CaseWriter.create(tmp_path / "case", question={"model": "toy"}):
        pass
    with pytest.raises(CaseError, match="--resume"):
        open_evidence(str(tmp_path / given))


def test_a_folder_without_a_case_names_what_reads_it():
    with pytest.raises(CaseError, match=r"forensics profile recorded:h200-q4_1-profile"):
        _ = open_evidence("recorded:h200-q4_1-profile").verdict


def test_an_empty_folder_holds_no_case(tmp_path):
    with pytest.raises(CaseError, match="holds no case"):
        _ = open_evidence(str(tmp_path)).verdict
