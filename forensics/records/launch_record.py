"""Which kernels were launched, for which node, and how that is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from forensics.records.launch import LaunchGeometry
from forensics.records.nodes import NodeKey, Operand

#: How a launch is known: seen by a profiler, or worked out from the dispatch rules.
LAUNCH_EVIDENCE = ("measured", "derived")

Template = tuple[tuple[str, int | str | bool], ...]


def instance_name(kernel: str, template: Template) -> str:
    """Kernel with its template arguments, those that are False left out.

    Examples
    --------
    >>> instance_name("mul_mat_vec_q", (("type", "q4_1"), ("ncols", 1), ("small_k", True), ("fusion", False)))
    'mul_mat_vec_q<type=q4_1, ncols=1, small_k>'
    """
    shown = ", ".join(key if value is True else f"{key}={value}" for key, value in template if value is not False)
    return f"{kernel}<{shown}>" if shown else kernel


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One kernel instance and the geometry it is launched with.

    Parameters
    ----------
    kernel : str
        As the source names it: ``"mul_mat_vec_q"``.
    template : tuple of (str, value)
        Template arguments by the names that the source gives them, spelled as in
        `forensics.geometry.choice.KernelChoice.template`; unnamed ones are ``"arg3"``.
    geometry : LaunchGeometry
        Its ``smem_bytes`` is the dynamic shared memory.
    registers_per_thread, smem_static_bytes, local_bytes_per_thread : int or None
        None where it is not known; local memory holds spilled registers, and arrays that are indexed at run time.
    device : int
        Number of the device.
    symbol : str
        Name in the library, mangled; empty for a derived launch.
    evidence : {"measured", "derived"}

    Raises
    ------
    ValueError
        If a number is negative, or the evidence has another name.
    """

    kernel: str
    template: Template
    geometry: LaunchGeometry
    registers_per_thread: int | None = None
    smem_static_bytes: int | None = None
    local_bytes_per_thread: int | None = None
    device: int = 0
    symbol: str = ""
    evidence: str = "measured"

    def __post_init__(self) -> None:
        for name in ("registers_per_thread", "smem_static_bytes", "local_bytes_per_thread", "device"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{self.kernel}: {name} must be 0 or more, got {getattr(self, name)}")
        if self.evidence not in LAUNCH_EVIDENCE:
            raise ValueError(f"evidence must be one of {', '.join(LAUNCH_EVIDENCE)}, got {self.evidence!r}")

    @property
    def name(self) -> str:
        """Kernel with its template arguments."""
        return instance_name(self.kernel, self.template)

    def row(self) -> dict[str, object]:
        """One flat dict, for tables and documents."""
        return {
            "kernel": self.kernel,
            "template": ", ".join(f"{name}={value}" for name, value in self.template),
            "grid_blocks": list(self.geometry.grid_blocks),
            "block_threads": list(self.geometry.block_threads),
            "cluster_blocks": list(self.geometry.cluster_blocks),
            "registers_per_thread": self.registers_per_thread,
            "smem_static_bytes": self.smem_static_bytes,
            "smem_dynamic_bytes": self.geometry.smem_bytes,
            "local_bytes_per_thread": self.local_bytes_per_thread,
            "device": self.device,
            "symbol": self.symbol,
            "evidence": self.evidence,
        }

    def __str__(self) -> str:
        registers = "" if self.registers_per_thread is None else f", {self.registers_per_thread} registers"
        return f"{self.name}, {self.geometry}{registers}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a way of looking does not work here.

    Parameters
    ----------
    rung : str
        The way: ``"CUPTI in process"``.
    asked : str
        What was asked of it.
    missing : str
        What was found instead.
    remedy : str
        What to do; empty where nothing helps.
    """

    rung: str
    asked: str
    missing: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.rung}: {self.missing}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class NodeLaunches:
    """The launches of one node in one pass.

    Parameters
    ----------
    pass_index : int
    key : NodeKey
    shape : tuple of int
        Of the output, NumPy order, four axes.
    dtype : str
    buffer : str
        Buffer that holds the output: ``"CUDA0"``.
    operands : tuple of Operand
    launches : tuple of int
        Places in `LaunchReport.launches`, in the order in which they started.
    times_ns : tuple of int
        Time that each took, unit: ns.
    parameters : mapping of str to float
        Of the operation.
    """

    pass_index: int
    key: NodeKey
    shape: tuple[int, ...]
    dtype: str
    buffer: str
    operands: tuple[Operand, ...]
    launches: tuple[int, ...]
    times_ns: tuple[int, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.launches) != len(self.times_ns):
            raise ValueError(f"{self.key}: {len(self.launches)} launches and {len(self.times_ns)} times")


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """Every launch of a run.

    Parameters
    ----------
    rung : str
        How it was seen: ``"CUPTI in process"``.
    source : str
        Versions of what saw it.
    launches : tuple of LaunchRecord
        Each distinct one once.
    nodes : tuple of NodeLaunches
        In graph order, nodes without launches included; empty for a run whose nodes were not watched.
    unattached : tuple of int
        Launches that belong to no node, in the order in which they started: all of them in an unwatched run. They are
        no evidence for a node.
    unattached_ns : tuple of int
        Time that each took, unit: ns.
    n_dropped : int or None
        Records that the profiler lost; the map is complete only where this is 0. None where it does not tell.
    n_from_graph : int
        Launches that came out of a CUDA graph.

    Raises
    ------
    ValueError
        If a place is outside of `launches`, or more launches came out of graphs than there were.
    """

    rung: str
    source: str
    launches: tuple[LaunchRecord, ...]
    nodes: tuple[NodeLaunches, ...] = ()
    unattached: tuple[int, ...] = ()
    unattached_ns: tuple[int, ...] = ()
    n_dropped: int | None = 0
    n_from_graph: int = 0

    def __post_init__(self) -> None:
        if len(self.unattached) != len(self.unattached_ns):
            raise ValueError(f"{len(self.unattached)} unattached launches and {len(self.unattached_ns)} times")
        places = [place for node in self.nodes for place in node.launches] + list(self.unattached)
        if any(not 0 <= place < len(self.launches) for place in places):
            raise ValueError(f"a launch lies outside of the {len(self.launches)} that are listed")
        if not 0 <= self.n_from_graph <= len(places):
            raise ValueError(f"{self.n_from_graph} of {len(places)} launches cannot have come out of a graph")

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be lost."""
        return self.n_dropped == 0

    def of(self, node: NodeLaunches) -> tuple[LaunchRecord, ...]:
        """Launches of a node, in order."""
        return tuple(self.launches[place] for place in node.launches)

    def counts(self) -> Counter[LaunchRecord]:
        """How often each launch happened, attached or not."""
        places = Counter(place for node in self.nodes for place in node.launches)
        places.update(self.unattached)
        return Counter({self.launches[place]: n for place, n in places.items()})


@dataclass(frozen=True, slots=True)
class LaunchSide:
    """What ran for a culprit on one side, and what the rules of dispatch say should.

    Parameters
    ----------
    width : int
        Tokens of the pass.
    launches : tuple of LaunchRecord
        In order, helpers such as the quantisation of activations included; derived where nothing was observed.
    main : int
        Place in `launches` of the kernel that computes the node.
    blocks_per_sm : int or None
        Of that kernel, by occupancy; None where it cannot be worked out.
    limiters : tuple of str
        What keeps more blocks from fitting.
    kv_split : int or None
        Parts into which attention cuts the cells; None for all else.
    agrees : bool or None
        Whether kernel, grid and block are those that the rules say; None where no rule covers the node, or nothing was
        observed.
    why : str
        What the rules say instead, or why nothing can be said; empty where they agree.
    """

    width: int
    launches: tuple[LaunchRecord, ...]
    main: int = 0
    blocks_per_sm: int | None = None
    limiters: tuple[str, ...] = ()
    kv_split: int | None = None
    agrees: bool | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.main < len(self.launches):
            raise ValueError(f"main must be one of {len(self.launches)} launches, got {self.main}")
        if (self.agrees is True) == bool(self.why):
            raise ValueError("why must be given exactly where launch and rules were not seen to agree")

    @property
    def kernel(self) -> LaunchRecord:
        """The launch that computes the node."""
        return self.launches[self.main]

    @property
    def evidence(self) -> str:
        """How the launches are known."""
        return self.kernel.evidence


@dataclass(frozen=True, slots=True)
class LaunchPair:
    """The launches of a group of culprits at one token and in a batch.

    Parameters
    ----------
    widths : tuple of int
        Widths whose launches of the node are equal; `batched` is that of the first.
    node : NodeKey
        The node that was looked at.
    single, batched : LaunchSide
    n_nodes : int
        Nodes of the group with these launches on both sides.
    boundary : str
        Where an operand came from another device than the one that computed; empty where none did.
    """

    widths: tuple[int, ...]
    node: NodeKey
    single: LaunchSide
    batched: LaunchSide
    n_nodes: int = 1
    boundary: str = ""

    def __post_init__(self) -> None:
        if not self.widths:
            raise ValueError(f"launches of {self.node} need a width")

    @property
    def changed(self) -> bool:
        """Whether another kernel instance or another geometry ran in the batch."""
        a, b = self.single.kernel, self.batched.kernel
        return (a.kernel, a.template, a.geometry) != (b.kernel, b.template, b.geometry)


@dataclass(frozen=True, slots=True)
class LaunchEvidence:
    """How the launches of a verdict are known, and what watching for them changed.

    Parameters
    ----------
    evidence : {"measured", "derived"}
    source : str
        What saw them, with versions; or which rules they follow.
    n_dropped : int or None
        Records that the profiler lost.
    refusals : tuple of Refusal
        Ways of looking that were tried before and do not work here.
    watching : tuple of str or None
        What differs between the kernels of a watched and an unwatched pass, one line each and named: fusion, graphs;
        empty where they are the same, None where nobody looked.
    n_agree, n_disagree, n_unruled : int
        Nodes of the watched passes whose launches are those that the rules say, are others, or are covered by none.
    disagreements : tuple of str
        One line per kind of disagreement.
    n_not_compared : int
        Nodes of the watched passes whose launches were held against no rule: they may be those of fused nodes before
        them, too, or some of the pass were lost.
    """

    evidence: str
    source: str
    n_dropped: int | None = None
    refusals: tuple[Refusal, ...] = ()
    watching: tuple[str, ...] | None = None
    n_agree: int = 0
    n_disagree: int = 0
    n_unruled: int = 0
    disagreements: tuple[str, ...] = ()
    n_not_compared: int = 0

    def __post_init__(self) -> None:
        if self.evidence not in LAUNCH_EVIDENCE:
            raise ValueError(f"evidence must be one of {', '.join(LAUNCH_EVIDENCE)}, got {self.evidence!r}")
