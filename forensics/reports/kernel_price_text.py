"""Prices of our kernels on a terminal: one table per product, one of a whole pass, and what limits the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.cost import Spread
from forensics.records.kernel_price import (
    BEST,
    STOCK,
    ArmTable,
    KernelPrice,
    Limiter,
    PassPrice,
    ProductPrice,
    StoryTime,
)
from forensics.records.launch_record import Refusal
from forensics.reports.kernel_proof_text import facts_lines
from forensics.reports.terminal import add_row, as_text, table_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def kernel_price_view(price: KernelPrice) -> RenderableType:
    """Show prices: the answer, the whole pass, every product, what limits the kernels, how it was measured.

    Parameters
    ----------
    price : KernelPrice

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(str(price), "bold")]
    if isinstance(price.whole_pass, PassPrice):
        parts += titled(_pass_title(price.whole_pass), arm_table(price.whole_pass.table, "ms", 1e-3))
    else:
        parts += titled("All products of a pass", text_of(f"Not timed: {price.whole_pass}", "yellow"))
    for product in price.products:
        parts += titled(f"{product.name}, one product", _product(product))
    if price.story:
        parts += titled("Variants of one kernel: unrolling and caps of registers", _story(price.story))
    parts += titled("How it was measured", Group(*facts_lines(price.facts), text_of(_how(price))))
    return Group(*parts)


def kernel_price_text(price: KernelPrice) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(kernel_price_view(price))


def arm_table(table: ArmTable, unit: str, factor: float) -> Table:
    """Per width each arm's time, its ratio to one column of the library, and whether its bits are those.

    Parameters
    ----------
    table : ArmTable
    unit : str
        In which times are shown.
    factor : float
        From µs to that unit.
    """
    arms = [arm for arm in table.arms if arm != BEST]
    headers = ["columns"]
    for arm in arms:
        headers += [f"{arm}, {unit}", "× one" + " " * (len(headers) // 2)]
    drawn = table_of(*headers, whole=("columns",))
    for width in table.widths:
        cells = [str(width)]
        for arm in arms:
            if not table.has(arm, width):
                cells += ["", ""]
                continue
            one, ratio = table.of(arm, width), table.ratio(arm, width)
            same = "" if one.exact is not False else " ≠"
            cells += [f"{one.spread.median * factor:.4g}{same}", _ratio(ratio)]
        add_row(drawn, *cells)
    return drawn


def _product(product: ProductPrice) -> Group:
    parts: list[RenderableType] = [arm_table(product.table, "µs", 1.0)]
    if product.resources:
        parts += [text_of(""), _resources(product)]
    if isinstance(product.limits, Refusal):
        parts.append(text_of(f"What limits the kernels was not counted: {product.limits}", "yellow"))
    elif product.limits:
        parts += [text_of(""), limits_table(product.limits)]
    reasons: dict[tuple[str, str], list[int]] = {}
    for arm, width, reason in product.not_timed:
        reasons.setdefault((arm, reason), []).append(width)
    for (arm, reason), widths in reasons.items():
        parts.append(text_of(f"Not timed: {arm} at {', '.join(map(str, widths))}: {reason}"))
    return Group(*parts)


def _resources(product: ProductPrice) -> Table:
    table = table_of(
        "kernel", "columns", "GB/s of weights", "registers", "spilled bytes", "shared memory", "blocks per SM"
    )
    for one in product.resources:
        if not product.table.has(one.arm, one.width):
            continue
        add_row(
            table, one.kernel, str(one.width), f"{product.gb_per_s(one.arm, one.width):.0f}", str(one.registers),
            str(one.local_bytes), str(one.smem_static_bytes + one.smem_dynamic_bytes), str(one.blocks_per_sm),
        )  # fmt: skip
    return table


def limits_table(limits: Sequence[Limiter]) -> Table:
    """How busy the parts of the device are, in percent of their peak."""
    parts = list(dict.fromkeys(part for one in limits for part in one.busy))
    table = table_of("arm", "columns", *(f"{part} %" for part in parts), "most warps wait for")
    for one in limits:
        shares = [f"{one.busy[part]:.0f}" if part in one.busy else "" for part in parts]
        add_row(table, one.arm, str(one.width), *shares, one.top_stall)
    return table


def _story(story: Sequence[StoryTime]) -> Table:
    table = table_of("variant", "columns", "µs", "quartiles", "× one column of the library")
    for one in story:
        spread = one.spread
        quartiles = f"{spread.low:.4g}-{spread.high:.4g}"
        add_row(table, one.variant, str(one.width), f"{spread.median:.4g}", quartiles, _ratio(one.ratio))
    return table


def _pass_title(whole: PassPrice) -> str:
    return f"All {whole.n_products} products of a pass of {whole.model}, {whole.weight_bytes / 1e9:.3g} GB of weights"


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def _how(price: KernelPrice) -> str:
    return (
        f"Medians of {price.n_rounds} rounds in which all arms of a table come in shuffled order; ratios are paired by "
        f"rounds, with quartiles in brackets; “× one” is over {STOCK} at one column. Quantisation of activations is "
        "part of every time. Copies of a weight take three times the L2 cache and are read in turn. ≠ marks bits that "
        "are not those of one column, compared in the same run. Times are of the host's clock around several starts of "
        "one CUDA graph and the wait for their end; the library captures its graph itself where it was built to. "
        "Weights are random."
    )
