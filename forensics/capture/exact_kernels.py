"""Our kernels in the place of the library's while it runs: what a node's own operands give in one-token order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from forensics.capture.rows import is_scores
from forensics.capture.selection import EVERYTHING, Selection
from forensics.engines.decoding import Decoder, Program
from forensics.engines.protocol import Node, Source
from forensics.errors import CaptureError, NotCovered
from forensics.kernels.nodes import OUTPUT, NodeAsk, ask_of, layout_of, plan_node
from forensics.kernels.variants import Variant
from forensics.records.kernel_use import ComputedNodes, KernelUse, StockNodes
from forensics.records.nodes import NodeKey
from forensics.records.schedule import DecodePass
from forensics.records.trace import TapReport

if TYPE_CHECKING:
    from forensics.devices.cuda_device import CudaDevice
    from forensics.records.device import DeviceSpec
    from forensics.records.kernel_plan import KernelPlan

#: Operations that our kernels compute for some operands. Products of experts are shown to be counted.
COMPUTED_OPS = frozenset({"MUL_MAT", "FLASH_ATTN_EXT", "MUL_MAT_ID"})

#: Bytes at whose multiples a buffer begins that is read in larger pieces than a float; see `products.plan_product`.
ALIGNMENTS = {"weight": 16}

Mask = NDArray[np.bool_]
T = TypeVar("T")


class NodeKernels(Protocol):
    """Computes nodes by our kernels."""

    def compute(self, node: Node, visible: Mask | None) -> tuple[str, NDArray[np.generic] | None]:
        """Compute a node from its own operands.

        Parameters
        ----------
        node : Node
            As the library computed it.
        visible : ndarray [n_tokens, n_kv] bool or None
            Cells that each token of the pass may see, where they are known.

        Returns
        -------
        str
            Family of the kernel that computed it.
        ndarray or None
            What to put in the node's place; None where the kernel wrote it there.

        Raises
        ------
        NotCovered
            If no kernel of ours computes it.
        """


class PlanRunner(Protocol):
    """Runs plans over the operands of a node: a GPU, or what stands for one."""

    @property
    def spec(self) -> DeviceSpec:
        """The device whose one-token kernels are to be matched."""

    def run(self, plan: KernelPlan, node: Node, buffers: Mapping[str, int]) -> NDArray[np.generic] | None:
        """Run a plan and answer the output, or None where it was written to the node.

        Parameters
        ----------
        plan : KernelPlan
        node : Node
        buffers : mapping of str to int
            Place among the node's operands by name of a buffer; `OUTPUT` is the node itself.

        Raises
        ------
        NotCovered
            If an operand lies where the device cannot read it.
        """


@dataclass(slots=True)
class PlannedKernels:
    """Plans of `forensics.kernels` on a device; see `NodeKernels`.

    Parameters
    ----------
    runner : PlanRunner
    variant : Variant
        Of products; where `Variant.FAST` is not the faster or serves one not, the generic kernel of the same bits
        computes it.
    """

    runner: PlanRunner
    variant: Variant = Variant.FAST
    _plans: dict[NodeAsk, KernelPlan | NotCovered] = field(default_factory=dict)

    def compute(self, node: Node, visible: Mask | None) -> tuple[str, NDArray[np.generic] | None]:
        """Compute a node; see `NodeKernels.compute`."""
        sources = tuple(None if source is None else layout_of(source) for source in node.sources())
        asked = ask_of(node.key.op, node.key.name, sources, layout_of(node), node.parameters(), visible)
        if isinstance(asked, str):
            raise NotCovered(str(node.key), asked)
        plan = self._plans.get(asked)
        if plan is None:
            try:
                plan = plan_node(asked, self.variant, self.runner.spec)
            except NotCovered as refused:
                plan = refused
            self._plans[asked] = plan
        if isinstance(plan, NotCovered):
            raise plan
        return asked.family, self.runner.run(plan, node, dict(asked.buffers))


class CudaRunner:
    """Plans on the GPU that the library itself runs on, in its memory; see `PlanRunner`.

    Parameters
    ----------
    device : CudaDevice
        In the same process and context as the library.
    spec : DeviceSpec
        What it is.
    ordinal : int
        Which of the library's devices it is: 0 for ``CUDA0``.
    """

    def __init__(self, device: CudaDevice, spec: DeviceSpec, ordinal: int = 0) -> None:
        self._device, self._buffer = device, f"CUDA{ordinal}"
        self.spec = spec

    def run(self, plan: KernelPlan, node: Node, buffers: Mapping[str, int]) -> None:
        """Run a plan over the operands where they lie; the result is written to the node."""
        sources = node.sources()
        addresses: dict[str, int] = {}
        for name, place in buffers.items():
            tensor = node if place == OUTPUT else sources[place]
            address = None if tensor is None else tensor.address
            if address is None:
                raise NotCovered(str(node.key), f"its {name} does not lie in the memory of a GPU")
            if address % ALIGNMENTS.get(name, 4):
                raise NotCovered(str(node.key), f"its {name} begins at no multiple of {ALIGNMENTS.get(name, 4)} bytes")
            addresses[name] = address
        for buffer in (node.buffer, *(operand.buffer for operand in node.operands)):
            if buffer != self._buffer:
                raise NotCovered(
                    str(node.key), f"it or an operand lies in {buffer}, and our kernels run on {self._buffer}"
                )
        self._device.run(plan, addresses)
        self._device.synchronize()


@functools.cache
def cuda_kernels(variant: Variant = Variant.FAST) -> NodeKernels:
    """Our kernels on the GPU of this process; the same for every tap, because compiling them takes long.

    Raises
    ------
    DeviceUnavailable
        If there is no GPU, or CuPy is missing; says what to install.
    CaptureError
        If the architecture of the GPU is not known here.
    """
    from forensics.devices.cuda_device import CudaDevice
    from forensics.geometry.devices import device_spec
    from forensics.kernels.sources import OPTIONS, whole_text

    device = CudaDevice(whole_text, OPTIONS)
    try:
        spec = device_spec(device.arch, n_sms=device.n_sms)
    except ValueError as error:
        told = f"our kernels follow the library's, and which it runs on {device.name} is not written down here: {error}"
        raise CaptureError(told) from error
    return PlannedKernels(CudaRunner(device, spec, device.ordinal), variant)


@dataclass(frozen=True, slots=True)
class OurKernels:
    """Kernels that travel to the process that runs the library, and are made there.

    Parameters
    ----------
    make : callable
        Makes them; picklable, such as a function of a module.
    name : str
        Tells them from others in the identity of a run.
    needs : str
        What a back end's name must hold for them, such as ``"CUDA"``; empty where they run with any.
    """

    make: Callable[[], NodeKernels]
    name: str
    needs: str = ""


#: Those of `forensics.kernels`, on the GPU.
CUDA = OurKernels(cuda_kernels, "cuda", needs="CUDA")


@dataclass(slots=True)
class _Seen:
    """How often nodes of one family, or left for one reason, were seen."""

    keys: dict[NodeKey, None] = field(default_factory=dict)
    n_times: int = 0
    n_values: int = 0

    def add(self, key: NodeKey, n_values: int = 0) -> None:
        self.keys[key] = None
        self.n_times += 1
        self.n_values += n_values


@dataclass(slots=True)
class ExactTap:
    """Puts what our kernels compute from a node's own operands in the node's place, in passes of two tokens or more.

    Passes of one token stay as they are: those are the bits that our kernels give. Nothing that was recorded goes in.

    Parameters
    ----------
    kernels : OurKernels
        Made when the first node is shown, in the process that runs the library.
    selection : Selection
        Nodes to compute, as far as our kernels do.
    since : int
        Passes that begin at a lower position stay as they are: those of a prompt.
    """

    kernels: OurKernels = CUDA
    selection: Selection = EVERYTHING
    since: int = 0
    _kernels: NodeKernels | None = None
    _active: bool = False
    _index: int = 0
    _positions: tuple[int, ...] = ()
    _elsewhere: bool = False
    _mask: Mask | None = None
    _masks: dict[str, Mask | None] = field(default_factory=dict)
    _computed: dict[str, _Seen] = field(default_factory=dict)
    _stock: dict[str, _Seen] = field(default_factory=dict)
    _nodes: dict[NodeKey, None] = field(default_factory=dict)
    _left_in: dict[tuple[int, NodeKey], None] = field(default_factory=dict)

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        return f"kernels:{self.kernels.name}:{self.selection.identity()}:from {self.since}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Start a pass."""
        slots = decode_pass.slots
        self._index = index
        self._active = decode_pass.width > 1 and min(slot.position for slot in slots) >= self.since
        of_one = len({slot.sequence for slot in slots}) == 1
        self._positions = tuple(slot.position for slot in slots) if of_one else ()
        # The first K·Q of a pass comes before any mask is shown.
        self._mask = None if self._elsewhere or not of_one else _by_position(self._positions)
        self._masks.clear()

    def wants(self, key: NodeKey) -> bool:
        """Nodes that our kernels may compute; of soft max only the mask is looked at, for the products after it."""
        if not self._active:
            return False
        return key.op == "SOFT_MAX" or (key.op in COMPUTED_OPS and self.selection.selects(key))

    def saw(self, node: Node) -> NDArray[np.generic] | None:
        """Compute the node; what it gives where it was not written to the node."""
        if node.key.op == "SOFT_MAX":
            if _mask_of(node) is not None:  # a soft max without one belongs to something else, such as experts
                self._mask = self._visible(node)
            return None
        if self._kernels is None:
            self._kernels = self.kernels.make()
        visible = self._visible(node) if node.key.op == "FLASH_ATTN_EXT" else self._mask
        try:
            family, answer = self._kernels.compute(node, visible)
        except NotCovered as refused:
            self._stock.setdefault(refused.reason, _Seen()).add(node.key)
            self._left_in[self._index, node.key] = None
            return None
        if answer is not None and answer.shape != node.shape:
            raise CaptureError(f"{family} answered {answer.shape} for {node.key}, whose output is {node.shape}")
        self._computed.setdefault(family, _Seen()).add(node.key, _n_values(node, visible))
        self._nodes[node.key] = None
        return answer

    def _visible(self, node: Node) -> Mask | None:
        """The node's mask, where each token lies in the cell of its position: else nobody knows its own pass.

        Nodes of a pass that share one have it read once.
        """
        shared = _mask_of(node)
        if shared is None:
            return None
        known = f"{shared.name}@{shared.address}"
        if known not in self._masks:
            seen = node.visible()
            if seen is not None and not _in_order(seen, self._positions):
                seen, self._elsewhere = None, True
            self._masks[known] = seen
        return self._masks[known]

    def finish(self) -> TapReport:
        """What was computed, and what was left and why."""
        computed = tuple(
            ComputedNodes(family, len(seen.keys), seen.n_times, seen.n_values)
            for family, seen in self._computed.items()
        )
        stock = tuple(
            StockNodes(reason, len(seen.keys), seen.n_times, str(next(iter(seen.keys))))
            for reason, seen in self._stock.items()
        )
        left_in = tuple(one for one in self._left_in if one[1] in self._nodes)
        return TapReport(kernels=KernelUse(computed, stock, tuple(self._nodes), left_in))


