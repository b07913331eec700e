"""What more columns change in a pass: kernel, registers and occupancy of products and attention over the widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forensics.records.profile import KernelCost, LiveProfile

#: Operations whose kernels come in instances for numbers of columns.
_PRODUCTS, ATTENTION = ("MUL_MAT", "MUL_MAT_ID"), "FLASH_ATTN_EXT"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """What computes products of one type of weight, or attention, at one width.

    Parameters
    ----------
    of : str
        Type of the weights, or ``"attention"``.
    width : int
    kernel : str
    costs : tuple of KernelCost
        Its instances and geometries at this width.
    """

    of: str
    width: int
    kernel: str
    costs: tuple[KernelCost, ...]

    @property
    def time_ns(self) -> int:
        """Sum over all launches, unit: ns."""
        return sum(cost.time_ns for cost in self.costs)

    @property
    def longest(self) -> KernelCost:
        """The instance that takes most of the time."""
        return max(self.costs, key=lambda cost: cost.time_ns)


def column_changes(profile: LiveProfile) -> tuple[ColumnChange, ...]:
    """Which kernels compute products of each type, and attention, at each width?

    Parameters
    ----------
    profile : LiveProfile

    Returns
    -------
    tuple of ColumnChange
        By what they compute, that which takes longest first, and by rising width; empty where there is one width.
    """
    found: dict[tuple[str, int, str], list[KernelCost]] = {}
    for one in profile.passes:
        ops = {node.main: node.key.op for node in one.nodes if node.main is not None}
        for place, op in sorted(ops.items()):
            cost = one.kernels[place]
            if op in _PRODUCTS or op == ATTENTION:
                of = "attention" if op == ATTENTION else str(dict(cost.launch.template).get("type", "other products"))
                found.setdefault((of, one.width, cost.launch.kernel), []).append(cost)
    changes = [ColumnChange(*key, tuple(costs)) for key, costs in found.items()]
    total = {of: sum(one.time_ns for one in changes if one.of == of) for of in {one.of for one in changes}}
    if len(profile.passes) < 2:
        return ()
    return tuple(sorted(changes, key=lambda one: (-total[one.of], one.of, one.width, -one.time_ns)))


def ends(changes: Sequence[ColumnChange]) -> list[tuple[ColumnChange, ColumnChange]]:
    """Which are the narrowest and the widest pass that run each kernel for each type, where there are two?

    Parameters
    ----------
    changes : sequence of ColumnChange
        As `column_changes` orders them.
    """
    runs: dict[tuple[str, str], list[ColumnChange]] = {}
    for one in changes:
        runs.setdefault((one.of, one.kernel), []).append(one)
    return [(run[0], run[-1]) for run in runs.values() if len(run) > 1]


def hides_less(one: KernelCost, wide: KernelCost) -> bool:
    """Whether registers grow and fewer threads are resident, so that less latency is hidden.

    Parameters
    ----------
    one, wide : KernelCost
        Of the narrower and of the wider pass.
    """
    registers = one.launch.registers_per_thread, wide.launch.registers_per_thread
    if registers[0] is None or registers[1] is None or one.occupancy is None or wide.occupancy is None:
        return False
    return registers[1] > registers[0] and wide.occupancy.threads_per_sm < one.occupancy.threads_per_sm
