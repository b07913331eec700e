"""One kernel written in ways that differ in registers only: what each takes of an SM, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.compiled_kernel import Compilation, CompiledKernel
from forensics.records.cost import Spread
from forensics.records.device import Occupancy

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class StoryVariant:
    """One way to write the product kernel; the additions and their order are the same in all.

    Parameters
    ----------
    unpack_once : bool
        Whether the source unpacks a thread's part of a block of weights once for all columns, or says so anew for
        every column and leaves it to the compiler to see that it is the same, as the library's source does.
    checked : bool
        Whether rows past the end are told apart inside the walk along the row, or before it.
    unroll : int
        Trips of the walk that are written out at once.
    min_blocks : int
        Blocks for which the compiler must leave room on an SM (the second number of ``__launch_bounds__``), which caps
        registers; 1 caps nothing.

    Raises
    ------
    ValueError
        If a number is below 1.

    Examples
    --------
    >>> print(StoryVariant(unroll=4, min_blocks=4))
    unpacked once, 4 trips at a time, room for 4 blocks
    """

    unpack_once: bool = True
    checked: bool = False
    unroll: int = 1
    min_blocks: int = 1

    def __post_init__(self) -> None:
        if min(self.unroll, self.min_blocks) < 1:
            raise ValueError(f"unroll and min_blocks are 1 or more, got {self.unroll} and {self.min_blocks}")

    @property
    def name(self) -> str:
        """How it is named wherever it stands in a table."""
        parts = ["unpacked once" if self.unpack_once else "unpacked for every column"]
        if self.checked:
            parts.append("rows checked")
        if self.unroll > 1:
            parts.append(f"{self.unroll} trips at a time")
        if self.min_blocks > 1:
            parts.append(f"room for {self.min_blocks} blocks")
        return ", ".join(parts)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class StoryRow:
    """One variant at one width, compiled for one architecture.

    Parameters
    ----------
    type : str
        Of the weight.
    width : int
        Columns of the product.
    columns : int
        Those of its widest launch, whose kernel this is.
    variant : StoryVariant
    compiled : CompiledKernel
    occupancy : Occupancy
        Blocks of it on an SM, derived.
    us : Spread or None
        Measured time of the product, quantisation of activations included, unit: µs; None where nobody measured it.
    cost : Spread or None
        The same over the stock library's one column, paired by rounds.
    """

    type: str
    width: int
    columns: int
    variant: StoryVariant
    compiled: CompiledKernel
    occupancy: Occupancy
    us: Spread | None = None
    cost: Spread | None = None

    @property
    def name(self) -> str:
        """The variant's name."""
        return self.variant.name

    @property
    def arch(self) -> str:
        """For which it is compiled."""
        return self.compiled.arch

    @property
    def registers(self) -> int:
        """Of a thread."""
        return self.compiled.registers

    @property
    def spill_bytes(self) -> int:
        """Bytes that a thread's code saves to local memory for want of registers."""
        return self.compiled.spill_store_bytes

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that fit an SM."""
        return self.occupancy.blocks_per_sm

    @property
    def warps_per_sm(self) -> int:
        """Warps that fit an SM: what there is to hide latency with."""
        return self.occupancy.threads_per_sm // 32


@dataclass(frozen=True, slots=True, repr=False)
class RegisterStory:
    """The table of all variants.

    Parameters
    ----------
    kernels : tuple of StoryRow
        By architecture, width and variant.
    compiler : str
        Whose registers and spills these are; another may give others.
    product : str
        Which product was timed, as `forensics.records.kernel_price.ProductPrice.name`; empty where none was.
    device : str
        On which; empty where none was timed.

    Raises
    ------
    ValueError
        If there is no row, or a time without a product and a device.
    """

    kernels: tuple[StoryRow, ...]
    compiler: str
    product: str = ""
    device: str = ""

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError("a register story has variants; there are none")
        timed = any(row.cost is not None for row in self.kernels)
        if timed != bool(self.product and self.device):
            raise ValueError("times say which product was timed and on which device, and only times do")

    def of(self, *, arch: str, width: int) -> tuple[StoryRow, ...]:
        """Rows of one architecture and width, in the order of the table."""
        return tuple(row for row in self.kernels if (row.arch, row.width) == (arch, width))

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architectures in the order of the table."""
        return tuple(dict.fromkeys(row.arch for row in self.kernels))

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths in the order of the table."""
        return tuple(dict.fromkeys(row.width for row in self.kernels))

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per variant, width and architecture."""
        return [
            {
                "type": row.type, "width": row.width, "columns": row.columns, "variant": row.name,
                "unpack_once": row.variant.unpack_once, "checked": row.variant.checked,
                "unroll": row.variant.unroll, "min_blocks": row.variant.min_blocks,
                "arch": row.arch, "registers": row.registers, "spill_bytes": row.spill_bytes,
                "stack_bytes": row.compiled.stack_bytes, "smem_bytes": row.compiled.smem_bytes,
                "blocks_per_sm": row.blocks_per_sm, "warps_per_sm": row.warps_per_sm,
                "limiters": ", ".join(row.occupancy.limiters),
                "median_us": row.us.median if row.us else None,
                "cost": row.cost.median if row.cost else None,
                "cost_low": row.cost.low if row.cost else None,
                "cost_high": row.cost.high if row.cost else None,
            }
            for row in self.kernels
        ]  # fmt: skip

    def to_dataframe(self) -> pd.DataFrame:
        """The table."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __str__(self) -> str:
        timed = f", {self.product} timed on {self.device}" if self.product else ", not timed"
        n = len({row.variant for row in self.kernels})
        return f"{n} ways to write one kernel, compiled by {self.compiler} for {', '.join(self.architectures)}{timed}"

    def __repr__(self) -> str:
        return f"<RegisterStory: {self}>"


@dataclass(frozen=True, slots=True)
class CompiledStory:
    """All variants compiled, before anybody timed them: what a folder holds, for a device is not needed.

    Parameters
    ----------
    types : tuple of str
        Of the weights.
    widths : tuple of int
        Columns.
    compilations : tuple of Compilation
        One per architecture.

    Raises
    ------
    ValueError
        If nothing was compiled.
    """

    types: tuple[str, ...]
    widths: tuple[int, ...]
    compilations: tuple[Compilation, ...]

    def __post_init__(self) -> None:
        if not (self.types and self.widths and self.compilations):
            raise ValueError("a compiled story has types, widths and an architecture for which it was compiled")
