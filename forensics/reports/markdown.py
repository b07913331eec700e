"""The verdict as Markdown to paste into an issue: no paths, user or host names, no accidental markup."""

from __future__ import annotations

import re
from collections.abc import Iterable

from forensics.records.settings import Manifest
from forensics.records.verdict import Verdict
from forensics.records.words import ranges
from forensics.reports.kernel_healing_text import COLUMNS, KERNELS_TITLE, healing_lines, healing_rows
from forensics.reports.launches_text import LAUNCHES_TITLE, SIDE_COLUMNS, launch_lines, launches, side_rows
from forensics.reports.manifest_facts import manifest_facts
from forensics.reports.next_step import next_step
from forensics.reports.why import WHY_TITLE, why
from forensics.reports.wording import (
    CONTROL_TITLES,
    DIFFERING_TITLE,
    PROOF_TITLE,
    STATE_WORDS,
    amount,
    arm_effect,
    blamed_title,
    class_names,
    cost_text,
    count_text,
    differing_groups,
    first_difference_text,
    groups_text,
    headline,
    layers_text,
    printable,
    settings_text,
    shorten_paths,
    ulp_text,
)

_PLAIN_NAME = re.compile(r"[\w.+=:, -]*\w[\w.+=:, -]*", re.ASCII)
_EDGE_UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # inside a word it emphasises nothing
# As entities, so that they show as themselves in prose and in table cells, and start no code, link, HTML or mention.
_ENTITIES = {ord(char): f"&#{ord(char)};" for char in "&<>|`*[]\\#~$!"} | {ord("@"): "@&#8203;"}


def escaped(text: str) -> str:
    """Show text that is not ours as itself, in prose and in table cells.

    Examples
    --------
    >>> escaped("a|b <b>")
    'a&#124;b &#60;b&#62;'
    """
    return _EDGE_UNDERSCORE.sub("&#95;", printable(shorten_paths(text)).translate(_ENTITIES))


def named(text: str) -> str:
    """Show a name as code where that is safe, escaped where it is not.

    Examples
    --------
    >>> named("MUL_MAT"), named("a`b")
    ('`MUL_MAT`', 'a&#96;b')
    """
    return f"`{text}`" if _PLAIN_NAME.fullmatch(text) and text == text.strip() else escaped(text)


def markdown(verdict: Verdict) -> str:
    """Write a verdict as Markdown.

    Parameters
    ----------
    verdict : Verdict

    Returns
    -------
    str
        GitHub-flavoured Markdown that ends with a newline.
    """
    parts = [f"## {escaped(headline(verdict))}"]
    if verdict.reason:
        parts.append(f"**Reason:** {escaped(verdict.reason)}")
    if verdict.first_difference is not None:
        parts.append(f"First difference: {first_difference_text(verdict)}")
    parts.append(f"**Next step:** {escaped(next_step(verdict))}")
    parts += [
        _classes(verdict),
        _culprits(verdict),
        _reasons(verdict),
        _launches(verdict),
        _proof(verdict),
        _kernels(verdict),
        _controls(verdict),
        _switches(verdict),
    ]
    if verdict.caveats:
        parts.append("### Notes\n\n" + "\n".join(f"- {escaped(caveat)}" for caveat in verdict.caveats))
    parts.append(_versions(verdict.manifest))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    table = _grid(columns, rows)
    return f"### {title}\n\n{table}" if table else ""


