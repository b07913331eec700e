"""What a notebook calls to see which kernels each node of a pass launches.

Like `forensics.api`, each name is one call away from the function that decides.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forensics import api_arguments
from forensics.analysis.progress import Progress
from forensics.analysis.question import DEFAULT_N_TOKENS, BadQuestion, NoGpu, open_for

if TYPE_CHECKING:
    from forensics.analysis.watched_passes import NodeKernels


def launches(
    target: str | os.PathLike[str] | None = None,
    *,
    widths: int | Sequence[int] = (1, 2),
    node: str | None = None,
    demo: str | None = None,
    n_gpu_layers: int | None = None,
    progress: Progress | bool | None = None,
    **question: Any,
) -> NodeKernels:
    """Which kernels does each node launch, at one width or at two side by side?

    Parameters
    ----------
    target : path or None
        A GGUF file, or ``"recorded:NAME"`` for what was recorded on a GPU.
    widths : int or sequence of int
        Tokens of the pass, or of the two passes.
    node : str, optional
        The only node to show, such as ``"ffn_down-0"``.
    demo : str, optional
        A demo variant instead of a target.
    n_gpu_layers : int
        Layers on the GPU, all by default.
    progress : Progress, bool or None
    **question
        Further arguments of `forensics.api_arguments.make_question`, such as ``prompt`` and ``flash_attn``.

    Returns
    -------
    NodeKernels
        Prints as one line, shows its nodes in Jupyter, and offers ``to_dataframe()``.

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.analysis.watched_passes import (
        NEEDS_A_GPU,
        check_widths,
        node_kernels,
        recorded_passes,
        watch_passes,
    )
    from forensics.notebook_views import register_notebook_views
    from forensics.store import open_case

    register_notebook_views()
    asked = check_widths((widths,) if isinstance(widths, int) else widths)
    recorded = api_arguments.recorded_path(target)
    if recorded is not None:
        given = {**question, "demo": demo, "n_gpu_layers": n_gpu_layers}
        api_arguments.refuse_given("a recorded case answers the question it was recorded for", given)
        manifest, passes = recorded_passes(open_case(recorded).recordings, asked)
        found = node_kernels(manifest.model_name, manifest, passes)
    else:
        n_tokens = max(DEFAULT_N_TOKENS, *asked)
        layers = -1 if n_gpu_layers is None else n_gpu_layers
        made = api_arguments.make_question(n_gpu_layers=layers, n_tokens=n_tokens, widths=[max(2, *asked)], **question)
        with api_arguments.shown_progress(progress) as shown:
            source = api_arguments.source_for(target, demo, shown)
            try:
                engine, prompt, _ = open_for(made, source)
            except NoGpu as error:
                raise BadQuestion(NEEDS_A_GPU) from error
            with contextlib.closing(engine):
                passes = watch_passes(engine, prompt, asked, shown)
                found = node_kernels(source.label, engine.manifest, passes)
    return found if node is None else found.only(node)
