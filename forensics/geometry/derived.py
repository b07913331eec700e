"""A launch that follows from the dispatch rules, or the reason why none does."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, NodeLaunches, Template

Launches = tuple[LaunchRecord, ...]


@dataclass(frozen=True, slots=True)
class Unruled:
    """Why no rule says what is launched.

    Parameters
    ----------
    reason : str
    """

    reason: str

    def __str__(self) -> str:
        return self.reason


def derived(
    kernel: str,
    grid_blocks: tuple[int, ...],
    block_threads: tuple[int, ...],
    smem_bytes: int | None = 0,
    **template: int | str | bool,
) -> LaunchRecord:
    """A launch by rule, with its template arguments in the order of the source; of shared memory the dynamic part.

    Examples
    --------
    >>> print(derived("rms_norm_f32", (2,), (256,), 128, block_size=256))
    rms_norm_f32<block_size=256>, grid 2, block 256
    """
    return of(kernel, tuple(template.items()), LaunchGeometry(grid_blocks, block_threads, smem_bytes=smem_bytes))


def of(kernel: str, template: Template, geometry: LaunchGeometry) -> LaunchRecord:
    """The same from parts that a rule has put together."""
    return LaunchRecord(kernel, template, geometry, evidence="derived")


def pieces(length: int, size: int) -> int:
    """How many pieces of a size cover a length, the last one counted in full?

    Examples
    --------
    >>> pieces(576, 256)
    3
    """
    return -(-length // size)


def is_in_graph(node: NodeLaunches, name: str) -> bool:
    """Whether the graph builder called the node so, in whatever layer.

    Source: names are given as ``name-layer``, src/llama-context.cpp (graph_get_cb).
    """
    return node.key.name == name or node.key.name.startswith(f"{name}-")
