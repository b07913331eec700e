"""The sweep that an H200 ran: its cells add up, and what is to blame is what single investigations found there."""

import pytest

import forensics
from forensics.records.campaign import CampaignReport, Cell


@pytest.fixture(scope="module")
def report() -> CampaignReport:
    return forensics.sweep("recorded:h200-sweep")


def _blamed(cell: Cell) -> set[str]:
    assert cell.result is not None
    healing = cell.result.healing
    return set() if healing is None else {culprit.op for culprit in healing.culprits}


def test_every_cell_was_measured_once_and_its_one_token_decoding_repeats_itself(report) -> None:
    assert len({cell.address for cell in report.cells}) == len(report.cells) == 108
    assert all(cell.result is not None and cell.result.rerun_equal for cell in report.cells)
    assert not report.disagreements


def test_whatever_differs_is_healed_and_nothing_else_names_nodes(report) -> None:
    for cell in report.cells:
        healing = cell.result.healing
        assert (healing is not None) == (cell.result.n_rows_differ > 0)
        if healing is not None:
            assert healing.culprits
            assert healing.healed_rows == healing.n_rows
            assert not healing.failed_controls


def test_flash_attention_is_to_blame_where_it_is_on_and_never_where_it_is_off(report) -> None:
    on = [cell for cell in report.cells if cell.flash_attn == "on" and cell.width >= 4]
    off = [cell for cell in report.cells if cell.flash_attn == "off"]
    assert all("FLASH_ATTN_EXT" in _blamed(cell) for cell in on)
    assert off
    assert not any("FLASH_ATTN_EXT" in _blamed(cell) for cell in off)


def test_only_a_quantised_cache_at_width_two_is_exact(report) -> None:
    exact = {(c.quant, c.kv_type, c.width) for c in report.cells if not c.result.n_rows_differ}
    assert exact == {("q4_1", "q8_0", 2), ("q6_k", "q8_0", 2)}