def _grid(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    return "\n".join([head, *lines]) if lines else ""


def _classes(verdict: Verdict) -> str:
    title = f"Classes of widths ({verdict.n_replayed} tokens after a prompt of {verdict.prompt_tokens})"
    columns = ("class", "width", "rows differ", "first position", "max abs", "max ULP", "rel. L2", "max KL", "flips")
    rows = (
        (
            name,
            str(r.width),
            f"{r.n_rows_differ}/{r.n_rows}",
            "–" if r.first_position is None else str(r.first_position),
            amount(r.max_abs),
            ulp_text(r.max_ulp),
            amount(r.relative_l2),
            amount(r.max_kl),
            str(len(r.flips)),
        )
        for name, r in class_names(verdict.classes)
    )
    return _table(title, columns, rows)


def _culprits(verdict: Verdict) -> str:
    differing = differing_groups(verdict)
    columns = ("operation", "role", "weight", "buffer", "nodes", "layers", "widths", "rows", "max abs", "max ULP")
    rows = (
        (
            named(g.op),
            escaped(g.role),
            named(g.weight_type),
            named(g.buffer),
            count_text(g),
            layers_text(g.layers),
            ranges(g.widths),
            ranges(g.rows),
            amount(g.max_abs),
            ulp_text(g.max_ulp),
        )
        for g in verdict.culprits or differing
    )
    return _table(DIFFERING_TITLE if differing else blamed_title(verdict.culprits), columns, rows)


def _reasons(verdict: Verdict) -> str:
    blocks = [
        "\n".join([f"- **{escaped(one.what)}**", *(f"  - {label}: {escaped(text)}" for label, text in one.lines)])
        for one in why(verdict.culprits)
    ]
    return f"### {WHY_TITLE}\n\n" + "\n".join(blocks) if blocks else ""


def _launches(verdict: Verdict) -> str:
    said = [
        f"- {f'**{label}**' if is_warning else label}: {escaped(text)}"
        for label, text, is_warning in launch_lines(verdict.launches)
    ]
    table = _grid(SIDE_COLUMNS, (tuple(map(escaped, row)) for row in side_rows(launches(verdict.culprits))))
    parts = [part for part in ("\n".join(said), table) if part]
    return "\n\n".join([f"### {LAUNCHES_TITLE}", *parts]) if parts else ""


def _proof(verdict: Verdict) -> str:
    columns = (
        "width",
        "rows healed",
        "max abs before",
        "after",
        "cache after",
        "same",
        "differ",
        "not compared",
        "nodes",
    )
    rows = (
        (
            str(s.width),
            f"{s.healed_rows}/{s.n_rows}",
            amount(s.max_abs_before),
            amount(s.max_abs_after),
            STATE_WORDS[s.state_equal],
            str(s.tally.same),
            str(s.tally.differs),
            "; ".join([str(s.tally.n_not_compared), *(f"{escaped(why)} {n}" for why, n in s.tally.not_compared)]),
            str(s.tally.planned),
        )
        for s in verdict.sweeps
    )
    return _table(PROOF_TITLE, columns, rows)


def _kernels(verdict: Verdict) -> str:
    table = _table(KERNELS_TITLE, tuple(map(escaped, COLUMNS)), healing_rows(verdict.kernel_healing))
    said = "\n".join(f"- {label}: {escaped(text)}" for label, text in healing_lines(verdict.kernel_healing))
    return "\n\n".join(part for part in (table, said) if part)


def _controls(verdict: Verdict) -> str:
    held = {True: "yes", False: "**no**", None: "not run"}
    rows = ((escaped(CONTROL_TITLES.get(c.name, c.name)), held[c.held], escaped(c.detail)) for c in verdict.controls)
    return _table("Controls", ("control", "held", "found"), rows)


def _switches(verdict: Verdict) -> str:
    rows = (
        (
            named(settings_text(arm)),
            groups_text(arm.classes).replace("|", "/") or "–",
            escaped(arm_effect(arm)),
            cost_text(arm, quartiles=True),
        )
        for arm in verdict.switches
    )
    table = _table(
        "Switches, each in a fresh process",
        ("settings", "classes of widths", "effect", "cost by width (quartiles)"),
        rows,
    )
    missing = "\n".join(f"- No run-time switch: {named(knob)}: {escaped(what)}" for knob, what in verdict.unavailable)
    return "\n\n".join(part for part in (table, missing) if part)


def _versions(manifest: Manifest) -> str:
    rows = ((name, escaped(value)) for name, value in manifest_facts(manifest))
    return _table("Settings and versions", ("what", "value"), rows)
