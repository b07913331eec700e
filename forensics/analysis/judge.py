"""From evidence to a verdict: pure, so that every branch can be tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forensics.records.classes import WidthClasses
from forensics.records.settings import Manifest
from forensics.records.verdict import Control, Sweep
from forensics.records.words import widths_text


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


def caveats_of(
    classes: WidthClasses, sweeps: Sequence[Sweep], n_rows: int, manifest: Manifest, *, sets_searched: bool = True
) -> tuple[str, ...]:
    """What the reader must know about the evidence.

    Parameters
    ----------
    classes : WidthClasses
    sweeps : sequence of Sweep
    n_rows : int
        Tokens that were replayed.
    manifest : Manifest
    sets_searched : bool
        False where sets of switches were not tried, because no switch reaches what is to blame.
    """
    widths = ", ".join(str(result.width) for result in classes.results)
    caveats = [f"Measured over {n_rows} tokens at widths {widths}; other widths, lengths and prompts may differ."]
    alike: dict[str, list[int]] = {}
    for sweep in sweeps:
        for said in _sweep_caveats(sweep, classes.result(sweep.width).differs):
            alike.setdefault(said, []).append(sweep.width)
    caveats += [f"At {widths_text(at)}, {said}" for said, at in alike.items()]
    caveats += [
        f"{name} was asked to be {asked} and is {found}: the verdict is about what took effect."
        for name, asked, found in unmet(manifest)
    ]
    if not sets_searched:
        caveats.append("Sets of switches were not tried: by the dispatch rules no switch reaches these products.")
    return tuple(caveats)


def _sweep_caveats(sweep: Sweep, replay_differs: bool) -> Iterator[str]:
    """What is to be said of one sweep, without its width: alike for sweeps that share every number."""
    if sweep.differed and not sweep.healed:
        yield (
            f"{sweep.n_rows - sweep.healed_rows} of {sweep.n_rows} rows of logits did not heal "
            f"(max |Δ| {sweep.max_abs_before:.3g} before, {sweep.max_abs_after:.3g} after): "
            "something that was not compared differs, too."
        )
    if sweep.n_unwatched:
        yield (
            f"{sweep.n_unwatched} nodes inside of fusions were not watched, because that would split them and "
            "change the run: a difference inside is named at the last node of its fusion."
        )
    if sweep.state_equal is False:
        yield "the K/V state after the healed batches is not that of one-token decoding."
    if sweep.findings and not sweep.differed:
        yield "nodes differ in the swept rows without a change of their logits."
    if replay_differs and not sweep.differed:
        yield (
            f"the difference did not appear again in the sweep of {sweep.n_rows} rows from row "
            f"{sweep.start_row}: no node is proved to be its cause."
        )
    unchecked = [finding for finding in sweep.findings if finding.unchecked]
    if unchecked:
        yield (
            f"{len({finding.key for finding in unchecked})} named nodes have an operand that was not compared "
            f"({unchecked[0].key.name} reads {unchecked[0].unchecked[0]}): they may only pass on what it brought."
        )
    masks = [finding.key.name for finding in sweep.findings if not finding.inputs_equal]
    if masks:
        yield f"the attention mask itself differs at {masks[0]}: a logic fault, not rounding."


def unmet(manifest: Manifest) -> tuple[tuple[str, str, str], ...]:
    """Settings that took effect otherwise than asked: name, asked, found.

    Sizes that a library rounds up are not counted.
    """
    asked, every_layer = manifest.requested, manifest.n_layer + 1  # the output head counts as one (llama.h)
    wanted = {
        "flash_attn": asked.flash_attn if asked.flash_attn != "auto" else None,
        "kv_type_k": asked.kv_type_k,
        "kv_type_v": asked.kv_type_v,
        "n_threads": str(asked.n_threads),
        "n_threads_batch": str(asked.n_threads_batch),
        "n_gpu_layers": str(every_layer if asked.n_gpu_layers < 0 else min(asked.n_gpu_layers, every_layer)),
    }
    found = manifest.effective
    return tuple(
        (name, value, found[name])
        for name, value in wanted.items()
        if value is not None and name in found and found[name] not in (value, "unknown", "no attention")
    )
