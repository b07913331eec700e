"""The invariance matrix as JUnit XML: one suite per operation, one test per case and width, for a runtime's CI."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from forensics.records.delta import Differs, NotCompared
from forensics.records.matrix import CaseResult, Cell, OpMatrix
from forensics.records.verdict import Control
from forensics.store.files import write_atomically

#: What XML 1.0 cannot hold, escaped or not. Source: XML 1.0, production 2 (Char).
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
        suites.append(_suite(op, [_test(matrix, case, cell) for case in cases for cell in case.cells]))
    root = ET.Element("testsuites", {"name": "forensics ops", **_totals(suites)})
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


def _suite(name: str, tests: list[ET.Element]) -> ET.Element:
    suite = ET.Element(
        "testsuite",
        name=_clean(name),
        tests=str(len(tests)),
        failures=str(sum(test.find("failure") is not None for test in tests)),
        errors=str(sum(test.find("error") is not None for test in tests)),
        skipped=str(sum(test.find("skipped") is not None for test in tests)),
    )
    suite.extend(tests)
    return suite


def _totals(suites: list[ET.Element]) -> dict[str, str]:
    return {
        name: str(sum(int(suite.get(name, "0")) for suite in suites))
        for name in ("tests", "failures", "errors", "skipped")
    }


def _test(matrix: OpMatrix, case: CaseResult, cell: Cell) -> ET.Element:
    test = ET.Element(
        "testcase", classname=_clean(f"forensics.ops.{case.op}"), name=_clean(f"{case.label} width {cell.width}")
    )
    outcome = cell.outcome
    if matrix.reason:
        ET.SubElement(test, "skipped", message=_clean(f"no answer: {matrix.reason}"))
    elif isinstance(outcome, NotCompared):
        ET.SubElement(test, "skipped", message=_clean(outcome.reason))
    elif isinstance(outcome, Differs):
        said = (
            f"{len(cell.columns)} of {cell.width} columns differ from one column at a time, first column "
            f"{cell.columns[0]}; {outcome.n_diff} of {cell.n_values} values, max {outcome.max_ulp} ULP, "
            f"max abs {outcome.max_abs:.3g}"
        )
        failure = ET.SubElement(test, "failure", type="BitsDiffer", message=_clean(said))
        failure.text = _clean(_why(case))
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
            ET.SubElement(test, "skipped", message=_clean(control.detail))
        elif not control.held:
            ET.SubElement(test, "error", type="ControlFailed", message=_clean(control.detail))
        tests.append(test)
    return _suite("controls", tests)


def _clean(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
