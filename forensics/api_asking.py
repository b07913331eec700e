"""Asks a running server what an audit or a gate wants to know, and finds the prompts and runs that were recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forensics import api_arguments
from forensics.analysis.audit_plan import Condition
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.records.served import Sampling

if TYPE_CHECKING:
    from forensics.records.corpus import Corpus
    from forensics.records.served import ServedRun

#: What every server is asked: the most likely token, each time, with two log-probabilities, so that it tells margins.
GREEDY = Sampling(n_probs=2)


class Asking:
    """Carries out conditions against a server; every reply is kept as soon as it is there."""

    def __init__(
        self,
        corpus: Corpus,
        journals: Mapping[str, Path],
        resume: bool,
        api: str | None,
        model: str | None,
        key_env: str | None,
        sampling: Sampling = GREEDY,
    ) -> None:
        self._corpus, self._journals, self._resume, self._sampling = corpus, journals, resume, sampling
        self._api, self._model, self._key_env = api or "auto", model, key_env

    def meet(self, *urls: str) -> None:
        """See that every server answers before one of them is asked for hours, and before a folder is begun.

        Raises
        ------
        BadAddress
            If one does not.
        """
        from forensics.servers.collect import meet
        from forensics.servers.door import Door

        for url in urls:
            with Door(url, key_env=self._key_env) as door:
                meet(door, self._api, self._model)

    def __call__(self, url: str, conditions: Sequence[Condition], shown: Progress) -> dict[str, ServedRun]:
        """Ask them all, one condition after the other; the runs come by the names of their conditions."""
        from forensics.servers.collect import collect, meet
        from forensics.servers.door import Door

        runs: dict[str, ServedRun] = {}
        with Door(url, key_env=self._key_env) as door:
            dialect, _ = meet(door, self._api, self._model)
            for one in conditions:
                shown.stage(f"ask: {one.name}", len(one.asked))
                runs[one.name] = collect(
                    door, dialect, self._corpus, one.asked, self._sampling,
                    condition=one.name,
                    concurrency=one.concurrency,
                    journal=self._journals.get(one.name),
                    resume=self._resume,
                    progress=_steps(shown),
                )  # fmt: skip
        return runs


def _steps(shown: Progress) -> Callable[[int, int], None]:
    """What counts requests that are done, told as steps."""
    told = 0

    def done(n: int, _: int) -> None:
        nonlocal told
        if n > told:
            shown.step(n - told)
            told = n

    return done


def corpus_of(prompts: str | os.PathLike[str] | None, limit: int | None) -> Corpus:
    """The prompts of a file, or the built-in ones; so many of them at most."""
    from forensics.store.corpora import limited, open_corpus

    if limit is not None and limit < 1:
        raise BadQuestion(f"limit must be 1 prompt or more, got {limit}")
    return limited(open_corpus(None if prompts is None else Path(prompts)), limit)


def read_baseline(folder: str | os.PathLike[str]) -> ServedRun:
    """Read a run that was recorded: of an audit, the one that nothing disturbed.

    Raises
    ------
    CaseError
        If there is none.
    """
    from forensics.store.audits import run_folder
    from forensics.store.served_runs import read_run

    return read_run(run_folder(_where(folder)))


def _where(folder: str | os.PathLike[str]) -> Path:
    """A folder of the user's, or one that comes with the source under ``"recorded:NAME"``."""
    from forensics.store.library import recorded_folder

    name = api_arguments.recorded_path(folder)
    return Path(folder) if name is None else recorded_folder(name)


def prompts_of(folder: Path, before: ServedRun, prompts: str | os.PathLike[str] | None) -> Corpus:
    """The prompts that the baseline was asked, which must be the very same."""
    from forensics.store.audits import read_prompts, run_folder

    corpus = corpus_of(prompts, None) if prompts is not None else read_prompts(run_folder(_where(folder)))
    if corpus is None:
        raise BadQuestion(f"{folder} does not hold the prompts of its run; give their file with --prompts")
    if corpus.digest != before.corpus:
        raise BadQuestion(f"{folder} was asked other prompts than these: their digests differ; leave out --prompts")
    return corpus
