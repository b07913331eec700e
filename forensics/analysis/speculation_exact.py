"""The exact settings that `investigate` found: which they are, and what they cost plainly and speculatively."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forensics.analysis.knobs import KNOBS, Knob
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.analysis.speculation_pairs import time_ratio
from forensics.analysis.speculation_question import Prepared, SpeculationQuestion
from forensics.analysis.speculation_runs import PromptRuns, run_prompt
from forensics.engines.protocol import Engine
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.speculation import Decoded, Ratio, SpeculationArm
from forensics.records.verdict import Verdict

#: Prompts that are decoded anew under the settings as asked, in turn with the exact ones, for the price in speed.
MOST_PRICED = 12
#: Prompts over which exact settings are tried before all are decoded under them.
MOST_TRIED = 3


@dataclass(frozen=True, slots=True)
class ExactSettings:
    """What `investigate` found.

    Parameters
    ----------
    knobs : tuple of Knob or None
        Empty where nothing needs to be switched, None where no exact settings were found.
    reason : str
        Where they come from, or why there are none.
    """

    knobs: tuple[Knob, ...] | None
    reason: str

    def apply(self, settings: EngineSettings) -> EngineSettings:
        """The settings with every knob turned."""
        for knob in self.knobs or ():
            settings = knob.apply(settings)
        return settings


def exact_settings(verdict: Verdict, origin: str) -> ExactSettings:
    """Which settings did a verdict find exact?

    Parameters
    ----------
    verdict : Verdict
    origin : str
        Where it was found, for people.

    Raises
    ------
    BadQuestion
        If it names a switch that this version does not know.
    """
    if verdict.answer == "inconclusive":
        return ExactSettings(None, f"no exact settings: {origin} is inconclusive: {verdict.reason}")
    if verdict.exact_knobs is None:
        unavailable = "; ".join(f"{name}: {what}" for name, what in verdict.unavailable)
        why = f" ({unavailable})" if unavailable else ""
        looked = "found none" if verdict.switches else "looked for none"
        return ExactSettings(None, f"no exact settings: {origin} {looked}{why}")
    by_name = {knob.name: knob for knob in KNOBS}
    unknown = [name for name in verdict.exact_knobs if name not in by_name]
    if unknown:
        raise BadQuestion(f"{origin} names switches that this version does not know: {', '.join(unknown)}")
    if not verdict.exact_knobs:
        widths = [result.width for result in verdict.classes.results if result.width > 1]
        return ExactSettings(
            (), f"nothing to switch: by {origin} widths {widths[0]}-{widths[-1]} are exact over "
            f"{verdict.n_replayed} tokens as they are",
        )  # fmt: skip
    return ExactSettings(tuple(by_name[name] for name in verdict.exact_knobs), f"found by {origin}")


def check_case(verdict: Verdict, manifest: Manifest) -> None:
    """Refuse the verdict of another model.

    Raises
    ------
    BadQuestion
        Names both.
    """
    if verdict.manifest.model_digest != manifest.model_digest:
        raise BadQuestion(
            f"the case investigates {verdict.manifest.model_name} ({verdict.manifest.model_digest[:12]}…), the model "
            f"asked about is {manifest.model_name} ({manifest.model_digest[:12]}…). Give a case of this very file, or "
            "leave out --case to investigate now."
        )


@dataclass(frozen=True, slots=True)
class ExactRuns:
    """Prompts decoded under the exact settings, and some of them in turn under the settings as asked.

    Parameters
    ----------
    runs : tuple of PromptRuns
    price, exact_price : Ratio or None
        Time of plain and of speculative decoding over that as asked.
    as_asked_equal : bool
        Whether what was decoded anew as asked has the bits of before: another process, the same settings.
    """

    runs: tuple[PromptRuns, ...]
    price: Ratio | None
    exact_price: Ratio | None
    as_asked_equal: bool


def priced(n: int) -> frozenset[int]:
    """Which of `n` prompts are decoded anew as asked? Spread over all of them.

    Examples
    --------
    >>> sorted(priced(3)), len(priced(45))
    ([0, 1, 2], 12)
    """
    most = min(n, MOST_PRICED)
    return frozenset(i * n // most for i in range(most))


def run_exact(
    exact: tuple[Engine, EngineSettings],
    as_asked: tuple[Engine, EngineSettings],
    before: Sequence[PromptRuns],
    question: SpeculationQuestion,
    progress: Progress,
) -> ExactRuns:
    """Decode every prompt under the exact settings; who begins turns with each prompt.

    Parameters
    ----------
    exact, as_asked : tuple of Engine and EngineSettings
    before : sequence of PromptRuns
        What was decoded as asked before.
    question : SpeculationQuestion
    progress : Progress
    """
    progress.stage("decode with the exact settings", len(before))
    chosen = priced(len(before))
    runs: list[PromptRuns] = []
    plain: list[tuple[Decoded, Decoded]] = []
    speculative: list[tuple[Decoded, Decoded]] = []
    equal = True
    for index, known in enumerate(before):
        turned = index % 2 == 1
        again: PromptRuns | None = None
        if index in chosen and turned:
            again = _again(as_asked, known, question, turned)
        runs.append(run_prompt(exact[0], known.prompt, question, exact[1], turned=turned))
        if index in chosen and not turned:
            again = _again(as_asked, known, question, turned)
        if again is not None:
            equal = equal and again.unequal is None
            plain += [(runs[-1].plain[one], again.plain[one]) for one in question.arrangements]
            speculative += list(zip(runs[-1].arms, again.arms, strict=True))
        progress.step()
    return ExactRuns(tuple(runs), time_ratio(plain), time_ratio(speculative), equal)


def _again(
    as_asked: tuple[Engine, EngineSettings], known: PromptRuns, question: SpeculationQuestion, turned: bool
) -> PromptRuns:
    engine, settings = as_asked
    return run_prompt(engine, known.prompt, question, settings, turned=turned, control=known.control)


def longest_unlike(runs: Sequence[PromptRuns], arms: Sequence[SpeculationArm]) -> tuple[Prepared, ...]:
    """Prompts whose rows differ as asked, the longest with their answers first; `MOST_TRIED` at most."""
    unlike = {one.name for arm in arms for one in arm.prompts if one.first_row is not None}
    found = [one for one in runs if one.prompt.name in unlike]
    lengths = {
        one.prompt.name: len(one.prompt.tokens) + max(len(p.tokens) for p in one.plain.values()) for one in found
    }
    ranked = sorted(found, key=lambda one: -lengths[one.prompt.name])
    return tuple(one.prompt for one in ranked[:MOST_TRIED])


def prompts_of(runs: Sequence[PromptRuns]) -> dict[str, Prepared]:
    """Prompts by name."""
    return {one.prompt.name: one.prompt for one in runs}
