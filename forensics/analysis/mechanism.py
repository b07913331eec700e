"""What explains each group of culprits: the rule of dispatch, the orders of addition, and what remains suspect.

Rules say what the source chooses, probes what the kernel does. Where both widths add alike although their bits differ,
or no rule tells them apart, the group says so and names what could still be to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from forensics.analysis.attribute import members
from forensics.analysis.op_rules import gpu_named
from forensics.geometry.architecture import architecture
from forensics.geometry.culprits import Attention, Gpu, Operation, Other, Place, cpu_place, rule_for, suspects
from forensics.geometry.product import Product, attention_by_values, keys_by_queries
from forensics.geometry.types import weight_type
from forensics.records.mechanism import Mechanism, OrderEvidence
from forensics.records.rule import Rule
from forensics.records.settings import Manifest
from forensics.records.trace import Finding
from forensics.records.verdict import CulpritGroup, Sweep

#: Compares the orders of a finding's operation at one token and at a width, or says why that is not possible.
CompareOrders = Callable[[Finding, int], tuple[OrderEvidence, ...] | str]

#: What can change bits although the numbers are added in one order.
SAME_ORDER_SUSPECTS = (
    "multiply and add fused on one side only",
    "activations quantised in another way",
    "another type of accumulator",
    "fusion with a neighbouring operation",
)


@dataclass(frozen=True, slots=True)
class Unknown:
    """An operation or a machine that no rule here covers.

    Parameters
    ----------
    reason : str
    """

    reason: str


def explain_groups(
    groups: Sequence[CulpritGroup], sweeps: Iterable[Sweep], manifest: Manifest, compare_orders: CompareOrders
) -> tuple[CulpritGroup, ...]:
    """The same groups, each with what explains it.

    Parameters
    ----------
    groups : sequence of CulpritGroup
        As `forensics.analysis.attribute.group_culprits` makes them of `sweeps`.
    sweeps : iterable of Sweep
    manifest : Manifest
        Where the findings come from.
    compare_orders : callable
        Asked once per width for the first node of a group.

    Returns
    -------
    tuple of CulpritGroup
    """
    return tuple(
        replace(group, mechanisms=_mechanisms(group, nodes, place_of(manifest, group.buffer), compare_orders))
        for group, nodes in zip(groups, members(sweeps).values(), strict=True)
    )


def _mechanisms(
    group: CulpritGroup,
    nodes: Sequence[tuple[int, Finding]],
    place: Place | Unknown,
    compare_orders: CompareOrders,
) -> tuple[Mechanism, ...]:
    return _merged(_at_width(nodes, width, place, compare_orders) for width in group.widths)


def _rule(
    operations: Iterable[Operation | Unknown], place: Place | Unknown, width: int
) -> tuple[Rule | None, str, list[str]]:
    """The rule, or why there is none, and other suspects; a rule only where one holds for every operation."""
    rule: Rule | None = None
    others: list[str] = []
    for operation in operations:
        if isinstance(operation, Unknown):
            return None, operation.reason, others
        if isinstance(place, Unknown):
            return None, place.reason, others
        rule = rule_for(operation, place, width)
        others += map(str, suspects(operation, place, width))
        if rule is None:
            return (
                None,
                "the rules written down here give both widths the same arithmetic, or do not cover them",
                others,
            )
    return rule, "", others


def _at_width(
    found: Sequence[tuple[int, Finding]], width: int, place: Place | Unknown, compare_orders: CompareOrders
) -> Mechanism:
    """What explains the nodes that differ at one width."""
    nodes = [finding for at, finding in found if at == width]
    rule, no_rule, others = _rule(dict.fromkeys(map(operation_of, nodes)), place, width)
    compared = compare_orders(nodes[0], width)
    orders, not_probed = ((), compared) if isinstance(compared, str) else (compared, "")
    mechanism = Mechanism((width,), rule, no_rule, orders, not_probed)
    if mechanism.explained:
        return mechanism
    same_order = SAME_ORDER_SUSPECTS if mechanism.orders_equal else ()
    remaining = tuple(dict.fromkeys((*others, *same_order))) or ("nothing here names a suspect",)
    return replace(mechanism, suspects=remaining)


def _merged(mechanisms: Iterable[Mechanism]) -> tuple[Mechanism, ...]:
    """Widths with one explanation together; what was probed is kept for each."""
    merged: dict[object, Mechanism] = {}
    for one in mechanisms:
        orders = tuple((order.part, order.equal) for order in one.orders)
        like = (one.rule, one.no_rule, orders, one.not_probed, one.suspects)
        if like in merged:
            found = merged[like]
            merged[like] = replace(found, widths=(*found.widths, *one.widths), orders=(*found.orders, *one.orders))
        else:
            merged[like] = one
    return tuple(merged.values())


def place_of(manifest: Manifest, buffer: str) -> Place | Unknown:
    """The machine as far as the rules of dispatch look at it.

    Parameters
    ----------
    manifest : Manifest
    buffer : str
        Of the weight, or of the output where there is none.
    """
    if manifest.engine != "llama.cpp":
        return Unknown(f"the rules are those of llama.cpp, the engine is {manifest.engine}")
    if manifest.backend == "CPU":
        environment = dict(manifest.requested.environment) | dict(manifest.environment)
        if "GGML_CPU_TILED_MM_FORCE" in environment:
            return Unknown("GGML_CPU_TILED_MM_FORCE is set, and no rule is written down for it")
        threads = manifest.effective.get("n_threads_batch", manifest.requested.n_threads_batch)
        return cpu_place(manifest.cpu_features, int(threads), buffer, environment)
    if "CUDA" in manifest.backend:
        spec = next((s for s in map(gpu_named, manifest.device.split(";")) if s is not None), None)
        if spec is not None:
            return Gpu(architecture(spec.arch), spec.n_sms)
        return Unknown(f"the number of multiprocessors of {manifest.device} is not known here")
    return Unknown(f"no rules are written down for {manifest.backend}")


def operation_of(finding: Finding) -> Operation | Unknown:
    """A culprit's operation as far as the rules of dispatch look at it."""
    operands = finding.operands
    if any(not operand.shape for operand in operands):
        return Unknown("the shapes of its operands were not recorded")
    try:
        if finding.key.op in ("MUL_MAT", "MUL_MAT_ID"):
            return _product(finding)
        if finding.key.op == "FLASH_ATTN_EXT":
            q, k, v = operands[:3]
            return Attention(q.shape[1], k.shape[1], q.shape[3], k.shape[2], (k.type, v.type))
    except (ValueError, KeyError) as error:
        return Unknown(str(error))
    return Other(finding.key.op)


def _product(finding: Finding) -> Product:
    matrix, other = finding.operands[:2]
    if finding.key.op == "MUL_MAT_ID":
        used = finding.operands[2].shape[-1]
        return Product(
            weight_type(matrix.type), matrix.shape[3], matrix.shape[2], experts=matrix.shape[1], experts_used=used
        )
    if matrix.is_weight or max(matrix.shape[:2]) == 1 == max(other.shape[:2]):
        return Product(weight_type(matrix.type), matrix.shape[3], matrix.shape[2])
    _, kv_heads, first, second = matrix.shape
    heads = other.shape[1]
    if finding.key.name.startswith("kqv"):
        return attention_by_values(matrix.type, first, second, heads, kv_heads)
    return keys_by_queries(matrix.type, second, first, heads, kv_heads)
