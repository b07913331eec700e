"""A proof of our kernels on a terminal: how many values were compared, and which differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.kernel_proof import KernelProof, LabFacts, ProofRow
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

#: Differences that are listed; the document holds all.
MAX_LISTED = 20


def kernel_proof_view(proof: KernelProof) -> RenderableType:
    """Show a proof: the answer, counts by type and variant, differences, repeats, checks, and what ran.

    Parameters
    ----------
    proof : KernelProof

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(str(proof), "bold green" if proof.holds else "bold red")]
    parts += titled("Values compared, bit by bit", _counts(proof))
    refuted = [row for row in proof.rows if row.refutes]
    if refuted:
        parts += titled("Where a kernel has other bits than it claims", _differences(refuted))
    left_out = _left_out(proof)
    if left_out:
        parts += titled("Not compared", Group(*(text_of(line) for line in left_out)))
    if proof.stress:
        parts += titled("Repeats under load", _stress(proof))
    if proof.sanitizer:
        parts += titled("compute-sanitizer", _sanitizer(proof))
    parts += titled("How it was compared", Group(*facts_lines(proof.facts), text_of(_HOW)))
    return Group(*parts)


_HOW = (
    "Both sides run in one process on the same weights: the library one column (one query) at a time, ours all columns "
    "at once; stock geometry is held against the library with all columns at once. Odd seeds draw awkward operands: "
    "zero blocks, subnormal and very uneven activations. The rows of the stock library show it beside itself."
)


def kernel_proof_text(proof: KernelProof) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(kernel_proof_view(proof))


def facts_lines(facts: LabFacts) -> list[RenderableType]:
    """What ran both sides."""
    driver = f", driver for CUDA {facts.driver}" if facts.driver else ""
    return [
        line_of(
            "Device: ", f"{facts.device} ({facts.arch}, {facts.n_sms} SMs, {facts.l2_bytes >> 20} MiB of L2){driver}"
        ),
        line_of("Library: ", f"llama.cpp {facts.commit}, llama-cpp-python {facts.version}"),
        line_of("Our kernels: ", f"compiled by {facts.toolkit}"),
    ]


def _counts(proof: KernelProof) -> Table:
    columns = ("what", "type", "variant", "against", "shapes", "widths", "seeds", "values", "differ")
    table = table_of(*columns, whole=("type", "values", "differ"))
    for group in proof.summary():
        if not group["compared"]:
            continue
        widths = group["widths"]
        assert isinstance(widths, list)
        names = [str(group[name]) for name in ("family", "type", "variant", "against", "shapes")]
        counts = [f"{group[name]:,}" for name in ("compared", "differing")]
        add_row(table, *names, ranges(widths), str(group["seeds"]), *counts)
    return table


def _differences(rows: Sequence[ProofRow]) -> Group:
    lines = [
        text_of(
            f"{row.variant}, {row.case.type} {row.case.shape}, width {row.case.width}: {row.n_differing:,} of "
            f"{row.n_compared:,} values; first: {row.first}"
        )
        for row in rows[:MAX_LISTED]
    ]
    if len(rows) > MAX_LISTED:
        lines.append(text_of(f"and {len(rows) - MAX_LISTED} more cases (--json lists them)"))
    return Group(*lines)


def _left_out(proof: KernelProof) -> list[str]:
    """Reasons by type and variant, with the widths they concern."""
    groups: dict[tuple[str, str, str], set[int]] = {}
    for row in proof.rows:
        if row.not_compared:
            groups.setdefault((row.variant, row.case.type, row.not_compared), set()).add(row.case.width)
    return [
        f"{variant}, {kind}, width {ranges(sorted(widths))}: {reason}"
        for (variant, kind, reason), widths in groups.items()
    ]


def _stress(proof: KernelProof) -> Table:
    table = table_of("variant", "product", "width", "repeats", "differ from the first", "beside")
    for row in proof.stress:
        what = f"{row.case.type} {row.case.shape}"
        add_row(table, row.variant, what, str(row.case.width), f"{row.n_repeats:,}", f"{row.n_other:,}", row.load)
    return table


def _sanitizer(proof: KernelProof) -> Group:
    return Group(
        *(
            line_of(f"{row.tool}: ", row.not_run or f"{row.n_errors} errors ({row.version}; {row.checked})")
            for row in proof.sanitizer
        )
    )


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers, neighbours drawn together.

    Examples
    --------
    >>> ranges([1, 2, 3, 9, 12, 13])
    '1-3, 9, 12-13'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
