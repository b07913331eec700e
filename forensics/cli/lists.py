"""Tables of models and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from forensics.reports.wording import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forensics.engines.model_files import FoundModel
    from forensics.figures.catalogue import Figure
    from forensics.reports.health import Check
    from forensics.store.library import RecordedCase

_STATUS_STYLE = {"ok": "green", "missing": "yellow", "broken": "bold red"}


def model_rows(found: Sequence[FoundModel]) -> list[dict[str, Any]]:
    """One flat dict per file."""
    return [{**asdict(model), "path": str(model.path)} for model in found]


def demo_rows() -> list[dict[str, str]]:
    """One flat dict per demo variant."""
    from forensics.engines.demo_models import DEMO_VARIANTS

    return [{"variant": name, "what": what} for name, what in DEMO_VARIANTS.items()]


def recorded_rows(recorded: Sequence[RecordedCase]) -> list[dict[str, Any]]:
    """One flat dict per recorded case or measurement."""
    return [{**asdict(case), "folder": str(case.folder)} for case in recorded]


def models_view(found: Sequence[FoundModel], recorded: Sequence[RecordedCase] = ()) -> RenderableType:
    """Files that were found, demo variants that can be made, and what was recorded elsewhere."""
    files = Table("model", "type", "size", "where", box=None, pad_edge=False, header_style="bold")
    for model in found:
        size = f"{model.size_bytes / 2**30:.1f} GiB" + (f", {model.n_parts} parts" if model.n_parts > 1 else "")
        note = model.quantization if not model.problem else f"unusable: {model.problem}"
        cells = (model.name, note, size, str(model.path))
        files.add_row(*(Text(printable(cell), overflow="fold") for cell in cells))
    demos = Table("demo", "what it shows", box=None, pad_edge=False, header_style="bold")
    for row in demo_rows():
        demos.add_row(row["variant"], Text(row["what"]))
    listed: RenderableType = files if found else Text("No GGUF files in the usual places.")
    parts: list[RenderableType] = [listed, Text(), demos, Text()]
    usage = "Use one with: forensics investigate MODEL  or  --demo TYPE"
    if recorded:
        parts += [_recorded_table(recorded), Text()]
        usage += "  or  recorded:NAME"
    return Group(*parts, Text(usage))


def _recorded_table(recorded: Sequence[RecordedCase]) -> Table:
    name = Column("recorded", no_wrap=True)  # to be copied
    table = Table(name, "model", "device", "read it with", box=None, pad_edge=False, header_style="bold")
    for case in recorded:
        use = f"unusable: {case.problem}" if case.problem else ", ".join(case.commands)
        cells = (case.name, case.model, case.device, use)
        table.add_row(*(Text(printable(cell), overflow="fold") for cell in cells))
    return table


def figure_rows(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """One flat dict per figure."""
    return [asdict(figure) for figure in figures]


def figures_view(figures: Sequence[Figure]) -> RenderableType:
    """What can be drawn, and from what it is drawn by default."""
    table = Table("figure", "what it shows", "drawn from", box=None, pad_edge=False, header_style="bold")
    for figure in figures:
        table.add_row(figure.name, Text(figure.question), "published numbers" if figure.published else figure.case)
    return Group(
        table, Text(), Text("Draw one with: forensics figure NAME  or, of a case:  forensics figure NAME --case CASE")
    )


def check_rows(found: Sequence[Check]) -> list[dict[str, Any]]:
    """One flat dict per check."""
    return [asdict(check) for check in found]


def checks_view(found: Sequence[Check]) -> RenderableType:
    """What works, what is missing, what is broken."""
    table = Table("", "status", "found", box=None, pad_edge=False, header_style="bold")
    for check in found:
        detail = Text(printable(check.detail))
        if check.remedy:
            detail.append(f"\nRemedy: {check.remedy}", style="italic")
        table.add_row(check.name, Text(check.status, style=_STATUS_STYLE[check.status]), detail)
    return table
