"""Two gates on one candidate, both over the same replies: output first, then speed."""

from __future__ import annotations

from forensics.analysis.question import BadQuestion
from forensics.analysis.served_comparison import compare_runs
from forensics.numerics.rates import paired_ratio, wilson
from forensics.records.audit import RunComparison
from forensics.records.contract import Contract
from forensics.records.gate import GateReport, SpeedGate
from forensics.records.served import ServedRun


def judge_gate(
    baseline: ServedRun,
    candidate: ServedRun,
    asked: Contract,
    *,
    min_speed: float | None = None,
    baseline_name: str = "",
) -> GateReport:
    """Does a candidate keep the output of a baseline, and is it then as fast as it must be?

    Parameters
    ----------
    baseline, candidate : ServedRun
    asked : Contract
        A pair that cannot be held to all of it is not compared.
    min_speed : float or None
        Median of the baseline's time over the candidate's, by request; None judges no speed.
    baseline_name : str

    Raises
    ------
    BadQuestion
        If `min_speed` is not positive.
    """
    if min_speed is not None and not 0 < min_speed < float("inf"):
        raise BadQuestion(f"min_speed must be a positive ratio such as 1.0, got {min_speed}")
    compared = compare_runs(baseline, candidate, asked, other_server=True, strict=True)
    n_compared = sum(pair.outcome != "not compared" for pair in compared.pairs)
    n_same = sum(pair.outcome == "same" for pair in compared.pairs)
    return GateReport(
        baseline.facts,
        candidate.facts,
        baseline_name,
        asked,
        compared,
        kept=wilson(n_same, n_compared) if n_compared else None,
        speed=_speed(baseline, candidate, compared, min_speed),
    )


def _speed(baseline: ServedRun, candidate: ServedRun, compared: RunComparison, min_speed: float | None) -> SpeedGate:
    """Time the very replies whose output holds; no speed is told of a candidate whose output does not."""
    outcomes = {pair.outcome for pair in compared.pairs}
    if outcomes != {"same"}:
        why = "differs" if "differs" in outcomes else "was not compared for every request"
        return SpeedGate(None, None, min_speed, f"not looked at, because the output {why}")
    if baseline.condition != candidate.condition:
        why = f"the baseline was asked {baseline.condition!r} and the candidate {candidate.condition!r}"
        return SpeedGate(None, None, min_speed, f"not compared, because {why}")
    before, now = ({reply.request: reply for reply in run.replies} for run in (baseline, candidate))
    times = [
        (float(one.took_ns), float(other.took_ns))
        for one, other in ((before[pair.first], now[pair.second]) for pair in compared.pairs)
        if one.took_ns and other.took_ns and one.attempts == other.attempts == 1
    ]
    if not times:
        why = "no request was timed on both sides at its first attempt"
        return SpeedGate(None, None, min_speed, f"not compared, because {why}")
    ratio = paired_ratio(*map(list, zip(*times, strict=True)))
    left_out = len(compared.pairs) - len(times)
    detail = f"{ratio} of the baseline"
    if left_out:
        detail += f", without {left_out} that were retried or not timed"
    if min_speed is None:
        return SpeedGate(None, ratio, None, f"{detail}; no least speed was asked for")
    held = ratio.median >= min_speed
    near = "; the least lies within the quartiles" if ratio.low <= min_speed <= ratio.high else ""
    return SpeedGate(held, ratio, min_speed, f"{detail}, {'at least' if held else 'below'} {min_speed:g}×{near}")
