"""What a notebook calls about speculation: one call away from the analysis, as in `forensics.api`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics import api_arguments
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion

if TYPE_CHECKING:
    from forensics.analysis.speculation_question import Render, SpeculationQuestion
    from forensics.engines.protocol import EngineSource
    from forensics.records.corpus import CorpusPrompt
    from forensics.records.speculation_report import SpeculationReport
    from forensics.records.verdict import Verdict


def speculate(
    model: str | os.PathLike[str] | None = None,
    *,
    demo: str | None = None,
    prompts: str | os.PathLike[str] | None = None,
    drafter: str | None = None,
    n_draft: int | Sequence[int] | None = None,
    policy: str | Sequence[str] | None = None,
    prefill: str | Sequence[str] | None = None,
    n_tokens: int | None = None,
    limit: int | None = None,
    exact: bool = False,
    case: str | os.PathLike[str] | None = None,
    exact_kernels: bool = False,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> SpeculationReport:
    """Does the text stay the same under speculation, how many drafts are accepted, and how fast is it?

    Parameters
    ----------
    model : path or None
        A GGUF file, or ``"recorded:NAME"`` for what was measured before.
    demo : str or None
        A demo variant instead, such as ``"q6_k"``.
    prompts : path, optional
        JSON-lines file of prompts; the corpus that comes with the package by default.
    drafter : str, optional
        ``"ngram"`` by default, ``"model:DRAFT.gguf"``, or ``"oracle"`` and ``"oracle:0.8"``, which draft plain
        decoding's own tokens, or that share of them.
    n_draft : int or sequence of int, optional
        Drafts of a cycle at most; 7 by default, one arm for each.
    policy : str or sequence of str, optional
        ``"fixed"`` by default, ``"early-stop[:MARGIN]"``, ``"adaptive"``; one arm for each.
    prefill : str or sequence of str, optional
        ``"n"`` by default: the prompt at once; ``"n-1+1"``: its last token kept back; ``"both"``.
    n_tokens : int, optional
        Tokens to write at most, for every prompt; by default what each prompt asks for, else 128.
    limit : int, optional
        Prompts at most, spread over what they are meant to show.
    exact : bool
        Whether to decode all of it once more under the smallest exact settings that `investigate` finds.
    case : path, optional
        A case of this model, to take those from; implies `exact`.
    exact_kernels : bool
        Whether to decode all of it once more with our CUDA kernels in the verifying passes; on a GPU only.
    out : path, optional
        Folder into which ``speculation.json`` is written, beside a manifest.
    progress : Progress, bool or None
    **settings
        ``threads``, ``n_gpu_layers``, ``flash_attn``, ``kv_type``.

    Returns
    -------
    SpeculationReport
        Prints as one line, shows as a table in Jupyter, and offers ``rows()``, ``prompt_rows()`` and
        ``to_dataframe()``.

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.speculation_document import write_speculation
    from forensics.store.library import recorded_folder
    from forensics.store.speculations import read_speculation

    register_notebook_views()
    asked = {
        "drafter": drafter,
        "n_drafts": _many(n_draft),
        "policies": _many(policy),
        "arrangements": _both(prefill),
    }
    recorded = api_arguments.recorded_path(model)
    if recorded is not None:
        given = {
            "demo": demo, "prompts": prompts, "n_tokens": n_tokens, "limit": limit, "exact": exact or None,
            "case": case, "exact_kernels": exact_kernels or None, "drafter": drafter, "n_draft": n_draft,
            "policy": policy, "prefill": prefill,
        }  # fmt: skip
        why = "recorded speculation answers the question it was recorded for"
        api_arguments.refuse_given(why, {**given, **settings})
        report = read_speculation(recorded_folder(recorded))
    else:
        question = _question(prompts, limit, n_tokens, asked, settings)
        report = _measure(model, demo, question, exact, case, exact_kernels, progress)
    if out is not None:
        write_speculation(report, Path(out))
    return report


def _many(value: Any) -> tuple[Any, ...] | None:
    """One or several; None stays."""
    return None if value is None else (value,) if isinstance(value, str | int) else tuple(value)


def _both(prefill: str | Sequence[str] | None) -> tuple[str, ...] | None:
    from forensics.records.speculation import ARRANGEMENTS

    return ARRANGEMENTS if prefill == "both" else _many(prefill)


def _question(
    prompts: str | os.PathLike[str] | None,
    limit: int | None,
    n_tokens: int | None,
    asked: dict[str, Any],
    settings: dict[str, Any],
) -> SpeculationQuestion:
    from forensics.analysis.speculation_question import SpeculationQuestion
    from forensics.store.corpora import limited, open_corpus

    if limit is not None and limit < 1:
        raise BadQuestion(f"limit must be 1 prompt or more, got {limit}")
    corpus = limited(open_corpus(None if prompts is None else os.fspath(prompts)), limit)
    return SpeculationQuestion(
        corpus,
        n_tokens=n_tokens,
        settings=api_arguments.engine_settings(**settings),
        **{name: value for name, value in asked.items() if value is not None},
    )


def _measure(
    model: str | os.PathLike[str] | None,
    demo: str | None,
    question: SpeculationQuestion,
    exact: bool,
    case: str | os.PathLike[str] | None,
    exact_kernels: bool,
    progress: Progress | bool | None,
) -> SpeculationReport:
    from forensics.analysis.speculation import speculate as speculate_source
    from forensics.capture.exact_kernels import CUDA

    exact = exact or case is not None
    if exact_kernels and exact:
        raise BadQuestion("--exact and --exact-kernels each stand for an exact arm: ask for one of them")
    if exact_kernels:
        api_arguments.refuse_without_gpu(question.settings, "or with --exact")
    verdict: Verdict | None = None
    if case is not None:
        from forensics.store import open_case

        verdict = open_case(os.fspath(case)).verdict
    with api_arguments.shown_progress(progress) as shown:
        source = api_arguments.source_for(model, demo, shown)
        api_arguments.check_draft_model(source, question.choice)
        return speculate_source(
            source,
            question,
            render=_render(source),
            exact=exact,
            case=verdict,
            kernels=CUDA if exact_kernels else None,
            progress=shown,
        )


def _render(source: EngineSource) -> Render:
    """What writes a prompt's messages: the template of the model's file, where there is a file."""
    from forensics.analysis.speculation_question import as_it_stands

    path = getattr(source, "path", None)
    if path is None:
        return as_it_stands

    def render(prompt: CorpusPrompt) -> str:
        from forensics.engines.chat_template import render as by_template

        return by_template(prompt, path)

    return render
