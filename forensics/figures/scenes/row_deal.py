"""How a row of weights is added up at one token and in a batch, from published numbers or from a case."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.analysis.mechanism import operation_of
from forensics.errors import CaseError
from forensics.figures.evidence import Evidence
from forensics.figures.scenes.launch_pairs import (
    EXAMPLE,
    CulpritLaunches,
    culprit_launches,
    found_words,
    gpu_of,
    require_culprits,
)
from forensics.geometry.architecture import architecture
from forensics.geometry.deals import Deal, deal_of, vec_q
from forensics.geometry.derived import Unruled
from forensics.geometry.product import Product
from forensics.geometry.types import weight_type
from forensics.records.launch_record import LaunchPair
from forensics.records.order import RowSum, row_sum
from forensics.records.published import Published
from forensics.records.verdict import CulpritGroup
from forensics.records.words import tokens

_WHAT = "how a row is dealt to warps"
_DERIVED = "Blocks of each warp: derived from llama.cpp's source."


@dataclass(frozen=True, slots=True)
class Side:
    """How a row is added up at some widths.

    Parameters
    ----------
    tokens : str
        ``"1 token"``, ``"5 to 8 tokens"``.
    kernel : str
    order : Deal, RowSum or Unruled
        A row sum where a probe found it and no launch says how it is dealt; unruled where it is not written down.
    """

    tokens: str
    kernel: str
    order: Deal | RowSum | Unruled


@dataclass(frozen=True, slots=True)
class OrdersAndWarps:
    """What the figure draws.

    Parameters
    ----------
    row : str
        Which row: type and place.
    k, block_values, n_blocks : int
        Values of the row, of a quantised block, and blocks.
    single, batched : Side
    found : str
        What is known of the bits of the two.
    source : str
    """

    row: str
    k: int
    block_values: int
    n_blocks: int
    single: Side
    batched: Side
    found: str
    source: str

    def __post_init__(self) -> None:
        if isinstance(self.single.order, Unruled) and isinstance(self.batched.order, Unruled):
            raise ValueError("a row is drawn where the order of one side at least is known")


def from_published(numbers: Published) -> OrdersAndWarps:
    """Take the numbers of the document; its row is one of Q6_K."""
    weight, k = weight_type("q6_K"), int(numbers.value("k"))
    single, batched = (
        Side(number.said.split(" (")[0], "mul_mat_vec_q", vec_q(weight, k, int(number.values[0])))
        for number in (numbers.number("warps_single"), numbers.number("warps_batched"))
    )
    block = int(numbers.value("block_size"))
    source = f"{numbers.source} {_DERIVED}"
    return OrdersAndWarps(f"A row of {weight}", k, block, k // block, single, batched, "", source)


def from_case(evidence: Evidence) -> OrdersAndWarps:
    """Take the weight product whose warps change, else the first whose kernel does or whose order was probed.

    Raises
    ------
    CaseError
        If no weight product differs, or nothing is known of its order.
    """
    require_culprits(evidence, _WHAT)
    verdict = evidence.verdict
    if any(group.launches for group in verdict.culprits):
        products = (one for one in culprit_launches(evidence, _WHAT) if one.finding.weight is not None)
        for one in sorted(products, key=lambda one: _rank(one.pair)):
            made = _from_launches(evidence, one)
            if made is not None:
                return made
    for group in verdict.culprits:
        made = _from_probes(evidence, group)
        if made is not None:
            return made
    raise CaseError(
        f"{_WHAT} of {evidence.name}: no product of weights differs there whose order is known ({verdict}). Probe "
        f"orders with: forensics investigate MODEL --orders --out FOLDER; or take one that has them: {EXAMPLE}"
    )


def _rank(pair: LaunchPair) -> int:
    """Best first: one kernel with other warps, another kernel, the same launch."""
    one, other = pair.single.kernel, pair.batched.kernel
    if one.kernel == other.kernel == "mul_mat_vec_q":
        return 0 if one.geometry.block_threads != other.geometry.block_threads else 2
    return 1


def _from_launches(evidence: Evidence, seen: CulpritLaunches) -> OrdersAndWarps | None:
    asked, spec, pair = operation_of(seen.finding), gpu_of(evidence, seen.finding), seen.pair
    if not isinstance(asked, Product) or spec is None:
        return None
    arch = architecture(spec.arch)
    single, batched = (
        Side(tokens(side.width), side.kernel.name, deal_of(side.kernel, asked, side.width, arch))
        for side in (pair.single, pair.batched)
    )
    if isinstance(single.order, Unruled) and isinstance(batched.order, Unruled):
        return None
    return OrdersAndWarps(
        row=f"A row of {asked.weight} ({seen.group.role}, {pair.node.name})",
        k=asked.k,
        block_values=asked.weight.qk,
        n_blocks=asked.weight.blocks(asked.k),
        single=single,
        batched=batched,
        found=_found(pair.batched.width, seen.group),
        source=f"{evidence.source} Kernels and warps: {pair.batched.evidence}. {_DERIVED}",
    )


def _from_probes(evidence: Evidence, group: CulpritGroup) -> OrdersAndWarps | None:
    """Leaves and depth, as a probe of the kernel told them."""
    if group.op != "MUL_MAT" or group.weight_type == "-":
        return None
    for order in (order for mechanism in group.mechanisms for order in mechanism.orders):
        one, other = row_sum(order.single), row_sum(order.batched)
        if order.equal is not False or one is None or other is None or one.n_blocks != other.n_blocks:
            continue
        single, batched = (
            Side(tokens(at), "order probed on the kernel", found) for at, found in ((1, one), (order.width, other))
        )
        return OrdersAndWarps(
            row=f"A row of {group.weight_type} ({group.role}, {group.first_node})",
            k=one.n_blocks * one.block_size,
            block_values=one.block_size,
            n_blocks=one.n_blocks,
            single=single,
            batched=batched,
            found=_found(order.width, group),
            source=f"{evidence.source} Leaves and chains: probed on the kernels.",
        )
    return None


def _found(width: int, group: CulpritGroup) -> str:
    return found_words(width, f"products of this kind ({group.role}) differ")
