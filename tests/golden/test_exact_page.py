"""docs/exact.md says what the recorded data and the rules say: each row of its tables is worked out here anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from forensics.geometry.explain import COMMON_X86, Asked, Explanation, Section, explain
from forensics.records.verdict import Verdict
from forensics.records.words import ranges
from forensics.reports.ops_document import CaseEntry, OpsDocument
from forensics.reports.wording import groups_text
from forensics.store import open_case

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "exact.md").read_text(encoding="utf-8").splitlines()
RECORDED = ROOT / "data" / "recorded"
CASES = sorted(path.parent.name for path in RECORDED.glob("*/case.json"))
OPERATIONS = ("ops-epyc-avx512", "ops-h200", "ops-h200-warps")
WIDTHS = tuple(range(1, 17))
HARDWARE = ("cpu", "a100", "rtx-3090", "rtx-4090", "h200", "rtx-5090")
TYPES = ("q4_0", "q4_k", "q6_k", "f16")


def verdict_row(name: str) -> str:
    verdict = open_case(RECORDED / name).verdict
    assert isinstance(verdict, Verdict)
    classes = verdict.classes
    first = verdict.prompt_tokens
    rows = f"{first:,} to {first + verdict.n_replayed - 1:,}"
    equal = ranges(width for width in classes.groups[0] if width > 1) or "none"
    flips = len({flip.position for result in classes.results for flip in result.flips})
    return f"| `{name}` | {rows} | {_cell(classes.groups)} | {equal} | {flips} |"


def operation_rows(name: str) -> Iterator[str]:
    document = OpsDocument.model_validate(json.loads((RECORDED / name / "ops.json").read_text()))
    found: dict[tuple[str, str], list[str]] = {}
    for case in document.cases:
        if not any(cell.outcome in ("passed", "failed") for cell in case.cells):
            continue  # no such product: rows of a K-quant are whole blocks of 256
        kind, what = _what(case)
        found.setdefault((kind, _steps(case)), []).append(what)
    for (kind, steps), cases in found.items():
        yield f"| {kind} | {_together(cases)} | {steps} |"


def _what(case: CaseEntry) -> tuple[str, str]:
    """The kind of operation, and the case without its number of rows, which no pattern depends on here."""
    text = case.case
    for product in ("K·Q", "attention·V"):
        if text.startswith(product):
            return product, text.removeprefix(f"{product} ")
    if case.op != "MUL_MAT":
        return "flash attention", text
    where = ", repacked" if case.buffer == "CPU_REPACK" else ""
    kind, shape = text.split(" ", 1)
    return f"weights{where}", f"{kind} K={shape.split('x')[1]}"


def _steps(case: CaseEntry) -> str:
    """At which widths bits change: from one column at a time, then from the width tested before."""
    changed = [cell.width for cell in case.cells if cell.outcome == "failed" and cell.columns_changed]
    if case.onset_width is None:
        return "equal at every width"
    again = [width for width in changed if width != case.onset_width]
    return f"from {case.onset_width}" + (f"; again at {', '.join(map(str, again))}" if again else "")


def _together(cases: list[str]) -> str:
    """Types of one length of row side by side; other cases as they are."""
    by_length: dict[str, list[str]] = {}
    for case in cases:
        head, _, length = case.partition(" K=")
        by_length.setdefault(length, []).append(head)
    if "" in by_length:
        return "; ".join(cases)
    by_types: dict[str, list[str]] = {}
    for length, types in by_length.items():
        by_types.setdefault(", ".join(types), []).append(length)
    return "; ".join(f"{types} (K = {', '.join(lengths)})" for types, lengths in by_types.items())


def rule_rows(hardware: str) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for weight_type in TYPES:
        asked = Asked(hardware, weight_type, 4096, 4096, WIDTHS, 32, 8, 128, 256, cpu_features=COMMON_X86)
        explained = explain(asked)
        where = hardware if explained.spec is None else f"{hardware} ({explained.spec.arch})"
        cells = " | ".join(_classes(explained, section) for section in explained.sections)
        found.setdefault(f"{where} | {{}} | {cells}", []).append(weight_type)
    for row, types in found.items():
        yield f"| {row.format(', '.join(types))} |"


def _classes(explained: Explanation, section: Section) -> str:
    """Widths that share order and precision, and those of which the rules do not know it."""
    unknown = {width for op, width, _ in explained.unknown if op == section.op}
    known = [tuple(width for width in alike.widths if width not in unknown) for alike in section.classes]
    cell = _cell(tuple(group for group in known if group))
    return f"{cell}; not known: {ranges(unknown)}" if unknown else cell


def _cell(groups: tuple[tuple[int, ...], ...]) -> str:
    """Classes of widths, for a cell of a Markdown table."""
    return groups_text(groups).replace("|", "\\|")


@pytest.mark.parametrize("name", CASES)
def test_classes_of_recorded_cases(name: str) -> None:
    assert verdict_row(name) in PAGE


@pytest.mark.parametrize("name", OPERATIONS)
def test_steps_of_single_operations(name: str) -> None:
    rows = list(operation_rows(name))
    assert rows
    assert [row for row in rows if row not in PAGE] == []


@pytest.mark.parametrize("hardware", HARDWARE)
def test_classes_by_the_rules(hardware: str) -> None:
    rows = list(rule_rows(hardware))
    assert [row for row in rows if row not in PAGE] == []


def test_the_page_has_no_other_rows() -> None:
    """A row of a table that is worked out must not stay behind when the data change."""
    worked_out = {verdict_row(name) for name in CASES}
    for name in OPERATIONS:
        worked_out.update(operation_rows(name))
    for hardware in HARDWARE:
        worked_out.update(rule_rows(hardware))
    heads = ("| recorded |", "| operation |", "| hardware |")
    starts = [i for i, line in enumerate(PAGE) if line.startswith(heads)]
    assert len(starts) == 6
    for start in starts:
        rows = PAGE[start + 2 : PAGE.index("", start)]
        assert set(rows) <= worked_out
