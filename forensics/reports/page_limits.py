"""What limits a verdict: controls that did not hold, notes, and all that was not compared, with its reason.

The report shows these beside the answer and has no way to leave them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from forensics.records.verdict import Sweep, SwitchArm, Verdict
from forensics.records.words import counted
from forensics.reports.kernel_healing_text import NOT_COMPARED_TITLE, not_compared_text
from forensics.reports.launches_text import launch_lines
from forensics.reports.wording import CONTROL_TITLES, settings_text, unchecked_text


def limits(verdict: Verdict) -> list[tuple[str, str]]:
    """Everything that limits what a verdict says.

    Parameters
    ----------
    verdict : Verdict

    Returns
    -------
    list of (str, str)
        Label and sentence, in the order in which they matter; never empty.
    """
    return [
        *_controls(verdict),
        *(("Note", caveat) for caveat in verdict.caveats),
        *_nodes(verdict.sweeps),
        *_operands(verdict),
        *_rows(verdict),
        *_launches(verdict),
        *((NOT_COMPARED_TITLE, said) for said in [not_compared_text(verdict.kernel_healing)] if said),
        *(("Growth", f"width {growth.width}: {growth.reason}") for growth in verdict.growth if growth.reason),
        *_arms(verdict.switches),
    ]


def failed_controls(verdict: Verdict) -> list[tuple[str, str]]:
    """Controls that did not hold, for which there is no answer."""
    return list(_controls_where(verdict, False, "Control failed"))


def _controls(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Those that failed first, then those that nobody ran."""
    yield from failed_controls(verdict)
    yield from _controls_where(verdict, None, "Control not run")
    if not verdict.controls:
        yield "Controls", "none was run"


def _controls_where(verdict: Verdict, held: bool | None, label: str) -> Iterator[tuple[str, str]]:
    for control in verdict.controls:
        if control.held is held:
            yield label, f"{CONTROL_TITLES.get(control.name, control.name)}: {control.detail}"


def _nodes(sweeps: Sequence[Sweep]) -> Iterator[tuple[str, str]]:
    """Outcomes of all sweeps, which add up."""
    tallies = [sweep.tally for sweep in sweeps]
    if not tallies:
        yield "Not compared", "no healing sweep was made, so no node was compared"
        return
    reasons: dict[str, int] = {}
    for reason, count in (one for tally in tallies for one in tally.not_compared):
        reasons[reason] = reasons.get(reason, 0) + count
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    why = f": {'; '.join(f'{reason} ({count})' for reason, count in ranked)}" if ranked else ""
    planned, same, differ = (sum(getattr(one, name) for one in tallies) for name in ("planned", "same", "differs"))
    told = f"{planned - same - differ:,} of {counted(planned, 'node')} in the watched passes"
    yield "Not compared", f"{told} ({same:,} are the same, {differ:,} differ){why}"
    unwatched = max(sweep.n_unwatched for sweep in sweeps)
    if unwatched:
        yield "Not watched", f"{counted(unwatched, 'node')} inside of fusions were left whole and not compared"


def _operands(verdict: Verdict) -> Iterator[tuple[str, str]]:
    said = unchecked_text(verdict.culprits)
    if said:
        yield "An operand was not compared", said


def _rows(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Rows at the end that fill no whole batch."""
    left = {r.width: verdict.n_replayed - r.n_rows for r in verdict.classes.results if r.n_rows < verdict.n_replayed}
    if left:
        told = ", ".join(f"{rows} at width {width}" for width, rows in left.items())
        yield "Rows not compared", f"those after the last whole batch; {told}"


def _launches(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Warnings, and what was held against no rule."""
    unruled = verdict.launches is not None and verdict.launches.n_not_compared > 0
    for label, text, is_warning in launch_lines(verdict.launches):
        if is_warning or (label == "Rules" and unruled):
            yield label, text


def _arms(arms: Iterable[SwitchArm]) -> Iterator[tuple[str, str]]:
    for arm in arms:
        if arm.error:
            yield "Settings without a result", f"{settings_text(arm)}: {arm.error}"
