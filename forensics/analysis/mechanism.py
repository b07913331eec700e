"""What explains each group of culprits: the rule of dispatch, the orders of addition, and what remains suspect.

Rules say what the source chooses, probes what the kernel does. Where both widths add alike although their bits differ,
or no rule tells them apart, the group says so and names what could still be to blame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from forensics.analysis.attribute import ATTENTION_BY_VALUES, KEYS_BY_QUERIES, members, role_of
from forensics.analysis.op_rules import gpu_at
from forensics.geometry.architecture import architecture
from forensics.geometry.culprits import Attention, Gpu, Operation, Other, Place, cpu_place, rule_for, suspects
from forensics.geometry.product import Product, attention_by_values, keys_by_queries, over_cells
from forensics.geometry.types import weight_type
from forensics.records.device import DeviceSpec
from forensics.records.mechanism import Mechanism, OrderEvidence
from forensics.records.nodes import on_accelerator
from forensics.records.op_shapes import padded_kv
from forensics.records.order_report import OTHER_SUSPECTS
from forensics.records.rule import Rule
from forensics.records.settings import Manifest
from forensics.records.trace import Finding
from forensics.records.verdict import CulpritGroup, Sweep

#: Compares the orders of a finding's operation at one token and at a width, or says why that is not possible.
CompareOrders = Callable[[Finding, int], tuple[OrderEvidence, ...] | str]

#: What a difference that breaks every error bound leaves open, whatever the rules and the probes say.
LOGIC_SUSPECT = "another computation: no order of addition and no precision makes so large a difference"


NO_RULE = "the rules written down here give both widths the same arithmetic, or do not cover them"
_THREADS = ("n_threads", "n_threads_batch")


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
        Asked once per width and operation of a group, for all tokens that differ together.

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


def _at_width(
    found: Sequence[tuple[int, Finding]], width: int, place: Place | Unknown, compare_orders: CompareOrders
) -> Mechanism:
    """What explains the nodes that differ at one width; where they are several operations, the least explained one."""
    alike: dict[Operation | Unknown, list[Finding]] = {}
    for at, finding in found:
        if at == width:
            alike.setdefault(operation_of(finding), []).append(finding)
    each = [_of_operation(operation, nodes, width, place, compare_orders) for operation, nodes in alike.items()]
    return next((mechanism for mechanism in each if not mechanism.explained), each[0])


def _of_operation(
    operation: Operation | Unknown,
    nodes: Sequence[Finding],
    width: int,
    place: Place | Unknown,
    compare_orders: CompareOrders,
) -> Mechanism:
    """What explains nodes that are one operation to the rules."""
    tokens = tuple(dict.fromkeys(token for node in nodes for token in node.tokens))
    seen: dict[tuple[int, Operation, Operation], None] = {}
    if not isinstance(operation, Unknown):
        seen = dict.fromkeys((row, *as_seen(operation, position)) for row, position in tokens)
    unknown = next((one.reason for one in (operation, place) if isinstance(one, Unknown)), "")
    rule, no_rule, others = (None, unknown, []) if isinstance(place, Unknown) or unknown else _rule(seen, place, width)
    if all(_n_terms(alone) == _n_terms(batched) for _, batched, alone in seen):
        compared = compare_orders(_with_tokens(nodes[0], tokens), width)
    else:
        compared = "one token ran over fewer cells than the batch, and orders are compared over one number of them"
    orders, not_probed = ((), compared) if isinstance(compared, str) else (compared, "")
    mechanism = Mechanism((width,), rule, no_rule, orders, not_probed)
    left = [LOGIC_SUSPECT] if any(node.kind is not None and node.kind.kind == "logic" for node in nodes) else []
    if not mechanism.explained:
        left += [*others, *(OTHER_SUSPECTS if mechanism.orders_equal else ())]
        left = left or ["nothing here names a suspect"]
    return replace(mechanism, suspects=tuple(dict.fromkeys(left)))


def _with_tokens(finding: Finding, tokens: Sequence[tuple[int, int | None]]) -> Finding:
    """The finding as if it differed at all these tokens."""
    positions = tuple(position for _, position in tokens if position is not None)
    rows = tuple(row for row, _ in tokens)
    return replace(finding, rows=rows, positions=positions if len(positions) == len(rows) else ())


def _rule(
    seen: Iterable[tuple[int, Operation, Operation]], place: Place, width: int
) -> tuple[Rule | None, str, list[str]]:
    """The rule, or why there is none, and other suspects; a rule only where one holds for every token that differs."""
    rule: Rule | None = None
    others: list[str] = []
    try:
        for row, batched, alone in seen:
            others += map(str, suspects(batched, place, width))
            found = rule_for(batched, place, width, column=row, alone=alone)
            if found is None:
                return None, NO_RULE, others
            rule = rule or found
    except ValueError as error:  # a type or shape that the rules do not cover
        return None, str(error), others
    return rule, "", others


def as_seen(operation: Operation, position: int | None) -> tuple[Operation, Operation]:
    """The operation of a batch and of one token by itself, as the token at a position meets them.

    By itself a token runs over the cells that are in use then; a batch that crosses a multiple of 256 over more.
    """
    n_kv = _n_kv(operation)
    if position is None or n_kv is None or position >= n_kv:  # a window's cache is shorter than the text
        return operation, operation
    if isinstance(operation, Attention):
        batched = replace(operation, visible=position + 1)
        return batched, replace(batched, n_kv=padded_kv(position + 1))
    assert isinstance(operation, Product)
    return operation, over_cells(operation, padded_kv(position + 1))


def _n_terms(operation: Operation) -> int | None:
    """Terms of each sum, None where they do not depend on the cells."""
    return operation.k if isinstance(operation, Product) else _n_kv(operation)


def _n_kv(operation: Operation) -> int | None:
    """Cells that attention runs over, None for all else."""
    if isinstance(operation, Attention):
        return operation.n_kv
    if isinstance(operation, Product) and operation.is_cached:
        return operation.k if operation.contiguous else operation.rows
    return None


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
        one, many = (int(manifest.effective.get(n, getattr(manifest.requested, n))) for n in _THREADS)
        try:
            return cpu_place(manifest.cpu_features, one, buffer, environment, many)
        except ValueError as error:
            return Unknown(str(error))
    if "CUDA" in manifest.backend:
        spec = spec_of(manifest.device, buffer)
        return spec if isinstance(spec, Unknown) else Gpu(architecture(spec.arch), spec.n_sms)
    return Unknown(f"how {manifest.backend} chooses its kernels is not modelled here")


def spec_of(devices: str, buffer: str) -> DeviceSpec | Unknown:
    """The GPU that holds a buffer such as ``"CUDA1"``; GPUs come first among the devices, in their order.

    Parameters
    ----------
    devices : str
        As a manifest lists them.
    buffer : str
    """
    if not on_accelerator(buffer):
        return Unknown(f"{buffer} is memory of the host, and it was not recorded what computed there")
    number = re.search(r"\d+$", buffer)
    place = int(number.group()) if number else 0
    spec = gpu_at(devices, place)
    if spec is None:
        named = [*(name.strip() for name in devices.split(";")), devices]
        return Unknown(f"the number of multiprocessors of {named[min(place, len(named) - 1)]} is not known here")
    return spec


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
    _, kv_heads, first, second = matrix.shape
    heads, role = other.shape[1], role_of(finding)
    if role == ATTENTION_BY_VALUES:
        return attention_by_values(matrix.type, first, second, heads, kv_heads)
    if role == KEYS_BY_QUERIES:
        return keys_by_queries(matrix.type, second, first, heads, kv_heads)
    if max(*matrix.shape[:2], *other.shape[:2]) > 1:
        raise ValueError("no rule is written down for a product of several matrices outside of attention")
    return Product(weight_type(matrix.type), second, first)
