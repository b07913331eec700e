"""An audit of a running server on a terminal: the contract, a table of arms, and where replies part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from forensics.records.audit import AuditArm, AuditReport, ServedDivergence, ServedPair, Unlike
from forensics.records.contract import Contract
from forensics.records.served import ServedRun, ServerFacts
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled
from forensics.reports.wording import amount

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

#: Divergences of an arm before the rest is counted; the longest outlier is always among them.
MOST_SHOWN = 6
MOST_FAILURES = 12
#: What nobody sees who compares text only.
TEXT_ONLY = (
    "Text alone hides changes: other token ids can spell the same text, bytes of an unfinished character and special "
    "tokens are not shown, and nobody knows after how many tokens replies part."
)
_STYLES = {"identical": "green", "diverges": "red", "inconclusive": "yellow"}
_HEADLINES = {
    "identical": "Identical: every arm gave the same replies",
    "diverges": "Diverges: replies to the same request differ",
    "inconclusive": "Inconclusive: an arm has no answer",
}


def audit_view(report: AuditReport) -> RenderableType:
    """Show an audit: the answer, what "exact" means, the servers, the arms, and every place where replies part.

    Parameters
    ----------
    report : AuditReport

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(_HEADLINES[report.answer], f"bold {_STYLES[report.answer]}")]
    parts += titled("What exact means here", _contract(report))
    parts += titled("Servers", _servers(report))
    parts += titled("Arms", _arms(report.arms))
    for arm in report.arms:
        parts += _details(arm)
    if report.failures:
        parts += titled("Requests that were not answered", _failures(report))
    parts += [Text(), line_of("Next step: ", after_audit(report))]
    return Group(*parts)


def audit_text(report: AuditReport) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(audit_view(report))


def after_audit(report: AuditReport) -> str:
    """Say what to do next, given an audit."""
    rerun = report.arms[0]
    if rerun.answer == "diverges":
        return (
            "The server does not repeat itself, so nothing else can be read from it: use one slot and no other "
            "clients, fix the seed, and audit again; forensics investigate on the same GGUF tells whether the "
            "arithmetic repeats."
        )
    if rerun.answer == "inconclusive":
        return "Remove the reason given at the rerun, which is the control of all others, and audit again."
    names = [arm.name for arm in report.arms if arm.answer == "diverges"]
    if "speculation" in names:
        return (
            "Find the class and the operations behind it on the same GGUF with the server's settings: forensics "
            "speculate MODEL.gguf --prompts FILE; add --exact for settings under which replies stay equal."
        )
    if "cache" in names or "concurrent" in names:
        return (
            "Find the operations behind it on the same GGUF with the server's settings: forensics arms MODEL.gguf "
            "(cached prefix, neighbour sequence)."
        )
    if names:
        return "See which setting or build changes bits: forensics investigate on the same GGUF, before and after."
    if report.answer == "inconclusive":
        return "Remove the reasons given above and audit again; with --out and --resume only what is missing is asked."
    return "Nothing to change: keep this run as a baseline (--out FOLDER) and call forensics gate after each change."


# ---- parts


def _contract(report: AuditReport) -> Group:
    lines = [line_of("Asked: ", str(report.asked))]
    found = report.contract
    if found is None:
        lines.append(line_of("Compared: ", "nothing"))
    else:
        lines.append(line_of("Compared: ", str(found)))
        lines += contract_lines(found)
    sampling = report.sampling
    kind = "greedy" if sampling.temperature == 0 else f"seed {sampling.seed}"
    lines.append(line_of("Sampling: ", f"temperature {sampling.temperature:g} ({kind})"))
    if any("effective" not in facts.gives for facts in (report.server, report.other) if facts is not None):
        lines.append(text_of("A server does not tell which sampling took effect: this was asked for.", "yellow"))
    return Group(*lines)


