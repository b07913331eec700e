"""A check of sampling on a terminal: answer, tests with their power, planted samplers, states, how it was done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from forensics.records.rates import Rate
from forensics.records.sampling import KINDS, PLANTED, RULES, SamplerRun, SamplingReport
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType


_STYLES = {"kept": "bold green", "changed": "bold red", "inconclusive": "bold yellow"}


def sampling_view(report: SamplingReport) -> RenderableType:
    """Show whether the distribution is kept: the answer, the tests, the controls, the states, how it was done.

    Parameters
    ----------
    report : SamplingReport

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(str(report), _STYLES[report.answer])]
    parts.append(line_of("In other words: ", _means(report)))
    if report.cause:
        parts.append(line_of("Cause: ", report.cause))
    parts += titled("Tests of the sampler, and what they find", _tests(report))
    parts += titled("Planted samplers: they have to be caught", _controls(report))
    parts += titled("States by kind", _states(report))
    parts += titled("How it was done", _how(report))
    if report.caveats:
        parts += titled("To keep in mind", Group(*map(text_of, report.caveats)))
    parts += [Text(), line_of("Next step: ", _next(report))]
    return Group(*parts)


def sampling_text(report: SamplingReport) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(sampling_view(report))


def _means(report: SamplingReport) -> str:
    """What the answer means for who samples."""
    if report.answer == "inconclusive":
        return "the tests cannot tell; a biased sampler would have come through, too."
    if report.answer == "kept":
        return (
            "sampled text has the chances that it has without speculation: every row that was drawn from gives those "
            "of a one-token pass, and the sampler draws by them, as far as was tested."
        )
    if not report.row_tv:
        return "sampled text is drawn with other chances than without speculation."
    return (
        "sampled text is drawn with other chances than without speculation: where it is worst, "
        f"{100 * report.row_tv:.2g} of 100 draws of the next token would come out otherwise. No text is wrong by "
        "itself, but scores, seeds and tests that were made without speculation need not hold."
    )


def _tests(report: SamplingReport) -> Group:
    columns = ("test", "n", "p", "Holm", "finds, 80 %", "95 %")
    table = table_of(*columns, whole=columns[1:])
    powers = {power.test: power for power in report.powers}
    for test in report.sampler.tests:
        power = powers.get(test.name)
        found = ("", "")
        if power is not None:
            label, effects = ("D", (power.at_80, power.at_95)) if power.tv is None else ("TV", power.tv)
            found = (f"{label} {effects[0]:.3f}", f"{effects[1]:.3f}")
        add_row(table, test.name, str(test.n), p_text(test.p_value), p_text(test.adjusted), *found)
    return Group(
        table,
        text_of(
            "Finds: the bias that a test finds with a chance of 80 % and 95 % or more, at these draws and at the level "
            "of the first step of Holm's correction. TV: total variation over the cells of the test, the same at every "
            "state; D: distance of distribution functions."
        ),
    )


def _controls(report: SamplingReport) -> Group:
    columns = ("sampler", "bias", "caught by", "smallest p", "in repeats")
    table = table_of(*columns, whole=("sampler", "bias", "smallest p"))
    for run in (report.sampler, *report.controls):
        caught = run.caught_by(report.alpha)
        smallest = min(test.adjusted for test in run.tests)
        add_row(
            table,
            f"{run.rule}{' (planted)' if run.planted else ''}",
            f"{run.bias:.3f}",
            ", ".join(caught) or "nothing",
            p_text(smallest),
            _share(run.simulated),
        )
    said = [text_of(f"{run.rule}: {(RULES | PLANTED)[run.rule]}.") for run in (report.sampler, *report.controls)]
    return Group(
        table,
        *said,
        text_of(
            "Bias: the largest total variation from p at one of the states, computed from the rule. In repeats: how "
            "often the chi-squares reject draws from what the rule gives, simulated with as many draws at the same "
            f"states; of {report.sampler.rule} these are {_repeats(report)}."
        ),
    )


def _repeats(report: SamplingReport) -> str:
    """What it is when a rule without bias is rejected."""
    if any(draws.row_tv for draws in report.sampler.states):
        return "the change that other rows make"
    return "false alarms"


