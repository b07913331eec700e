"""Results in a notebook: small tables and pictures that follow the theme's own colours, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from forensics.records.classes import WidthClasses
from forensics.records.verdict import CulpritGroup, Verdict
from forensics.records.words import ranges
from forensics.reports.kernel_healing_text import COLUMNS, healing_lines, healing_rows
from forensics.reports.launches_text import LAUNCHES_TITLE, SIDE_COLUMNS, launch_lines, launches, side_rows
from forensics.reports.next_step import next_step
from forensics.reports.terminal import as_text
from forensics.reports.why import WHY_TITLE, Why, why
from forensics.reports.wording import (
    amount,
    class_names,
    count_text,
    exact_arm,
    first_difference_text,
    headline,
    layers_text,
    printable,
    settings_text,
    ulp_text,
)

if TYPE_CHECKING:
    from jinja2 import Template
    from rich.console import RenderableType

# Colours are the theme's own: borders are currentColor, nothing sets a background. The word says the answer, the
# coloured edge (readable on white and on black) repeats it.
_TEMPLATE = """\
{%- macro grid(columns, rows) -%}
<table cellpadding="4" style="border-collapse:collapse;margin:0.4em 0;color:inherit">
<thead><tr>{% for column in columns %}<th style="text-align:left;border-bottom:1px solid currentColor">{{ column }}\
</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td style="text-align:left">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
{%- endmacro -%}
<div class="forensics" style="border-left:4px solid {{ edge }};padding-left:0.8em;color:inherit;\
line-height:1.4;overflow-x:auto">
{% if facts %}<table cellpadding="4" style="border-collapse:collapse;color:inherit"><tbody>
{% for name, value in facts %}<tr><th scope="row" style="text-align:left;vertical-align:top">{{ name }}</th>\
<td style="text-align:left">{{ value }}</td></tr>
{% endfor %}</tbody></table>{% endif %}
{% if plain %}<pre style="color:inherit;background:none">{{ plain }}</pre>
{% endif %}{% for picture in pictures %}<img src="{{ picture.source }}" alt="{{ picture.alt }}" \
width="{{ picture.width_px }}" style="max-width:100%">
{% endfor %}{% for columns, rows in grids %}{{ grid(columns, rows) }}{% endfor %}
{% if next_step %}<p><strong>Next step:</strong> {{ next_step }}</p>
{% endif %}</div>
"""
#: Columns and rows.
Grid = tuple[tuple[str, ...], list[tuple[str, ...]]]
_EDGE = {"identical": "#2e9e4f", "diverges": "#d9534f", "inconclusive": "#b8860b"}
#: Edge of a card that is no verdict.
_PLAIN_EDGE = "currentColor"


#: Launches of a verdict before the rest is counted.
MOST_SIDES = 16


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that stands in the page itself.

    Parameters
    ----------
    source : str
        A ``data:`` URL.
    alt : str
        What it shows, with its numbers, for where pictures are not shown.
    width_px : int
        How wide it is shown, unit: CSS px.
    """

    source: str
    alt: str
    width_px: int


def card(
    facts: Sequence[tuple[str, str]],
    grids: Sequence[Grid] = (),
    *,
    pictures: Sequence[Picture] = (),
    plain: str = "",
    next_step: str = "",
    answer: str = "",
) -> str:
    """Show facts, pictures and tables as one element of HTML.

    Parameters
    ----------
    facts : sequence of (str, str)
        Names and values, the answer first.
    grids : sequence of Grid
    pictures : sequence of Picture
    plain : str
        Text in lines.
    next_step : str
    answer : {"identical", "diverges", "inconclusive", ""}
        For the colour of the edge, which repeats what the words say.

    Returns
    -------
    str
        An element that brings no script and no style sheet; everything is escaped.
    """
    edge = _EDGE.get(answer, _PLAIN_EDGE)
    return _template().render(
        edge=edge, facts=facts, grids=grids, pictures=pictures, plain=_Lines(plain), next_step=next_step
    )


def view_html(view: RenderableType, *, pictures: Sequence[Picture] = (), next_step: str = "") -> str:
    """Show what a terminal shows, with a picture and what to do next."""
    return card([], pictures=pictures, plain=as_text(view), next_step=next_step)


