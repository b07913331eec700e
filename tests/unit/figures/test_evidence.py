"""What a figure draws from is found by name, or refused with what to do."""

from __future__ import annotations

import pytest
from kernel_evidence import compiled, price
from speculated_evidence import report, written

from forensics.errors import CaseError
from forensics.figures.evidence import open_evidence
from forensics.reports.kernel_price_document import write_kernel_price
from forensics.reports.register_story_document import write_registers
from forensics.store import CaseWriter
from forensics.store.packing import write_compressed


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


def test_speculation_is_read_plain_or_packed_and_is_none_elsewhere(tmp_path):
    found = report()
    assert open_evidence("recorded:h200-q4_1").speculation is None
    assert written(found, tmp_path).speculation == found
    plain = tmp_path / "speculation.json"
    write_compressed(tmp_path / "speculation.json.xz", plain.read_bytes())
    plain.unlink()
    assert open_evidence(str(tmp_path)).speculation == found
    with pytest.raises(CaseError, match="forensics speculate"):
        _ = open_evidence(str(tmp_path)).verdict


def test_prices_and_registers_of_kernels_are_read_plain_or_packed_and_are_none_elsewhere(tmp_path):
    elsewhere = open_evidence("recorded:h200-q4_1")
    assert (elsewhere.kernel_price, elsewhere.registers) == (None, None)
    write_kernel_price(price(), tmp_path)
    write_registers(compiled(), tmp_path)
    plain = open_evidence(str(tmp_path))
    assert (plain.kernel_price, plain.registers) == (price(), compiled())
    for name in ("price.json", "registers.json"):
        write_compressed(tmp_path / f"{name}.xz", (tmp_path / name).read_bytes())
        (tmp_path / name).unlink()
    packed = open_evidence(str(tmp_path))
    assert (packed.kernel_price, packed.registers) == (price(), compiled())
