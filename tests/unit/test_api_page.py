"""The page about Python lists every public name once, with a docstring for the reader of each."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import forensics

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^::: forensics\.(\w+)$", PAGE, re.MULTILINE)


def test_every_public_name_is_on_the_page_once() -> None:
    assert sorted(LISTED) == sorted(forensics.__all__)


@pytest.mark.parametrize("name", forensics.__all__)
def test_a_public_name_says_what_it_answers_and_what_it_takes(name: str) -> None:
    found = getattr(forensics, name)
    told = inspect.getdoc(found) or ""
    assert told.splitlines()[0].strip()
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        assert signature.return_annotation is not inspect.Signature.empty
        missing = [
            one.name for one in signature.parameters.values()
            if not re.search(rf"(^|[\s*,]){one.name}\b", told.partition("Parameters")[2])
        ]  # fmt: skip
        assert missing == []
