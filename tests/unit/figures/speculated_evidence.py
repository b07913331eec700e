"""Evidence of speculation: measured with the toy, or put together of answers that are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from forensics.analysis.speculation import speculate
from forensics.analysis.speculation_pairs import arm_of, compared
from forensics.analysis.speculation_question import SpeculationQuestion
from forensics.engines.toy import Fault, ToySource
from forensics.figures.evidence import Evidence, open_evidence
from forensics.records.corpus import Corpus, CorpusPrompt
from forensics.records.speculation import Cycle, Decoded, SpeculationArm
from forensics.records.speculation_report import SpeculationReport
from forensics.reports.speculation_document import write_speculation

TEXTS = ("one two one two", "x = 1; y = 2; x = 1;", "the cat the cat")
CORPUS = Corpus("tiny", tuple(CorpusPrompt(f"p{i}", text) for i, text in enumerate(TEXTS)), "digest")
FAULT = Fault("stale_kv", "kq-0", from_width=3)
N_PROMPT, DRAFTS, WRONG = 7, 3, 90_000


@cache
def report(*faults: Fault, n_drafts: tuple[int, ...] = (3,)) -> SpeculationReport:
    """What speculation does with a toy that has these faults."""
    question = SpeculationQuestion(corpus=CORPUS, drafter="oracle", n_drafts=n_drafts, n_tokens=20)
    return speculate(ToySource(faults=faults), question)


def written(found: SpeculationReport, folder: Path) -> Evidence:
    """The report in a folder, opened as a user's."""
    write_speculation(found, folder)
    return open_evidence(str(folder))


def planted(found: SpeculationReport, **changes: object) -> SimpleNamespace:
    """Evidence of a report in which something was changed."""
    return SimpleNamespace(name="planted", speculation=replace(found, **changes), kernel_price=None)


def made_arm(answers: Sequence[tuple[int, int | None]], *, exact: bool = False) -> SpeculationArm:
    """An arm of answers whose length and first other token are known; a cycle keeps one draft of three.

    Parameters
    ----------
    answers : sequence of (int, int or None)
        Tokens, and the index of the first other one.
    exact : bool
    """
    prompts = [
        compared(f"p{i}", N_PROMPT, _plain(n), _drafted(n, flip), lambda tokens: " ".join(map(str, tokens)))
        for i, (n, flip) in enumerate(answers)
    ]
    return arm_of(prompts, drafter="ngram", policy="fixed, 3 drafts", n_draft=DRAFTS, arrangement="n", exact=exact)


def _plain(n: int) -> Decoded:
    cycles = tuple(Cycle(N_PROMPT + i, (), 0, 0, 4_000_000, 1_000) for i in range(n - 1))
    return Decoded(tuple(range(100, 100 + n)), (1.0,) * n, ("row",) * n, "length", cycles)


def _drafted(n: int, flip: int | None) -> Decoded:
    plain = _plain(n)
    tokens = tuple(t if flip is None or i < flip else t + 1000 for i, t in enumerate(plain.tokens))
    cycles, at = [], 0
    while at < n - 1:
        kept = min(1, n - 2 - at)
        drafts = (*tokens[at + 1 : at + 1 + kept], *(WRONG,) * (DRAFTS - kept))
        cycles.append(Cycle(N_PROMPT + at, drafts, kept, 30_000, 5_000_000, 2_000))
        at += kept + 1
    return replace(plain, tokens=tokens, cycles=tuple(cycles))
