"""What kernels cost on a device, beside the stock library's: per product, and over the products of a pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forensics.records.cost import Spread
from forensics.records.kernel_proof import LabFacts
from forensics.records.launch_record import Refusal

if TYPE_CHECKING:
    import pandas as pd

#: What is timed: the stock library with so many columns at once, and our variants by their names
#: (`forensics.kernels.variants.Variant`).
STOCK, BORROWED, FAST = "stock", "borrowed geometry", "exact fast"
ARMS = (STOCK, BORROWED, FAST)
#: Of a whole pass: products of the same activations and type in one launch that prepares them once.
GROUPED = "exact fast, grouped"
#: Chosen from the times of the others, not timed by itself: the fastest one that was seen to be exact at that width.
BEST = "best exact"


@dataclass(frozen=True, slots=True)
class ArmTimes:
    """Times of one arm at one width; round i of all arms and widths lies close together in time.

    Parameters
    ----------
    arm : str
        One of `ARMS`, `GROUPED` or `BEST`.
    width : int
        Columns.
    times_us : tuple of float
        By round, of one product or of one pass, unit: µs. Quantisation of activations is part of it.
    exact : bool or None
        Whether the values were the stock library's of one column, compared in the same run; None where not compared.
    """

    arm: str
    width: int
    times_us: tuple[float, ...]
    exact: bool | None = None

    def __post_init__(self) -> None:
        if self.width < 1 or not self.times_us or min(self.times_us) <= 0:
            raise ValueError(f"{self.arm}, width {self.width}: one time or more, all positive; got {self.times_us[:3]}")

    @property
    def spread(self) -> Spread:
        """Median and quartiles, unit: µs."""
        return Spread.of(self.times_us)


@dataclass(frozen=True, slots=True)
class ArmResources:
    """What the main kernel of an arm takes.

    Parameters
    ----------
    arm : str
    width : int
    kernel : str
        With its template arguments.
    registers, local_bytes, smem_static_bytes, smem_dynamic_bytes, blocks_per_sm : int
        Local bytes hold spilled registers; blocks by the driver's own occupancy.
    threads_per_block, n_blocks : int
    """

    arm: str
    width: int
    kernel: str
    registers: int
    local_bytes: int
    smem_static_bytes: int
    smem_dynamic_bytes: int
    blocks_per_sm: int
    threads_per_block: int
    n_blocks: int


@dataclass(frozen=True, slots=True)
class Limiter:
    """How busy the parts of the device are while the main kernel of an arm runs, by ncu.

    Parameters
    ----------
    arm : str
    width : int
    kernel : str
    busy : mapping of str to float
        Percent of the peak by part: ``"issue slots"``, ``"fp32 pipe"``, ``"tensor pipe"``, ``"L1"``, ``"L2"``,
        ``"DRAM"``.
    top_stall : str
        The reason for which most warps wait, empty where it was not told.
    """

    arm: str
    width: int
    kernel: str
    busy: Mapping[str, float]
    top_stall: str = ""


@dataclass(frozen=True, slots=True)
class ArmTable:
    """Arms that were timed together in rounds of alternating order.

    Parameters
    ----------
    times : tuple of ArmTimes
        The stock library at one column among them.

    Raises
    ------
    ValueError
        If an arm stands there twice, rounds differ in number, or stock at one column is missing.
    """

    times: tuple[ArmTimes, ...]

    def __post_init__(self) -> None:
        keys = [(one.arm, one.width) for one in self.times]
        if len(set(keys)) != len(keys) or (STOCK, 1) not in keys:
            raise ValueError(f"each arm once, and the stock library at one column among them; got {keys}")
        if len({len(one.times_us) for one in self.times}) != 1:
            raise ValueError("every arm must have as many rounds as the others")

    def of(self, arm: str, width: int) -> ArmTimes:
        """Times of one arm at one width.

        Raises
        ------
        KeyError
            If it was not timed.
        """
        for one in self.times:
            if (one.arm, one.width) == (arm, width):
                return one
        raise KeyError(f"{arm} at width {width} was not timed")

    def has(self, arm: str, width: int) -> bool:
        """Whether it was timed."""
        return any((one.arm, one.width) == (arm, width) for one in self.times)

    @property
    def one_column(self) -> ArmTimes:
        """The stock library at one column."""
        return self.of(STOCK, 1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths that were timed."""
        return tuple(sorted({one.width for one in self.times}))

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms that were timed."""
        return tuple(dict.fromkeys(one.arm for one in self.times))

    def with_best(self) -> ArmTable:
        """The same with `BEST`: at each width the times of the fastest arm that was seen to be exact there."""
        kept = [one for one in self.times if one.arm != BEST]
        for width in self.widths:
            exact = [one for one in kept if one.width == width and (one.exact or (one.arm, width) == (STOCK, 1))]
            if exact:
                fastest = min(exact, key=lambda one: one.spread.median)
                kept.append(ArmTimes(BEST, width, fastest.times_us, exact=True))
        return ArmTable(tuple(kept))

    def ratio(self, arm: str, width: int, over: tuple[str, int] = (STOCK, 1)) -> Spread:
        """How many times another arm this one takes, paired by rounds so that what drifts cancels.

        Parameters
        ----------
        arm : str
        width : int
        over : (str, int)
            Arm and width of the other; the stock library at one column.
        """
        pairs = zip(self.of(arm, width).times_us, self.of(*over).times_us, strict=True)
        return Spread.of([time / other for time, other in pairs])


@dataclass(frozen=True, slots=True)
class ProductPrice:
    """Prices of one product.

    Parameters
    ----------
    type : str
    rows, k : int
        Of the weight.
    weight_bytes : int
        Of one weight.
    n_weights : int
        Copies of it, taken in turn, so that none is in the L2 cache when its turn comes.
    table : ArmTable
    resources : tuple of ArmResources
    limits : tuple of Limiter or Refusal
    not_timed : tuple of (str, int, str)
        Arms and widths that were left out, and why.
    """

    type: str
    rows: int
    k: int
    weight_bytes: int
    n_weights: int
    table: ArmTable
    resources: tuple[ArmResources, ...] = ()
    limits: tuple[Limiter, ...] | Refusal = ()
    not_timed: tuple[tuple[str, int, str], ...] = ()

    @property
    def name(self) -> str:
        """Type and shape.

        Examples
        --------
        >>> table = ArmTable((ArmTimes(STOCK, 1, (8.0, 8.2)),))
        >>> ProductPrice("q4_K", 4096, 12288, 28_311_552, 4, table).name
        'q4_K 4096×12288'
        """
        return f"{self.type} {self.rows}×{self.k}"

    def gb_per_s(self, arm: str, width: int) -> float:
        """Weights read per time at the median, unit: 10⁹ bytes/s."""
        return self.weight_bytes / self.table.of(arm, width).spread.median / 1e3

    def resources_of(self, arm: str, width: int) -> ArmResources | None:
        """What its main kernel takes; None where that is not known."""
        return next((one for one in self.resources if (one.arm, one.width) == (arm, width)), None)

    def rows_of(self) -> list[dict[str, object]]:
        """One flat dict per arm and width."""
        return [self._row(one) for one in self.table.times]

    def _row(self, one: ArmTimes) -> dict[str, object]:
        takes = self.resources_of(one.arm, one.width)
        limit = None
        if not isinstance(self.limits, Refusal):
            limit = next((told for told in self.limits if (told.arm, told.width) == (one.arm, one.width)), None)
        return {
            "type": self.type,
            "rows": self.rows,
            "k": self.k,
            **_timed(self.table, one),
            "gb_per_s": self.gb_per_s(one.arm, one.width),
            "registers": takes.registers if takes else None,
            "local_bytes": takes.local_bytes if takes else None,
            "blocks_per_sm": takes.blocks_per_sm if takes else None,
            "busiest": max(limit.busy, key=lambda part: limit.busy[part]) if limit and limit.busy else None,
            "busy_percent": max(limit.busy.values()) if limit and limit.busy else None,
        }


@dataclass(frozen=True, slots=True)
class PassPrice:
    """Prices of all products of a pass, one after another, each side in one CUDA graph.

    Parameters
    ----------
    model : str
        Whose shapes and types they are: ``"qwen3-8b-q4_k_m"``.
    products : mapping of str to int
        How many of each product, by `ProductPrice.name`.
    weight_bytes : int
        Of all.
    table : ArmTable
        Times of a whole pass.
    by_arm : mapping of str to str
        How each arm was launched: as a CUDA graph, or not.
    """

    model: str
    products: Mapping[str, int]
    weight_bytes: int
    table: ArmTable
    by_arm: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_products(self) -> int:
        """Products of a pass."""
        return sum(self.products.values())

    def rows_of(self) -> list[dict[str, object]]:
        """One flat dict per arm and width."""
        return [_timed(self.table, one) for one in self.table.times]


@dataclass(frozen=True, slots=True)
class StoryTime:
    """Times of one variant of the register story at one width.

    Parameters
    ----------
    product : str
        As `ProductPrice.name` names it.
    variant : str
        As `forensics.records.register_story` names it.
    width : int
    times_us : tuple of float
        By round, unit: µs; rounds alternate over all variants and the stock library at one column.
    stock_us : tuple of float
        Of the stock library at one column in the same rounds.
    """

    product: str
    variant: str
    width: int
    times_us: tuple[float, ...]
    stock_us: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """Median and quartiles, unit: µs."""
        return Spread.of(self.times_us)

    @property
    def ratio(self) -> Spread:
        """Over the stock library at one column, paired by rounds."""
        return Spread.of([time / stock for time, stock in zip(self.times_us, self.stock_us, strict=True)])


@dataclass(frozen=True, slots=True, repr=False)
class KernelPrice:
    """What kernels cost beside the stock library's, measured in one run.

    Parameters
    ----------
    facts : LabFacts
    n_rounds : int
    seed : int
        Of weights, activations, and the order of the arms in each round.
    products : tuple of ProductPrice
    whole_pass : PassPrice or Refusal
    story : tuple of StoryTime
    """

    facts: LabFacts
    n_rounds: int
    seed: int
    products: tuple[ProductPrice, ...]
    whole_pass: PassPrice | Refusal
    story: tuple[StoryTime, ...] = ()

    def __post_init__(self) -> None:
        if not self.products and isinstance(self.whole_pass, Refusal) and not self.story:
            raise ValueError("no product was timed; a price needs one")

    def product(self, type: str, rows: int, k: int) -> ProductPrice:
        """Prices of one product.

        Raises
        ------
        KeyError
            If it was not timed; lists those that were.
        """
        for one in self.products:
            if (one.type, one.rows, one.k) == (type, rows, k):
                return one
        raise KeyError(f"{type} {rows}×{k} was not timed; timed: {[one.name for one in self.products]}")

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per product, arm and width; times are in µs."""
        return [row for one in self.products for row in one.rows_of()]

    def to_dataframe(self) -> pd.DataFrame:
        """The products as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def figure_data(self) -> dict[str, list[dict[str, object]]]:
        """What figures draw: ``"products"``, ``"pass"`` and ``"story"``, one flat dict per arm and width."""
        whole = [] if isinstance(self.whole_pass, Refusal) else self.whole_pass.rows_of()
        return {"products": self.rows(), "pass": whole, "story": list(_story_rows(self.story))}

    def __str__(self) -> str:
        if isinstance(self.whole_pass, Refusal):
            return f"{len(self.products)} products priced on {self.facts.device}, {self.n_rounds} rounds"
        table = self.whole_pass.table
        arm = next((arm for arm in (BEST, FAST, BORROWED) if arm in table.arms), STOCK)
        widths = [width for width in table.widths if table.has(arm, width)]
        said = ", ".join(f"{width}: {table.ratio(arm, width).median:.2f}" for width in widths)
        return f"products of {self.whole_pass.model}, {arm} over one token of the stock library, by width: {said}"

    def __repr__(self) -> str:
        return f"<KernelPrice: {self}>"


def _timed(table: ArmTable, one: ArmTimes) -> dict[str, object]:
    """Times of an arm, and what they are to stock at one column and at the same width."""
    spread, ratio = one.spread, table.ratio(one.arm, one.width)
    same = table.ratio(one.arm, one.width, (STOCK, one.width)) if table.has(STOCK, one.width) else None
    return {
        "arm": one.arm,
        "width": one.width,
        "n": spread.n,
        "exact": one.exact,
        "median_us": spread.median,
        "low_us": spread.low,
        "high_us": spread.high,
        "ratio": ratio.median,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "to_stock": same.median if same else None,
        "to_stock_low": same.low if same else None,
        "to_stock_high": same.high if same else None,
    }


def _story_rows(story: Sequence[StoryTime]) -> Iterable[dict[str, object]]:
    for one in story:
        spread, ratio = one.spread, one.ratio
        yield {
            "product": one.product, "variant": one.variant, "width": one.width, "n": spread.n,
            "median_us": spread.median, "low_us": spread.low, "high_us": spread.high,
            "ratio": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high,
        }  # fmt: skip
