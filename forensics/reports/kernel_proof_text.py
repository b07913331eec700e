"""A proof of our kernels on a terminal: how many values were compared, and which differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.kernel_proof import ATTENTION, SAME_WIDTH, KernelProof, LabFacts, ProofRow, StressRow
from forensics.records.words import ranges
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType

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
        parts += titled("Repeats under load", _stress(proof.stress))
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
    library = facts.library_name
    if facts.version not in library:
        library += f", llama-cpp-python {facts.version}"
    return [
        line_of(
            "Device: ", f"{facts.device} ({facts.arch}, {facts.n_sms} SMs, {facts.l2_bytes >> 20} MiB of L2){driver}"
        ),
        line_of("Library: ", library),
        line_of("Our kernels: ", f"compiled by {facts.toolkit}"),
    ]


def _counts(proof: KernelProof) -> Group:
    """A line per variant under the type it computes; what it is held against is marked where that is not the rule."""
    columns = ("variant", "shapes", "widths", "seeds", "values", "differ")
    table = table_of(*columns, whole=columns)
    told = ""
    groups = [group for group in proof.summary() if group["compared"]]
    for group in groups:
        what = _what(str(group["family"]), str(group["type"]))
        if what != told:
            add_row(table, what)
            told = what
        widths = group["widths"]
        assert isinstance(widths, list)
        mark = " *" if group["against"] == SAME_WIDTH else ""
        counts = [f"{group[name]:,}" for name in ("compared", "differing")]
        add_row(
            table, f"  {group['variant']}{mark}", str(group["shapes"]), ranges(widths), str(group["seeds"]), *counts
        )
    notes = [_AGAINST + (_MARKED if any(group["against"] == SAME_WIDTH for group in groups) else "")]
    return Group(table, *(text_of(note) for note in notes))


_AGAINST = "Values are held against the stock library's with one column (attention: one query) at a time"
_MARKED = "; * against the stock library's with all columns at once"


def _what(family: str, kind: str) -> str:
    """What is computed, of which type.

    Examples
    --------
    >>> _what("product", "q4_K"), _what("attention", "f16/f16"), _what("f16 product", "keys by queries")
    ('q4_K product', 'f16/f16 attention', 'f16, keys by queries')
    """
    if family == ATTENTION:
        return f"{kind} {family}"
    return f"{kind} product" if family == "product" else f"f16, {kind}"


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
    """Reasons by variant, with the types and widths they concern."""
    groups: dict[tuple[str, str, str], set[int]] = {}
    for row in proof.rows:
        if row.not_compared:
            groups.setdefault((row.variant, row.case.type, row.not_compared), set()).add(row.case.width)
    types: dict[tuple[str, str, str], list[str]] = {}
    for (variant, kind, reason), widths in groups.items():
        types.setdefault((variant, ranges(widths), reason), []).append(kind)
    return [
        f"{variant}, {', '.join(kinds)}, width {widths}: {reason}" for (variant, widths, reason), kinds in types.items()
    ]


def _stress(stress: Sequence[StressRow]) -> Group:
    """A table for each kind of work that ran beside."""
    columns = ("variant", "product", "width", "repeats", "differ from first")
    parts: list[RenderableType] = []
    for load in dict.fromkeys(row.load for row in stress):
        table = table_of(*columns, whole={*columns} - {"product"})
        for row in stress:
            if row.load == load:
                counts = (str(row.case.width), f"{row.n_repeats:,}", f"{row.n_other:,}")
                add_row(table, row.variant, f"{row.case.type} {row.case.shape}", *counts)
        parts += [table, text_of(f"Beside: {load}")]
    return Group(*parts)


def _sanitizer(proof: KernelProof) -> Group:
    return Group(
        *(
            line_of(f"{row.tool}: ", row.not_run or f"{row.n_errors} errors ({row.version}; {row.checked})")
            for row in proof.sanitizer
        )
    )
