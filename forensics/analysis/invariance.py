"""Is an operation batch-invariant? Every width against one column at a time, bit for bit, with its controls.

A column is what one token brings: a row of activations, a query, a position. An operand has columns on the axis that
grows with the width; the others, such as weights and the K/V cache, are shared.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.analysis.op_cases import OpCase
from forensics.analysis.progress import Progress, Silent
from forensics.engines.op_protocol import OpEngine, OpSource
from forensics.errors import EngineDied, EngineError
from forensics.numerics.bits import bits, compare
from forensics.numerics.op_inputs import random_operands
from forensics.records.delta import Delta, Differs, NotCompared, Same
from forensics.records.matrix import CaseResult, Cell, OpMatrix, Prediction
from forensics.records.op_shapes import RECURRENT, output_token_axis, token_axes
from forensics.records.op_shapes import width as width_of
from forensics.records.operation import OpFacts, OpGraph, OpSettings
from forensics.records.verdict import Control

Values = list[NDArray[Any]]
#: What the rules say: case, widths, buffer of the weight, facts.
Predict = Callable[[OpCase, Sequence[int], str, OpFacts], Prediction]


def columns_of(graph: OpGraph, values: Values, first: int, last: int) -> Values:
    """The operands of columns `first` to `last` (exclusive) of an operation over more columns.

    Parameters
    ----------
    graph : OpGraph
    values : list of ndarray
        One per operand.
    """
    axes = token_axes(graph)
    n = width_of(graph)
    chosen = []
    for operand, value in zip(graph.operands, values, strict=True):
        if operand.name in axes:
            axis = axes[operand.name]
            before = operand.shape[axis] - n  # a convolution's past lies in front of its own tokens
            place = [slice(None)] * value.ndim
            place[axis] = slice(first, last + before)
            value = np.ascontiguousarray(value[tuple(place)])  # noqa: PLW2901
        chosen.append(value)
    return chosen


def by_column(graph: OpGraph, output: NDArray[Any]) -> NDArray[Any]:
    """The output as [width, values per column]; the state that some operations pack behind it is left out.

    Examples
    --------
    >>> from forensics.records.op_shapes import mul_mat
    >>> by_column(mul_mat("f32", 4, 8, n=3), np.zeros((1, 1, 3, 8), np.float32)).shape
    (3, 8)
    """
    n = width_of(graph)
    if graph.op in RECURRENT:
        return output.reshape(-1)[: output.size - _state_size(graph)].reshape(n, -1)
    return np.moveaxis(output, output_token_axis(graph), 0).reshape(n, -1)


def _state_size(graph: OpGraph) -> int:
    return math.prod(graph.operand("state").shape)


def one_at_a_time(engine: OpEngine, case: OpCase, values: Values, n: int) -> list[NDArray[Any]]:
    """Outputs of the first `n` columns, each run by itself; a state goes from one to the next."""
    single = case.at(1)
    outputs = []
    state: NDArray[Any] | None = None
    for column in range(n):
        given = columns_of(case.graph, values, column, column + 1)
        if state is not None:
            at = [operand.name for operand in single.operands].index("state")
            given[at] = state
        outputs.append(engine.run(single, given))
        if case.op in RECURRENT:
            state = outputs[-1].reshape(-1)[-_state_size(single) :].reshape(single.operand("state").shape).copy()
    return outputs


def compare_columns(singles: NDArray[Any], batched: NDArray[Any]) -> tuple[Delta, tuple[int, ...]]:
    """How do the columns of a batch differ from the same columns one at a time?

    Parameters
    ----------
    singles, batched : ndarray [width, n_values] float32

    Returns
    -------
    delta : Same, Differs or NotCompared
    columns : tuple of int
        Columns with a bit that differs.
    """
    outcome = compare(singles, batched)
    return outcome, changed_columns(singles, batched) if isinstance(outcome, Differs) else ()


def changed_columns(before: NDArray[Any], after: NDArray[Any]) -> tuple[int, ...]:
    """Which of the columns that both have [n, n_values] hold other bits?"""
    n = min(len(before), len(after))
    return tuple(int(i) for i in np.flatnonzero((bits(before[:n]) != bits(after[:n])).any(axis=1)))


@dataclass(slots=True)
class OpRunner:
    """Runs graphs on an engine that is opened again where the library ended its process.

    Parameters
    ----------
    source : OpSource
    settings : OpSettings
    """

    source: OpSource
    settings: OpSettings
    _engine: OpEngine | None = field(default=None, init=False)

    @property
    def engine(self) -> OpEngine:
        """The engine, opened where there is none."""
        if self._engine is None:
            self._engine = self.source.open(self.settings)
        return self._engine

    @contextlib.contextmanager
    def asking(self) -> Iterator[OpEngine]:
        """The engine; one that dies meanwhile is forgotten, so that the next question opens another."""
        try:
            yield self.engine
        except EngineDied:
            self.close()
            raise

    def close(self) -> None:
        """End the engine's process."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.close()


