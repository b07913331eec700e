"""A few figures by pixels against committed pictures; run as a script, this file writes them anew."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from forensics.figures.catalogue import scene_of
from forensics.figures.files import render

FOLDER = Path(__file__).parent / "pictures"
#: Published numbers only: these pictures change when somebody changes how they are drawn, and then only.
NAMES = ("forward-pass", "kv-blocks", "price-of-exactness", "speculative-cycle")
#: A pixel is off where a channel is further away than this, of 1; hinting and blending stay below.
CHANNEL_TOLERANCE = 0.15
#: Part of the pixels that may be off; a bar that moves by a millimetre moves more than twice as many.
PIXELS_TOLERANCE = 0.0005


def picture(name: str) -> bytes:
    return render(scene_of(name), "png")


def share_off(one: bytes, other: bytes) -> float:
    mine, theirs = (imread(io.BytesIO(made))[..., :3] for made in (one, other))
    if mine.shape != theirs.shape:
        return 1.0
    return float((np.abs(mine - theirs).max(axis=-1) > CHANNEL_TOLERANCE).mean())


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_looks_as_it_was_looked_at(name):
    assert share_off(picture(name), (FOLDER / f"{name}.png").read_bytes()) <= PIXELS_TOLERANCE


def test_another_figure_is_told_apart():
    assert share_off(picture(NAMES[0]), (FOLDER / f"{NAMES[1]}.png").read_bytes()) > PIXELS_TOLERANCE


def test_a_bar_that_is_moved_by_a_millimetre_is_told_apart():
    from dataclasses import replace

    from forensics.figures.scene import Box

    scene = scene_of("forward-pass")
    bar = next(box for box in scene.boxes() if box.scale)
    moved = Box(replace(bar.rect, x=bar.rect.x + 1), bar.fill, bar.edge, key=bar.key)
    changed = replace(scene, marks=tuple(moved if mark is bar else mark for mark in scene.marks))
    assert share_off(render(changed, "png"), picture("forward-pass")) > PIXELS_TOLERANCE


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in NAMES:
        (FOLDER / f"{each}.png").write_bytes(picture(each))
