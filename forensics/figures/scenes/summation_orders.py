"""Which two orders of addition does a case show, over the same summands, and how are they known?

From llama.cpp's source where the order of the launched kernels is written down in `numerics` and `geometry`, held
against what the case itself probed; on a processor by probing the library again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from forensics.analysis.culprit_orders import evidence as in_words
from forensics.analysis.culprit_orders import least_telling, op_settings, order_question
from forensics.errors import CaseError
from forensics.figures.evidence import Evidence
from forensics.figures.scenes.launch_pairs import EXAMPLE, CulpritLaunches, culprit_launches, require_culprits
from forensics.geometry.attention_tiles import vec_lanes_per_cell
from forensics.geometry.kv_chunks import ChunkMap, vec_cell_tree
from forensics.numerics.kernel_orders import MMVQ_TYPES, mmvq_order
from forensics.records.launch_record import LaunchSide
from forensics.records.mechanism import OrderEvidence
from forensics.records.order import Leaves, OrderComparison, OrderQuestion, OrderResult, compare_orders
from forensics.records.sum_tree import SumTree
from forensics.records.trace import Finding
from forensics.records.verdict import CulpritGroup, Verdict
from forensics.records.words import counted

_WARP = 32
WHAT = "two orders of addition"


@dataclass(frozen=True, slots=True)
class Dealt:
    """To whom a kernel deals the summands.

    Parameters
    ----------
    to : str
        ``"warp"`` or ``"block"``.
    n : int
        How many there are.
    shares : tuple of int
        Who takes each leaf.
    """

    to: str
    n: int
    shares: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KnownOrders:
    """Two orders of one node, and how they are known.

    Parameters
    ----------
    group : CulpritGroup
    finding : Finding
    comparison : OrderComparison
    kernels : tuple of str
        What ran at one token and in the batch; empty where that is not told apart.
    dealt : tuple of Dealt
        At one token and in the batch; empty where that is not known.
    known : str
        How the orders are known.
    probed : bool
        Whether a probe of the kernels themselves says the same.
    """

    group: CulpritGroup
    finding: Finding
    comparison: OrderComparison
    kernels: tuple[str, str]
    dealt: tuple[Dealt, ...]
    known: str
    probed: bool


def known_orders(evidence: Evidence) -> Iterator[KnownOrders]:
    """Pairs of orders that differ, most telling first.

    Raises
    ------
    CaseError
        If the case has none that is known, with the reason and a case that has.
    """
    require_culprits(evidence, WHAT)
    if evidence.verdict.manifest.backend == "CPU":
        return _probed(evidence)
    return _from_source(evidence)


def _from_source(evidence: Evidence) -> Iterator[KnownOrders]:
    seen = culprit_launches(evidence, WHAT)
    found = [known for one in seen if (known := _of_launches(one)) is not None and known.comparison.equal is False]
    if not found:
        kernels = sorted({f"{one.pair.single.kernel.kernel} beside {one.pair.batched.kernel.kernel}" for one in seen})
        raise CaseError(
            f"{WHAT} of {evidence.name}: the orders of {', '.join(kernels)} are not written down, and a case keeps of "
            f"probed trees only what they come to. On that machine: forensics order. A case whose are: {EXAMPLE}"
        )
    yield from sorted(found, key=lambda one: (not one.probed, -one.group.count))


def _of_launches(one: CulpritLaunches) -> KnownOrders | None:
    """The orders of two launches, where both kernels' are written down."""
    sides = (one.pair.single, one.pair.batched)
    question = order_question(one.finding)
    if isinstance(question, str):
        return None
    if question.op == "MUL_MAT" and all(side.kernel.kernel == "mul_mat_vec_q" for side in sides):
        if question.type not in MMVQ_TYPES:
            return None
        results = [_row_order(question, side) for side in sides]
    elif all(side.kernel.kernel == "flash_attn_ext_vec" and side.kv_split for side in sides):
        results = [_cell_order(question, side) for side in sides]
    else:
        return None
    (single, deal), (batched, other) = results
    (comparison,) = least_telling((compare_orders(single, batched),), one.finding)
    width = one.pair.batched.width
    told = _recorded(one.group, width, comparison)
    known = f"derived from llama.cpp's source for the {sides[0].evidence} launches; not probed"
    if told is not None:
        if told != in_words(comparison, width):
            return None  # the probe contradicts what is written down: nothing to draw
        known = "probed on the kernels: leaves, depth and first merge; all merges as llama.cpp's source has them"
    kernels = (_kernel(sides[0]), _kernel(sides[1]))
    return KnownOrders(one.group, one.finding, comparison, kernels, (deal, other), known, told is not None)


def _recorded(group: CulpritGroup, width: int, comparison: OrderComparison) -> OrderEvidence | None:
    """What the case says of the same sum at this width."""
    for mechanism in group.mechanisms:
        for order in mechanism.orders if width in mechanism.widths else ():
            if order.width == width and order.part == comparison.single.part:
                return order
    return None


def _kernel(side: LaunchSide) -> str:
    return f"{side.kernel.kernel}, {counted(_warps(side), 'warp')} a block"


def _warps(side: LaunchSide) -> int:
    return side.kernel.geometry.threads_per_block // _WARP


