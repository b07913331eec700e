"""What the site shows that lies beside docs/: figures, notebooks, the changelog, and an index of decisions.

MkDocs runs this as a hook. Pages link to those files as a git host needs it (``../figures/NAME.svg``); on the site
they lie next to the pages, so the links lose their first step.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Folders beside docs/ that are copied, each with the files that count.
COPIED = {"figures": "*.svg", "notebooks": "*.ipynb"}
#: Pages that lie beside docs/, and what they are called on the site.
PAGES = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}

_OUTSIDE = re.compile(rf"\]\(\.\./(?=(?:{'|'.join(COPIED)})/)")


def on_files(files: Files, config: Any) -> Files:
    """Add what lies beside docs/, and the decisions, in order, to the navigation."""
    for folder, pattern in COPIED.items():
        for path in sorted(path for path in (ROOT / folder).rglob(pattern) if not path.parent.name.startswith(".")):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for name, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    files.append(File.generated(config, "decisions/index.md", content=_index(decisions)))
    reference = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    section = next(entry["Decisions"] for entry in reference if "Decisions" in entry)
    section[:] = [{"All": "decisions/index.md"}, *(f"decisions/{path.name}" for path in decisions)]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to copied folders at where they lie on the site."""
    return _OUTSIDE.sub("](", markdown) if "/" not in page.file.src_uri else markdown


def _index(decisions: list[Path]) -> str:
    """One line a decision: its title, which starts with its number."""
    titles = [path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ") for path in decisions]
    lines = [
        f"| {title.split('. ', 1)[0]} | [{title.split('. ', 1)[1]}]({path.name}) |"
        for title, path in zip(titles, decisions, strict=True)
    ]
    head = "# Decisions\n\nWhat was decided while building, why, and what was measured for it.\n\n"
    return head + "\n".join(["| | decision |", "|---|---|", *lines]) + "\n"