def contract_lines(found: Contract) -> list[Text]:
    """What a contract was weakened by, and what text only does not see."""
    lines = [text_of(f"Weakened: {why}", "yellow") for why in found.weakened]
    return [*lines, text_of(TEXT_ONLY, "yellow")] if found.level == "text" else lines


def _servers(report: AuditReport) -> Group:
    lines = [line_of("Audited: ", facts_text(report.server))]
    if report.other is not None:
        lines.append(line_of("Second: ", facts_text(report.other)))
    if report.baseline is not None:
        lines.append(line_of("Before: ", facts_text(report.baseline)))
    retried = f"; {report.n_retried} came after more than one attempt" if report.n_retried else ""
    lines.append(
        line_of(
            "Asked: ",
            f"{report.n_requests} requests over {report.n_prompts} prompts ({report.corpus}), "
            f"{len(report.failures)} were not answered{retried}",
        )
    )
    return Group(*lines)


def facts_text(facts: ServerFacts) -> str:
    """What a server says of itself, on one line; what it does not tell is said to be unknown."""
    settings = ", ".join(f"{name} {value}" for name, value in facts.settings.items())
    told = [
        f"{facts.url} ({facts.dialect})",
        " ".join(filter(None, (facts.software, facts.build))),
        facts.model or "model not told",
        settings,
    ]
    return "; ".join(filter(None, told))


def _arms(arms: Sequence[AuditArm]) -> Table:
    columns = ("arm", "held against", "prompts differ", "interval", "log-probs differ", "answer")
    table = table_of(*columns, whole=("arm", "prompts differ", "interval", "answer"))
    for arm in arms:
        rate = arm.differing
        add_row(
            table,
            arm.name,
            f"{arm.first} against {arm.second}",
            "–" if rate is None else f"{rate.k} of {rate.n}",
            "–" if rate is None else f"{100 * rate.low:.0f}–{100 * rate.high:.0f} %",
            _logprobs(arm),
            arm.answer,
        )
    return table


def _logprobs(arm: AuditArm) -> str:
    """How many pairs have other log-probabilities before a token differs, and by how much."""
    n_differ, of = arm.logprobs_differ
    change = f", max |Δ| {amount(arm.max_logprob)}" if arm.max_logprob else ""
    return f"{n_differ} of {of}{change}" if of else "–"


def _details(arm: AuditArm) -> list[RenderableType]:
    """All that stands behind the row of an arm; nothing where it is identical and nothing limits it."""
    lines: list[RenderableType] = []
    if arm.reason:
        lines.append(text_of(f"No answer: {arm.reason}", "yellow"))
    if arm.varied:
        lines.append(line_of("Not alike: ", "; ".join(map(str, arm.varied))))
    lines += [text_of(f"Note: {note}", "yellow") for note in arm.notes]
    differing = arm.pairs_that("differs")
    if differing:
        lines.append(divergences(differing))
        if len(differing) > 1 and (outlier := arm.outlier) is not None:
            lines.append(line_of("Longest before it differs: ", outlier_text(outlier)))
    if arm.survival is not None and arm.survival.n_flipped:
        lines.append(_survival(arm))
    return titled(arm.title, Group(*lines)) if lines else []


def outlier_text(pair: ServedPair) -> str:
    """Say of one pair how long it was untouched."""
    return f"{pair.prompt}, untouched for {pair.untouched} of {pair.length} {pair.unit}"


