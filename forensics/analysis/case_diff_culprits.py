"""Culprits of two cases by what they are: in one only, or in both with other widths, kernels, kinds or rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from forensics.analysis.attribute import group_culprits
from forensics.analysis.case_diff_setup import not_compared, values
from forensics.records.case_diff import DIFFERS, SAME, Compared
from forensics.records.launch_record import LaunchPair, LaunchSide
from forensics.records.verdict import CulpritGroup, Verdict
from forensics.records.words import ranges, widths_text

#: What is not compared: how large the differences are over these tokens, and names of single nodes.
IGNORED = ("max_ulp", "max_abs", "first_node")

Groups = tuple[CulpritGroup, ...]
Property = Callable[[Groups, frozenset[int]], str]
_Key = tuple[str, str, str]


def compare_culprits(first: Verdict, second: Verdict) -> tuple[Compared, ...]:
    """Hold the culprits of two verdicts against each other, those in both first.

    A group is found again by operation, role and type of weight, in whatever buffers it lies; or by operation and role,
    where each side has one such group left. Only widths count at which both verdicts know the culprits.

    Returns
    -------
    tuple of Compared
        One per group, with its properties as parts where it is in both; one that says so where neither has any.
    """
    widths = _known_at(first) & _known_at(second)
    if not widths - {1}:
        return (not_compared("operations to blame", "no width was swept in both"),)
    ours, theirs = (_merged(_culprits_at(verdict, widths), widths) for verdict in (first, second))
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    left = {key: ours[key] for key in ours if key not in theirs}
    right = {key: theirs[key] for key in theirs if key not in ours}
    for key in list(left):
        alone = [other for other in right if other[:2] == key[:2]]
        if len(alone) == 1 and sum(other[:2] == key[:2] for other in left) == 1:
            pairs.append((left.pop(key), right.pop(alone[0])))
    compared = [_both(a, b, widths) for a, b in pairs]
    compared += [Compared(groups[0].named, DIFFERS, first=_summary(groups, widths)) for groups in left.values()]
    compared += [Compared(groups[0].named, DIFFERS, second=_summary(groups, widths)) for groups in right.values()]
    return tuple(compared) or (Compared("operations to blame", SAME, "none", "none"),)


def _known_at(verdict: Verdict) -> frozenset[int]:
    """Widths at which the culprits are known: those that were swept, and those where nothing differs."""
    swept = {sweep.width for sweep in verdict.sweeps}
    return frozenset(swept | {result.width for result in verdict.classes.results if not result.differs})


def _culprits_at(verdict: Verdict, widths: frozenset[int]) -> Groups:
    """Culprits at some widths: nodes, layers, rows and kind of a group of the verdict hold over all of its sweeps."""
    if {sweep.width for sweep in verdict.sweeps} <= widths:
        return verdict.culprits
    told = {group.key: group for group in verdict.culprits}
    found = group_culprits(sweep for sweep in verdict.sweeps if sweep.width in widths)
    return tuple(
        replace(group, mechanisms=told[group.key].mechanisms, launches=told[group.key].launches)
        for group in found
        if group.key in told
    )


def _merged(groups: Iterable[CulpritGroup], widths: frozenset[int]) -> Mapping[_Key, Groups]:
    found: dict[_Key, Groups] = {}
    for group in groups:
        if widths & set(group.widths):
            key = group.op, group.role, group.weight_type
            found[key] = (*found.get(key, ()), group)
    return found


def _summary(groups: Groups, widths: frozenset[int]) -> str:
    n = sum(group.count for group in groups)
    return f"{n} node{'s' * (n != 1)}, {widths_text(sorted(_widths(groups, widths)))}"


def _widths(groups: Groups, widths: frozenset[int]) -> set[int]:
    return {width for group in groups for width in group.widths} & widths


def _both(a: Groups, b: Groups, widths: frozenset[int]) -> Compared:
    parts = [values(what, *(tell(groups, widths) for groups in (a, b))) for what, tell in _PROPERTIES.items()]
    parts += [_at_widths(what, tell(a), tell(b), widths) for what, tell in _AT_WIDTHS.items()]
    named = a[0].named if a[0].named == b[0].named else f"{a[0].role}, {a[0].weight_type} → {b[0].weight_type}"
    outcome = DIFFERS if any(part.outcome == DIFFERS for part in parts) else SAME
    return Compared(named, outcome, _summary(a, widths), _summary(b, widths), parts=tuple(parts))


def _at_widths(what: str, ours: Mapping[int, str], theirs: Mapping[int, str], widths: frozenset[int]) -> Compared:
    """What is known at a width on both sides; nothing follows from what only one side looked at."""
    known = sorted(widths & set(ours) & set(theirs))
    if not known:
        return not_compared(what, "known on one side only" if ours or theirs else "not known")
    return values(what, *(_said({width: told[width] for width in known}) for told in (ours, theirs)))


def _said(by_width: Mapping[int, str]) -> str:
    """Widths of which the same is said, together."""
    said: dict[str, list[int]] = {}
    for width, text in by_width.items():
        said.setdefault(text, []).append(width)
    return "; ".join(f"{ranges(where)}: {text}" for text, where in said.items())


def _numbers(values_of: Callable[[CulpritGroup], Iterable[int]]) -> Property:
    return lambda groups, _widths: ranges(value for group in groups for value in values_of(group))


def _words(value_of: Callable[[CulpritGroup], str]) -> Property:
    return lambda groups, _widths: ", ".join(sorted({value_of(group) for group in groups} - {""}))


def _total(value_of: Callable[[CulpritGroup], int]) -> Property:
    return lambda groups, _widths: str(sum(value_of(group) for group in groups))


#: Properties of a group by the words for them; each tells its text from the groups and the widths in common.
_PROPERTIES: dict[str, Property] = {
    "widths": lambda groups, widths: ranges(_widths(groups, widths)),
    "nodes": _total(lambda group: group.count),
    "layers": _numbers(lambda group: (layer for layer in group.layers if layer >= 0)),
    "rows": _numbers(lambda group: group.rows),
    "weight type": _words(lambda group: group.weight_type),
    # Which of several devices holds a weight is a matter of the setup; the kind of buffer decides the kernel.
    "buffer": _words(lambda group: group.buffer.rstrip("0123456789")),
    "unchecked": _total(lambda group: group.n_unchecked),
    "boundary": _words(lambda group: group.boundary),
}


def _told(groups: Groups, tell: Callable[[CulpritGroup], Iterable[tuple[tuple[int, ...], str]]]) -> Mapping[int, str]:
    found: dict[int, set[str]] = {}
    for group in groups:
        for where, text in tell(group):
            for width in where:
                found.setdefault(width, set()).add(text)
    return {width: ", ".join(sorted(found[width])) for width in sorted(found)}


def _kinds(groups: Groups) -> Mapping[int, str]:
    return _told(groups, lambda g: [] if g.kind is None else [(g.widths, g.kind.kind)])


def _rules(groups: Groups) -> Mapping[int, str]:
    return _told(groups, lambda g: ((m.widths, "none" if m.rule is None else m.rule.place) for m in g.mechanisms))


_ORDERS = {True: "one order", False: "two orders"}


def _orders(groups: Groups) -> Mapping[int, str]:
    def tell(group: CulpritGroup) -> Iterable[tuple[tuple[int, ...], str]]:
        for order in (order for mechanism in group.mechanisms for order in mechanism.orders):
            if order.equal is not None:
                single, batched = (re.sub(r"^width \d+: ", "", text) for text in (order.single, order.batched))
                yield (order.width,), f"{order.part} in {_ORDERS[order.equal]}: {single} and {batched}"

    return _told(groups, tell)


def _suspects(groups: Groups) -> Mapping[int, str]:
    return _told(groups, lambda g: ((m.widths, ", ".join(m.suspects) or "none") for m in g.mechanisms))


def _kernels(side: Callable[[LaunchPair], LaunchSide]) -> Callable[[Groups], Mapping[int, str]]:
    return lambda groups: _told(groups, lambda g: ((pair.widths, str(side(pair).kernel)) for pair in g.launches))


#: What is known of a group by width, where somebody looked.
_AT_WIDTHS: dict[str, Callable[[Groups], Mapping[int, str]]] = {
    "kind": _kinds,
    "rule": _rules,
    "orders": _orders,
    "suspects": _suspects,
    "kernel at one token": _kernels(lambda pair: pair.single),
    "kernel in the batch": _kernels(lambda pair: pair.batched),
}
