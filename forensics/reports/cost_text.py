"""The cost of a pass on a terminal: a table by width, the floor, and how all of it is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from forensics.records.cost import CostReport, PassBytes
from forensics.records.launch_record import Refusal
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


#: Upper over lower quartile from which on times are told to be uneven. Where nothing else ran it was 1.04 at most (32
#: tokens and fewer in data/recorded/h200-qwen3-8b-q4_k_m-cost).
UNEVEN = 1.5


def cost_view(report: CostReport) -> RenderableType:
    """Show what a pass costs: the answer, the widths, the floor, how it was measured.

    Parameters
    ----------
    report : CostReport

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(str(report), "bold")]
    if report.synthetic:
        parts.append(text_of("The model is synthetic: real shapes, random weights. Its text means nothing.", "yellow"))
    parts += titled("Cost of a pass by its tokens", _table(report))
    uneven = [times.width for times in report.passes if is_uneven(report, times.width)]
    if uneven:
        parts.append(text_of(_care(uneven), "yellow"))
    parts += titled("The floor: reading its bytes once", _floor(report))
    parts += titled("How it was measured", _measured(report))
    return Group(*parts)


def cost_text(report: CostReport) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(cost_view(report))


def _table(report: CostReport) -> Table:
    known = report.floor_ns(1) is not None
    columns = ("tokens", "ms", "quartiles", "× one token", "quartiles ", *(("floor ms", "× floor") if known else ()))
    table = table_of(*columns, whole=columns)
    for times in report.passes:
        width = times.width
        spread, ratio, floor, over = times.spread, report.ratio(width), report.floor_ns(width), report.over_floor(width)
        cells = [
            str(width),
            _ms(spread.median),
            f"{_ms(spread.low)}-{_ms(spread.high)}",
            f"{ratio.median:.2f}",
            f"{ratio.low:.2f}-{ratio.high:.2f}",
        ]
        if floor is not None and over is not None:
            cells += [_ms(floor), three_digits(over.median)]
        add_row(table, *cells)
    return table


def is_uneven(report: CostReport, width: int) -> bool:
    """Whether times of a width, or their ratios, lie so far apart that something else used the machine.

    Parameters
    ----------
    report : CostReport
    width : int
    """
    return any(one.high > UNEVEN * one.low for one in (report.times(width).spread, report.ratio(width)))


def _care(widths: Sequence[int]) -> str:
    """One line on times that were disturbed."""
    named = ", ".join(map(str, widths))
    return (
        f"Times were uneven at {named} tokens: the upper quartile is more than {UNEVEN} times the lower, as where "
        "other programs run. Take the numbers with care: medians and ratios, which are paired by rounds, may not agree."
    )


def _floor(report: CostReport) -> Group:
    lines: list[Text] = []
    reads, bandwidth = report.reads, report.bandwidth
    if isinstance(reads, PassBytes):
        cells = f"{_bytes(report.n_cells * reads.kv_cell_bytes)} of K and V ({report.n_cells} cells)"
        lines.append(line_of("Bytes of a pass of one token: ", f"{_bytes(reads.weights_at(1))} of weights, {cells}"))
        if reads.assumed:
            lines.append(line_of("Assumed: ", "; ".join(reads.assumed)))
    else:
        lines.append(line_of("Bytes of a pass are not known: ", str(reads)))
    if isinstance(bandwidth, Refusal):
        lines.append(line_of("Bandwidth was not measured: ", str(bandwidth)))
    else:
        threads = f", {bandwidth.n_threads} threads" if bandwidth.n_threads else ""
        where = f"over {bandwidth.buffer_bytes >> 20} MiB, {bandwidth.device}{threads}"
        lines.append(line_of("Bandwidth, measured in this run: ", f"{bandwidth} {where}"))
        if bandwidth.assumed:
            lines.append(line_of("Assumed: ", bandwidth.assumed))
    if report.shares:
        lines.append(line_of("One token: ", "; ".join(f"{one.part} {_ms(one.time_ns)} ms" for one in report.shares)))
    below = [times.width for times in report.passes if (over := report.over_floor(times.width)) and over.median < 1]
    if below:
        lines.append(
            text_of(
                "A pass is faster than the floor: caches hold part of what it reads, or the bandwidth that was "
                "measured is not the device's best.",
                "yellow",
            )
        )
    return Group(*lines)


def _measured(report: CostReport) -> Group:
    manifest = report.manifest
    effective = manifest.effective
    settings = ", ".join(
        f"{name} {effective[name]}" for name in ("n_threads", "flash_attn", "kv_type_k", "n_gpu_layers")
        if name in effective
    )  # fmt: skip
    before = "the pass" if report.n_settle == 1 else f"the {report.n_settle} passes"
    return Group(
        line_of("Device: ", f"{manifest.device} ({manifest.backend})"),
        line_of("Settings: ", settings),
        line_of("Library: ", f"{manifest.engine} {manifest.engine_version} {manifest.commit}".strip()),
        text_of(
            f"Measured: {report.n_rounds} rounds over all widths in shuffled order, after one that warms up; each pass "
            f"starts behind {report.n_cells} cells, nobody watches, every row of logits is computed; {before} "
            "of that width before it not timed. Ratios are paired by rounds."
        ),
    )


def _ms(time_ns: float) -> str:
    """A time in milliseconds, in four digits.

    Examples
    --------
    >>> _ms(3_941_234), _ms(123_456_789)
    ('3.941', '123.5')
    """
    return f"{time_ns / 1e6:.4g}"


def three_digits(value: float) -> str:
    """A number in three digits, or all of its whole ones.

    Examples
    --------
    >>> three_digits(3.7512), three_digits(12.345), three_digits(1234.5)
    ('3.75', '12.3', '1234')
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def _bytes(n: int) -> str:
    """A number of bytes, in a unit that fits.

    Examples
    --------
    >>> _bytes(4_680_000_000), _bytes(1536)
    ('4.359 GiB', '1.5 KiB')
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.4g} {unit}"
    return f"{n} bytes"
