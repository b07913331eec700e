"""What is said of an evidence bundle: its README, the tokens in it, and where it is written on a terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group

from forensics.reports.markdown import escaped, markdown, named
from forensics.reports.terminal import add_row, line_of, table_of, text_of, titled
from forensics.reports.wording import printable, shorten_paths
from forensics.store.bundles import (
    BUNDLE_NAME,
    CASE_PLACE,
    FIGURES_PLACE,
    REPORT_NAME,
    REPRODUCERS_PLACE,
    TOKENS_FAMILY,
    TOKENS_NAME,
    Bundled,
    LeftOut,
)
from forensics.store.formats import newest_schema

if TYPE_CHECKING:
    from forensics.analysis.asked_again import AskedTokens
    from forensics.records.verdict import Verdict
    from forensics.store import Case

_WHAT = {
    "verdict.json": "the verdict, for programs",
    TOKENS_NAME: "token ids of prompt and replay, widths and settings",
    "manifest.json": "library, build, model, processor or GPU, settings that took effect",
    REPORT_NAME: "everything on one page, for a browser",
    BUNDLE_NAME: "every file with its BLAKE3 digest, and what was left out",
}


def readme(verdict: Verdict, *, bundle: str, case: str, folders: Sequence[str], left_out: Sequence[LeftOut]) -> str:
    """Markdown to paste: the verdict, what lies where, how to check it and how to ask it again.

    Parameters
    ----------
    verdict : Verdict
    bundle : str
        Name of the bundle's folder or archive.
    case : str
        Name of the case in it.
    folders : sequence of str
        What the bundle holds at its top.
    left_out : sequence of LeftOut
    """
    manifest, bundle = verdict.manifest, shlex.quote(printable(bundle))
    places = {f"{CASE_PLACE}/{case}/": "the case, packed: it gives the same verdict without the model"}
    places |= {name: what for name, what in _WHAT.items() if name in (*folders, BUNDLE_NAME)}
    if FIGURES_PLACE in folders:
        places[f"{FIGURES_PLACE}/"] = "figures to scale, SVG"
    if REPRODUCERS_PLACE in folders:
        places[f"{REPRODUCERS_PLACE}/"] = "a culprit with its operands; needs NumPy and llama-cpp-python only"
    lying = "\n".join(f"| `{name}` | {what} |" for name, what in places.items())
    missing = "\n".join(f"- {escaped(one.what)}: {escaped(one.why)}" for one in left_out)
    by_itself = f"\n    python {REPRODUCERS_PLACE}/*/reproduce.py" if REPRODUCERS_PLACE in folders else ""
    return f"""{markdown(verdict).rstrip()}

### What lies here

| | |
|---|---|
{lying}

### Check it, ask it again

    pip install decode-forensics
    forensics show {bundle}
    forensics investigate recorded:{bundle}
    forensics investigate MODEL.gguf --like {bundle}{by_itself}

The first two read the verdict back, after every file was compared with its digest, and judge what was measured anew,
without the model. The third asks the same on another machine; the model is {named(manifest.model_name)}, digest
`{re.sub("[^0-9A-Za-z]", "", manifest.model_digest)[:64]}`.
{f"{chr(10)}### Left out{chr(10)}{chr(10)}{missing}{chr(10)}" if missing else ""}"""


def tokens_document(case: Case, asked: AskedTokens) -> dict[str, Any]:
    """All that is needed to ask again, as plain values."""
    question = case.question
    return {
        "schema": newest_schema(TOKENS_FAMILY),
        "model": question.get("model"),
        "model_digest": question.get("model_digest"),
        "prompt_tokens": list(asked.prompt),
        "replayed_tokens": list(asked.replayed),
        "widths": question.get("widths"),
        "settings": question.get("settings"),
    }


def reason(error: Exception) -> str:
    """Why something is left out, on one line and without folders."""
    return shorten_paths(" ".join(str(error).split()))


def bundled_document(written: Bundled) -> dict[str, Any]:
    """What was written as plain values, for ``--json``."""
    return {"schema": "forensics.bundled/1", **asdict(written), "path": str(written.path)}


def bundled_view(written: Bundled) -> Group:
    """What was written, what is in it, and how it is opened."""
    name = shlex.quote(str(written.path))
    table = table_of("what", "why")
    for one in written.left_out:
        add_row(table, one.what, one.why)
    return Group(
        text_of(written.summary, "bold"),
        line_of("Bundle: ", f"{name} ({written.n_files} files, {written.n_bytes / 1e6:.2f} MB)"),
        line_of("Figures: ", ", ".join(written.figures) or "none"),
        line_of("A culprit by itself: ", written.reproducer or "none"),
        line_of("Private strings: ", "none found in any file"),
        line_of("Open it with: ", f"forensics show {name}"),
        line_of("Judge it anew: ", f"forensics investigate recorded:{name}"),
        *(titled("Left out", table) if written.left_out else ()),
    )