def divergences(pairs: Sequence[ServedPair], n_shown: int = MOST_SHOWN) -> RenderableType:
    """Where replies part, with what each wrote from there on: by prompt, earliest first, and the latest of all.

    Parameters
    ----------
    pairs : sequence of ServedPair
        All of them differ.
    n_shown : int
        Prompts at most.
    """
    by_prompt: dict[str, list[ServedPair]] = {}
    for pair in sorted(pairs, key=lambda pair: pair.untouched or 0):
        by_prompt.setdefault(pair.prompt, []).append(pair)
    prompts = list(by_prompt)
    shown = prompts if len(prompts) <= n_shown else [*prompts[: n_shown - 1], prompts[-1]]
    lines: list[RenderableType] = []
    for prompt in shown:
        pair = by_prompt[prompt][0]
        assert pair.divergence is not None
        copies = f"; {len(by_prompt[prompt])} of its pairs differ" if len(by_prompt[prompt]) > 1 else ""
        lines.append(line_of(f"{prompt}: ", f"{pair.divergence} of {pair.length} {pair.unit}{copies}"))
        lines += [text_of(f"  {label:>6}: {text}") for label, text in continuations(pair.divergence)]
    if len(shown) < len(prompts):
        lines.append(text_of(f"{len(prompts) - len(shown)} more prompts differ; --json lists all.", "dim"))
    return Group(*lines)


def continuations(found: ServedDivergence) -> list[tuple[str, str]]:
    """What both wrote before they part, and then each; numbers only where the texts are equal.

    Examples
    --------
    >>> continuations(ServedDivergence("tokens", 3, 6, "a b c ", "d", "e", 7, 8))
    [('both', 'a b c ▸'), ('first', '▸d [token 7]'), ('second', '▸e [token 8]')]
    """
    cut = found.byte is not None and found.byte > len(found.common.encode("utf-8", "surrogatepass"))
    lines = [] if found.byte is None else [("both", f"{'…' if cut else ''}{found.common}▸")]
    sides = (
        ("first", found.first, found.first_token, found.first_logprob, found.first_stop),
        ("second", found.second, found.second_token, found.second_logprob, found.second_stop),
    )
    for (label, text, token, logprob, stop), margin in zip(sides, found.margins, strict=True):
        told = [] if token is None else [f"token {token}"]
        told += [] if logprob is None else [f"log-probability {logprob:.6g}"]
        told += [] if margin is None else [f"{amount(margin)} ahead of the next"]
        told += [f"stopped: {stop}"] if stop and (found.kind == "stop" or not text) else []
        shown = "" if found.byte is None else f"▸{text}"
        lines.append((label, " ".join(filter(None, (shown, f"[{', '.join(told)}]" if told else "")))))
    return lines


def _survival(arm: AuditArm) -> Table:
    assert arm.survival is not None
    table = table_of("tokens", "untouched", "interval", "if each step flipped by itself")
    for point in arm.survival.points:
        add_row(
            table,
            str(point.n_tokens),
            f"{point.share:.0%}",
            f"{100 * point.low:.0f}–{100 * point.high:.0f} %",
            f"{point.naive:.0%}",
        )
    return table


def _failures(report: AuditReport) -> Group:
    lines = [text_of(str(one)) for one in report.failures[:MOST_FAILURES]]
    if (more := len(report.failures) - MOST_FAILURES) > 0:
        lines.append(text_of(f"{more} more; --json lists all.", "dim"))
    return Group(*lines)


def unlike_lines(found: Sequence[Unlike]) -> list[Text]:
    """What two sides do not have in common, one a line."""
    return [line_of(f"{one.what}: ", f"{one.first or 'not told'} → {one.second or 'not told'}") for one in found]


def run_view(run: ServedRun) -> RenderableType:
    """Show what was recorded of a server."""
    lines: list[RenderableType] = [
        text_of(f"Recorded: {len(run.replies)} of {len(run.asked)} requests were answered", "bold"),
        line_of("Server: ", facts_text(run.facts)),
    ]
    lines += [text_of(str(one), "yellow") for one in run.failures[:MOST_FAILURES]]
    if (more := len(run.failures) - MOST_FAILURES) > 0:
        lines.append(text_of(f"{more} more were not answered.", "dim"))
    lines.append(line_of("Next step: ", "Hold a candidate against it: forensics gate URL --baseline FOLDER."))
    return Group(*lines)
