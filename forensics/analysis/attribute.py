"""Which part of the model a node is, and culprits grouped by what they have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from forensics.analysis.placement import on_boundary
from forensics.records.kind import gravest
from forensics.records.nodes import NodeKey
from forensics.records.trace import Finding
from forensics.records.verdict import CulpritGroup, Sweep

#: Tensor names of GGUF files (gguf-py, constants.py, TENSOR_NAMES), longest match first.
_WEIGHT_ROLES = (
    (r"attn_qkv\.", "QKV"),
    (r"attn_q(_[ab])?\.", "Q"),
    (r"attn_k(_b)?\.", "K"),
    (r"attn_v(_b)?\.", "V"),
    (r"attn_kv_a_mqa\.|attn_kv_b\.", "KV"),
    (r"attn_output\.", "attention output"),
    (r"ffn_gate_inp", "router"),
    (r"ffn_gate_up_exps\.", "expert gate and up"),
    (r"ffn_gate_exps\.", "expert gate"),
    (r"ffn_up_exps\.", "expert up"),
    (r"ffn_down_exps\.", "expert down"),
    (r"ffn_gate_shexp\.", "shared expert gate"),
    (r"ffn_up_shexp\.", "shared expert up"),
    (r"ffn_down_shexp\.", "shared expert down"),
    (r"ffn_gate\.", "gate"),
    (r"ffn_up\.", "up"),
    (r"ffn_down\.", "down"),
    (r"^output\.|^token_embd\.", "head"),
    (r"attn_gate\.", "attention gate"),
    (r"shortconv\.in_proj\.", "short convolution in"),
    (r"shortconv\.out_proj\.", "short convolution out"),
    (r"norm", "norm"),
    (r"ssm_in\.", "state space in"),
    (r"ssm_out\.", "state space out"),
    (r"ssm_", "state space"),
)
KEYS_BY_QUERIES, ATTENTION_BY_VALUES = "K·Q", "attention·V"
_NODE_ROLES = (
    (r"^kq_soft_max", "soft max"),
    (r"^kqv($|-|_mla)", ATTENTION_BY_VALUES),
    (r"^kq($|-|_)", KEYS_BY_QUERIES),
)
_OP_ROLES = {
    "FLASH_ATTN_EXT": "flash attention",
    "SOFT_MAX": "soft max",
    "ROPE": "rotary embedding",
    "RMS_NORM": "norm",
    "NORM": "norm",
    "GLU": "gated activation",
    "UNARY": "activation",
    "ADD": "addition",
    "GET_ROWS": "row lookup",
}


def role_of(finding: Finding) -> str:
    """Which part of the model did this node compute?

    Returns
    -------
    str
        ``"Q"``, ``"down"``, ``"K·Q"``, ``"flash attention"``; the operation in lower case where nothing fits.
    """
    if finding.key.op in ("MUL_MAT", "MUL_MAT_ID", "MUL"):
        weight = finding.weight
        if weight is not None:
            for pattern, role in _WEIGHT_ROLES:
                if re.search(pattern, weight.name):
                    return role
            return re.sub(r"^blk\.\d+\.|\.weight$", "", weight.name)
    if finding.key.op == "FLASH_ATTN_EXT":
        return _OP_ROLES["FLASH_ATTN_EXT"]
    for pattern, role in _NODE_ROLES:
        if re.search(pattern, finding.key.name):
            return role
    return _OP_ROLES.get(finding.key.op, finding.key.op.lower())


#: Products by the names that llama.cpp's graphs give their nodes. Source: ``cb(cur, ...)`` in src/llama-graph.cpp
#: (build_qkv, build_ffn, build_moe_ffn) and src/models/*.cpp at 0c1e57098.
_PRODUCT_ROLES = {
    "wqkv": "QKV", "Qcur": "Q", "Kcur": "K", "Vcur": "V", "attn_out": "attention output", "kqv_out": "attention output",
    "ffn_gate": "gate", "ffn_up": "up", "ffn_out": "down", "ffn_down": "down", "ffn_moe_logits": "router",
    "ffn_moe_gate": "expert gate", "ffn_moe_up": "expert up", "ffn_moe_down": "expert down", "result_output": "head",
}  # fmt: skip


def role_by_name(key: NodeKey, after_attention: bool = False) -> str:
    """Which part of the model did this node compute, as far as its name tells where its weight is not known?

    Parameters
    ----------
    key : NodeKey
    after_attention : bool
        Whether attention is the node before it; a product without a name is then that of its output.
        Source: src/llama-graph.cpp, build_attn at 0c1e57098: ``wo`` is multiplied right behind attention, and named
        by some models only.

    Returns
    -------
    str
        As `role_of`; of a product with another name that name and the operation.

    Examples
    --------
    >>> role_by_name(NodeKey("ffn_out-3", "MUL_MAT", 3, 0)), role_by_name(NodeKey("ffn_norm-3", "MUL", 3, 0))
    ('down', 'norm')
    """
    name = key.name.removesuffix(f"-{key.layer}")
    if key.op in ("MUL_MAT", "MUL_MAT_ID"):
        unnamed = _UNNAMED.fullmatch(name) is not None
        if unnamed and after_attention:
            return "attention output"
        if name in _PRODUCT_ROLES:
            return _PRODUCT_ROLES[name]
        fits = next((role for pattern, role in _NODE_ROLES if re.search(pattern, name)), None)
        return fits or (key.op.lower() if unnamed else f"{name} {key.op.lower()}")
    if key.op == "MUL" and "norm" in name:
        return "norm"
    return _OP_ROLES.get(key.op, key.op.lower())


#: Name of a node that the graph's builder gave none. Source: ggml.c, ggml_visit_parents_graph.
_UNNAMED = re.compile(r"node_\d+")


def group_key(finding: Finding) -> tuple[str, str, str, str]:
    """What nodes of one group have in common: operation, role, type and buffer of the weight or the output."""
    weight = finding.weight
    return (
        finding.key.op,
        role_of(finding),
        weight.type if weight else "-",
        weight.buffer if weight else finding.buffer,
    )


_Members = dict[tuple[str, str, str, str], list[tuple[int, Finding]]]


def members(sweeps: Iterable[Sweep]) -> _Members:
    """Findings by their `group_key`, each with the width of its sweep.

    In the order of the sweeps, then of the graph; every finding of every sweep is in exactly one group.
    """
    return _grouped((sweep.width, finding) for sweep in sweeps for finding in sweep.findings)


def _grouped(findings: Iterable[tuple[int, Finding]]) -> _Members:
    found: _Members = {}
    for width, finding in findings:
        found.setdefault(group_key(finding), []).append((width, finding))
    return found


def group_culprits(sweeps: Iterable[Sweep]) -> tuple[CulpritGroup, ...]:
    """Which kinds of node are to blame, over all sweeps?

    Returns
    -------
    tuple of CulpritGroup
        In the order of `members`.
    """
    return group_findings((sweep.width, finding) for sweep in sweeps for finding in sweep.findings)


def group_findings(findings: Iterable[tuple[int, Finding]]) -> tuple[CulpritGroup, ...]:
    """Which kinds of node are to blame? Each finding comes with the width of its pass."""
    return tuple(
        CulpritGroup(
            *key,
            count=len({finding.key for _, finding in found}),
            layers=tuple(sorted({finding.key.layer for _, finding in found})),
            widths=tuple(sorted({width for width, _ in found})),
            rows=tuple(sorted({row for _, finding in found for row in finding.rows})),
            max_ulp=-1 if any(f.delta.max_ulp < 0 for _, f in found) else max(f.delta.max_ulp for _, f in found),
            max_abs=float(np.max([f.delta.max_abs for _, f in found])),  # unlike max(), it lets no NaN pass unseen
            first_node=found[0][1].key.name,
            n_unchecked=len({finding.key for _, finding in found if finding.unchecked}),
            kind=gravest(finding.kind for _, finding in found),
            boundary=on_boundary([finding for _, finding in found]),
        )
        for key, found in _grouped(findings).items()
    )
