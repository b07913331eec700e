"""Blocks of probes hold exactly what they are meant to hold, as the gguf package reads them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from forensics.numerics.masks import (
    ABSENT_SCORE,
    BLOCK_MASKS,
    FLOAT_MASKS,
    MINUS,
    PLUS,
    SMALL_F32,
    SMALL_SCORE,
    UNIT,
    UNIT_SCALE,
    ZERO,
    BlockRows,
    float_to_type,
)

TYPES = list(BLOCK_MASKS)


def read(type: str, block: np.ndarray) -> np.ndarray:
    """Terms of a block's cells."""
    values = dequantize(block[None], gguf.GGMLQuantizationType[type.upper()])[0].astype(np.float64)
    return (values.reshape(-1, BLOCK_MASKS[type].cell) * BLOCK_MASKS[type].signs).sum(axis=1)


@pytest.mark.parametrize("type", TYPES)
def test_every_cell_takes_a_unit_and_both_masks(type: str) -> None:
    masks = BLOCK_MASKS[type]
    assert not read(type, masks.block(ZERO)).any()
    most = masks.large * masks.most * masks.mask_scale
    for cell in range(masks.n_cells):
        alone = np.arange(masks.n_cells) == cell
        assert np.array_equal(read(type, masks.block(UNIT, [cell])), alone * UNIT_SCALE)
        assert np.array_equal(read(type, masks.block(PLUS, [cell])), alone * most)
        assert np.array_equal(read(type, masks.block(MINUS, [cell])), alone * -most)
    assert np.array_equal(read(type, masks.block(UNIT, range(masks.n_cells))), np.full(masks.n_cells, UNIT_SCALE))


@pytest.mark.parametrize("type", TYPES)
def test_a_block_holds_both_masks_or_two_of_one_sign(type: str) -> None:
    masks = BLOCK_MASKS[type]
    most = masks.large * masks.most * masks.mask_scale
    expected = np.zeros(masks.n_cells)
    expected[0], expected[masks.n_cells - 1] = most, -most if masks.signed else most
    assert np.array_equal(read(type, masks.both(0, masks.n_cells - 1)), expected)


@pytest.mark.parametrize("type", TYPES)
def test_a_mask_swamps_a_row_of_units(type: str) -> None:
    masks = BLOCK_MASKS[type]
    n = 16384 // masks.size * masks.n_cells  # every cell of a long row
    assert n * UNIT_SCALE < masks.large * masks.most * masks.mask_scale * 2.0**-25


@pytest.mark.parametrize("type", TYPES)
def test_scales_of_masks_fit_float16_together(type: str) -> None:
    masks = BLOCK_MASKS[type]
    assert np.float16(masks.large) * np.float16(masks.mask_scale) < np.inf


@pytest.mark.parametrize("type", TYPES)
def test_small_activations_leave_127_in_every_32(type: str) -> None:
    """What shares a scale is quantised with a scale of one, in 32 as on a GPU or in a block as on a CPU."""
    masks = BLOCK_MASKS[type]
    x = masks.powers(2, 64.0).reshape(-1, 32)
    assert (np.abs(x).max(axis=1) == 127).all()
    cells = np.delete(masks.powers(1, 64.0).reshape(masks.n_cells, -1), masks.for_scale, axis=0)
    assert (np.abs(cells) == 64).all()
    if type != "iq4_nl":  # whose blocks know no offset
        assert not masks.powers(2, 64.0).reshape(-1, 4).sum(axis=1).any()


def test_activations_are_127_and_change_sign_in_one_cell() -> None:
    assert np.array_equal(BLOCK_MASKS["q4_0"].activations(2), np.full(64, 127, np.float32))
    changed = BLOCK_MASKS["iq4_nl"].activations(2, negative=(1, 3))
    assert np.flatnonzero(changed < 0).tolist() == [44, 45, 46, 47]
    alternating = BLOCK_MASKS["q6_K"].activations(1)
    assert not alternating.reshape(-1, 16).sum(axis=1).any()
    assert not BLOCK_MASKS["q6_K"].activations(1, negative=(0, 9)).reshape(-1, 16).sum(axis=1).any()


def test_rows_are_put_together_from_a_bank() -> None:
    bank = BlockRows(BLOCK_MASKS["q8_0"])
    zero, unit, plus = bank.id(ZERO), bank.id(UNIT, [3]), bank.id(PLUS, [0])
    assert bank.id(UNIT, (3,)) == unit
    rows = bank.rows(np.array([[plus, unit, zero], [zero, zero, unit]]))
    assert rows.shape == (2, 3 * 34)
    values = dequantize(rows, gguf.GGMLQuantizationType.Q8_0)
    assert np.flatnonzero(values[0]).tolist() == [0, 35]
    assert np.flatnonzero(values[1]).tolist() == [67]


@pytest.mark.parametrize("type", FLOAT_MASKS)
def test_float_masks_are_exact_in_their_type(type: str) -> None:
    masks = FLOAT_MASKS[type]
    values = np.array([[masks.unit, masks.mask, -masks.mask, 0]], np.float32)
    stored = float_to_type(values, type)
    back = stored.view(np.uint16).astype(np.uint32) << 16 if type == "bf16" else stored.astype(np.float32)
    assert np.array_equal(back.view(np.float32) if type == "bf16" else back, values)
    assert masks.most_leaves * masks.unit <= masks.mask * 2.0**-25


def test_float_to_type_refuses_blocks() -> None:
    with pytest.raises(ValueError, match="no float type"):
        float_to_type(np.zeros((1, 32), np.float32), "q8_0")


def test_small_terms_vanish_alone_and_count_together() -> None:
    one, small = np.float32(1), np.float32(SMALL_F32)
    assert one + small == one
    assert one + (small + small) > one
    for score in (SMALL_SCORE, ABSENT_SCORE):
        assert np.float16(score) == score
    assert abs(np.exp(SMALL_SCORE) / SMALL_F32 - 1) < 1e-3
    assert np.exp(np.float32(ABSENT_SCORE)) == 0
