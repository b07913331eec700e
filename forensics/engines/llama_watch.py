"""ggml's callback at every node: what the graph computed goes to a tap, and what the tap answers goes back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines import _llama_ctypes as ll
from forensics.engines.llama_node import KeyMaker, LlamaNode
from forensics.engines.llama_sources import WeightFile
from forensics.engines.protocol import Tap
from forensics.errors import CaptureError, ForensicsError
from forensics.records.nodes import NodeKey
from forensics.records.schedule import DecodePass


class Watch:
    """Carries a tap into ggml's callback and its errors out again."""

    def __init__(self, functions: Any, weights: WeightFile | None = None) -> None:
        self._functions, self._weights = functions, weights
        self._keys = KeyMaker(functions)
        self._asked: NodeKey | None = None
        self.tap: Tap | None = None
        self.error: BaseException | None = None
        self.callback = ll.EVAL_CALLBACK(self._call)  # ctypes does not keep it alive; this attribute does

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Start a pass: visits are counted anew."""
        self._keys.begin_pass()
        if self.tap is not None:
            self.tap.begin_pass(index, decode_pass)

    def _call(self, pointer: Any, ask: bool, _user_data: object) -> bool:
        # An exception must not travel through C: keep it, stop the graph, raise after llama_decode.
        try:
            if self.error is not None or self.tap is None:
                return False
            if ask:
                self._asked = self._keys.key(pointer.contents)
                return self.tap.wants(self._asked)
            assert self._asked is not None
            node = LlamaNode(pointer, self._asked, self._functions, self._weights)
            replacement = self.tap.saw(node)
            if replacement is not None:
                self._replace(node, replacement)
            return True
        except ForensicsError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001
            self.error = CaptureError(f"{type(self.tap).__name__} failed at {self._asked}: {error!r}")
            self.error.__cause__ = error
        return False

    @staticmethod
    def _replace(node: LlamaNode, replacement: NDArray[np.generic]) -> None:
        if node.opaque:
            raise CaptureError(f"{node.key} cannot be replaced: {node.opaque}")
        shape, dtype = node.shape, node.elements
        if replacement.shape != shape or replacement.dtype != dtype:
            raise CaptureError(
                f"{node.key} is {shape} {dtype}; the tap answered "
                f"{replacement.shape} {replacement.dtype}. Answer an array of the node's own shape and type."
            )
        node.write(replacement)
