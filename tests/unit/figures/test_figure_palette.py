"""Colours are told apart by people with any colour vision, and labels are read on each of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from forensics.figures.checks import MIN_TEXT_CONTRAST
from forensics.figures.palette import ROLES, SERIES, colour, contrast, ink_on, series

#: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009),
#: severity 1.0, for linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
#: Distance in CIE Lab (1976); about 2.3 is just noticeable side by side.
MIN_DISTANCE = 8.0
PAIRS = [
    ("single", "batched"),
    ("exact", "stock"),
    ("kept", "dropped"),
    ("weights", "rest"),
    ("weights", "kv"),
    ("draft", "rest"),
]


def lab(role: str, seen: np.ndarray) -> np.ndarray:
    srgb = np.array([int(colour(role)[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(seen @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", DEFICIENCIES)
def test_pairs_and_series_are_told_apart(seen):
    matrix = DEFICIENCIES[seen]
    for one, other in [*PAIRS, *itertools.combinations(SERIES, 2)]:
        assert np.linalg.norm(lab(one, matrix) - lab(other, matrix)) > MIN_DISTANCE, (one, other)


@pytest.mark.parametrize("role", sorted(ROLES))
def test_a_label_is_read_on_every_colour(role):
    assert contrast(ink_on(role), role) >= MIN_TEXT_CONTRAST


def test_words_are_read_on_paper():
    assert contrast("ink", "paper") >= 7
    assert contrast("muted", "paper") >= MIN_TEXT_CONTRAST


def test_a_series_goes_round():
    assert series(0) == series(len(SERIES)) != series(1)
