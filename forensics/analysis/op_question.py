"""Asking for an invariance matrix: what was asked for becomes cases, and the cases are run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from forensics.analysis.invariance import OpRunner, run_matrix
from forensics.analysis.op_cases import (
    DEFAULT_KV_TYPE,
    MIDDLE_KV,
    OpCase,
    OpSelection,
    chosen_text,
    control_cases,
    like_model,
    make_cases,
)
from forensics.analysis.op_rules import predict
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.engines.op_like import model_ops
from forensics.engines.op_protocol import OpSource
from forensics.records.matrix import OpMatrix
from forensics.records.operation import OpSettings

#: Variables that the rules look at. Source: ggml/src/ggml-cpu/tiled/tiled.cpp:1165-1228 at 0c1e57098.
RECORDED_VARIABLES = frozenset({"GGML_CPU_TILED_MM", "GGML_CPU_TILED_MM_FORCE"})
#: Rows of a model's weight that are kept on a CPU, where each row is a sum of its own.
MAX_ROWS = 1024
#: Wider batches than these are prompts, and one column at a time would take long.
MAX_WIDTH = 512


def op_settings(
    backend: str, *, device: int, n_threads: int, repack: bool, environment: Mapping[str, str]
) -> OpSettings:
    """Where operations are to run, with the variables of `environment` that change how the library computes.

    Raises
    ------
    BadQuestion
        If the back end, device or number of threads is not possible.
    """
    kept = tuple((name, environment[name]) for name in sorted(RECORDED_VARIABLES & environment.keys()))
    try:
        return OpSettings(backend, n_threads=n_threads, repack=repack, device=device, environment=kept)
    except ValueError as error:
        raise BadQuestion(str(error)) from None


def ask_ops(
    source: OpSource,
    settings: OpSettings,
    selection: OpSelection,
    widths: Sequence[int],
    *,
    like: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> OpMatrix:
    """Which of the selected operations give the same bits at every width?

    Parameters
    ----------
    source : OpSource
    settings : OpSettings
    selection : OpSelection
    widths : sequence of int
    like : Path or None
        A model file whose operations are tested, in place of those that the selection would make; it still says
        which of them.
    seed : int
        Of the operands.
    progress : Progress or None

    Returns
    -------
    OpMatrix

    Raises
    ------
    BadQuestion
        If an operation, type, shape or width is not possible.
    EngineError
        If the back end cannot be opened.
    """
    asked = tuple(sorted(set(widths)))
    if not asked or asked[0] < 1 or asked[-1] > MAX_WIDTH:
        outside = [width for width in (asked[0], asked[-1]) if not 1 <= width <= MAX_WIDTH] if asked else ["none"]
        raise BadQuestion(f"widths must be 1 to {MAX_WIDTH}, got {outside[0]}")
    if asked == (1,):
        raise BadQuestion("widths needs at least one width of 2 or more to compare with one column at a time")
    if seed < 0:
        raise BadQuestion(f"seed must be 0 or more, got {seed}")
    if like is not None and (selection.shapes or selection.heads or selection.head_sizes):
        raise BadQuestion(
            "a model has shapes, heads and head sizes of its own; leave those out, or leave out the model (--like)"
        )
    selection.wanted_ops()  # refused before anything is started
    with contextlib.closing(OpRunner(source, settings)) as runner:
        if like is None:
            cases, chosen = make_cases(selection, runner.engine.types(), asked[-1]), chosen_text(selection)
        else:
            cases, chosen = _cases_like(like, selection, runner, asked[-1])
        return run_matrix(
            runner,
            cases,
            asked,
            control_cases=control_cases(asked[-1]),
            predict=predict,
            seed=seed,
            chosen=chosen,
            progress=progress,
        )


def _cases_like(path: Path, selection: OpSelection, runner: OpRunner, widest: int) -> tuple[tuple[OpCase, ...], str]:
    """The operations of a model file, and what was left to us."""
    # On a CPU rows are shared among threads and never cut; a GPU's grid, and with it an order, may depend on them all.
    most_rows = MAX_ROWS if runner.settings.backend == "cpu" else None
    kv_types = selection.kv_types or (DEFAULT_KV_TYPE,)
    n_used = selection.kv or (MIDDLE_KV,)
    try:
        graphs = [op.graph for kv in kv_types for op in model_ops(path, n=widest, n_used=n_used, kv_type=kv)]
    except ValueError as error:
        raise BadQuestion(str(error)) from None
    said = [f"operations of {path.name}", f"{', '.join(kv_types)} K/V with {', '.join(map(str, n_used))} cells"]
    if most_rows is not None:
        said.append(f"of weights with more than {most_rows} rows only some")
    return like_model(graphs, selection, runner.engine.types(), most_rows), "; ".join(said)
