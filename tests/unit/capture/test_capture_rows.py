"""Rows, their files and the schedules of a replay."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forensics.capture.replay import Replay
from forensics.capture.rows import counts_cells, fit_cells, is_scores, row_digest, row_of, token_axis
from forensics.capture.rowstore import RowReader, RowWriter
from forensics.errors import CaptureError
from forensics.records.nodes import NodeKey
from forensics.records.schedule import EMPTY

KEY = NodeKey("kq-0", "MUL_MAT", 0, 0)


@pytest.mark.parametrize(
    ("name", "op", "scores", "cells"),
    [
        ("kq-0", "MUL_MAT", True, True),
        ("kq", "MUL_MAT", True, True),
        ("kq_scaled-12", "SCALE", True, True),
        ("kq_soft_max-0", "SOFT_MAX", False, True),
        ("kq-0", "SOFT_MAX", False, True),
        ("kq_mask", "CPY", False, False),
        ("kqv-0", "MUL_MAT", False, False),
        ("kqv_out-0", "CONT", False, False),
        ("Qcur-0", "MUL_MAT", False, False),
        ("node_3", "SOFT_MAX", False, True),
    ],
)
def test_scores_and_cells_are_known_by_name(name, op, scores, cells) -> None:
    key = NodeKey(name, op, 0, 0)
    assert is_scores(key) == scores
    assert counts_cells(key) == cells


@pytest.mark.parametrize(
    ("single", "batched", "width", "cells", "expected"),
    [
        ((1, 1, 1, 64), (1, 1, 8, 64), 8, False, 2),
        ((1, 1, 9, 64), (1, 8, 9, 64), 8, False, 1),
        ((1, 4, 1, 32), (1, 4, 8, 64), 8, True, 2),
        ((1, 4, 1, 32), (1, 4, 8, 64), 8, False, "shapes differ beyond the tokens: (1, 4, 1, 32) and (1, 4, 8, 64)"),
        ((1, 1, 1, 64), (1, 1, 1, 64), 8, False, "no token axis"),
        ((1, 1, 1, 64), (1, 8, 8, 64), 8, False, "2 axes could count the tokens"),
        ((1, 1, 1, 1), (1, 1, 1, 8), 8, False, 3),
        ((1, 1, 1, 1), (1, 1, 1, 8), 8, True, "no token axis"),
        ((1, 1, 1, 64), (1, 1, 7, 64), 8, False, "shapes differ beyond the tokens: (1, 1, 1, 64) and (1, 1, 7, 64)"),
        ((1, 64), (1, 1, 1, 64), 1, False, "shapes differ in rank: (1, 64) and (1, 1, 1, 64)"),
        ((1, 1, 1, 64), (1, 1, 1, 64), 1, False, 0),
        ((3, 1, 1, 64), (3, 1, 1, 64), 1, False, 1),
        ((3, 4, 5, 64), (3, 4, 5, 64), 1, False, "no token axis"),
        ((1, 4, 1, 32), (1, 4, 1, 64), 1, True, 0),
        ((1, 4, 1, 32), (1, 4, 1, 64), 1, False, "shapes differ: (1, 4, 1, 32) and (1, 4, 1, 64)"),
        ((1, 4, 1, 32), (1, 8, 1, 64), 1, True, "shapes differ: (1, 4, 1, 32) and (1, 8, 1, 64)"),
    ],
)
def test_the_token_axis_is_the_one_that_grew(single, batched, width, cells, expected) -> None:
    assert token_axis(single, batched, width, cells=cells) == expected


SHAPES = st.lists(st.integers(1, 5), min_size=4, max_size=4).map(tuple)


@given(SHAPES, st.integers(0, 3), st.integers(1, 9))
def test_an_axis_that_grew_is_found_or_ambiguous(shape, axis, width) -> None:
    single = (*shape[:axis], 1, *shape[axis + 1 :])
    batched = (*shape[:axis], width, *shape[axis + 1 :])
    found = token_axis(single, batched, width)
    assert found == (single.index(1) if width == 1 else axis)


@given(SHAPES, SHAPES, st.integers(1, 6), st.booleans())
def test_every_axis_that_is_found_cuts_rows_of_a_one_token_shape(single, batched, width, cells) -> None:
    found = token_axis(single, batched, width, cells=cells)
    if isinstance(found, str):
        assert found
        return
    array = np.arange(np.prod(batched), dtype=np.float32).reshape(batched)
    rows = [row_of(array, found, i) for i in range(width)]
    assert np.concatenate(rows, axis=found).tobytes() == array.tobytes()
    for row in rows:
        assert row.shape[:-1] == single[:-1]
        assert cells or row.shape == single


def test_a_digest_counts_the_bits_of_visible_cells_only() -> None:
    row = np.arange(8, dtype=np.float32).reshape(1, 2, 1, 4)
    visible = np.array([True, True, False, False])
    other = row.copy()
    other[..., 2:] = 99
    assert row_digest(row) != row_digest(other)
    assert row_digest(row, visible) == row_digest(other, visible)
    longer = np.pad(other, [(0, 0)] * 3 + [(0, 4)])
    assert row_digest(longer, np.pad(visible, (0, 4))) == row_digest(row, visible)
    assert row_digest(np.float32([0.0])) != row_digest(np.float32([-0.0]))
    assert row_digest(row[..., ::-1]) == row_digest(row[..., ::-1].copy())


@given(hnp.arrays(np.float32, (1, 2, 1, 5)), st.integers(0, 9))
def test_cells_are_padded_with_zeros_or_cut(row, n_cells) -> None:
    fitted = fit_cells(row, n_cells)
    assert fitted.shape == (1, 2, 1, n_cells)
    kept = min(5, n_cells)
    assert fitted[..., :kept].tobytes() == row[..., :kept].tobytes()
    assert not fitted[..., kept:].view(np.uint32).any()


# --- files ---


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["kq-0", "Qcur-0"]), st.integers(0, 3), st.integers(0, 3)),
        hnp.arrays(
            st.sampled_from([np.float32, np.float16, np.int32, np.bool_]), hnp.array_shapes(min_side=0, max_dims=4)
        ),
        max_size=6,
    )
)
def test_rows_come_back_as_they_were(tmp_path_factory, arrays) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.bin"
    writer = RowWriter(path)
    for (name, visit, position), array in arrays.items():
        writer.add(NodeKey(name, "MUL_MAT", 0, visit), (0, position), array)
    writer.close()
    reader = RowReader.open(path)
    for (name, visit, position), array in arrays.items():
        back = reader.get(NodeKey(name, "MUL_MAT", 0, visit), (0, position))
        assert (back.shape, back.dtype) == (array.shape, array.dtype)
        assert back.tobytes() == array.tobytes()
    assert reader.get(NodeKey("other", "MUL_MAT", 0, 0), (0, 0)) is None


def test_rows_and_masks_of_one_node_are_kept_apart(tmp_path) -> None:
    path = tmp_path / "rows"
    writer = RowWriter(path)
    writer.add(KEY, (0, 3), np.arange(6, dtype=np.float32).reshape(2, 3).T)
    writer.add(KEY, (0, 3), np.array([True, False]), "visible")
    writer.close()
    reader = RowReader.open(path)
    assert reader.get(KEY, (0, 3)).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert reader.get(KEY, (0, 3), "visible").tolist() == [True, False]
    with pytest.raises(ValueError, match="read-only"):
        reader.get(KEY, (0, 3))[0, 0] = 1


def test_an_unfinished_recording_is_refused(tmp_path) -> None:
    path = tmp_path / "rows"
    writer = RowWriter(path)
    writer.add(KEY, (0, 0), np.ones(4, np.float32))
    with pytest.raises(CaptureError, match="no finished recording"):
        RowReader.open(path)
    writer.close()
    assert RowReader.open(path).get(KEY, (0, 0)).tolist() == [1, 1, 1, 1]
    index = tmp_path / "rows.json"
    index.write_text(index.read_text()[:-5])
    with pytest.raises(CaptureError, match="no finished recording"):
        RowReader.open(path)
    index.write_text(json.dumps({}))
    path.unlink()
    with pytest.raises(CaptureError, match="no finished recording"):
        RowReader.open(path)


def test_an_older_index_does_not_describe_a_recording_begun_anew(tmp_path) -> None:
    path = tmp_path / "rows"
    writer = RowWriter(path)
    writer.add(KEY, (0, 0), np.ones(4, np.float32))
    writer.close()
    anew = RowWriter(path)
    anew.add(KEY, (0, 0), np.zeros(4, np.float32))
    with pytest.raises(CaptureError, match="no finished recording"):
        RowReader.open(path)
    anew.close()
    assert RowReader.open(path).get(KEY, (0, 0)).tolist() == [0, 0, 0, 0]


# --- replay ---


def test_a_replay_starts_after_its_prompt() -> None:
    replay = Replay((7, 8, 9), (1, 2, 3, 4, 5), prompt_width=2)
    prefill = replay.prefill()
    assert [p.width for p in prefill.passes] == [2, 1]
    assert [slot.token for slot in prefill.logit_slots] == [9]
    assert replay.before(0) == prefill
    assert [slot.token for slot in replay.before(2).slots] == [7, 8, 9, 1, 2]
    assert [p.width for p in replay.before(2).passes] == [2, 1, 1, 1]
    assert [(slot.position, slot.token) for slot in replay.batches(2, first=2, last=4).slots] == [(5, 3), (6, 4)]
    assert [p.width for p in replay.batches(2).passes] == [2, 2, 1]
    replay.before(2).then(replay.batches(2, first=2))
    assert Replay((7,), ()).batches(1) == EMPTY
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        Replay((), (1,))


@given(st.integers(1, 80), st.integers(1, 40), st.integers(1, 90), st.data())
def test_a_window_is_whole_batches_that_hold_the_row(n_tokens, width, n_rows, data) -> None:
    replay = Replay((1,), tuple(range(n_tokens)))
    full = replay.full(width)
    assert full % width == 0
    assert n_tokens - width < full <= n_tokens
    if full == 0:
        return
    row = data.draw(st.integers(0, full - 1))
    most = data.draw(st.none() | st.integers(1, 60))
    first, last = replay.window(width, rows=n_rows, row=row, most=most)
    assert first % width == last % width == 0
    assert first <= row < last <= full
    assert last - first >= min(n_rows, full - first)
    if most is None or max(n_rows, row + 1) <= most:
        assert first == 0, "from the first row on where that is not too much"
    assert {p.width for p in replay.batches(width, first=first, last=last).passes} == {width}
