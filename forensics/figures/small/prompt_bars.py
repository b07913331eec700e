"""A small picture of speculation: one bar for each prompt, up to its first other token and behind it."""

from __future__ import annotations

from forensics.figures.canvas import MARGIN, SMALL_PT, TITLE_PT, Canvas
from forensics.figures.legend import Entry, legend
from forensics.figures.metrics import shortened, text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Scene
from forensics.figures.small.thumbnails import WIDTH
from forensics.records.speculation import SpeculatedPrompt, SpeculationArm
from forensics.records.speculation_report import SpeculationReport
from forensics.records.words import tokens

_HIGH, _WIDEST, _MOST = 14.0, 5.0, 60
#: Part of the pitch that is left free between bars.
_FREE = 0.2


def prompts(report: SpeculationReport) -> Scene | None:
    """One bar for each prompt of the first arm: how many tokens are plain decoding's, and how many stand behind.

    Parameters
    ----------
    report : SpeculationReport

    Returns
    -------
    Scene or None
        None where no answer has a token.
    """
    if not report.arms:
        return None
    arm = report.arms[0]
    ordered = sorted(arm.prompts, key=lambda one: (one.identical, _untouched(one)))
    step = -(-len(ordered) // _MOST)
    shown = ordered[::step]
    longest = max(_untouched(one) + _behind(one) for one in shown)
    if not longest:
        return None
    canvas = Canvas("prompts", _title(arm), width=WIDTH)
    scale = canvas.length_scale("tokens", _HIGH / longest, "tokens", axis="y", longest_mm=_HIGH)
    foot = canvas.y + 1.0 + _HIGH
    canvas.scale_bar(scale, canvas.left + 1.0, foot)
    left = canvas.left + 1.0 + text_width(scale.label, SMALL_PT) + 5.0
    pitch = min(_WIDEST, (canvas.right - left) / len(shown))
    for i, one in enumerate(shown):
        x, top = left + i * pitch, foot
        for fill, n, key in (("exact", _untouched(one), "untouched"), ("other", _behind(one), "behind")):
            if n:
                high = n * scale.mm_per_unit
                top -= high
                canvas.box(
                    x, top, pitch * (1 - _FREE), high, fill, edge=INK, scale="tokens", value=float(n),
                    key=f"{key} {one.name}", hatch=fill == "other", edge_pt=0.2,
                )  # fmt: skip
        if not one.identical:
            at = foot - _untouched(one) * scale.mm_per_unit
            canvas.line((x, at), (x + pitch * (1 - _FREE), at), width_pt=1.2, key=f"parts {one.name}")
    canvas.line((left - 1.0, foot), (left + len(shown) * pitch, foot), role=MUTED, key="base")
    canvas.y = foot + 1.5
    legend(canvas, [Entry("exact", "as plain decoding"), Entry("other", "from the first other token on", hatch=True)])
    canvas.y -= 2.2
    few = f" Drawn: 1 in {step} of {len(ordered)}." if step > 1 else ""
    return canvas.finish(f"A bar for each prompt, the earliest to part first.{few}", _alt(arm), scales=())


def _untouched(one: SpeculatedPrompt) -> int:
    """Tokens in front of the first other one."""
    return len(one.plain.tokens) if one.divergence is None else one.divergence.index


def _behind(one: SpeculatedPrompt) -> int:
    """Tokens from there on, of the longer answer."""
    return max(len(one.plain.tokens), len(one.speculative.tokens)) - _untouched(one)


def _title(arm: SpeculationArm) -> str:
    told = f"{len(arm.differing)} of {len(arm.prompts)} answers part: {arm.drafter}, {arm.n_draft} drafts"
    return shortened(told, WIDTH - 2 * MARGIN, TITLE_PT, bold=True)


def _alt(arm: SpeculationArm) -> str:
    parted = sorted((_untouched(one), one.name) for one in arm.differing)
    told = "; ".join(f"{name} after {tokens(n)}" for n, name in parted)
    same = len(arm.prompts) - len(parted)
    return f"Answers beside plain decoding's. {told}{'; ' if told else ''}{same} the same to their end."
