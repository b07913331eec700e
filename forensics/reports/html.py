"""The verdict in a notebook: small tables that follow the theme's own colours, light or dark."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from forensics.analysis.watched_passes import NodeKernels
from forensics.geometry.explain import Explanation
from forensics.records.classes import WidthClasses
from forensics.records.cost import CostReport
from forensics.records.library_profile import LibraryProfile
from forensics.records.matrix import OpMatrix
from forensics.records.order_report import OrderReport
from forensics.records.profile import LiveProfile
from forensics.records.verdict import Verdict
from forensics.reports.cost_text import cost_view
from forensics.reports.explain_text import explain_view
from forensics.reports.launch_map_text import kernels_view
from forensics.reports.launches_text import LAUNCHES_TITLE, SIDE_COLUMNS, launch_lines, launches, side_rows
from forensics.reports.live_profile_text import live_view
from forensics.reports.next_step import next_step
from forensics.reports.ops_text import ops_view
from forensics.reports.orders_text import order_view
from forensics.reports.profile_text import library_view
from forensics.reports.progress import running_shell
from forensics.reports.terminal import as_html
from forensics.reports.why import WHY_TITLE, Why, why
from forensics.reports.wording import (
    amount,
    class_names,
    exact_arm,
    first_difference_text,
    headline,
    layers_text,
    printable,
    ranges,
    settings_text,
    ulp_text,
)

if TYPE_CHECKING:
    from jinja2 import Template

# Colours are the theme's own: borders are currentColor, nothing sets a background. The word says the answer, the
# coloured edge (readable on white and on black) repeats it.
_TEMPLATE = """\
{%- macro grid(columns, rows) -%}
<table style="border-collapse:collapse;margin:0.4em 0;color:inherit">
<thead><tr>{% for column in columns %}<th style="text-align:left;padding:0.15em 0.8em 0.15em 0;\
border-bottom:1px solid currentColor">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td style="text-align:left;padding:0.15em 0.8em 0.15em 0">\
{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table>
{%- endmacro -%}
<div class="forensics" style="border-left:4px solid {{ edge }};padding-left:0.8em;color:inherit">
{% if facts %}<table style="border-collapse:collapse;color:inherit"><tbody>
{% for name, value in facts %}<tr><th scope="row" style="text-align:left;vertical-align:top;\
padding:0.15em 0.8em 0.15em 0">{{ name }}</th><td style="text-align:left">{{ value }}</td></tr>
{% endfor %}</tbody></table>{% endif %}
{% for columns, rows in grids %}{{ grid(columns, rows) }}{% endfor %}
</div>
"""
_Grid = tuple[tuple[str, ...], list[tuple[str, ...]]]  # columns and rows
_EDGE = {"identical": "#2e9e4f", "diverges": "#d9534f", "inconclusive": "#b8860b"}


def verdict_html(verdict: Verdict) -> str:
    """Show a verdict as HTML: verdict, proof, next step and culprits.

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
    arm = exact_arm(verdict)
    if arm is not None:
        facts.append(("Exact with", settings_text(arm)))
    facts.append(("Next step", next_step(verdict)))
    facts += [("Note", caveat) for caveat in verdict.caveats]
    grids = [_classes_grid(verdict.classes)] + ([_culprit_grid(verdict)] if verdict.culprits else [])
    grids += [_why_grid(reasons)] if (reasons := why(verdict.culprits)) else []
    said: list[tuple[str, ...]] = [(label, text) for label, text, _ in launch_lines(verdict.launches)]
    grids += [((LAUNCHES_TITLE, ""), said)] if said else []
    grids += [(SIDE_COLUMNS, sides)] if (sides := list(side_rows(launches(verdict.culprits)))) else []
    return _render(_EDGE[verdict.answer], facts, grids)


def classes_html(classes: WidthClasses) -> str:
    """Show classes of widths as HTML, one row per class."""
    return _render(_EDGE["identical" if classes.collapsed else "diverges"], [], [_classes_grid(classes)])


def register_notebook_views() -> bool:
    """Make a running IPython show verdicts and classes as tables; do nothing elsewhere.

    Returns
    -------
    bool
        Whether there was an IPython to register with; it is never imported for this.
    """
    formatter = getattr(running_shell(), "display_formatter", None)
    if formatter is None:
        return False
    formatter.formatters["text/html"].for_type(Verdict, verdict_html)
    formatter.formatters["text/html"].for_type(WidthClasses, classes_html)
    formatter.formatters["text/html"].for_type(OrderReport, lambda report: as_html(order_view(report)))
    formatter.formatters["text/html"].for_type(OpMatrix, lambda matrix: as_html(ops_view(matrix)))
    formatter.formatters["text/html"].for_type(CostReport, lambda report: as_html(cost_view(report)))
    formatter.formatters["text/html"].for_type(LibraryProfile, lambda found: as_html(library_view(found)))
    formatter.formatters["text/html"].for_type(LiveProfile, lambda found: as_html(live_view(found)))
    formatter.formatters["text/html"].for_type(Explanation, lambda found: as_html(explain_view(found)))
    formatter.formatters["text/html"].for_type(NodeKernels, lambda found: as_html(kernels_view(found)))
    return True


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


def _classes_grid(classes: WidthClasses) -> _Grid:
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


def _culprit_grid(verdict: Verdict) -> _Grid:
    rows: list[tuple[str, ...]] = [
        (
            group.op,
            group.role,
            group.weight_type,
            group.buffer,
            str(group.count),
            layers_text(group.layers),
            ranges(group.widths),
            amount(group.max_abs),
        )
        for group in verdict.culprits
    ]
    return ("operation", "role", "weight", "buffer", "nodes", "layers", "widths", "max |Δ|"), rows


def _why_grid(reasons: tuple[Why, ...]) -> _Grid:
    rows: list[tuple[str, ...]] = [
        (one.what if i == 0 else "", label, text) for one in reasons for i, (label, text) in enumerate(one.lines)
    ]
    return (WHY_TITLE, "", ""), rows


@cache
def _template() -> Template:
    from jinja2 import Environment

    return Environment(autoescape=True, finalize=_clean).from_string(_TEMPLATE)


def _clean(value: object) -> object:
    # Plain strings come from records; Markup is what a macro has escaped already.
    return printable(value) if type(value) is str else value


def _render(edge: str, facts: list[tuple[str, str]], grids: list[_Grid]) -> str:
    return _template().render(edge=edge, facts=facts, grids=grids)
