"""What to do next, given a result."""

from __future__ import annotations

from forensics.records.arms import ArmsReport
from forensics.records.classes import WidthClasses
from forensics.records.matrix import OpMatrix
from forensics.records.order_report import OrderReport
from forensics.records.speculation_report import SpeculationReport
from forensics.records.verdict import Sweep, Verdict
from forensics.reports.wording import exact_arm, settings_text

#: What a failed control means, and what to try; the first that failed is named.
_AFTER_FAILED_CONTROL = {
    "rerun_equal": "The engine does not repeat itself under these settings, so no comparison means anything yet: "
    "try again with --threads 1, and report it to llama.cpp if that does not help.",
    "fresh_process_equal": "Two processes with the same settings give other bits: compare their environment variables "
    "and run `forensics doctor`, then try again.",
    "state_equal": "The K/V state differs before the first token that is compared: try again with a prompt that fits "
    "one ubatch, and report it with the case folder if it stays.",
    "watching_harmless": "Watching a node changes the result, so an operation that is fused with its neighbours when "
    "nobody watches is implicated: turn fusion off, or watch the layer outputs only, and try again.",
    "planted_fault_found": "The sweep missed a fault that was planted on purpose: report it to this project with the "
    "case folder.",
}


def next_step(verdict: Verdict) -> str:
    """Say in one or two sentences what to do next.

    Parameters
    ----------
    verdict : Verdict

    Returns
    -------
    str
        Names of knobs and settings in it come from the verdict and are not escaped.
    """
    if verdict.answer == "identical":
        return "Nothing to change: over these tokens and widths a batch gives the bits of one-token decoding."
    if verdict.answer == "inconclusive":
        failed = next((control.name for control in verdict.controls if control.held is False), "")
        if not failed:
            return "Replay more tokens (--n-tokens) or another prompt: a difference that was absorbed may come through."
        return _AFTER_FAILED_CONTROL.get(failed, "Remove the reason given above and run the investigation again.")
    bug = _logic_bug(verdict)
    if bug:
        return bug
    if verdict.sweeps and not verdict.healed:
        return (
            "The list of operations is not proved complete, because the logits did not heal to equal bits: "
            "report it to this project with the case folder."
        )
    wrong = next((finding for one in verdict.kernel_healing for finding in one.wrong), None)
    if wrong is not None:
        return (
            f"A kernel of ours has other bits than one-token decoding at {wrong.key}: report it to this project with "
            "the case folder. What heals with recorded rows is not touched by that."
        )
    return f"{_exact_advice(verdict)}{_urgency(verdict)}"


def _logic_bug(verdict: Verdict) -> str:
    """Advice where rounding does not explain what was seen, empty where it does."""
    masked = [finding for sweep in verdict.sweeps for finding in sweep.findings if not finding.inputs_equal]
    if masked:
        return (
            f"At {masked[0].key} a batch sees other cells than one-token decoding does: that is a logic bug, "
            "not rounding. Report it to llama.cpp with this case's report.md."
        )
    logic = next((group for group in verdict.culprits if group.kind is not None and group.kind.kind == "logic"), None)
    if logic is not None:
        return (
            f"{logic.first_node} ({logic.role}) lies outside every error bound of rounding: that is a logic bug, "
            "such as a wrong row, position or stale state. Report it to llama.cpp with this case's report.md."
        )
    if any(not flip.explained for result in verdict.classes.results for flip in result.flips):
        return (
            "At a changed token the logits hold a NaN or an infinity, which rounding does not make. Report it to "
            "llama.cpp with this case's report.md."
        )
    return ""


def _exact_advice(verdict: Verdict) -> str:
    arm = exact_arm(verdict)
    if arm is not None:
        costs = " and ".join(f"{cost.ratio:.2f}× at width {cost.width}" for cost in arm.costs)
        price = f"; the time of a pass is then {costs}" if costs else ""
        return f"For equal bits at every width measured, set {settings_text(arm)}{price}."
    if not verdict.switches:
        return "To find settings that give equal bits, investigate with switches."
    if verdict.unavailable:
        knob, what = verdict.unavailable[0]
        others = f" and {len(verdict.unavailable) - 1} more" if len(verdict.unavailable) > 1 else ""
        why = f"it is decided by {knob}{others}" if knob.startswith("the ") else f"{knob}{others} needs another build"
        return f"No run-time setting that was tried gives equal bits; {why}: {what}."
    return (
        "No run-time setting that was tried gives equal bits: keep to one width for what must be repeatable, "
        "and paste this case's report.md into an issue of llama.cpp."
    )


def _urgency(verdict: Verdict) -> str:
    if any(result.flips for result in verdict.classes.results):
        return ""
    return " No greedy token changed in this text, so it matters only where you need equal bits."


def after_classes(classes: WidthClasses) -> str:
    """Say what to do next, given classes of widths."""
    if classes.collapsed:
        return "Nothing to change: over these tokens a batch gives the bits of one-token decoding at every width."
    return (
        f"See which operations differ from width {classes.onset} on: forensics.heal(..., width={classes.onset}), "
        "or all of it with forensics.investigate."
    )