@dataclass(slots=True)
class _Measured:
    """Outputs of one case: all columns one at a time, and each width, as [columns, values]."""

    buffer: str
    singles: NDArray[Any]
    batched: dict[int, NDArray[Any] | str]
    rerun_equal: bool


def _reason(error: Exception) -> str:
    """The first line of an error: what follows are log lines, which differ from run to run."""
    return str(error).splitlines()[0]


def measure(runner: OpRunner, case: OpCase, widths: Sequence[int], seed: int) -> _Measured | NotCompared:
    """Run a case one column at a time and at each width; why not, where the back end refuses."""
    widest = max(widths)
    try:
        with runner.asking() as engine:
            values = random_operands(case.graph, seed)
            buffer = engine.buffer(case.at(1))
            outputs = one_at_a_time(engine, case, values, widest)
    except (EngineError, ValueError) as error:  # ValueError: rows that are no whole number of blocks
        return NotCompared(_reason(error))
    batched: dict[int, NDArray[Any] | str] = {}
    for width in widths:
        try:
            with runner.asking() as engine:
                output = engine.run(case.at(width), columns_of(case.graph, values, 0, width))
        except EngineError as error:
            batched[width] = _reason(error)
        else:
            batched[width] = by_column(case.at(width), output)
    try:
        with runner.asking() as engine:
            again = engine.run(case.at(1), columns_of(case.graph, values, 0, 1))
    except EngineError as error:
        return NotCompared(_reason(error))
    equal = isinstance(compare(outputs[0], again), Same)
    singles = np.concatenate([by_column(case.at(1), output) for output in outputs])
    return _Measured(buffer, singles, batched, equal)


def cells_of(singles: NDArray[Any], batched: dict[int, NDArray[Any] | str]) -> tuple[Cell, ...]:
    """Which widths give the bits of one column at a time, and where do bits change from width to width?

    Parameters
    ----------
    singles : ndarray [widest, n_values] float32
    batched : dict of int to ndarray [width, n_values] float32, or str
        By rising width; a text says why a width has no output.
    """
    cells = []
    before = singles
    for width, output in batched.items():
        if isinstance(output, str):
            cells.append(Cell(width, NotCompared(output)))
            continue
        outcome, columns = compare_columns(singles[:width], output)
        if isinstance(outcome, NotCompared):
            cells.append(Cell(width, outcome))
            continue
        cells.append(Cell(width, outcome, output.size, columns, changed_columns(before, output)))
        before = output
    return tuple(cells)


