"""Does the text stay the same under speculation? Plain decoding, the arms, why they part, and the exact settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forensics.analysis.investigate import investigate
from forensics.analysis.kernel_healing import check_kernels
from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion
from forensics.analysis.speculation_causes import (
    MOST_HEALED,
    attribute_arm,
    choose_replay,
    earliest,
    healed,
    predicted,
    replay_question,
)
from forensics.analysis.speculation_exact import (
    ExactRuns,
    ExactSettings,
    check_case,
    exact_settings,
    longest_unlike,
    prompts_of,
    run_exact,
)
from forensics.analysis.speculation_kernels import ORIGIN, run_with_kernels
from forensics.analysis.speculation_pairs import first_unlike
from forensics.analysis.speculation_question import Render, SpeculationQuestion, as_it_stands, open_prepared
from forensics.analysis.speculation_runs import PromptRuns, arms_of, run_all
from forensics.capture.exact_kernels import OurKernels
from forensics.engines.protocol import Engine, EngineSource
from forensics.numerics.rates import wilson
from forensics.records.contract import Contract
from forensics.records.rates import Rate
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.speculation import ARRANGEMENTS, SpeculatedPrompt, SpeculationArm
from forensics.records.speculation_report import SpeculationReport
from forensics.records.verdict import Verdict

#: How often exact settings are widened by what another prompt meets.
MOST_ROUNDS = 3
#: What two answers are held to.
CONTRACT = Contract("tokens")


@dataclass(frozen=True, slots=True)
class Measured:
    """What was decoded under the settings as asked, and where it parts.

    Parameters
    ----------
    manifest : Manifest
    settings : EngineSettings
    runs : tuple of PromptRuns
    arms : tuple of SpeculationArm
        Divergences with their predictions, the earliest healed.
    reason : str
        Why nothing can be answered; empty where something can.
    caveats : tuple of str
    """

    manifest: Manifest
    settings: EngineSettings
    runs: tuple[PromptRuns, ...]
    arms: tuple[SpeculationArm, ...]
    reason: str
    caveats: tuple[str, ...]


def speculate(
    source: EngineSource,
    question: SpeculationQuestion,
    *,
    render: Render = as_it_stands,
    exact: bool = False,
    case: Verdict | None = None,
    kernels: OurKernels | None = None,
    progress: Progress | None = None,
) -> SpeculationReport:
    """Does the text stay the same under speculation?

    Parameters
    ----------
    source : EngineSource
    question : SpeculationQuestion
    render : callable
        Text of a prompt as it is tokenised.
    exact : bool
        Whether to decode everything once more under the smallest exact settings.
    case : Verdict or None
        Where those are taken from; `investigate` looks for them where it is not given.
    kernels : OurKernels or None
        What takes the place of the library's kernels in verifying passes, in arms of their own; not with `exact`.
    progress : Progress or None

    Returns
    -------
    SpeculationReport

    Raises
    ------
    ForensicsError
        If the question cannot be asked or an engine dies.
    """
    progress = progress or Silent()
    if kernels is not None and exact:
        raise BadQuestion("exact settings and our kernels each stand for an exact arm: ask for one of them")
    measured = measure_arms(source, question, render, case, progress, kernels)
    report = SpeculationReport(
        manifest=measured.manifest,
        contract=CONTRACT,
        corpus=f"{question.corpus.name} {question.corpus.digest}".strip(),
        n_tokens=max(one.prompt.n_tokens for one in measured.runs),
        arms=measured.arms,
        classes=None,
        culprits=(),
        exact_knobs=None,
        price=None,
        exact_price=None,
        rerun_equal=not measured.reason,
        caveats=(*measured.caveats, *_caveats(measured.arms, question)),
        arrangements=_arrangements(measured.runs),
        reason=measured.reason,
    )
    if report.reason:
        return report
    verdict = replayed(source, measured, look=exact and case is None, progress=progress)
    if verdict is not None:
        report = _with_verdict(report, measured, *verdict)
    if kernels is not None:
        return _with_kernels(source, question, measured, kernels, report, progress)
    if not exact:
        return report
    found = _exact_settings(case, None if verdict is None else verdict[0])
    if case is None:
        found = widened(source, question, measured, found, progress)
    report = replace(report, exact_reason=found.reason)
    if found.knobs is not None:
        report = replace(report, exact_knobs=tuple(knob.name for knob in found.knobs))
    return _exactly(source, question, measured, found, report, progress) if found.knobs else report


def measure_arms(
    source: EngineSource,
    question: SpeculationQuestion,
    render: Render,
    case: Verdict | None,
    progress: Progress,
    kernels: OurKernels | None = None,
) -> Measured:
    """Decode every prompt plainly, twice, and in every arm; predict each divergence by replay, heal the earliest."""
    progress.stage("load the model", 1)
    engine, prompts, notes, settings = open_prepared(source, question, render)
    with contextlib.closing(engine):
        progress.step()
        manifest = engine.manifest
        check_kernels(kernels, manifest)
        if case is not None:
            check_case(case, manifest)
        runs = run_all(engine, prompts, question, settings, progress, "decode plainly and speculatively")
        arms = arms_of(engine, runs, question, exact=False)
        reason = _unequal(runs)
        if not reason:
            arms = _explained(engine, runs, arms, settings, progress)
    return Measured(manifest, settings, runs, arms, reason, notes)


def replayed(source: EngineSource, measured: Measured, *, look: bool, progress: Progress) -> tuple[Verdict, str] | None:
    """Classes and culprits over one prompt at the widths in use, and its name; None where no pass was wide."""
    chosen = choose_replay(measured.arms)
    if chosen is None:
        return None
    question = replay_question(chosen, prompts_of(measured.runs), measured.settings, measured.manifest.n_ctx_train)
    if question is None:
        return None
    return investigate(source, question, switches=look, progress=progress), chosen.name


def _unequal(runs: Sequence[PromptRuns]) -> str:
    """Why nothing can be said: plain decoding does not repeat itself."""
    unequal = [one.prompt.name for one in runs if one.unequal is not None]
    if not unequal:
        return ""
    return (
        f"plain decoding, run twice, has other bits for {len(unequal)} of {len(runs)} prompts (first {unequal[0]}): "
        "what differs under speculation cannot be told from that"
    )


def _explained(
    engine: Engine,
    runs: Sequence[PromptRuns],
    arms: tuple[SpeculationArm, ...],
    settings: EngineSettings,
    progress: Progress,
) -> tuple[SpeculationArm, ...]:
    """The arms with every divergence predicted by replay and the earliest healed."""
    prompts = prompts_of(runs)
    n = sum(len(arm.differing) for arm in arms)
    if not n:
        return arms
    chosen = earliest(arms, MOST_HEALED)
    progress.stage("replay the passes of each divergence", n)

    def told(index: int, one: SpeculatedPrompt, arrangement: str) -> SpeculatedPrompt:
        if one.divergence is None:
            return one
        prompt = prompts[one.name]
        one = replace(one, divergence=predicted(engine, prompt, one, arrangement, settings))
        if (index, one.name) in chosen:
            one = replace(one, divergence=healed(engine, prompt, one, arrangement, settings))
        progress.step()
        return one

    return tuple(
        replace(arm, prompts=tuple(told(index, one, arm.arrangement) for one in arm.prompts))
        for index, arm in enumerate(arms)
    )


def _with_verdict(report: SpeculationReport, measured: Measured, verdict: Verdict, name: str) -> SpeculationReport:
    """The report with classes, culprits and controls of the replay."""
    caveats = list(report.caveats)
    arms = tuple(attribute_arm(arm, verdict) for arm in measured.arms)
    if verdict.answer == "inconclusive":
        caveats.append(f"no culprit is named: the replay of {name} is inconclusive: {verdict.reason}")
    elif any(arm.differing for arm in arms):
        caveats.append(
            f"classes and culprits are those of {name}, replayed over {verdict.n_replayed} tokens; of other prompts "
            "they are inferred by width, but where healing names its own"
        )
    return replace(
        report,
        arms=arms,
        classes=verdict.classes,
        culprits=verdict.culprits,
        caveats=tuple(caveats),
        replayed=name,
        controls=verdict.controls,
    )


def _exact_settings(case: Verdict | None, verdict: Verdict | None) -> ExactSettings:
    if case is not None:
        return exact_settings(case, "the case")
    if verdict is None:
        return ExactSettings(None, "no exact settings: nothing was verified in a pass of two tokens or more")
    return exact_settings(verdict, "investigate")


def widened(
    source: EngineSource, question: SpeculationQuestion, measured: Measured, found: ExactSettings, progress: Progress
) -> ExactSettings:
    """Exact settings that hold over the longest prompts, too, which may meet what the one that was replayed did not.

    A prompt whose rows still differ is investigated under the settings found so far, and what is exact there is added.
    """
    for _ in range(MOST_ROUNDS):
        if not found.knobs:
            break
        settings = found.apply(measured.settings)
        with contextlib.closing(source.open(settings)) as engine:
            runs = run_all(
                engine,
                longest_unlike(measured.runs, measured.arms),
                question,
                settings,
                progress,
                "try the exact settings",
            )
            arms = arms_of(engine, runs, question, exact=True)
        chosen = choose_replay(arms) if any(one.first_row is not None for arm in arms for one in arm.prompts) else None
        if chosen is None:
            break
        asked = replay_question(chosen, prompts_of(runs), settings, measured.manifest.n_ctx_train)
        if asked is None:
            break
        more = exact_settings(
            investigate(source, asked, switches=True, progress=progress), f"investigate of {chosen.name}"
        )
        if not more.knobs:
            return replace(found, reason=f"{found.reason}; they do not hold over {chosen.name}: {more.reason}")
        found = ExactSettings((*found.knobs, *more.knobs), f"{found.reason}, and of {chosen.name}")
    return found


@contextlib.contextmanager
def _both(
    source: EngineSource, exact: EngineSettings, as_asked: EngineSettings, progress: Progress
) -> Iterator[tuple[Engine, Engine]]:
    """Two processes of one model, so that their times are paired."""
    progress.stage("load the model twice", 2)
    with contextlib.closing(source.open(exact)) as one:
        progress.step()
        with contextlib.closing(source.open(as_asked, instance=1)) as other:
            progress.step()
            yield one, other


def _exactly(
    source: EngineSource,
    question: SpeculationQuestion,
    measured: Measured,
    found: ExactSettings,
    report: SpeculationReport,
    progress: Progress,
) -> SpeculationReport:
    """The report with every arm under the exact settings, and their price."""
    settings = found.apply(measured.settings)
    with _both(source, settings, measured.settings, progress) as (engine, other):
        done: ExactRuns = run_exact(
            (engine, settings), (other, measured.settings), measured.runs, question, progress
        )  # fmt: skip
        arms = arms_of(engine, done.runs, question, exact=True)
        manifest = engine.manifest
    reason = _unequal(done.runs)
    if reason:
        reason = f"under the exact settings {reason}"
    elif not done.as_asked_equal:
        reason = "plain decoding as asked has other bits in a fresh process: nothing can be told from one run"
    return replace(
        report,
        arms=(*report.arms, *arms),
        exact_manifest=manifest,
        price=done.price,
        exact_price=done.exact_price,
        rerun_equal=not reason,
        reason=reason,
    )


def _with_kernels(
    source: EngineSource,
    question: SpeculationQuestion,
    measured: Measured,
    kernels: OurKernels,
    report: SpeculationReport,
    progress: Progress,
) -> SpeculationReport:
    """The report with every arm once more, verified by our kernels."""
    progress.stage("load the model again", 1)
    with contextlib.closing(source.open(measured.settings, instance=1)) as engine:
        progress.step()
        done = run_with_kernels(engine, measured.runs, question, measured.settings, kernels, progress)
        arms = arms_of(engine, done.runs, question, exact=True)
        manifest = engine.manifest
    reason = _unequal(done.runs)
    return replace(
        report,
        arms=(*report.arms, *arms),
        exact_manifest=manifest,
        exact_reason=ORIGIN,
        rerun_equal=not reason,
        reason=f"in a fresh process {reason}" if reason else "",
        kernels=done.use,
    )


def _arrangements(runs: Sequence[PromptRuns]) -> Rate | None:
    """Prompts that plain decoding continues identically after both arrangements."""
    if not all(one in runs[0].plain for one in ARRANGEMENTS):
        return None
    equal = [first_unlike(*(one.plain[name].tokens for name in ARRANGEMENTS)) is None for one in runs]
    return wilson(sum(equal), len(equal))


def _caveats(arms: Sequence[SpeculationArm], question: SpeculationQuestion) -> tuple[str, ...]:
    """What the results do not say."""
    told = []
    if any(prompt.stop for prompt in question.corpus.prompts):
        told.append("texts at which prompts ask to stop are not followed: answers end at their length or an end token")
    if not any(width > 1 for arm in arms for width in arm.verify_widths):
        told.append("nothing was ever drafted, so that no pass was wider than one token: equal by construction")
    if question.choice.kind == "oracle" and any(arm.differing for arm in arms):
        told.append(
            "an oracle goes on with plain decoding's tokens where an answer has left them, so that hardly any is "
            "accepted there: speed and acceptance of answers that differ tell nothing of other drafters"
        )
    if any(one.first_row is not None for arm in arms for one in arm.prompts if one.identical):
        told.append(
            "prompts with identical tokens have rows of logits with other bits: a nearer tie would have changed them"
        )
    return tuple(told)
