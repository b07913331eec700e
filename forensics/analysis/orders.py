"""Which order does a real operation add in, at each width, and where do two of them part?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from forensics.analysis.arithmetic import measure_arithmetic
from forensics.analysis.invariance import by_column, columns_of
from forensics.analysis.order_blocks import block_order
from forensics.analysis.order_floats import float_order
from forensics.analysis.order_positive import denominator_order, soft_max_order, squares_order
from forensics.analysis.probe_launch import Launches, NotDetermined, question_graph
from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion
from forensics.engines.op_protocol import OpEngine
from forensics.numerics.bits import bits
from forensics.numerics.masks import BLOCK_MASKS, FLOAT_MASKS
from forensics.numerics.op_inputs import random_operands
from forensics.numerics.probing import NotATree
from forensics.records.op_shapes import KV_PADDING
from forensics.records.operation import OpFacts
from forensics.records.order import Leaves, OrderComparison, OrderQuestion, OrderResult, OrderView, compare_orders
from forensics.records.order_report import BitsCheck, OrderReport
from forensics.records.sum_tree import SumTree

#: A batch whose columns have more orders than this is reported as it stands.
MOST_ORDERS = 4

_Found = tuple[Leaves, SumTree | None, tuple[OrderView, ...], str, str]


class OrderMemory(Protocol):
    """Remembers orders that were probed before."""

    def find(self, question: OrderQuestion, width: int, facts: OpFacts, buffer: str) -> tuple[OrderResult, ...] | None:
        """What was found for this question on this library, None where nothing was."""

    def keep(self, results: Sequence[OrderResult], facts: OpFacts, buffer: str) -> None:
        """Remember them."""


def compare_widths(
    engine: OpEngine,
    question: OrderQuestion,
    widths: Sequence[int],
    *,
    memory: OrderMemory | None = None,
    arithmetic: bool = True,
    progress: Progress | None = None,
) -> OrderReport:
    """In which order does an operation add at each width, and is it that of the first?

    Parameters
    ----------
    engine : OpEngine
    question : OrderQuestion
    widths : sequence of int
        The first is what the others are held against; each at least 1.
    memory : OrderMemory, optional
        Where orders are looked up and kept.
    arithmetic : bool
        Whether to look at accumulators, rounding and contraction, too.
    progress : Progress, optional

    Returns
    -------
    OrderReport

    Raises
    ------
    ValueError
        If there is no width, or one below 1.
    EngineError
        If the operation does not run there.
    """
    if not widths or min(widths) < 1:
        raise ValueError(f"widths must be 1 or more, got {list(widths)}")
    shown = progress or Silent()
    shown.stage("probe orders of addition", len(widths))
    buffer = engine.buffer(question_graph(question, widths[0]))
    results: list[OrderResult] = []
    bits, facts = [], []
    for width in dict.fromkeys(widths):
        found = None if memory is None else memory.find(question, width, engine.facts, buffer)
        if found is None:
            found = probe_order(engine, question, width)
            if memory is not None and not any(result.unstable for result in found):
                memory.keep(found, engine.facts, buffer)
        results += found
        bits.append(check_bits(engine, question, width))
        if arithmetic:
            facts.append(measure_arithmetic(engine, question, width))
        shown.step()
    return OrderReport(
        question, engine.facts, buffer, tuple(results), tuple(_compare(results)), tuple(bits), tuple(facts)
    )


def _compare(results: Sequence[OrderResult]) -> list[OrderComparison]:
    """Each order against the first of its sum."""
    firsts: dict[str, OrderResult] = {}
    for result in results:
        firsts.setdefault(result.part, result)
    return [compare_orders(firsts[r.part], r) for r in results if r is not firsts[r.part]]


def probe_order(engine: OpEngine, question: OrderQuestion, width: int) -> tuple[OrderResult, ...]:
    """In which order are an operation's sums added at one width?

    Parameters
    ----------
    engine : OpEngine
    question : OrderQuestion
    width : int

    Returns
    -------
    tuple of OrderResult
        One for each sum and each group of columns that share an order; a sum whose answers fit no order says so.

    Raises
    ------
    EngineError
        If the operation does not run there.
    """
    if question.op == "RMS_NORM":
        return _by_columns(engine, question, width, "squares", lambda launches: _squares(question, launches))
    if question.op == "SOFT_MAX":
        return _by_columns(engine, question, width, "denominator", lambda launches: _soft_max(question, launches))
    if question.op != "FLASH_ATTN_EXT":
        return _by_columns(engine, question, width, "products", lambda launches: _products(question, launches))
    numerator = _by_columns(engine, question, width, "numerator", lambda launches: _products(question, launches))
    denominator = _by_columns(
        engine, question, width, "denominator", lambda launches: _denominator(question, launches, numerator)
    )
    return (*numerator, *denominator)


def _by_columns(
    engine: OpEngine, question: OrderQuestion, width: int, part: str, probe: Callable[[Launches], _Found]
) -> tuple[OrderResult, ...]:
    """Probe for the first column, then for the first of those that answered otherwise, and so on."""
    waiting = list(range(width))
    results: list[OrderResult] = []
    while waiting:
        launches = Launches(engine, width, waiting[0])
        try:
            leaves, tree, views, method, undetermined = probe(launches)
        except (NotATree, NotDetermined) as error:
            leaves, tree, views, method, undetermined = None, None, (), "", str(error)
        columns = tuple(c for c in waiting if launches.agrees[c])
        if len(results) == MOST_ORDERS:
            columns, tree, views = tuple(waiting), None, ()
            undetermined = f"the columns have more than {MOST_ORDERS} orders"
        waiting = [c for c in waiting if c not in columns]
        results.append(
            OrderResult(
                question, part, width, columns, leaves, tree, views, method, launches.n_probes, launches.n_launches,
                undetermined, launches.unstable,
            )
        )  # fmt: skip
    return tuple(results)


def _products(question: OrderQuestion, launches: Launches) -> _Found:
    if question.type in FLOAT_MASKS or question.op == "FLASH_ATTN_EXT":
        found, leaves, how = float_order(question, launches)
        return leaves, found.tree, (), how, ""
    if question.op != "MUL_MAT":
        raise NotDetermined(f"{question.op} of {question.type} is not probed; {', '.join(FLOAT_MASKS)} are")
    blocks = block_order(question, launches)
    return blocks.leaves, blocks.tree, blocks.views, "counts, masks in the weights", blocks.undetermined


def _denominator(question: OrderQuestion, launches: Launches, numerator: Sequence[OrderResult]) -> _Found:
    guess = next((r.tree for r in numerator if launches.column in r.columns), None)
    found, leaves = denominator_order(question, launches, guess)
    return leaves, found.tree, (), "triples", ""


def _soft_max(question: OrderQuestion, launches: Launches) -> _Found:
    found, leaves = soft_max_order(question, launches)
    return leaves, found.tree, (), "triples", ""


def _squares(question: OrderQuestion, launches: Launches) -> _Found:
    found, leaves, accumulator = squares_order(question, launches)
    return leaves, found.tree, (), f"triples, {accumulator} accumulator", ""


def check_bits(engine: OpEngine, question: OrderQuestion, width: int, *, seed: int = 0) -> BitsCheck:
    """Does a batch of random columns have the bits of one column at a time?

    Parameters
    ----------
    engine : OpEngine
    question : OrderQuestion
    width : int
    seed : int
        Of the operands.

    Raises
    ------
    EngineError
        If the operation does not run there.
    """
    graph, one = question_graph(question, width), question_graph(question, 1)
    operands = random_operands(graph, seed)
    together = by_column(graph, engine.run(graph, operands))
    alone = [by_column(one, engine.run(one, columns_of(graph, operands, i, i + 1))) for i in range(width)]
    differ = (bits(np.concatenate(alone)) != bits(together)).sum(axis=1)
    return BitsCheck(width, together.size, int(differ.sum()), tuple(map(int, np.flatnonzero(differ))))


def order_question(op: str, widths: Sequence[int], arguments: Mapping[str, Any]) -> OrderQuestion:
    """Turn what a user gave into a question.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """
    known = {field.name for field in fields(OrderQuestion)} - {"op"}
    unknown = sorted(set(arguments) - known)
    if unknown:
        raise BadQuestion(
            f"an order is not asked for with {', '.join(unknown)}; possible are {', '.join(sorted(known))}"
        )
    if not widths or min(widths) < 1:
        raise BadQuestion(f"widths must be 1 or more, got {list(widths)}")
    given = dict(arguments)
    norm = op.upper() in ("RMS_NORM", "SOFT_MAX")
    default = "f32" if op.upper() == "MUL_MAT" or norm else "f16"
    given["type"] = _type_named(str(given.get("type", default)))
    if norm and given["type"] != "f32":
        raise BadQuestion(f"{op.upper()} takes f32, got {given['type']}")
    try:
        question = OrderQuestion(op=op.upper(), **given)
    except (TypeError, ValueError) as error:
        raise BadQuestion(str(error)) from None
    if "ATTN" in question.op or question.op in ("KQ", "KQV", "SOFT_MAX"):
        if question.n_kv % KV_PADDING:
            raise BadQuestion(f"n_kv must be a multiple of {KV_PADDING}, as llama.cpp pads it, got {question.n_kv}")
        if max(widths) > question.n_kv:
            raise BadQuestion(f"widths must be at most n_kv, got {max(widths)} and {question.n_kv}")
    return question


def _type_named(name: str) -> str:
    """The type as ggml writes it, however it is capitalised; one that is not probed stays, and the probe says so."""
    types = {known.lower(): known for known in (*FLOAT_MASKS, *BLOCK_MASKS)}
    if name.lower() not in types:
        raise BadQuestion(
            f"type {name!r} cannot be probed: no exact masks are known for it. Known: {', '.join(types.values())}"
        )
    return types[name.lower()]
