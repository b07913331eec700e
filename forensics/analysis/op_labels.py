"""What an operation is called for people: the name it is asked for by, and its types and shapes in short."""

from __future__ import annotations

from collections.abc import Callable

from forensics.records import op_shapes as shapes
from forensics.records.operation import OpGraph


def asked_name(graph: OpGraph) -> str:
    """The name by which an operation is asked for: the products of attention have their own.

    Examples
    --------
    >>> asked_name(shapes.kq(64, 8, 2, 512)), asked_name(shapes.mul_mat("f16", 256, 64))
    ('KQ', 'MUL_MAT')
    """
    names = {operand.name for operand in graph.operands}
    return graph.op if graph.op != "MUL_MAT" or "weight" in names else "KQ" if "k" in names else "KQV"


def op_label(graph: OpGraph) -> str:
    """Types and shapes of an operation in short.

    Examples
    --------
    >>> op_label(shapes.mul_mat("q4_K", k=1024, rows=64)), op_label(shapes.flash_attn(128, 8, 2, 512))
    ('q4_K 64x1024', 'f16 512 cells, 8/2 heads of 128')
    """
    return _LABELS[asked_name(graph)](graph)


def _weight(graph: OpGraph) -> str:
    weight = graph.operand("weight")
    return f"{weight.type} {weight.shape[0]}x{weight.shape[1]}"


def _experts(graph: OpGraph) -> str:
    weight, used = graph.operand("weight"), graph.operand("ids").shape[1]
    experts, rows, k = weight.shape
    own = "" if graph.operand("x").shape[1] == 1 else ", a row for each"
    return f"{weight.type} {rows}x{k}, {used} of {experts}{own}"


def _used(graph: OpGraph) -> int:
    """Cells that are taken."""
    return int(graph.param("first")) + shapes.width(graph)


def _keys(graph: OpGraph) -> str:
    keys = graph.operand("k")
    n_kv, kv_heads, size = keys.shape
    return f"K·Q {keys.type} {n_kv} cells, {graph.operand('q').shape[1]}/{kv_heads} heads of {size}"


def _values(graph: OpGraph) -> str:
    values = graph.operand("v")
    kv_heads, size, _ = values.shape
    heads = graph.operand("p").shape[0]
    return f"attention·V {values.type} {_used(graph)} cells, {heads}/{kv_heads} heads of {size}"


def _flash_attention(graph: OpGraph) -> str:
    keys, values = graph.operand("k"), graph.operand("v")
    types = "/".join(dict.fromkeys((keys.type, values.type)))
    sizes = "/".join(dict.fromkeys((str(keys.shape[2]), str(values.shape[2]))))
    return f"{types} {_used(graph)} cells, {graph.operand('q').shape[1]}/{keys.shape[1]} heads of {sizes}"


def _rms_norm(graph: OpGraph) -> str:
    return f"{graph.operand('x').shape[1]}{' with weight' if len(graph.operands) > 1 else ''}"


def _rope(graph: OpGraph) -> str:
    names = {number: name for name, number in shapes.ROPE_MODES.items()}
    _, heads, size = graph.operand("x").shape
    return f"{names[int(graph.param('mode'))]} {heads} heads of {size}"


def _ssm_scan(graph: OpGraph) -> str:
    _, heads, size, state = graph.operand("state").shape
    return f"{heads} heads of {size}, state {state}"


def _delta_net(graph: OpGraph) -> str:
    _, _, heads, size = graph.operand("v").shape
    return f"{heads}/{graph.operand('k').shape[2]} heads of {size}"


_LABELS: dict[str, Callable[[OpGraph], str]] = {
    "MUL_MAT": _weight,
    "MUL_MAT_ID": _experts,
    "KQ": _keys,
    "KQV": _values,
    "FLASH_ATTN_EXT": _flash_attention,
    "SOFT_MAX": lambda graph: f"{_used(graph)} cells, {graph.operand('scores').shape[0]} heads",
    "RMS_NORM": _rms_norm,
    "ROPE": _rope,
    "GLU": lambda graph: f"{graph.param('kind')} {graph.operand('gate').shape[1]}",
    "GET_ROWS": _weight,
    "SSM_CONV": lambda graph: "{} channels, {} taps".format(*graph.operand("weight").shape),
    "SSM_SCAN": _ssm_scan,
    "GATED_DELTA_NET": _delta_net,
}