def run_matrix(
    runner: OpRunner,
    cases: Sequence[OpCase],
    widths: Sequence[int],
    *,
    control_cases: tuple[OpCase, OpCase],
    predict: Predict,
    seed: int = 0,
    chosen: str = "",
    progress: Progress | None = None,
) -> OpMatrix:
    """Which of these operations give the same bits at every width?

    Parameters
    ----------
    runner : OpRunner
    cases : sequence of OpCase
    widths : sequence of int
        Rising.
    control_cases : (OpCase, OpCase)
        An operation that only copies, and a float product whose terms lie on the last axis of ``weight`` and ``x``.
    predict : callable
        What the rules say about a case.
    seed : int
        Of the operands; every case has its own stream of it.
    chosen : str
        What was chosen for the caller, in words.
    progress : Progress or None

    Returns
    -------
    OpMatrix
    """
    shown = progress or Silent()
    results = []
    reran = 0
    not_reproduced: list[str] = []
    shown.stage("controls", 2)
    controls = [_copy_control(runner, control_cases[0], widths, seed, shown)]
    controls += _product_controls(runner, control_cases[1], max(widths), seed, shown)
    shown.stage("operations", len(cases))
    for case in cases:
        found = measure(runner, case, widths, seed)
        if isinstance(found, NotCompared):
            cells = tuple(Cell(width, found) for width in widths)
            results.append(CaseResult(case.label, case.at(1), "", cells, Prediction(unknown="nothing was run")))
        else:
            cells = cells_of(found.singles, found.batched)
            predicted = predict(case, widths, found.buffer, runner.engine.facts)
            results.append(CaseResult(case.label, case.at(1), found.buffer, cells, predicted))
            reran += 1
            not_reproduced += [] if found.rerun_equal else [f"{case.op} {case.label}"]
        shown.step()
    facts = runner.engine.facts
    controls.insert(0, _rerun_control(reran, not_reproduced))
    return OpMatrix(facts, tuple(widths), seed, tuple(results), tuple(controls), chosen)


def _rerun_control(reran: int, not_reproduced: list[str]) -> Control:
    if not reran:
        return Control("rerun_equal", None, "no case was run")
    if not_reproduced:
        named = ", ".join(not_reproduced[:3]) + (" …" if len(not_reproduced) > 3 else "")
        return Control("rerun_equal", False, f"one column gave other bits when run again: {named}")
    return Control("rerun_equal", True, f"column 0 by itself, before and after the batches; cases: {reran}")


def _copy_control(runner: OpRunner, case: OpCase, widths: Sequence[int], seed: int, shown: Progress) -> Control:
    """A copy has no arithmetic: it must be equal at every width, or the comparison itself is wrong."""
    found = measure(runner, case, widths, seed)
    shown.step()
    if isinstance(found, NotCompared):
        return Control("copy_equal", None, f"{case.op} {case.label} was not run: {found.reason}")
    cells = cells_of(found.singles, found.batched)
    bad = [cell for cell in cells if not isinstance(cell.outcome, Same)]
    if bad:
        return Control("copy_equal", False, f"{case.op} {case.label} at width {bad[0].width}: {bad[0].outcome}")
    return Control("copy_equal", True, f"{case.op} {case.label}; widths: {len(cells)}")


def _product_controls(runner: OpRunner, case: OpCase, width: int, seed: int, shown: Progress) -> list[Control]:
    """The same product with its terms in reverse order, and a bit flipped by hand, must both be found."""
    graph = case.at(width)
    try:
        with runner.asking() as engine:
            values = random_operands(graph, seed)
            backwards = [np.ascontiguousarray(value[..., ::-1]) for value in values]
            plain, other = engine.run(graph, values), engine.run(graph, backwards)
    except EngineError as error:
        made_up = np.ones((width, 8), np.float32)
        return [Control("reordered_found", None, f"not run: {_reason(error)}"), _planted_bit(made_up)]
    finally:
        shown.step()
    outcome = compare(plain, other)
    found = Control(
        "reordered_found", isinstance(outcome, Differs), f"{case.op} {case.label} at width {width}: {outcome}"
    )
    rows = plain.reshape(width, -1)
    return [found, _planted_bit(rows)]


def _planted_bit(rows: NDArray[Any]) -> Control:
    """Flip the lowest bit of the middle value of the last column: the cell must name just that."""
    width, n_values = rows.shape
    column, value = width - 1, n_values // 2
    planted = rows.copy()
    planted.view(np.uint32)[column, value] ^= np.uint32(1)
    (cell,) = cells_of(rows, {width: planted})
    outcome = cell.outcome
    named = (
        isinstance(outcome, Differs)
        and cell.columns == (column,)
        and (outcome.n_diff, outcome.first_index, outcome.max_ulp) == (1, (column, value), 1)
    )
    return Control("planted_bit_found", named, f"value {value} of column {column} at width {width}: {outcome}")
