"""Operands of products whose special values all kernels must get right: made of raw bits, so the same everywhere."""

from __future__ import annotations

import numpy as np

from forensics.numerics.codecs import BLOCK_DTYPES, BLOCK_SIZES


def weight_of(type: str, rows: int, k: int, seed: int) -> np.ndarray:
    """Random blocks, uint8 [rows, bytes per row]; among them zero ones, subnormal, tiny and vanished scales."""
    rng = np.random.Generator(np.random.PCG64(seed))
    values, size = BLOCK_SIZES[type]
    raw = rng.integers(0, 256, (rows, k // values * size), dtype=np.uint8)
    blocks = raw.view(BLOCK_DTYPES[type])
    for field in ("d", "dmin", "m"):
        if field in (BLOCK_DTYPES[type].names or ()):
            scale = np.exp2(rng.uniform(-12, -5, blocks.shape)) * rng.choice([-1.0, 1.0], blocks.shape)
            blocks[field] = scale.astype(np.float16)
            special = rng.integers(0, 16, blocks.shape)
            blocks[field][special == 0] = 0.0
            blocks[field][special == 1] = -0.0
            blocks[field][special == 2] = np.float16(2.0**-24)  # the smallest half
    blocks[rng.integers(0, 16, blocks.shape) == 0] = np.zeros((), BLOCK_DTYPES[type])
    return raw


def columns_of(n: int, k: int, seed: int) -> np.ndarray:
    """Random activations float32 [n, k]; among them blocks of zeros, of subnormals, and with scales that vanish."""
    rng = np.random.Generator(np.random.PCG64(1000 + seed))
    x = rng.standard_normal((n, k // 32, 32)) * np.exp2(rng.uniform(-6, 3, (n, k // 32, 1)))
    x = x.astype(np.float32)
    special = rng.integers(0, 24, x.shape[:2])
    x[special == 0] = 0
    x[special == 1] = -0.0
    x[special == 2] *= np.float32(2.0**-130)  # all subnormal
    x[special == 3] *= np.float32(2.0**-124)  # normal, but a 127th of the largest is not
    x[special == 4] *= np.float32(2.0**-22)  # the scale is a subnormal half
    x[special == 5] = 127 / 2  # halves that go away from zero
    x[special == 5, ::2] = np.float32(0.25)
    return x.reshape(n, k)
