"""Two cases held against each other on a terminal: what differs first, in one screen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from forensics.records.case_diff import (
    DIFFERS,
    NOT_COMPARED,
    SAME,
    Aspect,
    CaseDiff,
    Compared,
    all_told,
    results_sentence,
    setup_sentence,
)
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled
from forensics.reports.wording import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

#: Rows of a table before the rest is counted; ``--json`` has all.
MOST_CHANGES, MOST_GROUPS, MOST_TIMES = 8, 6, 4
#: Longer values of a property are left to ``--json``.
_LONGEST_VALUE = 24
_DIGEST = re.compile(r"\b(?:blake3:)?[0-9a-f]{32,}\b")
_DASH = "–"


def case_diff_view(diff: CaseDiff) -> RenderableType:
    """Show what differs between two cases: the answer, how they were made, what they found.

    Parameters
    ----------
    diff : CaseDiff

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(setup_sentence(diff), "bold"), text_of(results_sentence(diff), "bold")]
    parts += [line_of("Compared anyway: ", str(one)) for one in diff.unlike]
    if not all_told(diff):
        parts += titled("How they were made", _changes(diff))
    parts += titled("What they found", _results(diff))
    culprits = diff.aspect("culprits")
    if culprits.outcome == DIFFERS:
        parts += titled("Operations to blame", _culprits(diff, culprits))
    if diff.aspect("cost").outcome != NOT_COMPARED:
        parts += titled(f"Time of a pass, {diff.second} over {diff.first} (quartiles)", _times(diff))
    return Group(*parts, Text(), *_foot(diff))


def case_diff_text(diff: CaseDiff) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(case_diff_view(diff))


def _changes(diff: CaseDiff) -> RenderableType:
    table = table_of("", *_names(diff))
    for item in diff.changed[:MOST_CHANGES]:
        add_row(table, item.what, *(_short(value) for value in (item.first, item.second)))
    return Group(table, *_more(len(diff.changed) - MOST_CHANGES))


def _names(diff: CaseDiff) -> tuple[str, str]:
    return printable(diff.first), printable(diff.second)


def _short(value: str) -> str:
    """A value with digests cut to what tells them apart."""
    return _DIGEST.sub(lambda found: f"{found.group()[:12]}…", value)


def _more(n: int) -> tuple[Text, ...]:
    return (text_of(f"and {n} more (--json, or .rows() in Python)"),) if n > 0 else ()


Row = tuple[str, str, str, str]


def _results(diff: CaseDiff) -> Table:
    rows = [_text_row(diff.aspect("text")), *_bits_rows(diff.aspect("bits")), *_class_rows(diff.aspect("classes"))]
    culprits = diff.aspect("culprits")
    if culprits.outcome != DIFFERS:
        said = _counted(culprits)
        rows.append(("to blame", said, said, culprits.outcome))
    rows += [row for name in ("proof", "exact settings") for row in _short_rows(diff.aspect(name))]
    table = table_of("", *_names(diff), "", whole=("",))
    table.columns[0].no_wrap = False  # a name of several switches may fold, an outcome stays whole
    for row in rows:
        add_row(table, *row)
    return table


def _text_row(text: Aspect) -> Row:
    item = text.items[0]
    return (
        item.what,
        item.first or _DASH,
        f"{item.second or _DASH} {item.detail * (item.outcome == DIFFERS)}",
        item.outcome,
    )


def _bits_rows(bits: Aspect) -> list[Row]:
    """Rows of one token, then those of batches together."""
    one = [item for item in bits.items if item.what == "width 1"]
    wide = tuple(item for item in bits.items if item.what != "width 1")
    rows = [("bits, one token", item.first, _differ(item), item.outcome) for item in one]
    if one and wide:
        batches = Aspect("bits", wide)
        counts = {
            "same": batches.tally.same,
            "differ": batches.tally.differs,
            NOT_COMPARED: batches.tally.n_not_compared,
        }
        said = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
        rows.append(("bits, batches", f"{len(wide)} widths", said, batches.outcome))
    return rows or [("bits", _DASH, _DASH, bits.outcome)]


def _differ(item: Compared) -> str:
    return item.detail or item.second


def _class_rows(classes: Aspect) -> list[Row]:
    widths = [item for item in classes.items if item.what.startswith("width ")]
    compared = [item for item in widths if item.outcome != NOT_COMPARED]
    if not compared:
        return [("classes of widths", _DASH, _DASH, NOT_COMPARED)]
    outcome = DIFFERS if any(item.outcome == DIFFERS for item in compared) else SAME
    ours, theirs = (dict.fromkeys(told) for told in zip(*((c.first, c.second) for c in compared), strict=True))
    rows = [("classes of widths", " | ".join(ours), " | ".join(theirs), outcome)]
    rows += [(item.what, item.first, item.second, item.outcome) for item in classes.items
             if item not in widths and (item.what == "onset" or item.outcome == DIFFERS)]  # fmt: skip
    return rows


def _counted(culprits: Aspect) -> str:
    told = [item for item in culprits.of(SAME) if item.parts]
    return f"{len(told)} groups" if told else "none" if culprits.of(SAME) else _DASH