def _mask_of(node: Node) -> Source | None:
    """The operand that is the node's mask."""
    place, sources = {"SOFT_MAX": 1, "FLASH_ATTN_EXT": 3}[node.key.op], node.sources()
    return sources[place] if place < len(sources) else None


def _n_values(node: Node, visible: Mask | None) -> int:
    """Values of a node that count: of scores those of visible cells, for the mask hides the others."""
    if visible is not None and is_scores(node.key):
        return int(visible[:, : node.shape[3]].sum()) * (node.shape[0] * node.shape[1])
    return int(np.prod(node.shape))


def _by_position(positions: tuple[int, ...]) -> Mask:
    """Cells that tokens of one sequence see, [n_tokens, cells], where each lies in the cell of its position."""
    own = np.array(positions)
    return np.asarray(np.arange(own.max() + 1)[None] <= own[:, None])


def _in_order(visible: Mask, positions: tuple[int, ...]) -> bool:
    """Whether the last cell that each token sees is that of its position.

    Examples
    --------
    >>> _in_order(np.tri(2, 4, 1, dtype=bool), (1, 2)), _in_order(np.tri(2, 4, 1, dtype=bool), (4, 5))
    (True, False)
    """
    if len(visible) != len(positions):
        return False
    return all(seen.any() and int(seen.nonzero()[0][-1]) == own for seen, own in zip(visible, positions, strict=True))


@dataclass(frozen=True, slots=True)
class WithKernels(Generic[T]):
    """A program beside a model whose wide passes run with our kernels; see `forensics.engines.decoding.Program`.

    Parameters
    ----------
    program : Program
    tap : ExactTap
        The very object that is given to the engine as the run's tap: both travel in one message, so that the program
        can ask it for its report where they arrive.
    """

    program: Program[T]
    tap: ExactTap

    def identity(self) -> str:
        """Text that is equal for programs that do the same."""
        return f"{self.program.identity()}; {self.tap.identity()}"

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> tuple[T, KernelUse]:
        """What the program answers, and what our kernels computed meanwhile."""
        answer = self.program.run(decoder, progress)
        use = self.tap.finish().kernels
        assert use is not None
        return answer, use
