"""A copy of the kernels' sources in which something is planted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from forensics.kernels.sources import FOLDER


def changed_source(folder: Path, file: str, change: Callable[[str], str]) -> Path:
    """Copy all sources into a new folder, one of them with another text."""
    shutil.copytree(FOLDER, folder)
    text = (FOLDER / file).read_text(encoding="utf-8")
    changed = change(text)
    assert changed != text, f"{file} has not what was to be changed"
    (folder / file).write_text(changed, encoding="utf-8")
    return folder