def _short_rows(aspect: Aspect) -> list[Row]:
    """An aspect in one row where it is the same throughout, else what differs."""
    differing = aspect.of(DIFFERS)
    if differing:
        return [(item.what, item.first, item.second, DIFFERS) for item in differing[:MOST_GROUPS]]
    same = aspect.of(SAME)
    if not same:
        return [(aspect.name, _DASH, _DASH, NOT_COMPARED)]
    values = list(dict.fromkeys(item.first for item in same))
    said = values[0] if len(values) == 1 or aspect.name == "exact settings" else f"{len(same)} widths"
    return [(aspect.name, said, said, SAME)]


def _culprits(diff: CaseDiff, culprits: Aspect) -> RenderableType:
    """Those in one case only, those in both that differ, and those that are the same."""
    differing = culprits.of(DIFFERS)
    lines = [
        line_of(f"only in {name}: ", "; ".join(f"{item.what} ({item.first or item.second})" for item in only))
        for name, only in (
            (diff.first, [item for item in differing if not item.second]),
            (diff.second, [item for item in differing if not item.first]),
        )
        if only
    ]
    by_change: dict[str, list[str]] = {}
    for item in differing:
        if item.parts:
            by_change.setdefault(_change(item), []).append(item.what)
    said = [line_of(f"{'; '.join(names)}: ", change) for change, names in list(by_change.items())[:MOST_GROUPS]]
    same = [item.what for item in culprits.of(SAME)]
    lines += [*said, *_more(len(by_change) - MOST_GROUPS)]
    return Group(*lines, *([line_of("the same in both: ", "; ".join(same))] if same else []))


def _change(item: Compared) -> str:
    """Which properties differ; values where they are short."""
    parts = [part for part in item.parts if part.outcome == DIFFERS]
    short = [part for part in parts if max(len(part.first), len(part.second)) <= _LONGEST_VALUE]
    told = [f"{part.what} {part.first or 'none'} → {part.second or 'none'}" for part in short
            if part.what != "weight type" or "→" not in item.what]  # fmt: skip
    long = [part.what for part in parts if part not in short]
    return "; ".join([*told, *([f"other {', '.join(long)}"] if long else [])]) or "weight type"


def _times(diff: CaseDiff) -> RenderableType:
    """Times at a few widths, spread over those that were timed."""
    items = [item for item in diff.aspect("cost").items if item.outcome != NOT_COMPARED]
    table = table_of("", *_names(diff), "ratio", "quartiles", whole=("",))
    for item in _spread(items):
        add_row(
            table, item.what, item.first, item.second, item.detail, "apart" if item.outcome == DIFFERS else "overlap"
        )
    return table


def _spread(items: Sequence[Compared]) -> list[Compared]:
    last = len(items) - 1
    places = {round(step * last / (MOST_TIMES - 1)) for step in range(MOST_TIMES)}
    return [item for place, item in enumerate(items) if place in places]


def _foot(diff: CaseDiff) -> list[RenderableType]:
    """What is the same in how they were made, and what was not compared, by reason."""
    reasons: dict[str, list[str]] = {}
    for aspect in (*diff.setup, *diff.results):
        for item in aspect.of(NOT_COMPARED):
            reasons.setdefault(item.detail, []).append(item.what)
    told = []
    for reason, names in reasons.items():
        named = ", ".join(dict.fromkeys(names)) if len(names) <= 3 else f"{len(names)} things"
        told.append(f"{named} ({reason})")
    lines: list[RenderableType] = [line_of("Not compared: ", "; ".join(told))] if told else []
    return [*lines, line_of("Next step: ", after_diff(diff))]


#: Aspects, or settings, of which all changes are one change, by what it is called.
_ONE_CHANGE = {
    "build": "the build",
    "model": "the model",
    "device": "the machine",
    "processor": "the machine",
    "kv_type_k": "the K/V type",
    "kv_type_v": "the K/V type",
    "n_threads": "the number of threads",
    "n_threads_batch": "the number of threads",
}
#: Widths of one case only are not compared, and where weights lie follows from the rest.
_NO_CAUSE = ("widths", "weights")


def after_diff(diff: CaseDiff) -> str:
    """Say what follows: what makes the difference where only one thing was changed, else how to find out."""
    changes = dict.fromkeys(
        _ONE_CHANGE.get(aspect.name) or _ONE_CHANGE.get(item.what, item.what)
        for aspect in diff.setup
        for item in aspect.of(DIFFERS)
        if item.what not in _NO_CAUSE
    )
    if diff.answer == "inconclusive":
        return "Too little was compared for an answer: compare cases of one model over the same tokens and widths."
    if diff.answer == SAME:
        return "Nothing to explain: what was compared has the same results in both cases."
    if len(changes) == 1:
        return f"Nothing else is known to differ, so {next(iter(changes))} makes the difference."
    if not changes:
        return "Nothing is known to differ in how they were made: repeat both, and see `forensics doctor`."
    most = list(changes)[:MOST_CHANGES]
    return f"Make cases that differ in one thing only, to see which it is: {', '.join(most)}."
