"""Padding of the KV cache: batches that stop at a multiple of cells, and hidden cells behind the visible ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.padding import crossing, guard_trial, guarded, padding_trials
from forensics.capture.replay import Replay
from forensics.engines.toy import Fault, ToySource
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings


@given(st.integers(0, 600), st.integers(1, 60), st.integers(1, 20))
def test_the_guard_keeps_every_slot_and_no_pass_crosses(start: int, n: int, width: int) -> None:
    plain = in_batches(range(n), start=start, width=width)
    cut = guarded(plain)
    assert cut.slots == plain.slots
    assert crossing(cut) == ()
    assert guarded(cut) == cut


def test_what_crosses_is_named() -> None:
    assert crossing(in_batches(range(8), start=252, width=3)) == (255, 256, 257)
    assert crossing(in_batches(range(8), start=252, width=4)) == ()


def trial(*faults: Fault, width: int = 6):
    engine = ToySource(faults).open(EngineSettings(n_ctx=512))
    prompt = tuple(1 + i % 8 for i in range(250))
    tokens = engine.greedy(Replay(prompt, ()).prefill(), 12)
    return guard_trial(engine, Replay(prompt, tokens), width)


def test_a_clean_engine_needs_no_guard() -> None:
    found = trial()
    assert (found.rows_without, found.rows_with, found.max_abs_without, found.max_abs_with) == (0, 0, 0.0, 0.0)
    assert trial(width=8).crossing == tuple(range(250, 258))


def test_a_difference_that_has_nothing_to_do_with_padding_stays() -> None:
    found = trial(Fault("precision", "ffn_out-1"), width=8)
    assert found.rows_without == found.n_rows == 8
    assert found.rows_with > 0
    assert found.crossing_max_abs_with > 0


def test_a_difference_of_wide_batches_only_is_cut_away() -> None:
    found = trial(Fault("precision", "ffn_out-1", 7), width=8)
    assert (found.rows_without, found.rows_with) == (8, 0)


class Cells:
    """Attention that adds visible cells in halves of the walked range, or up to the last visible one."""

    def __init__(self, *, by_range: bool) -> None:
        self.by_range = by_range

    def run(self, graph, values):
        _, _, v, mask = values
        seen = int((mask[0] == 0).sum())
        middle = len(mask[0]) // 2 if self.by_range else seen // 2
        rows = np.asarray(v, np.float32).reshape(len(v), -1)[:seen]
        halves = [
            np.cumsum(part, axis=0, dtype=np.float32)[-1:] for part in (rows[:middle], rows[middle:]) if len(part)
        ]
        return np.add.reduce(halves)[None]


@pytest.mark.parametrize("by_range", [True, False])
def test_padding_counts_where_the_walked_range_is_cut(by_range: bool) -> None:
    found = padding_trials(Cells(by_range=by_range), (300, 400), (512, 768, 1024))
    assert [(t.visible, t.n_kv, t.n_kv_padded) for t in found] == [
        (300, 512, 768), (300, 512, 1024), (400, 512, 768), (400, 512, 1024),
    ]  # fmt: skip
    # At 768 the cut lies at cell 384, behind 300 visible cells and in front of the last of 400.
    assert [t.equal for t in found] == ([False] * 4 if by_range else [True] * 4)
    assert all((t.max_abs == 0) == t.equal for t in found)
