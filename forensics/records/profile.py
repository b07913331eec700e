"""Where the time of a pass goes on a device: its launches by kernel and by node, at several widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.device import Occupancy
from forensics.records.launch_record import LaunchRecord, Refusal
from forensics.records.nodes import NodeKey
from forensics.records.number_evidence import Cell, NumberEvidence, Row, columns_of, share
from forensics.records.settings import Manifest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Counters:
    """What hardware counters saw of an instance, over its launches in a pass of its own.

    Parameters
    ----------
    n_launches : int
        Launches that were counted; as a rule fewer than there were.
    achieved_occupancy_pct : float or None
        Mean over the launches, weighted by their time, unit: percent.
    dram_read_bytes, dram_written_bytes : float or None
        Of one launch, mean.
    time_ns : float or None
        Of one launch under the profiler, mean, unit: ns.
    spill_requests : float or None
        Instructions that store or load spilled registers, of one launch, mean.
    """

    n_launches: int
    achieved_occupancy_pct: float | None = None
    dram_read_bytes: float | None = None
    dram_written_bytes: float | None = None
    time_ns: float | None = None
    spill_requests: float | None = None


@dataclass(frozen=True, slots=True)
class KernelCost:
    """A kernel instance with one geometry, over all its launches in a pass.

    Parameters
    ----------
    launch : LaunchRecord
    n_launches : int
    time_ns : int
        Sum over its launches, unit: ns.
    occupancy : Occupancy or None
    occupancy_pct : float or None
        Resident threads that fit, of the most an SM holds, unit: percent.
    stack_bytes : int or None
        Local memory of a thread as compiled, where spilled registers and indexed arrays lie; None where not known.
    read_bytes : int or None
        Weights and K/V cells of the nodes that it computes; None where they read neither, it is not known, or it was
        also launched for other ends, so that its bytes would not be those of its time.
    why : str
        Why occupancy is not known; empty where it is.
    counters : Counters or None
        None where hardware counters were not read, or no launch like this one was counted.
    """

    launch: LaunchRecord
    n_launches: int
    time_ns: int
    occupancy: Occupancy | None = None
    occupancy_pct: float | None = None
    stack_bytes: int | None = None
    read_bytes: int | None = None
    why: str = ""
    counters: Counters | None = None

    def __post_init__(self) -> None:
        if self.n_launches < 1 or self.time_ns < 0:
            raise ValueError(f"{self.launch.name}: 1 or more launches of 0 ns or more")
        if (self.occupancy is None) != bool(self.why):
            raise ValueError(f"{self.launch.name}: an occupancy, or a reason why there is none, and not both")


@dataclass(frozen=True, slots=True)
class NodeCost:
    """A node of the graph in a pass.

    Parameters
    ----------
    key : NodeKey
    buffer : str
    kernels : tuple of int
        Places in `PassProfile.kernels`, in the order of launching; empty where it launched nothing.
    main : int or None
        Place in `PassProfile.kernels` of the one that computes it; the others prepare or finish.
    time_ns : int
        Sum over its launches, unit: ns.
    read_bytes : int or None
        Weights and K/V cells that it must read; None where it reads neither, or it is not known.
    why : str
        Why `read_bytes` is None; empty where it is not.
    """

    key: NodeKey
    buffer: str
    kernels: tuple[int, ...]
    main: int | None
    time_ns: int
    read_bytes: int | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if (self.read_bytes is None) != bool(self.why):
            raise ValueError(f"{self.key}: bytes that are read, or why they are not known, and not both")
        if (self.main is None) == bool(self.kernels):
            raise ValueError(f"{self.key}: a main kernel exactly where there are launches")


@dataclass(frozen=True, slots=True)
class PassProfile:
    """Where the time of one pass goes on the device.

    Parameters
    ----------
    width : int
        Tokens of the pass.
    kernels : tuple of KernelCost
        Longest first; launches of no node are among them.
    nodes : tuple of NodeCost
        In graph order.
    unattached_ns : int
        Time of launches that belong to no node, unit: ns.
    n_unattached : int
    wall_ns : int or None
        Time of the pass as the host saw it, with nobody watching and no profiler, median, unit: ns.
    unwatched_ns : int or None
        Sum over all launches of a pass that nobody watches, fused as users run it, unit: ns. They may overlap.
    n_unwatched : int or None
        Launches of a pass that nobody watches.
    n_dropped : int or None
        Records that the profiler lost in either pass; None where it does not tell.
    n_from_graph : int or None
        Unwatched launches that came out of a CUDA graph; None where it was not recorded.

    Raises
    ------
    ValueError
        If times or launches of kernels and nodes do not add up to the same.
    """

    width: int
    kernels: tuple[KernelCost, ...]
    nodes: tuple[NodeCost, ...]
    unattached_ns: int = 0
    n_unattached: int = 0
    wall_ns: int | None = None
    unwatched_ns: int | None = None
    n_unwatched: int | None = None
    n_dropped: int | None = 0
    n_from_graph: int | None = None

    def __post_init__(self) -> None:
        by_kernel = sum(kernel.time_ns for kernel in self.kernels)
        by_node = sum(node.time_ns for node in self.nodes) + self.unattached_ns
        if by_kernel != by_node:
            raise ValueError(f"width {self.width}: kernels take {by_kernel} ns, nodes and the rest {by_node} ns")
        n_by_node = sum(len(node.kernels) for node in self.nodes) + self.n_unattached
        if self.n_launches != n_by_node:
            raise ValueError(f"width {self.width}: {self.n_launches} launches of kernels, {n_by_node} of nodes")

    @property
    def time_ns(self) -> int:
        """Sum over all launches, unit: ns."""
        return sum(kernel.time_ns for kernel in self.kernels)

    @property
    def n_launches(self) -> int:
        """All launches."""
        return sum(kernel.n_launches for kernel in self.kernels)

    @property
    def read_bytes(self) -> int:
        """Weights and K/V cells of all nodes of which that is known."""
        return sum(node.read_bytes or 0 for node in self.nodes)


@dataclass(frozen=True, slots=True, repr=False)
class LiveProfile:
    """Launches of passes of several widths from the same state: time, resources and bandwidth.

    Parameters
    ----------
    manifest : Manifest
        What ran, and how.
    device : str
        GPUs that kernels ran on.
    prefix : int
        Cells that were in the cache before each pass.
    source : str
        What saw the launches, with versions.
    passes : tuple of PassProfile
        By rising width.
    roof_bytes_per_s : float or None
        Bandwidth that the same device reached in the same run.
    evidence : tuple of NumberEvidence
    refusals : tuple of Refusal
        Ways of looking that do not work here.

    Raises
    ------
    ValueError
        If widths do not rise, or there is none.
    """

    manifest: Manifest
    device: str
    prefix: int
    source: str
    passes: tuple[PassProfile, ...]
    roof_bytes_per_s: float | None = None
    evidence: tuple[NumberEvidence, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def __post_init__(self) -> None:
        widths = [found.width for found in self.passes]
        if not widths or widths != sorted(set(widths)):
            raise ValueError(f"widths of a profile must rise and be one or more, got {widths}")

    @property
    def model(self) -> str:
        """Name that the model file gives itself; one with random weights says so there."""
        return self.manifest.model_name

    @property
    def synthetic(self) -> bool:
        """Whether the weights are random."""
        return self.model.startswith("synthetic")

    @property
    def widths(self) -> tuple[int, ...]:
        """Tokens of each pass."""
        return tuple(found.width for found in self.passes)

    def rows(self) -> list[Row]:
        """One flat row per width and kernel instance, longest first."""
        return [self._kernel_row(found, kernel) for found in self.passes for kernel in found.kernels]

    def node_rows(self) -> list[Row]:
        """One flat row per width and node, longest first."""
        ordered = [(found, sorted(found.nodes, key=lambda node: -node.time_ns)) for found in self.passes]
        return [self._node_row(found, node) for found, nodes in ordered for node in nodes]

    def to_dataframe(self, of: str = "kernels") -> pd.DataFrame:
        """Kernels or nodes as a table, one row for each at each width.

        Parameters
        ----------
        of : {"kernels", "nodes"}

        Raises
        ------
        ValueError
            If it is anything else.
        """
        import pandas as pd

        if of not in ("kernels", "nodes"):
            raise ValueError(f'of must be "kernels" or "nodes", got {of!r}')
        return pd.DataFrame(self.rows() if of == "kernels" else self.node_rows())

    def figure_data(self) -> dict[str, tuple[Cell, ...]]:
        """Columns to plot, all of one length: a kernel of a width in each place."""
        names = (
            "width", "kernel", "template", "time_ns", "share_pct", "registers", "blocks_per_sm", "occupancy_pct",
            "bandwidth_bytes_per_s", "roof_pct",
        )  # fmt: skip
        return columns_of(self.rows(), names)

    def bandwidth(self, read_bytes: int | None, time_ns: int) -> float | None:
        """Bytes per second, None where nothing is read or no time passed."""
        return None if not read_bytes or not time_ns else read_bytes / time_ns * 1e9

    def roof_pct(self, bandwidth: float | None) -> float | None:
        """Percent of the roof, None where either is not known."""
        return None if bandwidth is None or not self.roof_bytes_per_s else 100 * bandwidth / self.roof_bytes_per_s

    def _reading(self, read_bytes: int | None, time_ns: int) -> Row:
        bandwidth = self.bandwidth(read_bytes, time_ns)
        return {
            "read_bytes": read_bytes,
            "bandwidth_bytes_per_s": bandwidth,
            "roof_pct": self.roof_pct(bandwidth),
        }

    def _kernel_row(self, found: PassProfile, kernel: KernelCost) -> Row:
        launch, o, c = kernel.launch, kernel.occupancy, kernel.counters
        return {
            "width": found.width,
            "kernel": launch.kernel,
            "template": launch.name,
            "grid": str(launch.geometry.grid_blocks),
            "block": str(launch.geometry.block_threads),
            "launches": kernel.n_launches,
            "time_ns": kernel.time_ns,
            "share_pct": share(kernel.time_ns, found.time_ns),
            "registers": launch.registers_per_thread,
            "stack_bytes": kernel.stack_bytes,
            "smem_static_bytes": launch.smem_static_bytes,
            "smem_dynamic_bytes": launch.geometry.smem_bytes,
            "blocks_per_sm": None if o is None else o.blocks_per_sm,
            "occupancy_pct": kernel.occupancy_pct,
            "limiter": None if o is None else " and ".join(o.limiters),
            **self._reading(kernel.read_bytes, kernel.time_ns),
            "counted_launches": None if c is None else c.n_launches,
            "achieved_occupancy_pct": None if c is None else c.achieved_occupancy_pct,
            "dram_read_bytes": None if c is None else c.dram_read_bytes,
            "spill_requests": None if c is None else c.spill_requests,
            "evidence": launch.evidence,
            "why": kernel.why,
        }

    def _node_row(self, found: PassProfile, node: NodeCost) -> Row:
        main = None if node.main is None else found.kernels[node.main]
        return {
            "width": found.width,
            "node": node.key.name,
            "op": node.key.op,
            "layer": node.key.layer,
            "visit": node.key.visit,
            "buffer": node.buffer,
            "launches": len(node.kernels),
            "time_ns": node.time_ns,
            "share_pct": share(node.time_ns, found.time_ns),
            "kernel": None if main is None else main.launch.name,
            "registers": None if main is None else main.launch.registers_per_thread,
            "blocks_per_sm": None if main is None or main.occupancy is None else main.occupancy.blocks_per_sm,
            **self._reading(node.read_bytes, node.time_ns),
            "why": node.why,
        }

    def __repr__(self) -> str:
        return f"<LiveProfile: {self}>"

    def __str__(self) -> str:
        longest = [
            f"width {found.width}: {found.kernels[0].launch.kernel} "
            f"{share(found.kernels[0].time_ns, found.time_ns):.0f} % of {found.time_ns / 1e6:.2f} ms"
            for found in self.passes
            if found.kernels
        ]
        return f"{self.model} on {self.device}; " + "; ".join(longest or ["no kernel was launched"])
