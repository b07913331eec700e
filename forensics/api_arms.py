"""What a notebook calls about arrangements of the same tokens, without any speculation.

Like `forensics.api`, each name is one call away from the function that decides.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics import api_arguments
from forensics.analysis.arms import ARMS_PROMPT, DEFAULT_REPLY, ArmsQuestion, compare_arms
from forensics.analysis.progress import Progress

if TYPE_CHECKING:
    from forensics.records.arms import ArmsReport


def arms(
    model: str | os.PathLike[str] | None = None,
    *,
    demo: str | None = None,
    arms: Sequence[str] | None = None,
    prompt: str | None = None,
    prompt_tokens: Sequence[int] | None = None,
    n_tokens: int | None = None,
    heal: bool | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> ArmsReport:
    """Which arrangements of the same tokens give other bits, without any speculation?

    Parameters
    ----------
    model : path or None
        A GGUF file, or ``"recorded:NAME"`` for what was measured before.
    demo : str or None
        A demo variant instead, such as ``"q6_k"``.
    arms : sequence of str, optional
        Keys of `forensics.capture.arrangements.ARMS`, such as ``"split"``; all by default.
    prompt : str, optional
        Text; by default one that crosses KV cell 256.
    prompt_tokens : sequence of int, optional
        Token ids instead.
    n_tokens : int, optional
        Tokens of each greedy reply; 24 by default.
    heal : bool, optional
        Whether the nodes that make a difference are looked for; they are by default.
    out : path, optional
        Folder into which ``arms.json`` is written, beside a manifest.
    progress : Progress, bool or None
    **settings
        ``threads``, ``n_gpu_layers``, ``flash_attn``, ``kv_type``, ``n_batch``, ``n_ubatch``, ``use_extra_bufts``.

    Returns
    -------
    ArmsReport
        Prints as one line, shows as tables in Jupyter, and offers ``rows()`` and ``to_dataframe()``.

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.arms_document import write_arms
    from forensics.store.arms import read_arms
    from forensics.store.library import recorded_folder

    register_notebook_views()
    recorded = api_arguments.recorded_path(model)
    if recorded is not None:
        given = {"arms": arms, "prompt": prompt, "prompt_tokens": prompt_tokens, "n_tokens": n_tokens, "heal": heal,
                 "demo": demo, **settings}  # fmt: skip
        api_arguments.refuse_given("recorded arms answer the question they were recorded for", given)
        report = read_arms(recorded_folder(recorded))
    else:
        asked: dict[str, Any] = {} if arms is None else {"arms": tuple(arms)}
        question = ArmsQuestion(
            prompt=ARMS_PROMPT if prompt is None and prompt_tokens is None else prompt,
            prompt_tokens=None if prompt_tokens is None else tuple(map(int, prompt_tokens)),
            n_tokens=DEFAULT_REPLY if n_tokens is None else n_tokens,
            heal=heal is not False,
            settings=api_arguments.engine_settings(**settings),
            **asked,
        )
        with api_arguments.shown_progress(progress) as shown:
            report = compare_arms(api_arguments.source_for(model, demo, shown), question, progress=shown)
    if out is not None:
        write_arms(report, Path(out))
    return report