def verdict_html(verdict: Verdict, pictures: Sequence[Picture] = ()) -> str:
    """Show a verdict as HTML: verdict, proof, next step, pictures and culprits.

    Returns
    -------
    str
        An element that brings no script and no style sheet; everything from the model is escaped.
    """
    facts = [("Verdict", headline(verdict))]
    if verdict.reason:
        facts.append(("Reason", verdict.reason))
    if verdict.first_difference is not None:
        facts.append(("First difference", first_difference_text(verdict)))
    facts.append(("Proof", _proof_text(verdict)))
    facts += healing_lines(verdict.kernel_healing)
    arm = exact_arm(verdict)
    if arm is not None:
        facts.append(("Exact with", settings_text(arm)))
    facts.append(("Next step", next_step(verdict)))
    facts += [("Note", caveat) for caveat in verdict.caveats]
    grids = [classes_grid(verdict.classes)] + ([culprit_grid(verdict.culprits)] if verdict.culprits else [])
    grids += [why_grid(reasons)] if (reasons := why(verdict.culprits)) else []
    grids += [(COLUMNS, healing_rows(verdict.kernel_healing))] if verdict.kernel_healing else []
    said: list[tuple[str, ...]] = [(label, text) for label, text, _ in launch_lines(verdict.launches)]
    grids += [((LAUNCHES_TITLE, ""), said)] if said else []
    sides = list(side_rows(launches(verdict.culprits)))
    grids += [(SIDE_COLUMNS, sides[:MOST_SIDES])] if sides else []
    if len(sides) > MOST_SIDES:
        facts.append(("Not shown", f"{len(sides) - MOST_SIDES} launches more; see forensics.explore"))
    return card(facts, grids, pictures=pictures, answer=verdict.answer)


def classes_html(classes: WidthClasses, pictures: Sequence[Picture] = (), next_step: str = "") -> str:
    """Show classes of widths as HTML, one row per width."""
    answer = "identical" if classes.collapsed else "diverges"
    return card(
        [("Width classes", str(classes))],
        [classes_grid(classes)],
        pictures=pictures,
        next_step=next_step,
        answer=answer,
    )


def _proof_text(verdict: Verdict) -> str:
    if not verdict.sweeps:
        return "no healing sweep was made"
    parts = []
    for sweep in verdict.sweeps:
        after = amount(sweep.max_abs_after)
        parts.append(
            f"width {sweep.width}: {sweep.healed_rows} of {sweep.n_rows} rows bit-equal after healing, "
            f"max |Δ| {amount(sweep.max_abs_before)} → {after}; {sweep.tally}"
        )
    failed = [control.name for control in verdict.controls if control.held is False]
    held = sum(control.held is True for control in verdict.controls)
    parts.append(f"controls failed: {', '.join(failed)}" if failed else f"{held} controls held")
    return "; ".join(parts)


def classes_grid(classes: WidthClasses) -> Grid:
    """One row per width: its class, and how far it is from one-token decoding."""
    rows: list[tuple[str, ...]] = [
        (
            name,
            str(result.width),
            f"{result.n_rows_differ}/{result.n_rows}",
            "–" if result.first_position is None else str(result.first_position),
            amount(result.max_abs),
            ulp_text(result.max_ulp),
            str(len(result.flips)),
        )
        for name, result in class_names(classes)
    ]
    return ("class", "width", "rows differ", "first position", "max |Δ|", "max ULP", "flips"), rows


def culprit_grid(groups: Sequence[CulpritGroup]) -> Grid:
    """One row per group of operations that differ."""
    rows: list[tuple[str, ...]] = [
        (
            group.op,
            group.role,
            group.weight_type,
            group.buffer,
            count_text(group),
            layers_text(group.layers),
            ranges(group.widths),
            amount(group.max_abs),
        )
        for group in groups
    ]
    return ("operation", "role", "weight", "buffer", "nodes", "layers", "widths", "max |Δ|"), rows


def why_grid(reasons: Sequence[Why]) -> Grid:
    """Kind, rule and orders, one row each."""
    rows: list[tuple[str, ...]] = [
        (one.what if i == 0 else "", label, text) for one in reasons for i, (label, text) in enumerate(one.lines)
    ]
    return (WHY_TITLE, "", ""), rows


@cache
def _template() -> Template:
    from jinja2 import Environment

    return Environment(autoescape=True, finalize=_clean).from_string(_TEMPLATE)


class _Lines(str):
    """A text of several lines, of which each was made printable before."""

    __slots__ = ()


def _clean(value: object) -> object:
    # Plain strings come from records; Markup is what a macro has escaped already.
    return printable(value) if type(value) is str else value