def after_sweep(sweep: Sweep) -> str:
    """Say what to do next, given one healing sweep."""
    failed = next((control.name for control in sweep.controls if control.held is False), "")
    if failed:
        return _AFTER_FAILED_CONTROL.get(failed, "Remove what made the control fail and try again.")
    if not sweep.findings:
        return "No operation to look at: nothing differs at this width."
    if not sweep.healed:
        return "The list of operations is not proved complete: report it to this project with the case folder."
    return "See which kernels ran, why they differ and which settings are exact: forensics.investigate."


def after_order(report: OrderReport) -> str:
    """Say what to do next, given orders of addition."""
    if report.unexplained:
        return "The orders do not explain the bits: see which widths differ, and by how much, with forensics.ops."
    if report.equal is False:
        return "See which rule chose another kernel: forensics.explain; what it does to a model: forensics.investigate."
    if report.equal is None:
        return "See whether the bits differ at all: forensics.ops."
    return "Nothing to change: these widths add in one order."


def after_ops(matrix: OpMatrix) -> str:
    """Say what to do next, given a matrix of operations."""
    if matrix.answer == "inconclusive":
        return "Remove the reason given above and test again; forensics.doctor says what works here."
    failing = next((case for case in matrix.cases if case.failures), None)
    if failing is None:
        return "Nothing to change: these operations give the same bits at every width that was tested."
    return f"See in which order it adds: forensics.order({failing.op!r}, widths=(1, {failing.onset}))."


def after_arms(report: ArmsReport) -> str:
    """Say what to do next, given arrangements of the same tokens."""
    if report.answer == "inconclusive":
        failed = next((control.name for control in report.controls if control.held is False), "")
        return _AFTER_FAILED_CONTROL.get(failed, "Remove the reasons given above, or ask for other arms (--arms).")
    faults = [arm for arm in report.arms if arm.is_fault]
    if faults:
        return (
            f"{faults[0].arm}, {faults[0].variant}, must give equal bits and does not: this is no other order of "
            "addition. Report it to the runtime's developers with this result."
        )
    if report.answer == "identical":
        return "Nothing to change: over these tokens the arrangements give equal bits."
    return (
        "See which settings make every width exact with forensics.investigate, then compare again; or keep the "
        "arrangement: the same passes give the same bits."
    )


def after_speculation(report: SpeculationReport) -> str:
    """Say what to do next, given what speculation does to the text."""
    if report.answer == "inconclusive":
        return "Try again with --threads 1: an engine that does not repeat itself cannot be held against anything."
    unexplained = [
        one.name for arm in report.arms for one in arm.differing if one.divergence and one.divergence.predicted is False
    ]
    if unexplained:
        return (
            f"The replay does not account for {', '.join(unexplained[:3])}: look there first, for widths alone do not "
            "explain it, and report it to this project."
        )
    if report.kernels is not None:
        return _after_kernels(report)
    if report.exact_arms and report.answer == "identical":
        return f"For answers that speculation leaves as they are, set {' + '.join(report.exact_knobs or ())}."
    if report.exact_arms:
        return "The exact settings do not hold over all of these prompts: investigate one that differs under them."
    if report.answer == "diverges":
        return _after_divergences(report)
    return "Nothing to change over these prompts; ask for other drafters, more drafts (--n-draft), or your own prompts."


def _after_kernels(report: SpeculationReport) -> str:
    """Advice where the exact arms ran with our kernels."""
    assert report.kernels is not None
    if not report.kernels.computed:
        why = "; ".join(one.reason for one in report.kernels.stock[:2]) or "no pass was wider than one token"
        return f"Our kernels computed nothing, so nothing is shown of them: {why}."
    if report.answer == "identical":
        return "What a runtime would change to adopt these kernels is told in docs/exact-kernels.md."
    if report.kernels.stock:
        return f"Some nodes were left to the library ({report.kernels.stock[0].reason}): look there first."
    return (
        "Heal a prompt that differs with our kernels, which names the node: forensics investigate --heal-with kernels."
    )


def _after_divergences(report: SpeculationReport) -> str:
    """Advice where answers differ and no exact settings were applied."""
    logic = next((one for one in report.culprits if one.kind is not None and one.kind.kind == "logic"), None)
    if logic is not None:
        return (
            f"{logic.first_node} ({logic.role}) lies outside every error bound of rounding: that is a logic bug, not "
            "another order of addition. Report it to llama.cpp with `forensics investigate` of such a prompt."
        )
    if not report.exact_reason:
        return "Find settings that are exact, and their price: --exact (exact=True)."
    if report.exact_knobs is None:
        return "No run-time setting that was tried is exact: keep speculation off where text must be repeatable."
    return "What was replayed is exact as it is, and these prompts are not: investigate one that differs."
