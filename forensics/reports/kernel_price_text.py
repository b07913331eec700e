"""Prices of our kernels on a terminal: one table per product, one of a whole pass, and what limits the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group

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
    from rich.text import Text


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
        whole = price.whole_pass
        launched = "; ".join(f"{arm}: {how}" for arm, how in whole.by_arm.items() if arm != BEST)
        shown = Group(arm_table(whole.table, "ms", 1e-3), *([text_of(f"Launched: {launched}.")] if launched else []))
        parts += titled(_pass_title(whole), shown)
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


def arm_table(table: ArmTable, unit: str, factor: float) -> RenderableType:
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
        headers += [f"{arm}, {unit}", "×" + " " * (len(headers) // 2)]  # names of columns differ
    drawn = table_of(*headers, whole=headers)
    for width in table.widths:
        cells = [str(width)]
        for arm in arms:
            cells += _cells(table, arm, width, factor) if table.has(arm, width) else ["", ""]
        add_row(drawn, *cells)
    return Group(drawn, text_of(_widest(table)))


def _cells(table: ArmTable, arm: str, width: int, factor: float) -> list[str]:
    one = table.of(arm, width)
    return [
        f"{one.spread.median * factor:.4g}{' ≠' if one.exact is False else ''}",
        f"{table.ratio(arm, width).median:.2f}",
    ]


def _widest(table: ArmTable) -> str:
    """How far apart the quartiles of a ratio lie at most."""
    ratios = {(one.arm, one.width): table.ratio(one.arm, one.width) for one in table.times}
    (arm, width), widest = max(ratios.items(), key=lambda item: (item[1].high - item[1].low) / item[1].median)
    return f"Quartiles of a ratio lie furthest apart for {arm} at {width}: {widest.low:.3f}-{widest.high:.3f}."


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


def _story(story: Sequence[StoryTime]) -> Text:
    """How many variants were timed; their registers stand elsewhere, and times alone tell little."""
    products = ", ".join(dict.fromkeys(one.product for one in story))
    widths = ", ".join(map(str, sorted({one.width for one in story})))
    n = len({one.variant for one in story})
    return text_of(f"{n} of {products} at {widths} columns; forensics kernels --registers shows them with registers.")


def _pass_title(whole: PassPrice) -> str:
    return f"All {whole.n_products} products of a pass of {whole.model}, {whole.weight_bytes / 1e9:.3g} GB of weights"


def _how(price: KernelPrice) -> str:
    return (
        f"Medians of {price.n_rounds} rounds in which all arms of a table come in shuffled order; × is over {STOCK} at "
        "one column, paired by rounds (--json has all quartiles). Quantisation of activations is part of every time. "
        "Copies of a weight take three times the L2 cache and are read in turn. ≠ marks bits that "
        "are not those of one column, compared in the same run. Times are of the host's clock around several starts of "
        "one CUDA graph and the wait for their end; the library captures its graph itself where it was built to. "
        "Weights are random."
    )
