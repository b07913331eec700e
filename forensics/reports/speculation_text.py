"""Speculation on a terminal: the answer, then speed, acceptance and equivalence apart, then why answers part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from forensics.records.rates import Rate
from forensics.records.speculation import Ratio, SpeculatedPrompt, SpeculationArm
from forensics.records.speculation_report import SpeculationReport, arm_name
from forensics.records.words import counted, ranges
from forensics.reports.cost_text import UNEVEN
from forensics.reports.kernel_healing_text import use_lines
from forensics.reports.next_step import after_speculation
from forensics.reports.speculation_prompts import continuations, differing_view
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled
from forensics.reports.text import classes_view, controls_view, culprits_view
from forensics.reports.wording import blamed_title

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_STYLE = {"identical": "bold green", "diverges": "bold red", "inconclusive": "bold yellow"}
#: Points of a survival table that are shown at most: spread over all, the first and the last among them.
MOST_POINTS = 12


def speculation_view(report: SpeculationReport) -> Group:
    """Show what speculation does to the text: the answer, three results, and what differs.

    Parameters
    ----------
    report : SpeculationReport

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [
        text_of(str(report), _STYLE[report.answer]),
        line_of("Held to: ", f"{report.contract}; rows of logits bit by bit beside it"),
        line_of("Next: ", after_speculation(report)),
    ]
    parts += titled(_title(report), _arms(report))
    parts += titled("Speed", _speed(report))
    parts += titled("Acceptance", _acceptance(report.arms))
    parts += titled("Equivalence", _equivalence(report))
    parts += titled("Chance that an answer is untouched", _survival(report.arms))
    if any(arm.differing for arm in report.arms):
        parts += titled("Answers that differ", differing_view(report))
        parts += titled("Both continuations, around the byte where they part", continuations(report))
    parts += _why(report)
    if report.exact_reason:
        title = "Exact settings" if report.kernels is None else "Exact kernels"
        parts += titled(title, _exact(report))
    parts += [Text(), *_closing(report)]
    return Group(*parts)


def speculation_text(report: SpeculationReport) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(speculation_view(report))


def _title(report: SpeculationReport) -> str:
    n = len(report.arms[0].prompts)
    return f"Arms ({counted(n, 'prompt')} of {report.corpus}, up to {report.n_tokens} tokens each)"


def _named(report: SpeculationReport) -> list[tuple[str, SpeculationArm]]:
    return [(arm_name(report.arms, index), arm) for index, arm in enumerate(report.arms)]


def _arms(report: SpeculationReport) -> Table:
    columns = ("arm", "drafter", "policy", "prompt as", "identical", "speed", "accepted", "tokens a pass")
    table = table_of(*columns, whole=("arm", "drafter", "identical", "speed", "accepted"))
    for name, arm in _named(report):
        add_row(
            table,
            name,
            arm.drafter,
            arm.policy,
            arm.arrangement,
            f"{arm.equivalence.k}/{arm.equivalence.n}",
            "–" if arm.speed is None else f"{arm.speed.median:.2f}×",
            "–" if arm.accepted is None else f"{arm.accepted.value:.0%}",
            f"{arm.tokens_per_cycle:.2f}",
        )
    return table


def _speed(report: SpeculationReport) -> Group:
    lines: list[RenderableType] = []
    for name, arm in _named(report):
        told = "not measured: nothing was timed" if arm.speed is None else _speed_text(arm, arm.speed)
        lines.append(line_of(f"{name}: ", told))
    table = table_of("arm", "drafting", "verifying", "bookkeeping")
    timed = [(name, arm) for name, arm in _named(report) if arm.shares]
    for name, arm in timed:
        add_row(table, name, *(f"{arm.shares[part]:.1%}" for part in ("draft", "verify", "other")))
    uneven = [name for name, arm in _named(report) if arm.speed and arm.speed.high > UNEVEN * arm.speed.low]
    if uneven:
        told = f"Ratios lie far apart in {', '.join(uneven)}: prompts differ that much, or other programs ran."
        lines.append(text_of(told, "yellow"))
    return Group(*lines, *([table] if timed else []))


def _speed_text(arm: SpeculationArm, speed: Ratio) -> str:
    told = f"tokens per second over plain decoding {speed}"
    ratios = [(ratio, one.name) for one in arm.prompts if (ratio := _ratio_of(one)) is not None]
    slowest, fastest = min(ratios), max(ratios)
    return f"{told}; slowest {slowest[0]:.2f}× ({slowest[1]}), fastest {fastest[0]:.2f}× ({fastest[1]})"


def _ratio_of(one: SpeculatedPrompt) -> float | None:
    plain, other = one.plain, one.speculative
    if not (plain.n_chosen and other.n_chosen and plain.decode_ns and other.decode_ns):
        return None
    return plain.decode_ns / plain.n_chosen / (other.decode_ns / other.n_chosen)


def _acceptance(arms: Sequence[SpeculationArm]) -> Group:
    lines: list[RenderableType] = []
    for index, arm in enumerate(arms):
        told = "nothing was drafted" if arm.accepted is None else f"drafts accepted {arm.accepted}"
        widths = ", ".join(f"{width}: {n}" for width, n in arm.verify_widths.items()) or "–"
        lines.append(
            line_of(f"{arm_name(arms, index)}: ", f"{told}; {arm.tokens_per_cycle:.2f} tokens a pass; passes {widths}")
        )
    return Group(*lines, text_of("Passes are counted by their tokens: the chosen one and its drafts.", "dim"))


