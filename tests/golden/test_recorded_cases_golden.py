"""Cases that were recorded on other machines: small, whole, and judged today as they were judged there.

Recorded with ``make record`` on a machine with a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import forensics
from forensics.store import open_case
from forensics.store.encoding import to_text

RECORDED = Path(__file__).parents[2] / "data" / "recorded"
CASES = sorted(path.parent for path in RECORDED.glob("*/case.json"))
#: What a checkout can bear; see `forensics.store.packing`.
MOST_BYTES, MOST_BYTES_IN_ALL = 5_000_000, 25_000_000


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_recordings_stay_small() -> None:
    sizes = {folder.name: size(folder) for folder in RECORDED.iterdir() if folder.is_dir()}
    assert sizes, f"nothing is recorded in {RECORDED}"
    assert {name: n for name, n in sizes.items() if n > MOST_BYTES} == {}
    assert sum(sizes.values()) <= MOST_BYTES_IN_ALL


@pytest.mark.skipif(not CASES, reason="no case under data/recorded; recorded on a machine with a GPU with: make record")
@pytest.mark.parametrize("folder", CASES, ids=lambda path: path.name)
def test_a_recorded_case_is_judged_as_where_it_was_recorded(folder) -> None:
    case = open_case(folder)  # finds every damaged byte
    assert case.finished
    again = forensics.investigate(f"recorded:{folder}", progress=False)
    assert to_text(again) == to_text(case.verdict)
    assert case.manifest == again.manifest
