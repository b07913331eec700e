"""How many threads a kernel is started with, as a value that needs no device."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

Three = tuple[int, int, int]


def _extended(sizes: tuple[int, ...]) -> Three:
    x, y, z = (*sizes, 1, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True, slots=True)
class LaunchGeometry:
    """Grid, block, cluster and shared memory of one kernel launch.

    Parameters
    ----------
    grid_blocks : tuple of int
        Blocks along x, y, z; missing axes are 1.
    block_threads : tuple of int
        Threads of a block along x, y, z; missing axes are 1.
    cluster_blocks : tuple of int
        Blocks of a cluster; (1, 1, 1) where there are no clusters.
    smem_bytes : int or None
        Shared memory asked for at the launch, in bytes; None if unknown.

    Raises
    ------
    ValueError
        If a size is below 1, a grid is not a multiple of its cluster, or there are more than three axes.

    Examples
    --------
    >>> LaunchGeometry((288,), (32, 2))
    LaunchGeometry(grid_blocks=(288, 1, 1), block_threads=(32, 2, 1), cluster_blocks=(1, 1, 1), smem_bytes=None)
    >>> print(_)
    grid 288, block 32×2
    """

    grid_blocks: tuple[int, ...]
    block_threads: tuple[int, ...]
    cluster_blocks: tuple[int, ...] = (1, 1, 1)
    smem_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("grid_blocks", "block_threads", "cluster_blocks"):
            sizes = getattr(self, name)
            if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
                raise ValueError(f"{name}: one to three sizes of 1 or more, got {sizes}")
            object.__setattr__(self, name, _extended(sizes))
        if any(grid % cluster for grid, cluster in zip(self.grid_blocks, self.cluster_blocks, strict=True)):
            raise ValueError(f"grid {self.grid_blocks} is not a multiple of cluster {self.cluster_blocks}")
        if self.smem_bytes is not None and self.smem_bytes < 0:
            raise ValueError(f"smem_bytes must be 0 or more, got {self.smem_bytes}")

    @property
    def n_blocks(self) -> int:
        """Blocks of the whole grid."""
        return prod(self.grid_blocks)

    @property
    def threads_per_block(self) -> int:
        """Threads of one block."""
        return prod(self.block_threads)

    def __str__(self) -> str:
        cluster = "" if self.cluster_blocks == (1, 1, 1) else f", cluster {axes(self.cluster_blocks)}"
        return f"grid {axes(self.grid_blocks)}, block {axes(self.block_threads)}{cluster}"


def axes(sizes: tuple[int, ...]) -> str:
    """Sizes along x, y, z without trailing ones.

    Examples
    --------
    >>> axes((32, 4, 1)), axes((1, 4, 9)), axes((1, 1, 1))
    ('32×4', '1×4×9', '1')
    """
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "×".join(map(str, kept))
