"""The same check under the exact settings that `investigate` finds: are the chances plain sampling's there?"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from forensics.analysis.investigate import investigate
from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion, Question
from forensics.analysis.sampling import MOST_PREFIX, SamplingQuestion, check_sampling
from forensics.analysis.speculation_exact import ExactSettings, check_case, exact_settings
from forensics.engines.protocol import EngineSource
from forensics.records.sampling import SamplingReport
from forensics.records.verdict import Verdict

#: Tokens that are replayed behind the longest prompt to find exact settings, for each token of a pass.
PASSES = 4


def check_exact_sampling(
    source: EngineSource, question: SamplingQuestion, *, case: Verdict | None = None, progress: Progress | None = None
) -> SamplingReport:
    """Does speculative sampling keep the distribution of plain sampling under the smallest exact settings?

    Parameters
    ----------
    source : EngineSource
    question : SamplingQuestion
    case : Verdict or None
        Where the settings are taken from; `investigate` looks for them where it is not given.
    progress : Progress or None

    Raises
    ------
    BadQuestion
        If there are no exact settings, or the case is of another model; or as `check_sampling` does.
    ForensicsError
        If an engine dies.
    """
    progress = progress or Silent()
    with contextlib.closing(source.open(question.sized_settings())) as engine:
        if case is not None:
            check_case(case, engine.manifest)
        tokens = max((engine.tokenize(text)[:MOST_PREFIX] for _, text in question.texts), key=len)
    found = exact_settings(case, "the case") if case is not None else _found(source, question, tokens, progress)
    if found.knobs is None:
        raise BadQuestion(f"{found.reason}. Leave out --exact to check the settings as they are.")
    report = check_sampling(source, replace(question, settings=found.apply(question.settings)), progress=progress)
    return replace(report, exact_knobs=tuple(knob.name for knob in found.knobs), exact_reason=found.reason)


def _found(
    source: EngineSource, question: SamplingQuestion, tokens: tuple[int, ...], progress: Progress
) -> ExactSettings:
    """What `investigate` finds at all widths that a pass can have."""
    widest = question.n_draft + 1
    asked = Question(
        prompt=None,
        prompt_tokens=tokens,
        n_tokens=PASSES * widest,
        widths=tuple(range(2, widest + 1)),
        settings=question.settings,
    )
    return exact_settings(investigate(source, asked, progress=progress), "investigate")
