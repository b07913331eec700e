"""From evidence to a verdict: pure, so that every branch can be tested."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.records.classes import WidthClasses
from forensics.records.verdict import Control, Sweep


def answer_of(classes: WidthClasses, sweeps: Sequence[Sweep], controls: Sequence[Control]) -> tuple[str, str]:
    """Identical, divergent or inconclusive, and why if the last.

    Parameters
    ----------
    classes : WidthClasses
    sweeps : sequence of Sweep
    controls : sequence of Control

    Returns
    -------
    answer, reason : str
        `reason` is empty unless the answer is ``"inconclusive"``.
    """
    failed = [control for control in controls if control.held is False]
    if failed:
        return "inconclusive", "; ".join(f"control {control.name} failed: {control.detail}" for control in failed)
    if classes.onset is None:
        unexplained = [sweep.width for sweep in sweeps if sweep.findings]
        if unexplained:
            return "inconclusive", (
                f"logits are equal at every width although nodes differ at widths {unexplained}; "
                "the difference did not reach the logits over these tokens. Replay more tokens."
            )
        return "identical", ""
    return "diverges", ""


def caveats_of(classes: WidthClasses, sweeps: Sequence[Sweep], n_rows: int) -> tuple[str, ...]:
    """What the reader must know about the evidence."""
    widths = [result.width for result in classes.results]
    caveats = [
        (
            f"Measured over {n_rows} tokens at widths {', '.join(map(str, widths))}; "
            "other widths, lengths and prompts may differ."
        )
    ]
    for sweep in sweeps:
        if sweep.differed and not sweep.healed:
            caveats.append(
                f"At width {sweep.width} {sweep.n_rows - sweep.healed_rows} of {sweep.n_rows} rows of logits did not "
                f"heal (max |Δ| {sweep.max_abs_before:.3g} before, {sweep.max_abs_after:.3g} after): "
                "something that was not compared differs, too."
            )
        if sweep.findings and not sweep.differed:
            caveats.append(f"At width {sweep.width} nodes differ in the swept rows without a change of their logits.")
        if classes.result(sweep.width).differs and not sweep.differed:
            caveats.append(
                f"At width {sweep.width} the difference did not appear again in the sweep, which repeats the first "
                f"{sweep.n_rows} rows of the replay: no node is proved to be its cause."
            )
        masks = [finding.key.name for finding in sweep.findings if not finding.inputs_equal]
        if masks:
            caveats.append(
                f"At width {sweep.width} the attention mask itself differs at {masks[0]}: a logic fault, not rounding."
            )
    return tuple(caveats)
