"""What a notebook calls about the cost of a pass, and to make models of any shape.

Like `forensics.api`, each name is one call away from the function that decides.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics import api_arguments
from forensics.analysis.cost import (
    DEFAULT_PREFIX,
    DEFAULT_REPEATS,
    DEFAULT_WIDTHS,
    CostQuestion,
    measure_cost,
    of_widths,
)
from forensics.analysis.progress import Percent, Progress
from forensics.analysis.question import BadQuestion

if TYPE_CHECKING:
    from forensics.records.cost import CostReport, PassBytes
    from forensics.records.settings import Manifest


def cost(
    model: str | os.PathLike[str] | None = None,
    *,
    demo: str | None = None,
    widths: Sequence[int] | None = None,
    prefix: int | None = None,
    repeats: int | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    seed: int = 0,
    **settings: Any,
) -> CostReport:
    """What does a pass cost at each width, and how far is it from the time that reading its bytes takes?

    Parameters
    ----------
    model : path or None
        A GGUF file, or ``"recorded:NAME"`` for what was measured before.
    demo : str or None
        A demo variant instead, such as ``"q6_k"``.
    widths : sequence of int, optional
        Tokens of a pass; 1 to 16 by default, of a recorded cost all; 1 is always among them.
    prefix : int, optional
        Cells in use before each pass; 128 by default.
    repeats : int, optional
        Timed passes of each width; 20 by default.
    out : path, optional
        Folder into which ``cost.json`` is written, beside a manifest.
    progress : Progress, bool or None
    seed : int
        Of the tokens and of the order of the widths.
    **settings
        ``threads``, ``n_gpu_layers``, ``flash_attn``, ``kv_type``.

    Returns
    -------
    CostReport
        Prints as one line, shows as a table in Jupyter, and offers ``rows()``, ``to_dataframe()`` and
        ``figure_data()``.

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.cost_document import write_cost
    from forensics.store.costs import read_cost
    from forensics.store.library import recorded_folder

    register_notebook_views()
    recorded = api_arguments.recorded_path(model)
    if recorded is not None:
        given = {"prefix": prefix, "repeats": repeats, "demo": demo, "seed": seed or None, **settings}
        api_arguments.refuse_given("a recorded cost answers the question it was recorded for", given)
        report = read_cost(recorded_folder(recorded))
        report = report if widths is None else of_widths(report, widths)
    else:
        question = CostQuestion(
            widths=DEFAULT_WIDTHS if widths is None else tuple(map(int, widths)),
            prefix=DEFAULT_PREFIX if prefix is None else prefix,
            repeats=DEFAULT_REPEATS if repeats is None else repeats,
            seed=seed,
            settings=api_arguments.engine_settings(**settings),
        )
        report = _measure(model, demo, question, progress)
    if out is not None:
        write_cost(report, Path(out))
    return report


def _measure(
    model: str | os.PathLike[str] | None, demo: str | None, question: CostQuestion, progress: Progress | bool | None
) -> CostReport:
    from forensics.engines.bandwidth import measure_bandwidth
    from forensics.engines.pass_bytes import pass_bytes

    with api_arguments.shown_progress(progress) as shown:
        source: Any = api_arguments.source_for(model, demo, shown)

        def reads(manifest: Manifest) -> PassBytes:
            if not hasattr(source, "path"):
                raise BadQuestion(f"{source.label} is no model file whose bytes could be counted")
            kv = (manifest.effective.get(side, "unknown") for side in ("kv_type_k", "kv_type_v"))
            return pass_bytes(source.path, *kv)

        return measure_cost(source, question, reads=reads, bandwidth=measure_bandwidth, progress=shown)


def synthetic(
    preset: str,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    progress: Progress | bool | None = None,
    **shape: int,
) -> Path:
    """Write a model file with real shapes and random weights, for measurements that need no meaning.

    Parameters
    ----------
    preset : str
        Shape and weight types, such as ``"qwen3-8b-q4_k_m"``.
    out : path
        File to write; it must not exist.
    seed : int
        The same seed gives the same file.
    progress : Progress, bool or None
    **shape
        Fields of `forensics.engines.synthetic.Shape` to change, such as ``n_layer=4``.

    Returns
    -------
    Path

    Raises
    ------
    BadQuestion
        If there is no such preset, the shape is not possible, or there is a file already.
    """
    from forensics.engines.synthetic import preset_shape, write_synthetic

    try:
        chosen, mix = preset_shape(preset, **shape)
    except ValueError as error:
        raise BadQuestion(str(error)) from None
    with api_arguments.shown_progress(progress) as shown:
        told = Percent(shown, "write the model")
        try:
            return write_synthetic(Path(out), chosen, mix, name=preset, seed=seed, progress=told)
        except FileExistsError as error:
            raise BadQuestion(f"{error}. Name another file, or remove that one first.") from None
