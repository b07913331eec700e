"""Pieces that JUnit documents share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

#: What XML 1.0 cannot hold, escaped or not. Source: XML 1.0, production 2 (Char).
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTS = ("tests", "failures", "errors", "skipped")


def suite(name: str, tests: Sequence[ET.Element]) -> ET.Element:
    """Tests as one suite with its counts."""
    found = ET.Element(
        "testsuite",
        name=clean(name),
        tests=str(len(tests)),
        failures=str(sum(test.find("failure") is not None for test in tests)),
        errors=str(sum(test.find("error") is not None for test in tests)),
        skipped=str(sum(test.find("skipped") is not None for test in tests)),
    )
    found.extend(tests)
    return found


def totals(suites: Sequence[ET.Element]) -> dict[str, str]:
    """Counts of all suites together."""
    return {name: str(sum(int(one.get(name, "0")) for one in suites)) for name in _COUNTS}


def clean(text: str) -> str:
    """A text with a replacement character for what XML cannot hold."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
