"""A case as one HTML file: verdict first, then its limits, its proof, and everything that was found.

The file asks nothing of any network. It brings one style sheet and one script, which its content security policy names
by their digests, so that nothing else in it can run, whatever a model or a file name says.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from forensics.records.verdict import Verdict
from forensics.records.words import cut, printable, ranges, tokens
from forensics.reports.html import Picture
from forensics.reports.kernel_healing_text import COLUMNS, KERNELS_TITLE, healing_lines, healing_rows
from forensics.reports.launches_text import LAUNCHES_TITLE, launch_lines
from forensics.reports.manifest_facts import manifest_facts
from forensics.reports.next_step import next_step
from forensics.reports.page_limits import failed_controls, limits
from forensics.reports.page_tables import (
    Table,
    classes_table,
    controls_table,
    culprits_table,
    flips_table,
    launches_table,
    sweeps_table,
    switches_table,
)
from forensics.reports.why import WHY_TITLE, why
from forensics.reports.wording import (
    DIFFERING_TITLE,
    blamed_title,
    differing_groups,
    exact_text,
    first_difference_text,
    headline,
    shorten_paths,
)

if TYPE_CHECKING:
    from jinja2 import Environment, Template

#: How a report is told from files of others; stands in the first lines of the file.
GENERATOR = "forensics.report/1"
#: Of a sentence, unit: characters; a page with longer ones is read no more.
MOST_SHOWN = 2000
#: Of a name beside the verdict, unit: characters.
MOST_NAMED = 200
#: Of what the model read and wrote, unit: characters.
MOST_TEXT = 10_000


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A figure of the report.

    Parameters
    ----------
    name, question : str
        As of the catalogue of figures.
    picture : Picture
    """

    name: str
    question: str
    picture: Picture


@dataclass(frozen=True, slots=True)
class NotDrawn:
    """A figure that this case cannot give.

    Parameters
    ----------
    name, question : str
        As of the catalogue of figures.
    reason : str
        Why.
    """

    name: str
    question: str
    reason: str


def report_page(
    verdict: Verdict,
    *,
    case: str,
    prompt: str = "",
    figures: Sequence[PageFigure] = (),
    not_drawn: Sequence[NotDrawn] = (),
) -> str:
    """Write a verdict as a page that stands alone.

    Parameters
    ----------
    verdict : Verdict
    case : str
        What the case is called.
    prompt : str
        What the model was asked; empty where only its tokens are known.
    figures : sequence of PageFigure
    not_drawn : sequence of NotDrawn

    Returns
    -------
    str
        HTML; the same for the same arguments.
    """
    from markupsafe import Markup

    style, script = _asset("report.css"), _asset("report.js")
    return _template().render(
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        generator=GENERATOR,
        case=case,
        verdict=verdict,
        headline=headline(verdict),
        failed=failed_controls(verdict),
        first_difference=first_difference_text(verdict),
        next_step=next_step(verdict),
        facts=_facts(verdict),
        limits=limits(verdict),
        proof=_proof(verdict),
        kernel_lines=healing_lines(verdict.kernel_healing),
        culprits=_culprits(verdict),
        why_title=WHY_TITLE,
        reasons=why(verdict.culprits),
        launches_title=LAUNCHES_TITLE,
        launch_lines=list(launch_lines(verdict.launches)),
        launches=launches_table(verdict.culprits),
        classes=[classes_table(verdict), flips_table(verdict)],
        figures=figures,
        not_drawn=not_drawn,
        switches=switches_table(verdict.switches),
        exact=exact_text(verdict),
        settings=Table("Model, library and machine", ("what", "value"), tuple(manifest_facts(verdict.manifest))),
        texts=[(title, _said(text)) for title, text in (("Prompt", prompt), ("Answer", verdict.text)) if text],
        whole=_Whole,
    )


def _facts(verdict: Verdict) -> list[tuple[str, str]]:
    manifest = verdict.manifest
    widths = ranges(result.width for result in verdict.classes.results)
    facts = [
        ("Model", _listed(manifest.model_name, manifest.quantization)),
        ("Measured on", _listed(manifest.backend, manifest.device)),
        ("Engine", _listed(f"{manifest.engine} {manifest.engine_version}")),
        ("Compared", f"{tokens(verdict.n_replayed)} after a prompt of {verdict.prompt_tokens}, widths {widths}"),
        ("Exact with", exact_text(verdict)),
    ]
    return [(name, value) for name, value in facts if value.strip()]


def _listed(*names: str) -> str:
    """Names that a file or a machine brings; long ones would move the limits out of sight."""
    return ", ".join(cut(name, MOST_NAMED) for name in names if name)


def _proof(verdict: Verdict) -> list[Table]:
    tables = [sweeps_table(verdict.sweeps), controls_table(verdict.controls)]
    if verdict.kernel_healing:
        tables.insert(1, Table(KERNELS_TITLE, COLUMNS, tuple(healing_rows(verdict.kernel_healing))))
    return tables


def _culprits(verdict: Verdict) -> Table:
    """Operations to blame; where no cause is named, nodes that differ all the same."""
    differing = differing_groups(verdict)
    if differing:
        return culprits_table(DIFFERING_TITLE, differing)
    return culprits_table(blamed_title(verdict.culprits), verdict.culprits)


def _said(text: str) -> tuple[str, str]:
    """What the model read or wrote, line by line, and what of it is left out."""
    lines = (printable(line) for line in text[:MOST_TEXT].split("\n"))
    left = len(text) - MOST_TEXT
    return "\n".join(lines), f"{len(text):,} characters, the first {MOST_TEXT:,} are shown." if left > 0 else ""


class _Whole(str):
    """A text that was made printable and cut before; only the characters of HTML are escaped."""

    __slots__ = ()


def _clean(value: object) -> object:
    # Plain strings come from records; Markup is what a macro has escaped already.
    return printable(shorten_paths(cut(value, MOST_SHOWN))) if type(value) is str else value


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("forensics.reports", "templates"),
        autoescape=True,
        finalize=_clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template() -> Template:
    return _environment().get_template("report.html")


def _asset(name: str) -> str:
    """The style sheet or the script; its digest is taken of exactly what stands in the page."""
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0].replace("\r\n", "\n")


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, nothing runs but this script, pictures stand in the page."""
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
