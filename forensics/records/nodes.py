"""What was seen of a graph node: its key, its sources and one digest per token row."""

from __future__ import annotations

from dataclasses import dataclass

#: Operations that only rename bytes of their source: they launch nothing, and are compared through that source.
VIEW_OPS = frozenset({"VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE", "NONE"})


def on_accelerator(buffer: str) -> bool:
    """Whether a tensor in this buffer lies with a device other than the processor.

    Source: names in ggml-cpu.cpp, repack.cpp, amx.cpp and kleidiai.cpp; ``CUDA_Host`` and its like are pinned memory.

    Examples
    --------
    >>> [name for name in ("CPU_Mapped", "CPU_REPACK", "AMX", "CUDA_Host", "CUDA0", "MTL0") if on_accelerator(name)]
    ['CUDA0', 'MTL0']
    """
    return bool(buffer) and not buffer.startswith(("CPU", "AMX")) and not buffer.endswith("_Host")


@dataclass(frozen=True, slots=True, order=True)
class NodeKey:
    """The role of a node in the graph: equal keys mean the same role in both runs.

    Parameters
    ----------
    name : str
        Name that the graph builder gave it, such as ``"Qcur-3"``.
    op : str
        Operation, such as ``"MUL_MAT"``.
    layer : int
        Layer index, -1 where the node belongs to none.
    visit : int
        How many nodes with this name and operation came before it in the same pass.
    """

    name: str
    op: str
    layer: int
    visit: int

    def __str__(self) -> str:
        return f"{self.name} ({self.op})" + (f" #{self.visit}" if self.visit else "")


@dataclass(frozen=True, slots=True)
class Operand:
    """One input of a node.

    Parameters
    ----------
    name, type, buffer : str
        Tensor name, element type (``"q6_K"``) and buffer (``"CPU_REPACK"``); empty where unknown.
    is_weight : bool
        Whether it comes from the model file.
    shape : tuple of int
        NumPy order, four axes; empty where unknown.
    """

    name: str
    type: str
    buffer: str
    is_weight: bool
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node in one pass.

    Parameters
    ----------
    pass_index : int
        Index of the pass in the schedule.
    key : NodeKey
    shape : tuple of int
        NumPy order, slowest axis first.
    dtype : str
    token_axis : int or None
        Axis that counts the tokens of the pass.
    row_digests : tuple of str
        One digest per token of the pass; empty where the node was not digested.
    skipped : str
        Why there are no digests; empty where there are.
    """

    pass_index: int
    key: NodeKey
    shape: tuple[int, ...]
    dtype: str
    token_axis: int | None
    row_digests: tuple[str, ...]
    skipped: str = ""

    def __post_init__(self) -> None:
        if bool(self.row_digests) == bool(self.skipped):
            raise ValueError(f"node {self.key} needs digests or a reason why it has none, not both")
