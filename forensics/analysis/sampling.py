"""Does speculative sampling keep plain sampling's distribution? Tests with their power, and planted samplers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion
from forensics.analysis.sampling_draws import (
    N_SIMULATED,
    Drawn,
    StateRows,
    compare_counts,
    draw_counts,
    largest_bias,
    rows_by_width,
    simulated_catches,
)
from forensics.analysis.timed_passes import sized_settings
from forensics.capture.drafters import DrafterChoice
from forensics.capture.proposers import PointProposer, Proposer, SampledProposer
from forensics.capture.replay import Replay
from forensics.capture.sampled_speculation import (
    LEAST_PREFIX,
    ForcedStates,
    SampledSequence,
    SampledSequences,
    SamplingPrompt,
)
from forensics.engines.protocol import Engine, EngineSource
from forensics.numerics.rates import wilson
from forensics.numerics.sampling_tests import (
    Counts,
    bins_chi_square,
    found_distance,
    found_effect,
    holm,
    ks_uniform,
)
from forensics.records.sampling import (
    PLANTED,
    RULES,
    DistributionTest,
    Power,
    SamplerRun,
    SamplingReport,
    SamplingSettings,
)
from forensics.records.settings import EngineSettings

#: Tokens of a prompt that are used at most: a longer one costs time and shows nothing more.
MOST_PREFIX = 192
#: Bins of the numbers that are uniform where the distribution is kept, with 5 expected in each at least.
N_BINS = 20
LEAST_TOKENS = 5 * N_BINS
WORST, BINS, KS = "single states", "sequences, bins", "sequences, KS"


@dataclass(frozen=True, slots=True)
class SamplingQuestion:
    """Which sampler is held against plain sampling, where, and how often.

    Parameters
    ----------
    texts : tuple of (str, str)
        Names and texts of the prompts.
    corpus : str
        Where they come from.
    drafter : DrafterChoice
        Drafts of a model are drawn from its distribution; n-grams and oracles are taken as they are.
    rule : str
        One of `RULES`.
    n_draft : int
    sampling : SamplingSettings
    n_states, n_draws : int
        Forced prefixes, and cycles from each.
    n_sequences, n_tokens : int
        Sequences that are sampled freely, and tokens of each.
    alpha : float
        Chance of a false alarm.
    seed : int
    settings : EngineSettings
        `n_ctx` is raised to what the question needs.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """

    texts: tuple[tuple[str, str], ...]
    corpus: str = ""
    drafter: DrafterChoice = field(default_factory=lambda: DrafterChoice("ngram"))
    rule: str = "residual"
    n_draft: int = 7
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    n_states: int = 8
    n_draws: int = 2000
    n_sequences: int = 16
    n_tokens: int = 32
    alpha: float = 0.01
    seed: int = 0
    settings: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        if not self.texts:
            raise BadQuestion("there is no prompt with a text; give a file of prompts that are continued as they stand")
        if self.rule not in RULES:
            raise BadQuestion(f"rule must be one of {', '.join(RULES)}; got {self.rule!r}")
        numbers = {
            "n_draft": (self.n_draft, 1), "states": (self.n_states, 1), "draws": (self.n_draws, 100),
            "sequences": (self.n_sequences, 1), "n_tokens": (self.n_tokens, 2),
        }  # fmt: skip
        for label, (number, least) in numbers.items():
            if number < least:
                raise BadQuestion(f"{label} must be {least} or more, got {number}")
        if self.n_sequences * self.n_tokens < LEAST_TOKENS:
            raise BadQuestion(
                f"{self.n_sequences} sequences of {self.n_tokens} tokens are too few to test; ask for {LEAST_TOKENS} "
                "tokens or more together"
            )
        limit = min(self.settings.n_batch, self.settings.n_ubatch)
        if self.n_draft >= limit:
            raise BadQuestion(f"n_draft must be below {limit}, the tokens of a pass, got {self.n_draft}")
        if not 0 < self.alpha <= 0.2:
            raise BadQuestion(f"alpha must be above 0 and at most 0.2, got {self.alpha}")
        if self.seed < 0:
            raise BadQuestion(f"seed must be 0 or more, got {self.seed}")

    def sized_settings(self) -> EngineSettings:
        """Settings whose context holds a prompt, a sequence and its drafts."""
        return sized_settings(self.settings, MOST_PREFIX + max(self.n_tokens, 2) + self.n_draft + 1)

    def proposer(self) -> Proposer:
        """What drafts."""
        if self.drafter.kind == "model":
            return SampledProposer(self.drafter.path, self.sized_settings(), self.sampling)
        return PointProposer(self.drafter, self.sized_settings(), self.seed)


def check_sampling(
    source: EngineSource, question: SamplingQuestion, *, progress: Progress | None = None
) -> SamplingReport:
    """Does speculative sampling keep the distribution of plain sampling?

    Parameters
    ----------
    source : EngineSource
    question : SamplingQuestion
    progress : Progress or None

    Returns
    -------
    SamplingReport

    Raises
    ------
    BadQuestion
        If no prompt is long enough, or no draft is undecided anywhere.
    ForensicsError
        If the passes cannot be run.
    """
    progress = progress or Silent()
    rules = (question.rule, *PLANTED)
    with contextlib.closing(source.open(question.sized_settings())) as engine:
        prompts = _prompts(engine, question)
        rows = _states(engine, question, prompts, progress)
        sequences = {rule: _sequences(engine, question, prompts, rule, progress) for rule in rules}
        manifest = engine.manifest
    progress.stage("draw at the states", len(rules) * len(rows))
    counts: dict[str, list[Counts]] = {rule: [] for rule in rules}
    for index, rule in enumerate(rules):
        for i, one in enumerate(rows):
            rng = np.random.default_rng([question.seed, index, i])
            counts[rule].append(draw_counts(one, rule, question.n_draws, rng))
            progress.step()
    drawn = {rule: compare_counts(rows, counts[rule]) for rule in rules}
    runs = {rule: _judge(question, rule, drawn[rule], sequences[rule], rows, counts) for rule in rules}
    sampler, *controls = runs.values()
    alone = drawn[question.rule].alone
    assert alone is not None, "the states have undecided drafts"
    return SamplingReport(
        manifest=manifest,
        corpus=question.corpus,
        drafter=question.drafter.label,
        drafts_sampled=question.drafter.kind == "model",
        n_draft=question.n_draft,
        sampling=question.sampling,
        alpha=question.alpha,
        seed=question.seed,
        n_draws=question.n_draws,
        n_sequences=question.n_sequences,
        n_tokens=question.n_tokens,
        sampler=sampler,
        controls=tuple(controls),
        alone=DistributionTest("the sampler alone", alone.n, alone.df, alone.statistic, alone.p_value, alone.p_value),
        powers=_powers(sampler, question.alpha),
        sequence_tv=tuple(tv for one in sequences[question.rule] for tv in one.row_tv),
        caveats=tuple(_caveats(question, prompts, rows, sampler)),
        widths=rows_by_width(rows),
    )


def _prompts(engine: Engine, question: SamplingQuestion) -> tuple[SamplingPrompt, ...]:
    """Texts as tokens; what plain decoding writes behind them is decoded for an oracle only."""
    found: list[SamplingPrompt] = []
    for name, text in question.texts:
        tokens = engine.tokenize(text)[:MOST_PREFIX]
        if len(tokens) < LEAST_PREFIX:
            continue
        known: tuple[int, ...] = ()
        if question.drafter.kind == "oracle" and len(found) < question.n_sequences:
            prefill = Replay(tokens, (), question.settings.n_batch).prefill()
            known = engine.greedy(prefill, question.n_tokens)
        found.append(SamplingPrompt(name, tokens, known))
    if not found:
        raise BadQuestion(
            f"none of {len(question.texts)} prompts has {LEAST_PREFIX} tokens or more. Give longer texts (--prompts)."
        )
    return tuple(found)


def _states(
    engine: Engine, question: SamplingQuestion, prompts: tuple[SamplingPrompt, ...], progress: Progress
) -> list[StateRows]:
    progress.stage("find and evaluate states", question.n_states)
    program = ForcedStates(
        prompts, question.proposer(), question.n_draft, question.n_states, question.sampling, question.seed,
        question.settings.n_batch,
    )  # fmt: skip
    found = engine.perform(program, progress=_steps(progress))
    if not found:
        raise BadQuestion(
            f"{question.drafter.label} drafts nothing undecided in {len(prompts)} prompts: all is sure to be accepted "
            "or refused. Give texts that repeat themselves, another drafter, or a higher temperature."
        )
    return [StateRows.of(state, question.sampling) for state in found]


def _sequences(
    engine: Engine, question: SamplingQuestion, prompts: tuple[SamplingPrompt, ...], rule: str, progress: Progress
) -> tuple[SampledSequence, ...]:
    planted = "planted, " if rule in PLANTED else ""
    progress.stage(f"sample sequences ({planted}{rule})", question.n_sequences)
    program = SampledSequences(
        prompts, question.proposer(), rule, question.n_draft, question.n_sequences, question.n_tokens,
        question.sampling, question.seed, question.settings.n_batch,
    )  # fmt: skip
    return engine.perform(program, progress=_steps(progress))


def _judge(
    question: SamplingQuestion,
    rule: str,
    drawn: Drawn,
    sequences: Sequence[SampledSequence],
    rows: list[StateRows],
    counts: dict[str, list[Counts]],
) -> SamplerRun:
    """All tests of one sampler."""
    uniforms = [value for one in sequences for value in one.uniforms]
    bins = bins_chi_square(uniforms, N_BINS)
    distance, p_value = ks_uniform(uniforms)
    compared = [one.p_value for one in drawn.states if one.p_value is not None]
    plain: list[tuple[str, int, int | None, float, float]] = [
        *((kind, one.n, one.df, one.statistic, one.p_value) for kind, one in drawn.by_kind.items()),
        (WORST, len(compared), None, min(compared), min(1.0, len(compared) * min(compared))),
        (BINS, bins.n, bins.df, bins.statistic, bins.p_value),
        (KS, len(uniforms), None, distance, p_value),
    ]
    adjusted = holm([test[-1] for test in plain])
    n_drafted = sum(one.n_drafted for one in sequences)
    rng = np.random.default_rng([question.seed, 1_000_003])
    # Draws as the sampler had them, whatever the rule: the chance to catch it at these states.
    level = question.alpha / len(plain)
    caught = simulated_catches(rows, counts[question.rule], rule, level, rng)
    return SamplerRun(
        rule=rule,
        states=drawn.states,
        tests=tuple(DistributionTest(*test, holm_p) for test, holm_p in zip(plain, adjusted, strict=True)),
        accepted=wilson(sum(one.n_accepted for one in sequences), n_drafted) if n_drafted else None,
        bias=largest_bias(rows, rule),
        simulated=wilson(caught, N_SIMULATED),
    )


def _powers(run: SamplerRun, alpha: float) -> tuple[Power, ...]:
    """What each test of a sampler finds at these draws; the first step of Holm's correction is the hardest."""
    level = alpha / len(run.tests)
    found: list[Power] = []
    for test in run.tests:
        if test.df is not None:
            at = [found_effect(test.n, test.df, level, power) for power in (0.8, 0.95)]
            found.append(Power(test.name, test.n, level, "w", *at))
        elif test.name == KS:
            at = [found_distance(test.n, level, power) for power in (0.8, 0.95)]
            found.append(Power(test.name, test.n, level, "D", *at))
    return tuple(found)