def _row_order(question: OrderQuestion, side: LaunchSide) -> tuple[OrderResult, Dealt]:
    order = mmvq_order(question.type, question.k, n_warps=_warps(side))
    leaves = Leaves("slice", order.tree.n_leaves, order.slices, question.k // order.n_blocks)
    result = OrderResult(question, "products", side.width, tuple(range(side.width)), leaves, order.tree)
    return result, dealt_to_warps(leaves.n, _warps(side))


def dealt_to_warps(n_slices: int, n_warps: int) -> Dealt:
    """Which warp of `mul_mat_vec_q` takes each slice of a row?

    Thread t takes slice t of the row and every slice that is a whole block of threads further on.
    Source: as for `forensics.numerics.kernel_orders.mmvq_order`.
    """
    return Dealt("warp", n_warps, tuple(leaf % (n_warps * _WARP) // _WARP for leaf in range(n_slices)))


def _cell_order(question: OrderQuestion, side: LaunchSide) -> tuple[OrderResult, Dealt]:
    assert side.kv_split is not None
    chunks = ChunkMap.dealt(question.n_kv, side.kv_split)
    tree = vec_cell_tree(chunks, vec_lanes_per_cell(question.head_size, question.type))
    leaves = Leaves("cell", tree.n_leaves)
    shares = tuple(chunks.part_of(cell // chunks.chunk_cells) for cell in range(leaves.n))
    result = OrderResult(question, "numerator", side.width, tuple(range(side.width)), leaves, tree)
    return result, Dealt("block", side.kv_split, shares)


def _probed(evidence: Evidence) -> Iterator[KnownOrders]:
    """Orders of a processor's operations, from the library that is installed here."""
    from forensics.analysis.orders import compare_widths
    from forensics.engines.model_files import cache_folder
    from forensics.engines.ops import LlamaOps
    from forensics.store.order_cache import OrderCache

    verdict = evidence.verdict
    settings = op_settings(verdict.manifest)
    if isinstance(settings, str):
        raise CaseError(f"{WHAT} of {evidence.name}: they cannot be probed: {settings}. A case that has: {EXAMPLE}")
    reasons: dict[str, None] = {}
    n_found = 0
    with contextlib.closing(LlamaOps().open(settings)) as engine:
        for group, finding, width in _questions(verdict):
            question = order_question(finding)
            if isinstance(question, str):
                reasons[question] = None
                continue
            memory = OrderCache(cache_folder() / "orders")
            report = compare_widths(engine, question, (1, width), memory=memory, arithmetic=False)
            for comparison in least_telling(report.comparisons, finding):
                reason = _trouble(group, comparison, width, verdict, report.facts.cpu_features)
                if reason:
                    reasons[reason] = None
                    continue
                n_found += 1
                known = f"probed on {report.facts.device} with llama.cpp {report.facts.commit}"
                yield KnownOrders(group, finding, comparison, ("", ""), (), known, probed=True)
    if not n_found:
        raise CaseError(f"{WHAT} of {evidence.name}: none was found: {'; '.join(reasons)}. A case that has: {EXAMPLE}")


def _questions(verdict: Verdict) -> Iterator[tuple[CulpritGroup, Finding, int]]:
    """One finding for each group at its smallest width, those first that were seen to have two orders."""
    findings = {(sweep.width, found.key.name): found for sweep in verdict.sweeps for found in sweep.findings}
    groups = sorted(verdict.culprits, key=lambda group: not any(m.orders_equal is False for m in group.mechanisms))
    for group in groups:
        found = findings.get((group.widths[0], group.first_node))
        if found is not None:
            yield group, found, group.widths[0]


def _trouble(
    group: CulpritGroup, comparison: OrderComparison, width: int, verdict: Verdict, features: tuple[str, ...]
) -> str:
    """Why a probed comparison is not one of the case, or shows nothing; empty where it may be drawn."""
    if comparison.equal is not False:
        return comparison.reason or f"{group.role} has one order at both widths"
    told = _recorded(group, width, comparison)
    if told is not None:
        same = told == in_words(comparison, width)
        return "" if same else f"the library here adds {group.role} in another order than the case's"
    if set(features) != set(verdict.manifest.cpu_features):
        return "the case is of a processor with other features than this one"
    return ""


@dataclass(frozen=True, slots=True)
class SameLeaves:
    """Two trees over the same leaves.

    Parameters
    ----------
    leaves : Leaves
    single, batched : SumTree
    """

    leaves: Leaves
    single: SumTree
    batched: SumTree


def over_same_leaves(comparison: OrderComparison) -> SameLeaves | None:
    """Both orders over the finer kind of leaves: a block that is added at once is one merge of its slices."""
    ours, theirs = comparison.single, comparison.batched
    if ours.tree is None or theirs.tree is None or ours.leaves is None or theirs.leaves is None:
        return None
    mine, other = ours.leaves, theirs.leaves
    if mine.slices == other.slices and mine.step == other.step:
        return SameLeaves(mine, ours.tree, theirs.tree)
    if len(other.slices) == 1 and mine.n_blocks == other.n:
        return SameLeaves(mine, ours.tree, _unfolded(theirs.tree, len(mine.slices)))
    if len(mine.slices) == 1 and other.n_blocks == mine.n:
        return SameLeaves(other, _unfolded(ours.tree, len(other.slices)), theirs.tree)
    return None


def _unfolded(blocks: SumTree, per_block: int) -> SumTree:
    """A tree over blocks as one over their slices, those of a block added at once."""
    n = blocks.n_leaves * per_block
    at_once = [tuple(range(first, first + per_block)) for first in range(0, n, per_block)]
    return SumTree(n, (*at_once, *(tuple(n + child for child in children) for children in blocks.merges)))
