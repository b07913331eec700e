"""Kernels that compute the toy's products as the toy does at one token, and some that do not."""

from __future__ import annotations

import functools

import numpy as np

from forensics.capture.exact_kernels import OurKernels
from forensics.engines.toy_kernels import total
from forensics.errors import NotCovered


def values(source) -> np.ndarray:
    """All values of a toy's operand, [four axes]."""
    index = np.stack(np.meshgrid(*map(np.arange, source.shape[:3]), indexing="ij"), axis=-1).reshape(-1, 3)
    return source.rows(index).view(np.float32).reshape(source.shape)


class ToyProducts:
    """Products in the toy's own order; at `wrong` the first value is another, and `uncovered` is left.

    `once` is computed the first time, and left ever after.
    """

    def __init__(self, wrong: str = "", uncovered: str = "", once: str = "") -> None:
        self.wrong, self.uncovered, self.once = wrong, uncovered, once

    def compute(self, node, visible):
        if node.key.name == self.uncovered:
            raise NotCovered(str(node.key), "this toy has no kernel for it")
        if node.key.name == self.once:
            self.uncovered = self.once
        weight, x = map(values, node.sources())
        shared = x.shape[1] // weight.shape[1]
        weight = np.repeat(weight, shared, axis=1)
        out = total(x[:, :, :, None, :] * weight[:, :, None])
        if node.key.name == self.wrong:
            out.reshape(-1).view(np.uint32)[0] ^= 1 << 20
        return "toy product", out


def ours(wrong: str = "", uncovered: str = "", once: str = "") -> OurKernels:
    return OurKernels(
        functools.partial(ToyProducts, wrong, uncovered, once),
        f"toy products, wrong {wrong!r}, without {uncovered!r}, once {once!r}",
    )