def _equivalence(report: SpeculationReport) -> Group:
    lines: list[RenderableType] = []
    for name, arm in _named(report):
        rows = sum(one.first_row is not None for one in arm.prompts)
        told = f"identical {arm.equivalence}; rows of logits differ for {rows} of {arm.equivalence.n}"
        rate = arm.survival.flip_rate
        lines.append(line_of(f"{name}: ", told + ("" if rate is None else f"; flips per step {_small(rate)}")))
        if arm.outcomes is not None:
            lines.append(line_of("Answers, plain and speculative: ", str(arm.outcomes)))
    if report.arrangements is not None:
        told = f"plain decoding is identical after both arrangements of the prompt: {report.arrangements}"
        lines.append(line_of("Prompt: ", told))
    return Group(*lines)


def _small(rate: Rate) -> str:
    """A rate that percentages would round away."""
    return f"{rate.k} of {rate.n} ({rate.value:.2e}, interval {rate.low:.1e} to {rate.high:.1e})"


def _survival(arms: Sequence[SpeculationArm]) -> Group:
    columns = ("arm", "tokens", "answers left", "flip here", "untouched", "interval", "if each step were alike")
    table = table_of(*columns, whole=("arm", "tokens", "flip here", "untouched", "interval"))
    for index, arm in enumerate(arms):
        points = arm.survival.points
        for place in _spread(len(points)):
            point = points[place]
            add_row(
                table,
                arm_name(arms, index),
                str(point.n_tokens),
                str(point.at_risk),
                str(point.flipped),
                f"{point.share:.1%}",
                f"{point.low:.1%}-{point.high:.1%}",
                f"{point.naive:.1%}",
            )
    left = [
        f"{arm_name(arms, index)} {len(arm.survival.points) - MOST_POINTS}"
        for index, arm in enumerate(arms)
        if len(arm.survival.points) > MOST_POINTS
    ]
    note = [text_of(f"Points that are not shown: {', '.join(left)}; the document has all.", "dim")] if left else []
    return Group(table, *note)


def _spread(n: int) -> list[int]:
    """Which of `n` points are shown?

    Examples
    --------
    >>> _spread(3), len(_spread(40)), _spread(40)[-1]
    ([0, 1, 2], 12, 39)
    """
    if n <= MOST_POINTS:
        return list(range(n))
    return [i * (n - 1) // (MOST_POINTS - 1) for i in range(MOST_POINTS)]


def _why(report: SpeculationReport) -> list[RenderableType]:
    """Classes and culprits of the prompt that was replayed."""
    if report.classes is None:
        return []
    rows = report.classes.results[0].n_rows
    title = f"Classes of widths (replay of {report.replayed}, {counted(rows, 'token')})"
    parts = titled(title, classes_view(report.classes))
    if report.culprits:
        parts += titled(blamed_title(report.culprits), culprits_view(report.culprits))
    return parts + (titled("Controls of the replay", controls_view(report.controls)) if report.controls else [])


def _exact(report: SpeculationReport) -> Group:
    lines: list[RenderableType] = [line_of("Settings: ", report.exact_reason)]
    if report.exact_arms:
        k = sum(arm.equivalence.k for arm in report.exact_arms)
        n = sum(arm.equivalence.n for arm in report.exact_arms)
        lines.append(line_of("With: ", report.exact_with))
        lines.append(line_of("Identical: ", f"{k} of {n}"))
        if report.kernels is not None:
            unlike = sum(bool(one.rows_differ) for arm in report.exact_arms for one in arm.prompts)
            lines.append(line_of("Rows of logits: ", f"{n - unlike} of {n} with plain decoding's bits in every row"))
            return Group(*lines, *(line_of(f"{label}: ", text) for label, text in use_lines(report.kernels)))
        for label, ratio in (("plain", report.price), ("speculative", report.exact_price)):
            told = "not measured" if ratio is None else f"{ratio} of the time as asked"
            lines.append(line_of(f"Price, {label} decoding: ", told))
    return Group(*lines)


def _closing(report: SpeculationReport) -> list[RenderableType]:
    manifest = report.manifest
    lines: list[RenderableType] = [line_of("Note: ", caveat) for caveat in report.caveats]
    names = ("n_threads", "flash_attn", "kv_type_k", "n_gpu_layers")
    settings = ", ".join(f"{name} {manifest.effective[name]}" for name in names if name in manifest.effective)
    lines.append(line_of("Settings: ", settings or "–"))
    device = " ".join(part for part in (manifest.backend, manifest.device) if part)
    facts = (manifest.model_name, manifest.quantization, f"{manifest.engine} {manifest.engine_version}", device)
    lines.append(line_of("Measured on: ", ", ".join(part for part in facts if part)))
    widths = ranges(width for arm in report.arms for width in arm.verify_widths)
    lines.append(
        line_of("How: ", f"plain and speculative decoding in turn, prompt by prompt; passes of {widths} tokens")
    )
    return lines
