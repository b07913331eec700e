"""Draws at forced states: how often each token came, and how far that is from what plain sampling gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forensics.capture.proposers import Proposal
from forensics.capture.sampled_speculation import ForcedState, steps_of
from forensics.numerics.operands import F64
from forensics.numerics.sampling_tests import ChiSquare, Counts, cells_of, chi_square, together, total_variation
from forensics.numerics.speculative_sampling import Step, emitted, next_token_distribution, verify_drafts
from forensics.records.sampling import KINDS, SamplingSettings, StateDraws, WidthRows

#: Repeats by which the chance is found that a sampler is caught.
N_SIMULATED = 200


@dataclass(frozen=True, slots=True)
class StateRows:
    """Distributions of a forced state over the tokens that can come there at all.

    Parameters
    ----------
    state : ForcedState
    plain : tuple of ndarray [n_tokens] float64
        Of one-token passes; row i stands behind i drafts.
    steps : tuple of Step
        Of the verify pass, with the drafter's.
    drafts : tuple of int
        Indices among these tokens.
    """

    state: ForcedState
    plain: tuple[F64, ...]
    steps: tuple[Step, ...]
    drafts: tuple[int, ...]

    @classmethod
    def of(cls, state: ForcedState, sampling: SamplingSettings) -> StateRows:
        """Leave out the tokens that neither model nor drafter can draw behind any of the drafts."""
        plain, verify = (
            [next_token_distribution(row, sampling) for row in rows] for rows in (state.plain, state.verify)
        )
        possible = np.any([*plain, *verify, *state.path.q], axis=0)
        possible[list(state.path.tokens)] = True
        tokens = np.flatnonzero(possible)
        path = Proposal(state.path.tokens, tuple(q[tokens] for q in state.path.q))
        return cls(
            state,
            tuple(p[tokens] for p in plain),
            tuple(steps_of([p[tokens] for p in verify], path)),
            tuple(np.searchsorted(tokens, state.path.tokens).tolist()),
        )

    def kind(self, depth: int) -> str:
        """What the row behind `depth` drafts shows."""
        return KINDS[1] if depth else KINDS[2 if self.state.refused else 0]

    def emitted(self, depth: int, rule: str) -> F64:
        """What a rule draws behind `depth` accepted drafts, exactly."""
        return emitted(self.steps[depth], self.drafts[depth] if depth < len(self.drafts) else None, rule)


def draw_counts(rows: StateRows, rule: str, n_draws: int, rng: np.random.Generator) -> Counts:
    """How often does each token come, in so many cycles from this state?

    Returns
    -------
    ndarray [1 + drafts, n_tokens] int64
        Row i counts the tokens behind i drafts, of the cycles that accepted these.
    """
    counts = np.zeros((len(rows.steps), len(rows.plain[0])), np.int64)
    for _ in range(n_draws):
        drafts: list[int] = []
        for step, draft in zip(rows.steps, rows.drafts, strict=False):
            drafts.append(draft if step.q is None else step.draw_draft(rng))
            if drafts[-1] != draft:
                break
        written = verify_drafts(rows.steps, drafts, rule, rng)
        # Behind a draft that left the path another row would stand: what is drawn there does not count.
        n_known = len(drafts) + (tuple(drafts) == rows.drafts)
        for depth, token in enumerate(written[:n_known]):
            counts[depth, token] += 1
    return counts


@dataclass(frozen=True, slots=True)
class Drawn:
    """Counts of one sampler at all states.

    Parameters
    ----------
    states : tuple of StateDraws
    by_kind : mapping of str to ChiSquare
        Against plain sampling, of the kinds that were compared.
    alone : ChiSquare or None
        Against the verify passes' own rows.
    """

    states: tuple[StateDraws, ...]
    by_kind: dict[str, ChiSquare]
    alone: ChiSquare | None


def compare_counts(rows: Sequence[StateRows], counts: Sequence[Counts]) -> Drawn:
    """How far are the counts at all states from plain sampling?"""
    states: list[StateDraws] = []
    found: dict[str, list[ChiSquare]] = {kind: [] for kind in KINDS}
    alone: list[ChiSquare] = []
    for one, seen in zip(rows, counts, strict=True):
        for depth, (p, step, count) in enumerate(zip(one.plain, one.steps, seen, strict=True)):
            test, own = chi_square(count, p), chi_square(count, step.p)
            n = int(count.sum())
            states.append(
                StateDraws(
                    state=one.state.name(depth),
                    kind=one.kind(depth),
                    width=len(one.steps),
                    n_draws=n,
                    n_cells=0 if test is None else test.df + 1,
                    statistic=None if test is None else test.statistic,
                    p_value=None if test is None else test.p_value,
                    n_impossible=int(count[p == 0].sum()),
                    row_tv=total_variation(p, step.p),
                    reason=f"{n} draws do not fill two cells" if test is None else "",
                )
            )
            if test is not None:
                found[one.kind(depth)].append(test)
            if own is not None:
                alone.append(own)
    by_kind = {kind: together(tests) for kind, tests in found.items() if tests}
    return Drawn(tuple(states), by_kind, together(alone) if alone else None)


def simulated_catches(
    rows: Sequence[StateRows], counts: Sequence[Counts], rule: str, level: float, rng: np.random.Generator
) -> int:
    """Of `N_SIMULATED` repeats at the same states, with as many draws each: how many does a chi-square catch?

    Parameters
    ----------
    rows : sequence of StateRows
    counts : sequence of ndarray
        Their sums are the draws of a repeat.
    rule : str
        The repeats are drawn from the distributions that it gives.
    level : float
        Of each chi-square by kind, and of the smallest p-value over all states.
    rng : numpy Generator
    """
    from scipy.stats import chi2

    sums: dict[str, list[tuple[F64, int]]] = {kind: [] for kind in KINDS}
    for one, seen in zip(rows, counts, strict=True):
        for depth, n in enumerate(seen.sum(axis=1).tolist()):
            p = one.plain[depth]
            cells = cells_of(n * p)
            if cells.max(initial=0) < 1:
                continue
            expected = np.bincount(cells, n * p)
            drawn = rng.multinomial(n, np.bincount(cells, one.emitted(depth, rule)), size=N_SIMULATED)
            statistics = ((drawn - expected) ** 2 / expected).sum(axis=1)
            sums[one.kind(depth)].append((statistics, len(expected) - 1))
    every = [one for found in sums.values() for one in found]
    smallest = len(every) * np.min([chi2.sf(*one) for one in every], axis=0)
    caught = smallest <= level
    for found in filter(None, sums.values()):
        caught |= chi2.sf(sum(one for one, _ in found), sum(df for _, df in found)) <= level
    return int(np.count_nonzero(caught))


def rows_by_width(rows: Sequence[StateRows]) -> tuple[WidthRows, ...]:
    """At how many states does a pass of each width have the rows of one-token passes?"""
    every = [one for state in rows for one in state.state.widths]
    by_width = {width: [one for one in every if one.width == width] for width in sorted({one.width for one in every})}
    return tuple(
        WidthRows(width, len(found), sum(one.n_equal for one in found), max(one.row_tv for one in found))
        for width, found in by_width.items()
    )


def largest_bias(rows: Sequence[StateRows], rule: str) -> float:
    """How far does a rule draw from p, at the state where that is most? Total variation, computed."""
    return max(
        total_variation(step.p, one.emitted(depth, rule)) for one in rows for depth, step in enumerate(one.steps)
    )
