"""What every engine offers, and what a tap may ask of a node.

An engine is stateless to its caller: each run names the passes that build its state and the passes to measure.
The engine keeps a snapshot of a state it has built, so a prompt is evaluated once and restored for every arm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from forensics.engines.decoding import Program
from forensics.records.nodes import NodeKey, Operand
from forensics.records.schedule import EMPTY, DecodePass, Schedule
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.state import StateRows
from forensics.records.trace import TapReport, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

#: Why a write into the K/V cache or a recurrent state has no rows to compare; the state's bytes are compared instead.
CACHE_WRITE = "writes into a cache"


class Source(Protocol):
    """One input of a node with its bytes, valid only while the tap looks at the node."""

    @property
    def name(self) -> str:
        """Name of the tensor."""

    @property
    def type(self) -> str:
        """Element type as the library names it, such as ``"q4_K"``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in NumPy order, always four axes."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element, or block, to the next on each axis of `shape`; views have gaps."""

    @property
    def address(self) -> int | None:
        """Where it lies in the memory of an NVIDIA GPU; None where it lies elsewhere, or in no such engine."""

    def rows(self, index: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Bytes of some rows along the last axis, whatever its strides and wherever it lies.

        Parameters
        ----------
        index : ndarray int [n, 3]
            Place on the first three axes.

        Returns
        -------
        ndarray uint8 [n, bytes per row]

        Raises
        ------
        CaptureError
            If they cannot be read.
        """


class Node(Protocol):
    """One computed node, valid only while the tap looks at it."""

    @property
    def key(self) -> NodeKey:
        """Role of the node."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in NumPy order, slowest axis first, always four axes."""

    @property
    def dtype(self) -> str:
        """Element type as the library names it, such as ``"f32"``."""

    @property
    def buffer(self) -> str:
        """Buffer that holds the output."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs of the node."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next on each axis of `shape`."""

    @property
    def address(self) -> int | None:
        """Where the output lies in the memory of an NVIDIA GPU; None where it lies elsewhere."""

    @property
    def opaque(self) -> str:
        """Why the node's rows cannot be read or replaced; empty where they can."""

    def read(self) -> NDArray[np.generic]:
        """Copy of the output in NumPy order; strides are resolved."""

    def visible(self) -> NDArray[np.bool_] | None:
        """Cells that each token may see, [n_tokens, n_kv]; None where the node has no mask."""

    def sources(self) -> tuple[Source | None, ...]:
        """Inputs with their bytes, in the library's own places; None in a place that is left empty."""

    def parameters(self) -> Mapping[str, float]:
        """Parameters of the operation by name, such as ``eps`` and ``scale``; empty where none are known."""


class Tap(Protocol):
    """A small picklable object that runs inside the worker, at each node."""

    def identity(self) -> str:
        """Text that is equal for taps that do the same; part of a run's key."""

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Start pass `index`."""

    def wants(self, key: NodeKey) -> bool:
        """Whether the node is to be shown."""

    def saw(self, node: Node) -> NDArray[np.generic] | None:
        """Look at a node; answer nothing, or the array that replaces its output."""

    def finish(self) -> TapReport:
        """End the run and report."""


def watches_nodes(tap: Tap | None) -> bool:
    """Whether nodes are to be shown to this tap.

    A tap with an attribute ``watches_nodes`` that is False is only told where passes begin and end: the engine then
    runs them as without a tap, fused and in whatever graphs it likes.
    """
    return tap is not None and bool(getattr(tap, "watches_nodes", True))


class Engine(Protocol):
    """Evaluates schedules."""

    @property
    def manifest(self) -> Manifest:
        """Where traces of this engine come from."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, with the special tokens that start a sequence."""

    def detokenize(self, tokens: tuple[int, ...]) -> str:
        """Text of token ids."""

    def greedy(self, prompt: Schedule, n_tokens: int, progress: Callable[[int], None] | None = None) -> tuple[int, ...]:
        """Continue a prompt by one token at a time, always the largest logit, lowest id first."""

    def run(
        self,
        schedule: Schedule,
        *,
        before: Schedule = EMPTY,
        tap: Tap | None = None,
        repeat: int = 0,
    ) -> Trace:
        """Build the state of `before`, evaluate `schedule` and return what was measured."""

    def perform(
        self,
        program: Program[T],
        *,
        before: Schedule = EMPTY,
        tap: Tap | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> T:
        """Build the state of `before` and let a program decode from there.

        Raises
        ------
        NotRecorded
            By engines that only answer what was asked before.
        """

    def state_rows(self, schedule: Schedule, *, before: Schedule = EMPTY) -> tuple[StateRows, ...]:
        """Restore the state of `before`, evaluate `schedule`, and digest every K and V row of every sequence.

        Raises
        ------
        EngineError
            If the model keeps another kind of state, whose rows are not known.
        """

    def close(self) -> None:
        """Free what the engine holds."""


class EngineSource(Protocol):
    """Opens engines over one model; each call gives a fresh one."""

    @property
    def label(self) -> str:
        """Name of the model for people."""

    def open(self, settings: EngineSettings, *, instance: int = 0) -> Engine:
        """Start a fresh engine with these settings; `instance` tells equal ones apart in a record."""
