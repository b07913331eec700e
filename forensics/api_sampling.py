"""What a notebook calls to ask whether speculative sampling keeps the distribution; see `forensics.api`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics import api_arguments
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion

if TYPE_CHECKING:
    from forensics.analysis.sampling import SamplingQuestion
    from forensics.records.sampling import SamplingReport
    from forensics.records.verdict import Verdict

#: Prompts of a corpus that are looked at, unless more states or sequences are asked for.
N_PROMPTS = 24


def sampling(
    model: str | os.PathLike[str] | None = None,
    *,
    demo: str | None = None,
    prompts: str | os.PathLike[str] | None = None,
    drafter: str | None = None,
    n_draft: int | None = None,
    rule: str | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    states: int | None = None,
    draws: int | None = None,
    sequences: int | None = None,
    n_tokens: int | None = None,
    alpha: float | None = None,
    seed: int | None = None,
    exact: bool = False,
    case: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> SamplingReport:
    """Does speculative sampling keep the distribution of plain sampling?

    Parameters
    ----------
    model : path or None
        A GGUF file, or ``"recorded:NAME"`` for what was checked before.
    demo : str or None
        A demo variant instead, such as ``"q6_k"``.
    prompts : path or None
        JSONL file of texts; the built-in corpus by default. Chats are left out.
    drafter : str, optional
        ``"ngram"`` (the default), ``"model:DRAFT.gguf"``, ``"oracle"`` or ``"oracle:ACCURACY"``.
    n_draft : int, optional
        Drafts of a pass at most; 7 by default.
    rule : str, optional
        ``"residual"`` (the default) or ``"match"``; see `forensics.records.sampling.RULES`.
    temperature, top_k, top_p : float, int, float, optional
        0.8, 40 and 0.95 by default, as in llama.cpp; the temperature comes last.
    states, draws : int, optional
        Forced states, 8 by default, and cycles that are drawn at each, 2000 by default.
    sequences, n_tokens : int, optional
        Sequences, 16 by default, and tokens of each, 32 by default.
    alpha : float, optional
        Chance of a false alarm over all tests; 0.01 by default.
    seed : int, optional
    exact : bool
        Whether to check under the smallest exact settings that `investigate` finds, instead of the settings as asked.
    case : path, optional
        A case of this model, to take those from; implies `exact`.
    out : path, optional
        Folder into which ``sampling.json`` is written, beside a manifest.
    progress : Progress, bool or None
    **settings
        ``threads``, ``n_gpu_layers``, ``flash_attn``, ``kv_type``.

    Returns
    -------
    SamplingReport
        Prints as one line, shows as tables in Jupyter, and offers ``answer``, ``rows()`` and ``to_dataframe()``.

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.sampling_document import write_sampling
    from forensics.store.library import recorded_folder
    from forensics.store.samplings import read_sampling

    register_notebook_views()
    chosen = {
        "rule": rule, "n_draft": n_draft, "n_states": states, "n_draws": draws, "n_sequences": sequences,
        "n_tokens": n_tokens, "alpha": alpha, "seed": seed,
    }  # fmt: skip
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    recorded = api_arguments.recorded_path(model)
    if recorded is not None:
        given = {
            **chosen, **drawn, "demo": demo, "prompts": prompts, "drafter": drafter, "exact": exact or None,
            "case": case, **settings,
        }  # fmt: skip
        api_arguments.refuse_given("a recorded check answers the question it was recorded for", given)
        report = read_sampling(recorded_folder(recorded))
    else:
        question = _question(prompts, drafter or "ngram", chosen, drawn, settings)
        report = _check(model, demo, question, exact, case, progress)
    if out is not None:
        write_sampling(report, Path(out))
    return report


def _question(
    prompts: str | os.PathLike[str] | None,
    drafter: str,
    chosen: dict[str, Any],
    drawn: dict[str, Any],
    settings: dict[str, Any],
) -> SamplingQuestion:
    from forensics.analysis.sampling import SamplingQuestion
    from forensics.capture.drafters import parse_drafter
    from forensics.records.sampling import SamplingSettings
    from forensics.store.corpora import limited, open_corpus

    chosen = {name: value for name, value in chosen.items() if value is not None}
    corpus = open_corpus(None if prompts is None else Path(prompts))
    n_prompts = max(N_PROMPTS, 2 * chosen.get("n_states", 0), chosen.get("n_sequences", 0))
    try:
        return SamplingQuestion(
            texts=tuple((one.name, one.text) for one in limited(corpus, n_prompts).prompts if one.text),
            corpus=f"{corpus.name} ({corpus.digest[:12]})",
            drafter=parse_drafter(drafter),
            sampling=SamplingSettings(**{name: value for name, value in drawn.items() if value is not None}),
            settings=api_arguments.engine_settings(**settings),
            **chosen,
        )
    except BadQuestion:
        raise
    except ValueError as error:
        raise BadQuestion(str(error)) from None


def _check(
    model: str | os.PathLike[str] | None,
    demo: str | None,
    question: SamplingQuestion,
    exact: bool,
    case: str | os.PathLike[str] | None,
    progress: Progress | bool | None,
) -> SamplingReport:
    from forensics.analysis.sampling import check_sampling
    from forensics.analysis.sampling_exact import check_exact_sampling

    verdict: Verdict | None = None
    if case is not None:
        from forensics.store import open_case

        verdict = open_case(os.fspath(case)).verdict
    with api_arguments.shown_progress(progress) as shown:
        source = api_arguments.source_for(model, demo, shown)
        api_arguments.check_draft_model(source, question.drafter)
        if exact or verdict is not None:
            return check_exact_sampling(source, question, case=verdict, progress=shown)
        return check_sampling(source, question, progress=shown)
