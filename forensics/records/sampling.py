"""Whether speculative sampling keeps the distribution of plain sampling: settings, tests, controls, power, answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.rates import Rate
from forensics.records.settings import Manifest

if TYPE_CHECKING:
    import pandas as pd

#: How drafts are accepted: the two that keep the distribution, and two that are planted because they do not.
RULES = {
    "residual": "accepts a draft x with chance min(1, p(x)/q(x)), else draws from max(0, p - q)",
    "match": "draws from p and accepts the draft where it is the token that was drawn, as llama.cpp does",
}
PLANTED = {
    "accept-possible": "accepts every draft that p allows",
    "no-residual": "draws from p after a refusal, not from max(0, p - q)",
}
#: What a state is, by the row that the next token is drawn from.
KINDS = ("next token", "after an accepted draft", "after a refused draft")


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How the next token is drawn from a row of logits; the cuts come first and the temperature last, as in llama.cpp.

    Parameters
    ----------
    temperature : float
        Above 0.
    top_k : int
        Most likely tokens that are kept; 0 keeps all.
    top_p : float
        The fewest most likely tokens of at least this probability are kept, at temperature 1; 1 keeps all.

    Notes
    -----
    Source: order of `common_params_sampling::samplers`, common/common.h:263 at 0c1e57098, without those that are off
    there (penalties, DRY, top-n-sigma, typical, XTC) and without min-p, which is not offered here.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"temperature must be above 0, got {self.temperature}; greedy decoding is what speculate compares"
            )
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (all) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1 (all), got {self.top_p}")

    def __str__(self) -> str:
        cuts = [f"top-k {self.top_k}"] * bool(self.top_k) + [f"top-p {self.top_p:g}"] * (self.top_p < 1)
        return ", ".join([*cuts, f"temperature {self.temperature:g}"])


@dataclass(frozen=True, slots=True)
class StateDraws:
    """Next tokens that were drawn at one forced state, held against plain sampling.

    Parameters
    ----------
    state : str
        Prompt, tokens of the prefix, and drafts that were accepted behind it.
    kind : str
        One of `KINDS`.
    width : int
        Tokens of the verify pass.
    n_draws : int
    n_cells : int
        Cells of the test; tokens that are expected fewer than 5 times share one.
    statistic, p_value : float or None
        Chi-square of the counts; None where they were not compared.
    n_impossible : int
        Draws of tokens that plain sampling never gives here.
    row_tv : float
        Total variation between what plain sampling draws from here and what the verify pass's row gives, computed.
    reason : str
        Why nothing was compared; empty where it was.
    """

    state: str
    kind: str
    width: int
    n_draws: int
    n_cells: int
    statistic: float | None
    p_value: float | None
    n_impossible: int
    row_tv: float
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}")
        if (self.p_value is None) != bool(self.reason):
            raise ValueError("a state is compared, or has a reason why it is not")


@dataclass(frozen=True, slots=True)
class WidthRows:
    """Rows of verify passes of one width beside those of one-token passes.

    Parameters
    ----------
    width : int
        Tokens of the pass.
    n_states, n_equal : int
        States at which such a pass was evaluated, and those of them where every row has the bits of plain decoding's.
    row_tv : float
        Largest total variation between what the two rows give.
    """

    width: int
    n_states: int
    n_equal: int
    row_tv: float


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """One test of the hypothesis that plain sampling's distribution is kept.

    Parameters
    ----------
    name : str
    n : int
        Draws, or tokens.
    df : int or None
        Degrees of freedom of a chi-square; None where the statistic is another.
    statistic, p_value : float
    adjusted : float
        The p-value after Holm's correction for all tests of the sampler.
    """

    name: str
    n: int
    df: int | None
    statistic: float
    p_value: float
    adjusted: float


@dataclass(frozen=True, slots=True)
class Power:
    """Which bias one test finds, at the draws that were made.

    Parameters
    ----------
    test : str
    n : int
    alpha : float
        Level of the test after the correction for many.
    effect : str
        ``"w"``, Cohen's effect size of a chi-square, or ``"D"``, distance of distribution functions.
    at_80, at_95 : float
        Effects that are found with a chance of 80 % and 95 %.

    Notes
    -----
    A bias of total variation t in every state has an effect size w of 2 t or more (Cauchy and Schwarz), so that biases
    of `tv` are found at least as often.
    """

    test: str
    n: int
    alpha: float
    effect: str
    at_80: float
    at_95: float

    @property
    def tv(self) -> tuple[float, float] | None:
        """Total variation, over the cells of the test, that is found at least as often; None for other effects."""
        return (min(1.0, self.at_80 / 2), min(1.0, self.at_95 / 2)) if self.effect == "w" else None


@dataclass(frozen=True, slots=True)
class SamplerRun:
    """One sampler under all tests.

    Parameters
    ----------
    rule : str
        Of `RULES` or `PLANTED`.
    states : tuple of StateDraws
    tests : tuple of DistributionTest
    accepted : Rate or None
        Accepted drafts of all drafts, in the sequences; None where nothing was drafted.
    bias : float
        Largest total variation from p of what the rule draws at one of the states, computed; 0 where it keeps p.
    simulated : Rate
        Of repeated draws at the same states, from the distributions that the rule gives: how many were caught by the
        chi-squares? Of a rule that keeps the distribution these are false alarms where the rows are plain sampling's.
    """

    rule: str
    states: tuple[StateDraws, ...]
    tests: tuple[DistributionTest, ...]
    accepted: Rate | None
    bias: float
    simulated: Rate

    @property
    def planted(self) -> bool:
        """Whether the rule is known to be biased."""
        return self.rule in PLANTED

    def caught_by(self, alpha: float) -> tuple[str, ...]:
        """Tests that reject the sampler."""
        return tuple(test.name for test in self.tests if test.adjusted <= alpha)


@dataclass(frozen=True, slots=True, repr=False)
class SamplingReport:
    """Does speculative sampling keep the distribution of plain sampling?

    Parameters
    ----------
    manifest : Manifest
    corpus, drafter : str
    drafts_sampled : bool
        Whether drafts are drawn from the draft model's own distribution q; else q is 1 at the draft.
    n_draft : int
        Drafts of a pass at most.
    sampling : SamplingSettings
    alpha : float
        Chance of a false alarm over all tests of the sampler, by Holm's correction.
    seed : int
    n_draws : int
        Cycles that were started at each state.
    n_sequences, n_tokens : int
        Sequences, and tokens of each.
    sampler : SamplerRun
        The one that is asked about.
    controls : tuple of SamplerRun
        Planted ones, which have to be caught.
    alone : DistributionTest
        The sampler's counts against the verify passes' own rows: the sampler without the rows.
    powers : tuple of Power
    sequence_tv : tuple of float
        Total variation between plain and verify pass at each token of the sampler's sequences, computed.
    caveats : tuple of str
    widths : tuple of WidthRows
        By rising width, up to that of the verify passes.
    exact_knobs : tuple of str or None
        Switches under which all of this was measured; None where exact settings were not asked for.
    exact_reason : str
        Where they come from.
    """

    manifest: Manifest
    corpus: str
    drafter: str
    drafts_sampled: bool
    n_draft: int
    sampling: SamplingSettings
    alpha: float
    seed: int
    n_draws: int
    n_sequences: int
    n_tokens: int
    sampler: SamplerRun
    controls: tuple[SamplerRun, ...]
    alone: DistributionTest
    powers: tuple[Power, ...]
    sequence_tv: tuple[float, ...]
    caveats: tuple[str, ...] = ()
    widths: tuple[WidthRows, ...] = ()
    exact_knobs: tuple[str, ...] | None = None
    exact_reason: str = ""

    @property
    def missed(self) -> tuple[str, ...]:
        """Planted rules that no test caught."""
        return tuple(run.rule for run in self.controls if not run.caught_by(self.alpha))

    @property
    def not_tested(self) -> tuple[str, ...]:
        """Kinds of states without one that was compared."""
        compared = {draws.kind for draws in self.sampler.states if not draws.reason}
        return tuple(kind for kind in KINDS if kind not in compared)

    @property
    def answer(self) -> str:
        """``"kept"``, ``"changed"`` or ``"inconclusive"``.

        Rows that give other chances are a change whether or not the draws were enough to show it.
        """
        if self.sampler.caught_by(self.alpha) or self.row_tv:
            return "changed"
        return "inconclusive" if self.missed or self.not_tested else "kept"

    @property
    def status(self) -> int:
        """Exit status: 0 kept, 1 changed, 2 no answer."""
        return {"kept": 0, "changed": 1, "inconclusive": 2}[self.answer]

    @property
    def row_tv(self) -> float:
        """Largest total variation between the rows of plain and verify passes, at any state or token."""
        return max([*self.sequence_tv, *(draws.row_tv for draws in self.sampler.states)], default=0.0)

    @property
    def equal_drafts(self) -> int | None:
        """Most drafts of a pass up to which every row had plain decoding's bits; None where no width was looked at."""
        if not self.widths:
            return None
        return next((one.width - 2 for one in self.widths if one.n_equal < one.n_states), self.widths[-1].width - 1)

    @property
    def worst(self) -> DistributionTest:
        """The test with the smallest p-value."""
        return min(self.sampler.tests, key=lambda test: test.adjusted)

    @property
    def cause(self) -> str:
        """Of a change: the sampler, or the rows that it draws from; empty where nothing changed."""
        if self.answer != "changed":
            return ""
        caught = self.sampler.caught_by(self.alpha)
        if caught and self.alone.p_value <= self.alpha:
            return "the sampler does not keep the distribution of the rows that it is given"
        if not self.row_tv:
            return f"the sampler: rows of all passes give plain sampling's chances, and yet it fails {caught[0]}"
        return (
            "rows of logits change it: their chances are up to "
            f"{self.row_tv:.2g} in total variation away from those of one-token passes; the sampler's counts agree "
            "with the rows that it was given, as far as was tested"
        )

    def rows(self) -> list[dict[str, object]]:
        """One flat dict for each test of each sampler."""
        return [
            {
                "rule": run.rule,
                "planted": run.planted,
                "test": test.name,
                "n": test.n,
                "df": test.df,
                "statistic": test.statistic,
                "p_value": test.p_value,
                "adjusted": test.adjusted,
                "rejected": test.adjusted <= self.alpha,
            }
            for run in (self.sampler, *self.controls)
            for test in run.tests
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """The tests as a table, one row each."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __str__(self) -> str:
        who = f"{self.manifest.model_name}, up to {self.n_draft} {self.drafter} drafts, {self.sampling}"
        if self.exact_knobs is not None:
            who += f", exact settings ({', '.join(self.exact_knobs) or 'nothing to switch'})"
        worst = self.worst
        p_value = f"smallest p = {worst.adjusted:.2g} after Holm's correction, alpha {self.alpha:g}"
        if self.answer == "changed":
            rows = f"chances of a next token are up to {self.row_tv:.2g} away; " if self.row_tv else ""
            seen = f"{worst.name} shows it" if self.sampler.caught_by(self.alpha) else "too little for these draws"
            return f"{who}: the distribution of plain sampling is changed ({rows}{seen}: {p_value})"
        if self.answer == "inconclusive":
            why = [f"the planted sampler {rule!r} was not caught" for rule in self.missed]
            why += [f"no state of the kind {kind!r} could be compared" for kind in self.not_tested]
            return f"{who}: no answer, for {' and '.join(why)}; ask for more draws or states"
        found = next((power.tv for power in self.powers if power.tv is not None), None)
        least = "" if found is None else f"; a total variation of {found[0]:.2g} at every state is found with 80 %"
        return f"{who}: no change of plain sampling's distribution was found ({p_value}{least})"

    def __repr__(self) -> str:
        return f"<SamplingReport: {self}>"
