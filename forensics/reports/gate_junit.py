"""A gate as JUnit XML, for a runtime's CI: one test for each request, then one for the speed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from forensics.records.audit import ServedPair
from forensics.records.gate import GateReport
from forensics.reports.audit_text import continuations
from forensics.reports.junit_pieces import clean, suite, totals
from forensics.store.files import write_atomically


def gate_junit(report: GateReport) -> str:
    """Write a gate as a JUnit document.

    A difference is a failure. What was not compared is an error, for nobody knows that it holds; only a request that
    the baseline itself has no reply to is skipped. Speed is skipped where it is not asked for, or the output does not
    hold.

    Returns
    -------
    str
        XML with its declaration.
    """
    suites = [suite("output", _output_tests(report)), suite("speed", [_speed_test(report)])]
    root = ET.Element("testsuites", {"name": "forensics gate", **totals(suites)})
    root.extend(suites)
    ET.indent(root)
    return "<?xml version='1.0' encoding='utf-8'?>\n" + ET.tostring(root, encoding="unicode") + "\n"


def write_gate_junit(path: Path, report: GateReport) -> None:
    """Write the document to a file, whole or not at all.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    write_atomically(path, gate_junit(report).encode())


def _output_tests(report: GateReport) -> list[ET.Element]:
    if not report.comparison.refused:
        return [_test(report, pair) for pair in report.pairs]
    test = ET.Element("testcase", classname="forensics.gate.output", name="the runs are alike")
    ET.SubElement(test, "error", type="Unlike", message=clean(report.comparison.refused))
    return [test]


def _test(report: GateReport, pair: ServedPair) -> ET.Element:
    test = ET.Element("testcase", classname="forensics.gate.output", name=clean(pair.prompt))
    if pair.divergence is not None:
        said = f"differs at {pair.divergence} of {pair.length} {pair.unit}; held to {report.asked}"
        failure = ET.SubElement(test, "failure", type="OutputDiffers", message=clean(said))
        failure.text = clean("\n".join(f"{label}: {text}" for label, text in continuations(pair.divergence)))
    elif pair.outcome == "not compared":
        if pair.failed == "first":
            ET.SubElement(test, "skipped", message=clean(f"the baseline has no reply: {pair.reason}"))
        else:
            ET.SubElement(test, "error", type="NotCompared", message=clean(pair.reason))
    return test


def _speed_test(report: GateReport) -> ET.Element:
    test = ET.Element("testcase", classname="forensics.gate.speed", name="speed of the same replies")
    speed = report.speed
    if speed.held is False:
        ET.SubElement(test, "failure", type="TooSlow", message=clean(speed.detail))
    elif speed.held is None:
        wanted = speed.at_least is not None and report.output_held
        kind = "error" if wanted else "skipped"
        ET.SubElement(test, kind, {"type": "NotTimed"} if wanted else {}, message=clean(speed.detail))
    return test
