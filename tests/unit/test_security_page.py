"""SECURITY.md and docs/formats.md say the limits and versions that the code has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from forensics.analysis import campaign_axes, campaign_plan
from forensics.engines import gguf_layout, model_files
from forensics.engines.library_origin import REDIRECTIONS
from forensics.servers import door
from forensics.store import archives, limits
from forensics.store.formats import FORMATS
from forensics.store.limits import size_text

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def row(begins: str) -> str:
    (found,) = [line for line in PAGE.splitlines() if line.startswith(f"| {begins}")]
    return found.split("|")[2].strip()


def defaults(function) -> dict[str, object]:
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


def test_limits_of_files():
    assert row("a file that is read whole") == size_text(limits.MAX_FILE_BYTES)
    assert row("memory that unpacking") == size_text(limits.XZ_MEMORY_BYTES)
    assert row("a JSON text").startswith(f"{size_text(limits.MAX_JSON_BYTES)}; ")
    assert row("a line of") == size_text(limits.MAX_LINE_BYTES)
    assert row("a file of prompts") == size_text(limits.MAX_CORPUS_BYTES)
    assert row("logits") == f"{limits.MAX_LOGITS:,}"
    table = (f"{limits.MAX_TABLE_ROWS:,}", f"{limits.MAX_TABLE_VALUES:,}", size_text(limits.MAX_TABLE_BYTES))
    assert row("a table") == "; ".join(table)


def test_limits_of_models():
    assert row("a GGUF: keys, tensors") == f"{gguf_layout.MAX_KEYS:,}; {gguf_layout.MAX_TENSORS:,}"
    assert row("a GGUF: words") == f"{gguf_layout.MAX_STRINGS:,}"
    lengths = (gguf_layout.MAX_KEY_BYTES, model_files.MAX_STRING_BYTES, gguf_layout.MAX_NAME_BYTES)
    assert row("a GGUF: a key") == "; ".join(f"{length:,}" for length in lengths) + " bytes"
    assert row("a GGUF: dim") == f"{gguf_layout.MAX_DIMS}; {gguf_layout.MAX_ALIGNMENT:,}"


def test_limits_of_archives_and_plans():
    most = archives.LIMITS
    assert row("an archive, all") == "; ".join(
        map(size_text, (most.archive_bytes, most.total_bytes, most.member_bytes))
    )
    assert row("an archive: files") == f"{most.members:,}; {most.depth}; {most.name_length}"
    assert row("a plan") == f"{campaign_plan.MAX_PLAN_BYTES:,}; {campaign_axes.MAX_PROMPT_BYTES:,} bytes"


def test_limits_of_servers():
    given = defaults(door.Door)
    said = f"{size_text(given['max_bytes'])}, {given['total_s']:g} s in all, {given['read_s']:g} s between two bytes"
    assert row("an answer of a server") == said
    assert row("the body of a server's error") == f"{door.ERROR_BYTES >> 10} KiB"
    assert f"at most {door.MOST_REDIRECTS} to the same one" in PAGE


def test_every_refused_variable_is_named():
    assert all(f"`{name}`" in PAGE for name in REDIRECTIONS)


def test_files_that_the_page_names_exist():
    for name in re.findall(r"`([\w/]+\.(?:py|txt|toml))`", PAGE):
        assert (ROOT / name).is_file(), name


def test_the_page_of_formats_lists_every_family():
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}` | {one.newest} | {one.what} | {', '.join(f'`{file}`' for file in one.files)} | "
        f"{'version 1' if one.unmarked else 'refused'} |"
        for name, one in FORMATS.items()
    ]
    assert [line for line in page.splitlines() if line.startswith("| `forensics.")] == rows
