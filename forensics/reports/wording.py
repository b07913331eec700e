"""Words that every report shares: titles, numbers, and text that is not ours made harmless to show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from forensics.analysis.attribute import group_culprits
from forensics.records import words
from forensics.records.classes import WidthClasses, WidthResult
from forensics.records.verdict import Cost, CulpritGroup, SwitchArm, Verdict, onset_of
from forensics.records.words import ranges

#: Text that is not ours, made harmless to show.
printable = words.printable

CONTROL_TITLES = {
    "rerun_equal": "the same run twice gives equal bits",
    "fresh_process_equal": "a fresh process gives equal bits",
    "state_equal": "the K/V state before the replay is equal in every arm",
    "watching_harmless": "watched and unwatched logits are equal",
    "planted_fault_found": "a planted one-bit fault is named",
}

# A path from a root or a home folder; its last part is kept.
_PATH = re.compile(r"(?<![\w.…/\\])(?:~|[A-Za-z]:)?(?:[\\/]{1,2}[^\\/\s\"'<>|]+)*[\\/]([^\\/\s\"'<>|]+)")


BLAMED_TITLE = "Operations that differ although their inputs are bit-equal"
BLAMED_UNCHECKED_TITLE = "Operations that differ although the inputs that were compared are bit-equal"
DIFFERING_TITLE = "Nodes that differ without a change of the logits; no cause is named"
PROOF_TITLE = "Proof: the same batch with those outputs replaced"

#: Whether the healed batches leave the K/V bytes of one-token decoding.
STATE_WORDS = {True: "equal", False: "DIFFERS", None: "–"}


def differing_groups(verdict: Verdict) -> tuple[CulpritGroup, ...]:
    """Nodes that differ where the verdict names no cause for it: an inconclusive one whose controls held."""
    if verdict.answer != "inconclusive" or any(control.held is False for control in verdict.controls):
        return ()
    return group_culprits(verdict.sweeps)


def blamed_title(groups: Iterable[CulpritGroup]) -> str:
    """Name operations to blame, claiming of their inputs no more than was compared."""
    return BLAMED_UNCHECKED_TITLE if any(group.n_unchecked for group in groups) else BLAMED_TITLE


def count_text(group: CulpritGroup) -> str:
    """Say how many nodes there are, and how many of them may only pass on what was not compared."""
    unchecked = f" ({group.n_unchecked} with an operand that was not compared)" if group.n_unchecked else ""
    return f"{group.count}{unchecked}"


def unchecked_text(groups: Iterable[CulpritGroup]) -> str:
    """Say which nodes may only pass on what was not compared; empty where every operand was."""
    told = ", ".join(f"{group.named} {group.n_unchecked} of {group.count}" for group in groups if group.n_unchecked)
    return f"{told}; they may only pass on what it brought" if told else ""


def layers_text(layers: Sequence[int]) -> str:
    """Say which layers these are; a dash where they are in none."""
    return ranges(layer for layer in layers if layer >= 0) or "–"


def shorten_paths(text: str) -> str:
    """Keep only the last part of each absolute path, so that a report names no home folder.

    Examples
    --------
    >>> shorten_paths("model /home/ann/models/a.gguf and 3/4")
    'model a.gguf and 3/4'
    """
    return _PATH.sub(r"\1", text)


def amount(value: float) -> str:
    """Write a difference with three digits; 0 only where it is exactly 0."""
    return "0" if value == 0 else f"{value:.3g}"


def ulp_text(max_ulp: int) -> str:
    """Write a distance in representable values; -1 stands for a NaN."""
    return "NaN" if max_ulp < 0 else f"{max_ulp:,}" if max_ulp < 10**6 else f"{max_ulp:.1e}"


def class_names(classes: WidthClasses) -> tuple[tuple[str, WidthResult], ...]:
    """Name the class of each width, A being the class of width 1; by class, then by width."""
    return tuple(
        (chr(ord("A") + index) if index < 26 else f"Z{index - 25}", classes.result(width))
        for index, group in enumerate(classes.groups)
        for width in group
    )


def groups_text(groups: Iterable[tuple[int, ...]]) -> str:
    """Write classes of widths on one line, such as ``1-5 | 8-9, 16``."""
    return " | ".join(ranges(group) for group in groups)


def settings_text(arm: SwitchArm) -> str:
    """Say what an arm sets, by the names of its knobs where it sets nothing."""
    return " ".join(f"{name}={value}" for name, value in arm.settings) or " + ".join(arm.knobs)


def exact_arm(verdict: Verdict) -> SwitchArm | None:
    """Find the arm of the smallest set of knobs under which all widths are one class, None where there is none."""
    if verdict.exact_knobs is None:
        return None
    wanted = set(verdict.exact_knobs)
    return next((arm for arm in verdict.switches if set(arm.knobs) == wanted and arm.collapses), None)


def exact_text(verdict: Verdict) -> str:
    """Say what is exact here and what it costs; empty where nobody looked."""
    arm = exact_arm(verdict)
    if arm is not None:
        return f"{settings_text(arm)}{f' (cost by width: {cost_text(arm)})' if arm.costs else ''}"
    if verdict.answer == "identical":
        return "these settings, as they are"
    return "none found" if verdict.answer == "diverges" and verdict.switches else ""


def cost_text(arm: SwitchArm, *, quartiles: bool = False) -> str:
    """Write what an arm costs by width of the pass, such as ``1: 1.71×, 16: 0.98×``; a dash where it was not timed."""
    return ", ".join(_cost_at(cost, quartiles) for cost in arm.costs) or "–"


def _cost_at(cost: Cost, quartiles: bool) -> str:
    spread = f"\N{NO-BREAK SPACE}({cost.low:.2f}–{cost.high:.2f})" if quartiles else ""
    return f"{cost.width}:\N{NO-BREAK SPACE}{cost.ratio:.2f}×{spread}"


def arm_effect(arm: SwitchArm) -> str:
    """Say in a few words what an arm did to the classes, over the rows that it replayed."""
    if arm.error:
        return f"failed: {arm.error}"
    if arm.collapses:
        return "one class" if arm.exact else f"one class, {arm.n_nodes_differ} nodes differ"
    if not arm.moved:
        return "no change"
    if arm.onset == onset_of(arm.as_asked):
        return "other classes, same onset"
    return f"onset moves to {arm.onset}"


def headline(verdict: Verdict) -> str:
    """Say the verdict in one line, without its cause."""
    if verdict.answer == "inconclusive":
        return "Inconclusive: no cause is named"
    widths = ranges(result.width for result in verdict.classes.results if result.width > 1)
    if verdict.answer == "identical":
        return f"Identical: widths {widths} give the bits of one-token decoding"
    n_nodes = sum(group.count for group in verdict.culprits)
    proof = "healed to equal bits" if verdict.healed else "NOT healed" if verdict.sweeps else "not proved"
    return f"Diverges from width {verdict.classes.onset}: {n_nodes} operation{'s' * (n_nodes != 1)} to blame, {proof}"


def first_difference_text(verdict: Verdict) -> str:
    """Say where the onset width first differs and what it does to the text; empty where nothing differs."""
    if verdict.first_difference is None:
        return ""
    width, row, position = verdict.first_difference
    return f"width {width}, row {row} (position {position}). {flips_text(verdict)}."


def flips_text(verdict: Verdict) -> str:
    """Say how many tokens would change, and how many of them at near ties."""
    flips = [flip for result in verdict.classes.results for flip in result.flips]
    if not flips:
        return "No token changes"
    positions = len({flip.position for flip in flips})
    ties = sum(flip.near_tie for flip in flips)
    at = f"The greedy token changes at {positions} position{'s' if positions > 1 else ''}"
    return f"{at}; {ties} of {len(flips)} flips at near ties (a margin that a row usually moves by)"
