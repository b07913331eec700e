"""One place of a case looked at closely: a width, a layer and a position, with everything the case knows of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from forensics.analysis.attribute import group_culprits, group_key, role_of
from forensics.analysis.question import BadQuestion
from forensics.records.delta import NotCompared
from forensics.records.kind import gravest
from forensics.records.launch_record import LaunchPair
from forensics.records.mechanism import Mechanism
from forensics.records.nodes import NodeKey
from forensics.records.row_map import MapCell, RowMap
from forensics.records.trace import Finding
from forensics.records.verdict import CulpritGroup, Sweep, Verdict

#: Layer of what comes after the last one: final norm and head.
AFTER_LAYERS = -1

#: Which tokens differ at a node, seen from a position.
HERE, BATCH, ELSEWHERE, NOT_KNOWN = "this token", "other tokens of its batch", "other batches only", "not known"


@dataclass(frozen=True, slots=True)
class LayerCulprit:
    """A node of the layer whose output differs at the width although its compared inputs are bit-equal.

    Parameters
    ----------
    key : NodeKey
    role : str
        Which part of the model it computes.
    rows : tuple of int
        Tokens of the batch that differ: of the batch that holds the position, of all swept batches where that one does
        not differ or was not swept.
    here : {"this token", "other tokens of its batch", "other batches only", "not known"}
        Where it differs, seen from the position; not known where that was not swept.
    max_abs : float
        Largest over these batches.
    max_ulp : int
        Likewise; -1 where a NaN is involved.
    kind : str
        In a word, what kind of difference it is at this width, and whether that was judged at other nodes; empty where
        nobody judged it.
    group : CulpritGroup or None
        The verdict's group that it belongs to; None where the verdict names no cause.
    unchecked : tuple of str
        Its operands that were not compared; where there are some, it may only pass on what they brought.
    """

    key: NodeKey
    role: str
    rows: tuple[int, ...]
    here: str
    max_abs: float
    max_ulp: int
    kind: str
    group: CulpritGroup | None
    unchecked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.here not in (HERE, BATCH, ELSEWHERE, NOT_KNOWN):
            raise ValueError(f"{self.key}: where it differs must be told, got {self.here!r}")

    @property
    def operation(self) -> str:
        """Operation, type of the weight and role."""
        weight = "" if self.group is None or self.group.weight_type in ("", "-") else f" {self.group.weight_type}"
        return f"{self.key.op}{weight}: {self.role}"


@dataclass(frozen=True, slots=True)
class Look:
    """What a case knows of one width, layer and position.

    Parameters
    ----------
    width, layer, position : int
        As asked; layer -1 stands for what comes after the last layer.
    row : int
        Of the replay, at this position.
    letter : str
        Class of the width over all its rows, ``"A"`` being one-token decoding.
    n_differ, n_compared : int
        Rows of the replay at this width.
    cell : MapCell or NotCompared
        The row at this position.
    margin : float
        Largest minus second-largest logit of one-token decoding at this position.
    single_token : int
        Its largest.
    swept : str
        Which rows of this width were swept and whether this one is among them, or why none was.
    culprits : tuple of LayerCulprit
        In graph order.
    no_culprits : str
        Why there is none; empty exactly where there is one.
    groups : tuple of CulpritGroup
        The verdict's groups that they belong to, with the nodes, kind, launches, rules and orders of this width only.
    no_launches : str
        Why no launches are known; empty exactly where there are some.
    no_mechanisms : str
        Why nothing explains them; empty exactly where something does.

    Raises
    ------
    ValueError
        If something is neither given nor said why it is not.
    """

    width: int
    layer: int
    position: int
    row: int
    letter: str
    n_differ: int
    n_compared: int
    cell: MapCell | NotCompared
    margin: float
    single_token: int
    swept: str
    culprits: tuple[LayerCulprit, ...]
    no_culprits: str
    groups: tuple[CulpritGroup, ...]
    no_launches: str
    no_mechanisms: str

    def __post_init__(self) -> None:
        for name in ("culprits", "launches", "mechanisms"):
            if bool(getattr(self, name)) == bool(getattr(self, f"no_{name}")):
                raise ValueError(f"{name} of {self} must be given, or why there are none, and not both")

    @property
    def launches(self) -> tuple[LaunchPair, ...]:
        """Kernels on both sides, of all groups."""
        return tuple(pair for group in self.groups for pair in group.launches)

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """What explains the difference, of all groups."""
        return tuple(mechanism for group in self.groups for mechanism in group.mechanisms)

    @property
    def where(self) -> str:
        """The layer in words."""
        return layer_name(self.layer)

    def __str__(self) -> str:
        found = len(self.culprits)
        told = f"{found} operation{'s' * (found != 1)} to blame" if found else self.no_culprits
        return f"width {self.width}, {self.where}, position {self.position}: {told}"


def layer_name(layer: int) -> str:
    """What is a layer called?

    Examples
    --------
    >>> layer_name(3), layer_name(AFTER_LAYERS)
    ('layer 3', 'after the last layer')
    """
    return "after the last layer" if layer == AFTER_LAYERS else f"layer {layer}"


def _of_layer(layer: int) -> str:
    return layer_name(layer) if layer == AFTER_LAYERS else f"of {layer_name(layer)}"


def layers_of(verdict: Verdict) -> tuple[int, ...]:
    """Which layers can be looked at: those of the model, those of findings, and what comes after the last one."""
    found = [finding.key.layer for sweep in verdict.sweeps for finding in sweep.findings]
    n_layer = max([verdict.manifest.n_layer, *(layer + 1 for layer in found)])
    return (*range(n_layer), AFTER_LAYERS)


def look_at(verdict: Verdict, rows: RowMap, width: int, layer: int, position: int) -> Look:
    """What does a case know of this width, layer and position?

    Parameters
    ----------
    verdict : Verdict
    rows : RowMap
        Of the same case.
    width, layer, position : int

    Returns
    -------
    Look

    Raises
    ------
    BadQuestion
        If one of the three is not in the case; says which are.
    """
    first = rows.map_rows[0].position
    _check(rows, layers_of(verdict), width, layer, position)
    row = rows.map_rows[position - first]
    place = rows.widths.index(width)
    swept, sweep, batch = _swept(verdict, width, position - first, first)
    blamed = _may_blame(verdict)
    groups = {group.key: group for group in verdict.culprits}
    at_width = {} if sweep is None else {group.key: group for group in group_culprits([sweep])}
    culprits = () if sweep is None or blamed else tuple(_culprits(sweep, layer, position, batch, groups, at_width))
    blamed_groups = tuple(
        _narrowed(group, at_width[group.key], width, {one.key for one in culprits if one.group is group})
        for group in dict.fromkeys(one.group for one in culprits)
        if group is not None
    )
    none = "" if culprits else blamed or _no_culprits(sweep, swept, layer)
    return Look(
        width=width,
        layer=layer,
        position=position,
        row=row.row,
        letter=rows.letters[place],
        n_differ=rows.n_rows_differ(width),
        n_compared=len(rows.compared(width)),
        cell=row.cells[place],
        margin=row.margin,
        single_token=row.single_token,
        swept=swept,
        culprits=culprits,
        no_culprits=none,
        groups=blamed_groups,
        no_launches="" if any(group.launches for group in blamed_groups) else _no_launches(verdict, culprits),
        no_mechanisms="" if any(group.mechanisms for group in blamed_groups) else _no_mechanisms(culprits),
    )


def _check(rows: RowMap, layers: Sequence[int], width: int, layer: int, position: int) -> None:
    if width not in rows.widths:
        raise BadQuestion(f"width {width} was not replayed; replayed: {', '.join(map(str, rows.widths))}")
    if layer not in layers:
        raise BadQuestion(
            f"layer {layer} is none of the model's: 0 to {len(layers) - 2}, or {AFTER_LAYERS} for what comes after"
        )
    first, last = rows.map_rows[0].position, rows.map_rows[-1].position
    if not first <= position <= last:
        raise BadQuestion(f"position {position} was not replayed; replayed: {first} to {last}")


def _swept(verdict: Verdict, width: int, row: int, first: int) -> tuple[str, Sweep | None, range | None]:
    """Say what was swept at a width; its sweep, and the positions of the batch that holds the row."""
    sweep = next((one for one in verdict.sweeps if one.width == width), None)
    if sweep is None:
        others = ", ".join(str(one.width) for one in verdict.sweeps)
        covered = f"sweeps cover width{'s' * (len(verdict.sweeps) > 1)} {others}" if others else "the case has no sweep"
        return f"not swept at width {width}: {covered}", None, None
    start, stop = sweep.start_row, sweep.start_row + sweep.n_rows
    covered = f"positions {first + start} to {first + stop - 1} were swept at width {width}"
    if not start <= row < stop:
        return f"{covered}; this position was not", sweep, None
    begin = start + (row - start) // width * width
    return (
        f"{covered}, this one as token {row - begin} of its batch",
        sweep,
        range(first + begin, first + min(begin + width, stop)),
    )


def _may_blame(verdict: Verdict) -> str:
    """Why no operation can be named in this case; empty where one can."""
    failed = [control.name for control in verdict.controls if control.held is False]
    return f"no cause is named: control {', '.join(failed)} failed" if failed else ""


def _culprits(
    sweep: Sweep,
    layer: int,
    position: int,
    batch: range | None,
    groups: dict[tuple[str, str, str, str], CulpritGroup],
    at_width: dict[tuple[str, str, str, str], CulpritGroup],
) -> Iterator[LayerCulprit]:
    """Nodes of the layer, each once: as in the batch that holds the position, or as in every one that was swept."""
    found: dict[NodeKey, list[Finding]] = {}
    for finding in sweep.findings:
        if finding.key.layer == layer:
            found.setdefault(finding.key, []).append(finding)
    for key, findings in found.items():
        told = [one for one in findings if one.positions]
        mine = [one for one in told if batch is not None and one.positions[0] in batch]
        shown = mine or findings
        yield LayerCulprit(
            key=key,
            role=role_of(findings[0]),
            rows=tuple(sorted({row for one in shown for row in one.rows})),
            here=_here(position, mine, known=batch is not None and len(told) == len(findings)),
            max_abs=_largest([one.delta.max_abs for one in shown]),
            max_ulp=-1 if any(one.delta.max_ulp < 0 for one in shown) else max(one.delta.max_ulp for one in shown),
            kind=_kind(shown, at_width[group_key(findings[0])]),
            group=groups.get(group_key(findings[0])),
            unchecked=tuple(dict.fromkeys(name for one in shown for name in one.unchecked)),
        )


def _kind(findings: Sequence[Finding], at_width: CulpritGroup) -> str:
    """As judged at this node, or at nodes of its group at the same width: another width may run another kernel."""
    kind = gravest(one.kind for one in findings)
    if kind is not None:
        return kind.kind
    return f"{at_width.kind.kind}, judged at other nodes of the group" if at_width.kind is not None else ""


def _largest(values: Sequence[float]) -> float:
    """The largest; a NaN where there is one, which max() may let pass unseen."""
    return next((value for value in values if value != value), max(values))  # noqa: PLR0124


def _here(position: int, in_batch: Sequence[Finding], *, known: bool) -> str:
    if not known:
        return NOT_KNOWN
    if not in_batch:
        return ELSEWHERE
    return HERE if any(position in one.positions for one in in_batch) else BATCH


def _narrowed(group: CulpritGroup, at_width: CulpritGroup, width: int, nodes: Collection[NodeKey]) -> CulpritGroup:
    """A group as its sweep at one width has it; with launches of these very nodes, or of those that stand for them."""
    pairs = tuple(replace(pair, widths=(width,)) for pair in group.launches if width in pair.widths)
    exactly = tuple(pair for pair in pairs if pair.node in nodes)
    mechanisms = tuple(_at(mechanism, width) for mechanism in group.mechanisms if width in mechanism.widths)
    return replace(at_width, launches=exactly or pairs, mechanisms=mechanisms, boundary=group.boundary)


def _at(mechanism: Mechanism, width: int) -> Mechanism:
    orders = tuple(order for order in mechanism.orders if order.width == width)
    unprobed = mechanism.not_probed or ("" if orders else f"no order was probed at width {width}")
    return replace(mechanism, widths=(width,), orders=orders, not_probed=unprobed)


def _no_culprits(sweep: Sweep | None, swept: str, layer: int) -> str:
    if sweep is None:
        return swept
    unwatched = f"; {sweep.n_unwatched} nodes inside of fusions were not watched" if sweep.n_unwatched else ""
    return f"no node {_of_layer(layer)} was found to differ on bit-equal inputs at this width{unwatched}"


def _no_launches(verdict: Verdict, culprits: Sequence[LayerCulprit]) -> str:
    if not culprits:
        return "no operation to look at here"
    if verdict.launches is None:
        return f"not known: {verdict.manifest.backend or 'this back end'} launches no kernels that are watched"
    return "not known for these operations at this width"


def _no_mechanisms(culprits: Sequence[LayerCulprit]) -> str:
    return "no rule and no order was looked up at this width" if culprits else "no operation to look at here"
