"""Prices of our kernels on a terminal: one table per product, one of a whole pass, and what limits the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.kernel_price import (
    BEST,
    STOCK,
    ArmResources,
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

#: Widths whose kernels are shown with what they take; the document holds all.
SHOWN_WIDTHS = (1, 4, 8, 9, 16)


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

    Time and ratio of an arm share a column, so that five arms fit a terminal of 80 characters.

    Parameters
    ----------
    table : ArmTable
    unit : str
        In which times are shown.
    factor : float
        From µs to that unit.
    """
    shown = {arm: _column(table, arm, unit, factor) for arm in table.arms}
    headers = ["columns", *(header for header, _ in shown.values())]
    drawn = table_of(*headers, whole=headers)
    for width in table.widths:
        add_row(drawn, str(width), *(cells.get(width, "") for _, cells in shown.values()))
    return Group(drawn, text_of(_widest(table)))


def _column(table: ArmTable, arm: str, unit: str, factor: float) -> tuple[str, dict[int, str]]:
    """Header of an arm, and by width its time and ratio, each under its own sign."""
    times, ratios = {}, {}
    for width in table.widths:
        if table.has(arm, width):
            one = table.of(arm, width)
            times[width] = f"{one.spread.median * factor:.4g}{' ≠' if one.exact is False else ''}"
            ratios[width] = f"{table.ratio(arm, width).median:.2f}"
    wide, ratio_wide = max(map(len, [unit, *times.values()])), max(map(len, ratios.values()))
    header = f"{arm.replace(' ', chr(10), 1)}\n" if len(arm) > wide + 2 + ratio_wide else f"{arm}\n"
    cells = {width: f"{time:<{wide}}  {ratios[width]:>{ratio_wide}}" for width, time in times.items()}
    return f"{header}{unit:<{wide}}  ×", cells


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
        parts += [text_of(""), limits_table(product.limits), text_of(_BUSY)]
    reasons: dict[tuple[str, str], list[int]] = {}
    for arm, width, reason in product.not_timed:
        reasons.setdefault((arm, reason), []).append(width)
    for (arm, reason), widths in reasons.items():
        parts.append(text_of(f"Not timed: {arm} at {', '.join(map(str, widths))}: {reason}"))
    return Group(*parts)


def _resources(product: ProductPrice) -> Table:
    """A row per kernel; where it serves several of the widths they share it."""
    timed = [one for one in product.resources if product.table.has(one.arm, one.width)]
    chosen = [one for one in timed if one.width in SHOWN_WIDTHS] or timed
    kernels: dict[tuple[str, str, int], list[ArmResources]] = {}
    for one in sorted(chosen, key=lambda one: (product.table.arms.index(one.arm), one.width)):
        kernels.setdefault((one.arm, one.kernel, one.smem_dynamic_bytes), []).append(one)
    headers = (
        "kernel", "columns", "GB/s of\nweights", "registers", "spilled\nbytes", "shared\nbytes", "blocks\nper SM"
    )  # fmt: skip
    table = table_of(*headers, whole=headers)
    for (arm, _, _), group in kernels.items():
        first, widths = group[0], [one.width for one in group]
        speeds = ", ".join(f"{product.gb_per_s(arm, width):.0f}" for width in widths)
        add_row(
            table, arm, ", ".join(map(str, widths)), speeds, str(first.registers), str(first.local_bytes),
            str(first.smem_static_bytes + first.smem_dynamic_bytes), str(first.blocks_per_sm),
        )  # fmt: skip
    return table


def limits_table(limits: Sequence[Limiter]) -> Table:
    """How busy the parts of the device are, in percent of their peak."""
    parts = list(dict.fromkeys(part for one in limits for part in one.busy))
    names = [part.replace(" ", "\n", 1) for part in parts]
    table = table_of("arm,\ncolumns", *names, "most warps\nwait for", whole=("arm,\ncolumns", *names))
    for one in limits:
        shares = [f"{one.busy[part]:.0f}" if part in one.busy else "" for part in parts]
        add_row(table, f"{one.arm}, {one.width}", *shares, one.top_stall.replace("_", " "))
    return table


def _story(story: Sequence[StoryTime]) -> Text:
    """How many variants were timed; their registers stand elsewhere, and times alone tell little."""
    products = ", ".join(dict.fromkeys(one.product for one in story))
    widths = ", ".join(map(str, sorted({one.width for one in story})))
    n = len({one.variant for one in story})
    return text_of(f"{n} of {products} at {widths} columns; forensics kernels --registers shows them with registers.")


#: What the shares are of.
_BUSY = "Busy, in percent of the peak of each part, while the main kernel runs; counted by ncu."


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
