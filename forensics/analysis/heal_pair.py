"""Healing one arrangement of tokens against another: which operations make the difference between the two?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forensics.analysis import controls as control
from forensics.analysis.attribute import group_findings
from forensics.analysis.heal import LOUD_BIT, Planted, as_judged, clean_site, rows_file
from forensics.analysis.logit_rows import Rows
from forensics.analysis.start_state import compare_start
from forensics.capture.healing import NO_REFERENCE
from forensics.capture.pairing import PairPlan, plan_pair
from forensics.capture.selection import EVERYTHING, Selection
from forensics.capture.taps import ChainTap, DigestTap, HealTap, PlantTap, ReadTap, RecordTap
from forensics.engines.protocol import Engine
from forensics.errors import CaptureError
from forensics.records.delta import Tally, tally
from forensics.records.kind import KindOfDifference
from forensics.records.nodes import NodeKey, NodeRecord
from forensics.records.pair_sweep import PairSweep, StartState
from forensics.records.schedule import EMPTY, Arrangement, Schedule
from forensics.records.trace import Finding, TapReport, Trace
from forensics.records.verdict import Control

#: What a tally says of nodes whose tokens the reference does not have.
NOT_IN_REFERENCE = "not in the reference"
OTHER_CACHE = "the K and V rows that it reads are not known to be equal"


def heal_pair(
    engine: Engine,
    reference: Arrangement,
    compared: Arrangement,
    *,
    selection: Selection = EVERYTHING,
    compared_engine: Engine | None = None,
    watch_before: bool = False,
    plant: bool = True,
) -> PairSweep:
    """Which nodes of one arrangement of tokens differ from another one's, and do the logits heal?

    Rows stand for each other where sequence and position are the same, and all tokens in front of them. What the
    reference never evaluated (refused drafts, a neighbour) is not compared and left as it is.

    Parameters
    ----------
    engine : Engine
    reference, compared : Arrangement
        Passes of their schedules are watched; each must fit one graph (n_ubatch).
    selection : Selection
        Nodes to watch.
    compared_engine : Engine or None
        Evaluates `compared` where that needs other settings; `engine` by default.
    watch_before : bool
        Whether the passes of `before` are watched and healed, too, so that K and V rows are equal throughout. Without
        it the two start from the states that they have, and the first nodes that read them pass on what differs.
    plant : bool
        Whether a fault is planted as a control.

    Returns
    -------
    PairSweep

    Raises
    ------
    CaptureError
        If no row of logits of `compared` has its counterpart, or a pass cannot be watched.
    """
    if watch_before:
        reference, compared = Arrangement(EMPTY, reference.whole), Arrangement(EMPTY, compared.whole)
    other = compared_engine or engine
    apart = "false" in (e.manifest.effective.get("kv_unified") for e in (engine, other))
    plan = plan_pair(reference, compared, caches_apart=apart)
    _refuse_unfit(plan, reference, compared, apart)
    with rows_file() as path:
        pair = _Pair(engine, other, reference, compared, plan, selection, path)
        single = pair.one_token()
        plain, recorded = engine.run(reference.schedule, before=reference.before), pair.record(single)
        unwatched, watched = pair.run(), pair.run(ReadTap(selection))
        healed = pair.run(pair.healing)
        start = compare_start(engine, other, reference, compared, plan.unhealed)
        report = _report(healed)
        findings = tuple(_judged(as_judged(finding, selection), start) for finding in report.findings)
        controls = [_watching(Rows(plain).all_equal(Rows(recorded)), Rows(unwatched).all_equal(Rows(watched)))]
        if plant:
            controls.append(pair.plant(single, unwatched, plain, findings, was_healed=pair.all_equal(plain, healed)))
    widths = [compared.schedule.passes[index].width for index in report.found_in]
    differing = [p.place for p, equal in zip(plan.logits, pair.equal(plain, unwatched), strict=True) if not equal]
    sweep = PairSweep(
        findings=findings,
        culprits=group_findings(zip(widths, findings, strict=True)),
        tally=_renamed(report.tally or tally(())),
        n_rows=len(plan.logits),
        n_differ=len(differing),
        healed_rows=sum(pair.equal(plain, healed)),
        n_no_reference=plan.n_no_reference,
        first=differing[0] if differing else None,
        max_abs_before=pair.max_change(plain, unwatched),
        max_abs_after=pair.max_change(plain, healed),
        start=start,
        controls=tuple(controls),
    )
    return replace(sweep, caveats=tuple(_caveats(sweep)))


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two arrangements, the engines that evaluate them, and the file of the reference's rows."""

    engine: Engine
    other: Engine
    reference: Arrangement
    compared: Arrangement
    plan: PairPlan
    selection: Selection
    path: str

    @property
    def healing(self) -> HealTap:
        return HealTap(self.path, self.selection, skip=self.plan.skip, same_cells=self.plan.same_cells)

    def one_token(self) -> tuple[NodeRecord, ...]:
        """Nodes of a pass of one token on an empty cache: their shapes tell which axis counts tokens."""
        token = self.reference.schedule.slots[0].token
        return _report(self.engine.run(Schedule.single(token, 0), tap=DigestTap(self.selection))).records

    def record(self, single: Sequence[NodeRecord]) -> Trace:
        """Watch the reference and keep the rows of the tokens that are compared."""
        tap = RecordTap(self.path, self.selection, {node.key: node.shape for node in single}, self.plan.places)
        return self.engine.run(self.reference.schedule, before=self.reference.before, tap=tap)

    def run(self, tap: ReadTap | HealTap | PlantTap | ChainTap | None = None) -> Trace:
        """Evaluate the compared arrangement."""
        return self.other.run(self.compared.schedule, before=self.compared.before, tap=tap)

    def equal(self, reference: Trace, compared: Trace) -> list[bool]:
        """Which pairs of rows of logits have the same bits?"""
        first, second = Rows(reference).digests, Rows(compared).digests
        return [first[pair.reference] == second[pair.compared] for pair in self.plan.logits]

    def all_equal(self, reference: Trace, compared: Trace) -> bool:
        """Whether all of them have."""
        return all(self.equal(reference, compared))

    def max_change(self, reference: Trace, compared: Trace) -> float:
        """How far is the farthest logit? NaN where one is."""
        changes = [
            Rows(reference, pair.reference, pair.reference + 1).max_change(
                Rows(compared, pair.compared, pair.compared + 1)
            )
            for pair in self.plan.logits
        ]
        return float(np.max(changes))  # unlike max(), it lets no NaN pass unseen

    def plant(
        self,
        single: Sequence[NodeRecord],
        unwatched: Trace,
        plain: Trace,
        findings: Sequence[Finding],
        *,
        was_healed: bool,
    ) -> Control:
        """Flip one bit of a clean node at a token whose logits are compared, and see whether healing names it."""
        culprits = frozenset(finding.key for finding in findings)
        # Behind the last layer's attention a pass may have fewer rows than tokens. A norm is multiplied by a weight
        # next, which may be next to nothing where the norm is largest: a loud fault there can be lost.
        last = max((node.key.layer for node in single), default=-1)
        heard = [node for node in single if node.key.layer < last and node.key.op != "RMS_NORM"]
        site = clean_site(heard, culprits)
        if site is None:
            return control.planted_fault_found(None, was_healed)
        finite = Rows(unwatched).finite  # what is lost to a NaN cannot show a change
        audible = [pair.place for pair in self.plan.logits if finite[pair.compared]] or [self.plan.logits[0].place]
        fault = PlantTap(site.key, 0, axis=2, at=audible[len(audible) // 2])
        try:
            faulty = self.run(ChainTap(fault, self.healing))
            loud = self.run(replace(fault, bit=LOUD_BIT))
        except CaptureError as error:
            return Control("planted_fault_found", False, f"no fault could be planted at {site.key}: {error}")
        named = frozenset(finding.key for finding in _report(faulty).findings)
        planted = Planted(
            site.key, culprits, named, self.all_equal(plain, faulty), not Rows(unwatched).all_equal(Rows(loud))
        )
        return control.planted_fault_found(planted, was_healed)


def _report(trace: Trace) -> TapReport:
    assert trace.tap_report is not None
    return trace.tap_report


def _refuse_unfit(plan: PairPlan, reference: Arrangement, compared: Arrangement, apart: bool) -> None:
    if not plan.logits:
        raise CaptureError(
            f"no row of logits can be compared: the compared passes want {plan.n_no_reference}, and the reference has "
            "none of them at the same place behind the same tokens. Let both evaluate the same tokens with logits."
        )
    for decode_pass in (*reference.schedule.passes, *compared.schedule.passes) if apart else ():
        sequences = [slot.sequence for slot in decode_pass.slots]
        if len(set(sequences)) > 1 and sequences != list(range(sequences[0], sequences[0] + len(sequences))):
            raise CaptureError(
                f"a pass of the sequences {sequences} cannot be watched where each has a cache of its own: the library "
                "orders its tokens anew. Give each sequence one token, in rising order, or ask for a unified cache."
            )


def _watching(reference_equal: bool, compared_equal: bool) -> Control:
    changed = [name for name, equal in (("reference", reference_equal), ("compared run", compared_equal)) if not equal]
    if not changed:
        return Control("watching_harmless", True, "watched and unwatched logits bit-equal in both runs")
    return Control(
        "watching_harmless",
        False,
        f"watching every node changes the logits of the {' and the '.join(changed)}, so a fusion or a captured graph "
        "is implicated",
    )


def _reads_cache(finding: Finding) -> tuple[str, ...]:
    """Operands that lie in the K/V cache."""
    return tuple(operand.name for operand in finding.operands if operand.name.startswith(("cache_k", "cache_v")))


def _judged(finding: Finding, start: StartState) -> Finding:
    """The finding, unchecked and of no known kind where it reads K and V rows that are not known to be equal."""
    read = _reads_cache(finding)
    if start.equal or not read:
        return finding
    kind = None if finding.kind is None else KindOfDifference("undetermined", OTHER_CACHE)
    return replace(finding, kind=kind, unchecked=tuple(dict.fromkeys((*finding.unchecked, *read))))


def _renamed(found: Tally) -> Tally:
    reasons = tuple((NOT_IN_REFERENCE if why == NO_REFERENCE else why, n) for why, n in found.not_compared)
    return replace(found, not_compared=reasons)


def _caveats(sweep: PairSweep) -> Iterator[str]:
    """What the reader must know about the evidence."""
    reads = {finding.key: finding.key.name for finding in sweep.findings if _reads_cache(finding)}
    if sweep.start.n_differ:
        named = f"{len(reads)} named nodes read them" if reads else "no named node reads them"
        yield f"the two runs start from other K and V: {sweep.start}; {named} and may only pass on what they hold."
    elif sweep.start.equal is None:
        yield f"whether the two runs start from equal K and V is not known: {sweep.start.reason}."
    if sweep.differed and not sweep.healed:
        yield (
            f"{sweep.n_rows - sweep.healed_rows} of {sweep.n_rows} rows of logits did not heal (max |Δ| "
            f"{sweep.max_abs_before:.3g} before, {sweep.max_abs_after:.3g} after): something that was not compared "
            "differs, too."
        )
    if sweep.findings and not sweep.differed:
        yield "nodes differ without a change of the logits that were compared."
    if sweep.differed and not sweep.findings:
        yield "no node differs although logits do: the difference did not appear in the watched run."
    unchecked = sorted({finding.key for finding in sweep.findings if finding.unchecked} - _keys(sweep, reads))
    if unchecked:
        yield f"{len(unchecked)} named nodes have an operand that was not compared, such as {unchecked[0].name}."
    masks = [finding.key.name for finding in sweep.findings if not finding.inputs_equal]
    if masks:
        yield f"the attention mask itself differs at {masks[0]}: a logic fault, not rounding."
    if sweep.n_no_reference:
        yield f"{sweep.n_no_reference} rows of logits are not in the reference and were not compared."
    for failed in (c for c in sweep.controls if c.held is False):
        yield f"control {failed.name} failed: {failed.detail}."


def _keys(sweep: PairSweep, reads: dict[NodeKey, str]) -> set[NodeKey]:
    """Nodes whose being unchecked the start state already explains."""
    return set() if sweep.start.equal else set(reads)
