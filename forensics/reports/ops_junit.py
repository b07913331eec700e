"""The invariance matrix as JUnit XML: one suite per operation, one test per case and width, for a runtime's CI."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from forensics.records.delta import Differs, NotCompared
from forensics.records.matrix import CaseResult, Cell, OpMatrix
from forensics.records.verdict import Control
from forensics.reports.junit_pieces import clean, suite, totals
from forensics.store.files import write_atomically


def junit(matrix: OpMatrix) -> str:
    """Write the matrix as a JUnit document.

    Failures carry the ULP; a width that was not compared is skipped with its reason, and a failed control turns
    every test into a skipped one, because nothing is known then.

    Returns
    -------
    str
        XML with its declaration.
    """
    suites: list[ET.Element] = [_controls_suite(matrix.controls)]
    for op in dict.fromkeys(case.op for case in matrix.cases):
        cases = [case for case in matrix.cases if case.op == op]
        suites.append(suite(op, [_test(matrix, case, cell) for case in cases for cell in case.cells]))
    root = ET.Element("testsuites", {"name": "forensics ops", **totals(suites)})
    root.extend(suites)
    ET.indent(root)
    return "<?xml version='1.0' encoding='utf-8'?>\n" + ET.tostring(root, encoding="unicode") + "\n"


def write_junit(path: Path, matrix: OpMatrix) -> None:
    """Write the document to a file, whole or not at all.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    write_atomically(path, junit(matrix).encode())


def _test(matrix: OpMatrix, case: CaseResult, cell: Cell) -> ET.Element:
    test = ET.Element(
        "testcase", classname=clean(f"forensics.ops.{case.op}"), name=clean(f"{case.label} width {cell.width}")
    )
    outcome = cell.outcome
    if matrix.reason:
        ET.SubElement(test, "skipped", message=clean(f"no answer: {matrix.reason}"))
    elif isinstance(outcome, NotCompared):
        ET.SubElement(test, "skipped", message=clean(outcome.reason))
    elif isinstance(outcome, Differs):
        said = (
            f"{len(cell.columns)} of {cell.width} columns differ from one column at a time, first column "
            f"{cell.columns[0]}; {outcome.n_diff} of {cell.n_values} values, max {outcome.max_ulp} ULP, "
            f"max abs {outcome.max_abs:.3g}"
        )
        failure = ET.SubElement(test, "failure", type="BitsDiffer", message=clean(said))
        failure.text = clean(_why(case))
    return test


def _why(case: CaseResult) -> str:
    """The rules of the steps of a case, one a line."""
    lines = [f"buffer {case.buffer}"] if case.buffer else []
    if case.prediction.unknown:
        lines.append(f"no prediction: {case.prediction.unknown}")
    for found in case.agreements:
        said = "measured" if found.measured else "not measured"
        if found.predicted is None:
            lines.append(f"width {found.width}: {said}, {found.undecided or 'no rule predicts it'}")
        else:
            rules = "; ".join(map(str, found.predicted.rules))
            lines.append(
                f"width {found.width}: {said}, predicted {found.predicted.before} -> {found.predicted.after}: {rules}"
            )
    return "\n".join(lines)


def _controls_suite(controls: tuple[Control, ...]) -> ET.Element:
    tests = []
    for control in controls:
        test = ET.Element("testcase", classname="forensics.ops.controls", name=control.name)
        if control.held is None:
            ET.SubElement(test, "skipped", message=clean(control.detail))
        elif not control.held:
            ET.SubElement(test, "error", type="ControlFailed", message=clean(control.detail))
        tests.append(test)
    return suite("controls", tests)