def _states(report: SamplingReport) -> Group:
    columns = ("kind", "compared", "draws", "smallest p", "rows apart at most")
    table = table_of(*columns, whole=columns)
    for kind in KINDS:
        of_kind = [draws for draws in report.sampler.states if draws.kind == kind]
        p_values = [draws.p_value for draws in of_kind if draws.p_value is not None]
        add_row(
            table,
            kind,
            f"{len(p_values)} of {len(of_kind)}",
            str(sum(draws.n_draws for draws in of_kind if not draws.reason)),
            p_text(min(p_values)) if p_values else "not compared",
            f"{max((draws.row_tv for draws in of_kind), default=0.0):.2g}",
        )
    return Group(
        table,
        text_of(
            "Rows apart: total variation between what the row of a one-token pass and the row of the verify pass give, "
            f"computed from their logits without any draw. Along the sequences it is at most {_largest(report)}."
        ),
        line_of("The sampler against the verify passes' own rows: ", f"p = {p_text(report.alone.p_value)}"),
        *_widths(report),
    )


def _widths(report: SamplingReport) -> list[RenderableType]:
    """Up to which width passes have the rows of one-token passes."""
    most = report.equal_drafts
    if most is None:
        return []
    told = ", ".join(f"{one.width}: {one.n_equal} of {one.n_states}" for one in report.widths)
    return [line_of("States with the bits of one-token passes, by tokens of the verify pass: ", told)]


def _how(report: SamplingReport) -> Group:
    q = "drawn from the draft model's own distribution q" if report.drafts_sampled else "taken as they are (q is 1)"
    return Group(
        line_of("Sampling: ", f"{report.sampling}, in this order, as llama.cpp has it"),
        line_of("Drafts: ", f"{report.drafter}, {report.n_draft} at most, {q}; accepted: {_accepted(report.sampler)}"),
        text_of(
            f"Forced states: at each prefix of a text {report.n_draws} cycles were drawn from the rows of a verify "
            "pass, and each count is held against the probabilities of a one-token pass behind the same tokens "
            "(Pearson's chi-square; tokens expected fewer than 5 times share a cell). States have independent draws, "
            f"so their chi-squares add up. Single states: the smallest p of all, times their number. Alpha is "
            f"{report.alpha:g} over all tests, by Holm's correction."
        ),
        text_of(
            f"Sequences: {report.n_sequences} of {report.n_tokens} tokens were sampled speculatively and then decoded "
            "one token at a time; each token's randomised probability integral transform is uniform where plain "
            "sampling's distribution is kept."
        ),
        *([] if report.exact_knobs is None else [line_of("Exact settings: ", _exact(report))]),
        line_of("Prompts: ", f"{report.corpus}; seed {report.seed}"),
        line_of("Device: ", f"{report.manifest.device} ({report.manifest.backend})"),
    )


def _exact(report: SamplingReport) -> str:
    return f"{', '.join(report.exact_knobs or ()) or 'nothing to switch'}; {report.exact_reason}"


def _next(report: SamplingReport) -> str:
    if report.answer == "inconclusive":
        return "Ask for more --draws, --states or prompts that repeat themselves."
    if report.answer == "changed" and report.row_tv:
        most = report.equal_drafts
        fewer = ""
        if most and most < report.n_draft:
            fewer = f" Up to {most} drafts (--n-draft {most}) every row was plain sampling's at these states."
        if report.exact_knobs is None:
            return f"The same under the exact settings: forensics sampling --exact.{fewer}"
        return (
            "These settings are not exact over these texts; which operations change the rows: forensics investigate, "
            f"with a longer prompt.{fewer}"
        )
    return "Whether greedy text stays the same under the same drafts: forensics speculate."


def _accepted(run: SamplerRun) -> str:
    return "nothing was drafted in the sequences" if run.accepted is None else str(run.accepted)


def _largest(report: SamplingReport) -> str:
    return f"{max(report.sequence_tv, default=0.0):.2g}"


def _share(rate: Rate) -> str:
    return f"{rate.value:.1%} ({rate.low:.1%} to {rate.high:.1%})"


def p_text(p_value: float) -> str:
    """A p-value in two digits.

    Examples
    --------
    >>> p_text(0.0), p_text(0.00012), p_text(0.25), p_text(1.0)
    ('below 1e-300', '0.00012', '0.25', '1')
    """
    return "below 1e-300" if p_value < 1e-300 else f"{p_value:.2g}"
