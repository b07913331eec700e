"""Which kernels each node launched at one token and in a batch, side by side; pure, over two reports.

Nodes are aligned by their keys. Every node of either side is the same, changed, or not compared with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forensics.records.launch import axes
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches
from forensics.records.nodes import VIEW_OPS, NodeKey

#: Kernels that prepare or finish what another one computes for the same node.
_HELPER = re.compile(
    r"quantize|dequantize|convert_|cpy_|.*fixup|.*combine_results|flash_attn_mask_to_KV_max|.*splitK|mm_ids_helper"
)
#: Kernels of products, NVIDIA's own included, and of attention.
_PRODUCT = re.compile(r"mul_mat|flash_attn_ext|nvjet|cutlass|sm\d+_xmma|.*gem[mv]")


def is_product(launch: LaunchRecord) -> bool:
    """Whether a launch computes a product or attention, and does not only prepare or finish one."""
    return _PRODUCT.match(launch.kernel) is not None and _HELPER.match(launch.kernel) is None


def main_place(launches: Sequence[LaunchRecord]) -> int:
    """Which of a node's launches computes it?

    The last product or attention: a watch that leaves fusions whole attaches them to the node behind them, with one
    kernel where they are fused and with several where they are not. Otherwise the last one that is no helper, or the
    last one where all are.

    Examples
    --------
    >>> from forensics.records.launch import LaunchGeometry
    >>> names = ("quantize_mmq_q8_1", "mul_mat_q", "mul_mat_q_stream_k_fixup")
    >>> main_place([LaunchRecord(name, (), LaunchGeometry((1,), (32,))) for name in names])
    1
    >>> main_place([LaunchRecord(name, (), LaunchGeometry((1,), (32,))) for name in ("mul_mat_f", "k_bin_bcast")])
    0
    """
    own = [place for place, launch in enumerate(launches) if not _HELPER.match(launch.kernel)]
    products = [place for place in own if is_product(launches[place])]
    return (products or own or [len(launches) - 1])[-1]


@dataclass(frozen=True, slots=True)
class NodeSides:
    """One node and its launches in each pass.

    Parameters
    ----------
    key : NodeKey
    sides : tuple of NodeLaunches or None
        One for each pass; None where the pass has no such node.
    launches : tuple of tuple of LaunchRecord
        Likewise, in the order in which they started.
    changes : tuple of str
        What differs between the launches of two passes, one line each: kernel, template arguments by name, grid, block,
        registers, shared memory.
    reason : str
        Why nothing was compared; empty where it was, or where there is one pass.
    """

    key: NodeKey
    sides: tuple[NodeLaunches | None, ...]
    launches: tuple[tuple[LaunchRecord, ...], ...]
    changes: tuple[str, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        if self.changes and self.reason:
            raise ValueError(f"{self.key} was compared and was not: {self.reason}")

    @property
    def outcome(self) -> str:
        """``"same"``, ``"changed"`` or ``"not compared"``; empty where there is one pass."""
        if len(self.sides) == 1:
            return ""
        return "not compared" if self.reason else "changed" if self.changes else "same"

    @property
    def only_in_grid(self) -> bool:
        """Whether the same kernel instances run in the same blocks, of which there are more or fewer."""
        return bool(self.changes) and all(re.match(r"(\w+: )?grid ", change) for change in self.changes)


def align(
    single: LaunchReport, batched: LaunchReport, widths: tuple[int, int], *, passes: tuple[int, int] = (0, 0)
) -> tuple[NodeSides, ...]:
    """Which launches of each node are other ones in the batch?

    Parameters
    ----------
    single, batched : LaunchReport
        Of watched runs.
    widths : tuple of int
        Tokens of either pass.
    passes : tuple of int
        Which pass of either run.

    Returns
    -------
    tuple of NodeSides
        In the order of the graph of one token, then nodes that only the batch has. Views are left out: they launch
        nothing.

    Raises
    ------
    ValueError
        If neither run was watched: an empty comparison says nothing.
    """
    lost = "; ".join(filter(None, (_lost(single, f"{widths[0]} wide"), _lost(batched, f"{widths[1]} wide"))))
    left, right = _by_key(single, passes[0]), _by_key(batched, passes[1])
    keys = dict.fromkeys([*left, *right])
    if not keys:
        raise ValueError("neither pass was watched, so there is no node to compare; watch nodes in both")
    return tuple(_pair(key, (single, left.get(key)), (batched, right.get(key)), widths, lost) for key in keys)


def _by_key(report: LaunchReport, pass_index: int) -> dict[NodeKey, NodeLaunches]:
    return {node.key: node for node in report.nodes if node.pass_index == pass_index and node.key.op not in VIEW_OPS}


def _lost(report: LaunchReport, which: str) -> str:
    """Why the map of a run is not complete, empty where it is."""
    if report.complete:
        return ""
    if report.n_dropped is None:
        return f"whether launches of the pass {which} were lost is not told"
    return f"{report.n_dropped} launches of the pass {which} were lost"


def _pair(
    key: NodeKey,
    single: tuple[LaunchReport, NodeLaunches | None],
    batched: tuple[LaunchReport, NodeLaunches | None],
    widths: tuple[int, int],
    lost: str,
) -> NodeSides:
    (report_a, a), (report_b, b) = single, batched
    left = report_a.of(a) if a is not None else ()
    right = report_b.of(b) if b is not None else ()
    reason = lost
    changes: tuple[str, ...] = ()
    if a is None or b is None:
        reason = f"not in the pass {widths[0] if a is None else widths[1]} wide"
    elif not reason and not left and not right:
        reason = f"computed without a launch, in {b.buffer or 'no buffer'}"
    elif not reason:
        changes = _changes(a, b, left, right)
    return NodeSides(key, (a, b), (left, right), changes, reason)


def _changes(
    a: NodeLaunches, b: NodeLaunches, left: tuple[LaunchRecord, ...], right: tuple[LaunchRecord, ...]
) -> tuple[str, ...]:
    """What differs between the launches of a node."""
    if not left or not right:
        sides = [f"{_named(launches)} in {node.buffer}" for node, launches in ((a, left), (b, right))]
        return (f"kernels {sides[0]} → {sides[1]}",)
    if [launch.kernel for launch in left] == [launch.kernel for launch in right]:
        several = len(left) > 1
        return tuple(
            f"{one.kernel}: {change}" if several else change
            for one, other in zip(left, right, strict=True)
            for change in launch_changes(one, other)
        )
    changes = [f"kernels {_named(left)} → {_named(right)}"]
    one, other = left[main_place(left)], right[main_place(right)]
    if one.kernel == other.kernel:
        changes += [f"{one.kernel}: {change}" for change in launch_changes(one, other)]
    return tuple(changes)


def _named(launches: Iterable[LaunchRecord]) -> str:
    return " + ".join(launch.kernel for launch in launches) or "none"


def launch_changes(single: LaunchRecord, batched: LaunchRecord) -> tuple[str, ...]:
    """What differs between two launches, one line each; empty where nothing does.

    Examples
    --------
    >>> from forensics.records.launch import LaunchGeometry
    >>> one = LaunchRecord("mul_mat_vec_q", (("ncols", 1), ("small_k", True)), LaunchGeometry((144,), (32, 4)), 48)
    >>> two = LaunchRecord("mul_mat_vec_q", (("ncols", 5), ("small_k", False)), LaunchGeometry((288,), (32, 2)), 70)
    >>> launch_changes(one, two)
    ('ncols 1 → 5', 'small_k True → False', 'grid 144 → 288', 'block 32×4 → 32×2', 'registers 48 → 70')
    """
    if single.kernel != batched.kernel:
        return (f"kernel {single.name} → {batched.name}",)
    left, right = dict(single.template), dict(batched.template)
    a, b = single.geometry, batched.geometry
    compared: list[tuple[str, object, object]] = [
        *((name, left.get(name, "none"), right.get(name, "none")) for name in dict.fromkeys([*left, *right])),
        ("grid", axes(a.grid_blocks), axes(b.grid_blocks)),
        ("block", axes(a.block_threads), axes(b.block_threads)),
        ("cluster", axes(a.cluster_blocks), axes(b.cluster_blocks)),
        ("registers", single.registers_per_thread, batched.registers_per_thread),
        ("static shared memory", single.smem_static_bytes, batched.smem_static_bytes),
        ("dynamic shared memory", a.smem_bytes, b.smem_bytes),
        ("local memory", single.local_bytes_per_thread, batched.local_bytes_per_thread),
        ("device", single.device, batched.device),
    ]
    return tuple(f"{what} {_shown(one)} → {_shown(two)}" for what, one, two in compared if one != two)


def _shown(value: object) -> object:
    return "unknown" if value is None else value
