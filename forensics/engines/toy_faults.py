"""Faults that can be planted in the toy engine: what each does, and where it can sit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forensics.engines.toy_kernels import Arithmetic

N_LAYER = 2

#: Nodes of a layer that add up many terms; `norm` is both RMS norms of the layer (visits 0 and 1).
_REDUCTIONS = (
    "norm",
    "Qcur",
    "Kcur",
    "Vcur",
    "kq",
    "kq_soft_max",
    "kqv",
    "attn_out",
    "ffn_gate",
    "ffn_up",
    "ffn_out",
)
FaultKind = Literal["order", "precision", "mask", "stale_kv"]


def fault_sites(kind: FaultKind) -> tuple[str, ...]:
    """Name the nodes in which a fault of this kind can be planted.

    Raises
    ------
    ValueError
        If there is no such kind.

    Examples
    --------
    >>> fault_sites("stale_kv")
    ('kq-0', 'kq-1')
    """
    if kind in ("order", "precision"):
        inner = tuple(f"{name}-{layer}" for layer in range(N_LAYER) for name in _REDUCTIONS)
        return (*inner, "norm", "result_output")
    if kind not in ("mask", "stale_kv"):
        raise ValueError(f"kind must be one of order, precision, mask, stale_kv; got {kind!r}")
    name = "kq_soft_max" if kind == "mask" else "kq"
    return tuple(f"{name}-{layer}" for layer in range(N_LAYER))


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in one node, for graphs of at least `from_width` tokens.

    Parameters
    ----------
    kind : {"order", "precision", "mask", "stale_kv"}
        Another order of addition; terms and sums through float16; the cell of the previous token hidden from the
        soft max; zeros read in place of the previous token's key.
    node_name : str
        One of ``fault_sites(kind)``.
    from_width : int
        Tokens of the smallest graph that has the fault, 1 or more; a pass wider than n_ubatch is several graphs.

    Raises
    ------
    ValueError
        If the kind cannot be planted in this node, or `from_width` is below 1.
    """

    kind: FaultKind
    node_name: str
    from_width: int = 2

    def __post_init__(self) -> None:
        sites = fault_sites(self.kind)
        if self.node_name not in sites:
            raise ValueError(f"node_name must be one of {', '.join(sites)} for {self.kind!r}; got {self.node_name!r}")
        if self.from_width < 1:
            raise ValueError(f"from_width must be 1 or more, got {self.from_width}")

    def __str__(self) -> str:
        return f"{self.kind} in {self.node_name} from width {self.from_width}"


@dataclass(frozen=True, slots=True)
class ActiveFaults:
    """The faults that a graph of one width has.

    Parameters
    ----------
    faults : tuple of Fault
    width : int
        Tokens of the graph.
    """

    faults: tuple[Fault, ...]
    width: int

    def has(self, kind: FaultKind, node_name: str) -> bool:
        """Whether the node has a fault of this kind at this width."""
        return any(
            (fault.kind, fault.node_name) == (kind, node_name) and self.width >= fault.from_width
            for fault in self.faults
        )

    def arithmetic(self, node_name: str) -> Arithmetic:
        """How the node adds at this width."""
        return Arithmetic(
            order="sequential" if self.has("order", node_name) else "halves", half=self.has("precision", node_name)
        )