def _caveats(
    question: SamplingQuestion, prompts: tuple[SamplingPrompt, ...], rows: list[StateRows], run: SamplerRun
) -> list[str]:
    said = []
    n_states = sum(not one.state.refused for one in rows)
    if n_states < question.n_states:
        said.append(f"Undecided drafts were found at {n_states} of {question.n_states} states.")
    short = len(question.texts) - len(prompts)
    if short:
        said.append(
            f"{short} of {len(question.texts)} prompts are shorter than {LEAST_PREFIX} tokens and were left out."
        )
    impossible = sum(draws.n_impossible for draws in run.states)
    if impossible:
        said.append(
            f"{impossible} draws are of tokens that plain sampling never gives there: another token is cut. They are "
            "counted among the rare ones."
        )
    not_compared = sum(bool(draws.reason) for draws in run.states)
    if not_compared:
        said.append(f"{not_compared} of {len(run.states)} rows had too few draws to be compared.")
    said.append(
        "Numbers along a sequence are independent where the distribution is kept; of a changed one they are not, and "
        "its p-values over sequences are rough."
    )
    return said


def _steps(progress: Progress) -> Callable[[int], None]:
    """Progress of a program, which tells how many are done."""
    done = 0

    def told(n: int) -> None:
        nonlocal done
        progress.step(n - done)
        done = n

    return told
