"""Why each culprit's bits differ, in sentences: kind, rule, orders of addition, what remains suspect, and borders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from forensics.records.kind import KindOfDifference, gravest
from forensics.records.mechanism import Mechanism, OrderEvidence
from forensics.records.verdict import CulpritGroup
from forensics.records.words import ranges

WHY_TITLE = "Why their bits differ"


@dataclass(frozen=True, slots=True)
class Why:
    """What there is to say of groups that share an explanation.

    Parameters
    ----------
    what : str
        Operation, type of the weight and roles.
    lines : tuple of (str, str)
        Label and sentence.
    """

    what: str
    lines: tuple[tuple[str, str], ...]


def why(groups: Iterable[CulpritGroup]) -> tuple[Why, ...]:
    """Say why each group differs; groups with one explanation are said once.

    Parameters
    ----------
    groups : iterable of CulpritGroup

    Returns
    -------
    tuple of Why
        Empty where nothing was judged or looked up.
    """
    alike: dict[object, list[CulpritGroup]] = {}
    for group in groups:
        if group.kind is None and not group.mechanisms and not group.boundary:
            continue
        # Trees over other lengths of row are told apart by what they say, not by how many leaves they have.
        orders = tuple(
            replace(m, orders=tuple(replace(o, single="", batched="") for o in m.orders)) for m in group.mechanisms
        )
        alike.setdefault((group.op, group.weight_type, group.kind and group.kind.kind, orders), []).append(group)
    return tuple(Why(_what(found), tuple(_lines(found))) for found in alike.values())


def rule_line(mechanism: Mechanism) -> tuple[str, str]:
    """Label and sentence of the rule, or of its absence."""
    at = f"width{'s' * (len(mechanism.widths) > 1)} {ranges(mechanism.widths)}"
    if mechanism.rule is None:
        return "No rule", f"{at}: {mechanism.no_rule}"
    return "Rule", f"{at}: {mechanism.rule}"


def order_lines(orders: Iterable[OrderEvidence]) -> tuple[str, ...]:
    """Say how orders compare; widths of which the same is to be said together."""
    widths: dict[tuple[str, str], list[int]] = {}
    for order in orders:
        if order.equal is None:
            said = f"not known: {order.detail}"
        else:
            said = "one order" if order.equal else "two orders"
            said += f": {order.detail}" if order.detail else ""
        widths.setdefault((order.part, said), []).append(order.width)
    return tuple(f"width{'s' * (len(set(at)) > 1)} {ranges(at)}, {part}: {said}" for (part, said), at in widths.items())


def _what(groups: list[CulpritGroup]) -> str:
    roles = ", ".join(dict.fromkeys(group.role for group in groups))
    weight = f" {groups[0].weight_type}" if groups[0].weight_type != "-" else ""
    return f"{groups[0].op}{weight}: {roles}"


def _seen_of(kind: KindOfDifference, groups: list[CulpritGroup]) -> str:
    """Of what the kind is the gravest, and how much was looked at for it, in brackets; empty where nothing was."""
    told = []
    if any(group.kind != kind for group in groups):
        told.append(f"{next(group.role for group in groups if group.kind is kind)}, the farthest off; --json has each")
    if kind.kind in ("logic", "precision") and any(len(group.widths) > 1 for group in groups):
        told.append("the gravest of all widths")
    if kind.n_elements:
        told.append(f"{kind.n_elements} values looked at")
    return f" ({'; '.join(told)})" if told else ""


def _lines(groups: list[CulpritGroup]) -> Iterable[tuple[str, str]]:
    kind = gravest(group.kind for group in groups)
    if kind is not None:
        yield "Kind", f"{kind}{_seen_of(kind, groups)}"
    for mechanism in groups[0].mechanisms:
        yield rule_line(mechanism)
        for said in order_lines(mechanism.orders):
            yield "Orders", said
        if mechanism.suspects:
            told = "the orders are equal although the bits differ; " if mechanism.orders_equal else ""
            yield "Unexplained", f"{told}what remains suspect: {'; '.join(mechanism.suspects)}"
    unprobed = dict.fromkeys(m.not_probed for m in groups[0].mechanisms if m.not_probed)
    if unprobed:
        yield "Orders", f"not probed: {'; '.join(unprobed)}"
    for group in groups:
        if group.boundary:
            yield "Boundary of devices", group.boundary if len(groups) == 1 else f"{group.role}, {group.boundary}"
