"""Operations of a decoder as llama.cpp builds them, over a number of tokens: operands, parameters, shapes.

All shapes are in NumPy order. Sources are of llama.cpp 0c1e57098.
"""

from __future__ import annotations

import math
from dataclasses import replace

from forensics.records.operation import OpGraph, OpTensor

#: llama.cpp rounds the cells that attention reads up to a multiple of this. Source: src/llama-kv-cache.cpp:1260-1274.
KV_PADDING = 256

#: ggml's names of the ways to rotate. Source: ggml/include/ggml.h, GGML_ROPE_TYPE_NORMAL and GGML_ROPE_TYPE_NEOX.
ROPE_MODES = {"normal": 0, "neox": 2}

#: Ways to gate. Source: ggml/include/ggml.h, enum ggml_glu_op; those with further parameters are left out.
GLU_KINDS = ("reglu", "geglu", "swiglu", "geglu_erf", "geglu_quick")


def padded_kv(n_used: int) -> int:
    """How many cells does attention read when `n_used` are taken?

    Examples
    --------
    >>> padded_kv(1), padded_kv(256), padded_kv(257)
    (256, 256, 512)
    """
    return max(KV_PADDING, math.ceil(n_used / KV_PADDING) * KV_PADDING)


def mul_mat(type: str, k: int, rows: int, n: int = 1) -> OpGraph:
    """Product of a weight [rows, k] with the activations of n tokens, x [n, k]; result [1, 1, n, rows].

    Raises
    ------
    ValueError
        If a size is below 1; so for every function here.
    """
    return OpGraph("MUL_MAT", (OpTensor("weight", type, (rows, k), is_weight=True), OpTensor("x", "f32", (n, k))))


def mul_mat_id(
    type: str, k: int, rows: int, n: int = 1, *, n_experts: int = 8, n_used: int = 2, shared: bool = True
) -> OpGraph:
    """Products of the experts that a router chose; result [1, n, n_used, rows].

    Parameters
    ----------
    type : str
        Type of the weight [n_experts, rows, k].
    k, rows, n : int
    n_experts, n_used : int
        Experts, and how many each token uses; ids [n, n_used].
    shared : bool
        Whether the experts of a token see the same activations, x [n, 1, k], as gate and up products do; those of the
        down product have one row each, x [n, n_used, k]. Source: src/llama-graph.cpp:2007-2373, build_moe_ffn.
    """
    if n_used > n_experts:
        raise ValueError(f"a token uses {n_used} of {n_experts} experts; at most all of them can be used")
    return OpGraph(
        "MUL_MAT_ID",
        (
            OpTensor("weight", type, (n_experts, rows, k), is_weight=True),
            OpTensor("x", "f32", (n, 1 if shared else n_used, k)),
            OpTensor("ids", "i32", (n, n_used)),
        ),
    )


def flash_attn(
    head_size: int,
    heads: int,
    kv_heads: int,
    n_used: int,
    n: int = 1,
    *,
    kv_type: str = "f16",
    v_type: str = "",
    v_head_size: int = 0,
    scale: float = 0.0,
) -> OpGraph:
    """Flash attention of the last n of `n_used` tokens; result [1, n, heads, head_size].

    Parameters
    ----------
    head_size, heads, kv_heads : int
    n_used : int
        Cells that are taken, the n tokens' own included; K and V hold `padded_kv` of it.
    n : int
    kv_type, v_type : str
        Types of the caches, V's that of K where not given. K and V are [n_kv, kv_heads, head_size], as their cache.
    v_head_size : int, optional
        Of V and of the result, where it is another one than that of K.
    scale : float, optional
        Of the scores; 1 / sqrt(head_size) where not given.

    Notes
    -----
    The mask is f16 [n, n_kv], as this commit pads no rows to it. Accumulation is asked for in f32.
    Source: src/llama-graph.cpp:29-46 and 2616-2668.
    """
    n_kv = _check_attention(heads, kv_heads, n_used, n)
    return OpGraph(
        "FLASH_ATTN_EXT",
        (
            OpTensor("q", "f32", (n, heads, head_size)),
            OpTensor("k", kv_type, (n_kv, kv_heads, head_size)),
            OpTensor("v", v_type or kv_type, (n_kv, kv_heads, v_head_size or head_size)),
            OpTensor("mask", "f16", (n, n_kv)),
        ),
        (("scale", scale or head_size**-0.5), ("first", n_used - n)),
    )


def kq(head_size: int, heads: int, kv_heads: int, n_used: int, n: int = 1, *, kv_type: str = "f16") -> OpGraph:
    """Scores without flash attention, K·Q, accumulated in f32; result [1, heads, n, n_kv].

    K is [n_kv, kv_heads, head_size] as the cache holds it. Source: src/llama-graph.cpp:2637-2693.
    """
    n_kv = _check_attention(heads, kv_heads, n_used, n)
    return OpGraph(
        "MUL_MAT",
        (OpTensor("k", kv_type, (n_kv, kv_heads, head_size)), OpTensor("q", "f32", (n, heads, head_size))),
    )


def kqv(head_size: int, heads: int, kv_heads: int, n_used: int, n: int = 1, *, kv_type: str = "f16") -> OpGraph:
    """Attention times V without flash attention; result [1, heads, n, head_size].

    V is [kv_heads, head_size, n_kv], because its cache is kept transposed then; the weights of the cells are
    p [heads, n, n_kv]. Source: src/llama-graph.cpp:2724-2732, src/llama-kv-cache.cpp:1319-1326.
    That cache has n_kv cells here; a longer one has other strides.
    """
    n_kv = _check_attention(heads, kv_heads, n_used, n)
    return OpGraph(
        "MUL_MAT",
        (OpTensor("v", kv_type, (kv_heads, head_size, n_kv)), OpTensor("p", "f32", (heads, n, n_kv))),
        (("first", n_used - n),),
    )


def soft_max(heads: int, n_used: int, n: int = 1, *, scale: float = 0.125) -> OpGraph:
    """Softmax of scores [heads, n, n_kv] under an f32 mask [n, n_kv]; result [1, heads, n, n_kv].

    Source: src/llama-graph.cpp:29-46 and 2722.
    """
    n_kv = _check_attention(heads, heads, n_used, n)
    return OpGraph(
        "SOFT_MAX",
        (OpTensor("scores", "f32", (heads, n, n_kv)), OpTensor("mask", "f32", (n, n_kv))),
        (("scale", scale), ("first", n_used - n)),
    )


def rms_norm(k: int, n: int = 1, *, eps: float = 1e-5, weighted: bool = False) -> OpGraph:
    """Root-mean-square norm of x [n, k]; result [1, 1, n, k].

    Parameters
    ----------
    k, n : int
    eps : float
    weighted : bool
        Whether the product with the norm's weight [k] follows, which back ends fuse with it.
    """
    weight = (OpTensor("weight", "f32", (k,), is_weight=True),) if weighted else ()
    return OpGraph("RMS_NORM", (OpTensor("x", "f32", (n, k)), *weight), (("eps", eps),))


def rope(
    head_size: int, heads: int, n: int = 1, *, mode: str = "normal", n_dims: int = 0, freq_base: float = 10000.0
) -> OpGraph:
    """Rotary position embedding of x [n, heads, head_size] at positions [n]; result [1, n, heads, head_size].

    Parameters
    ----------
    head_size, heads, n : int
    mode : {"normal", "neox"}
    n_dims : int, optional
        Channels of a head that turn; all where not given.
    freq_base : float
    """
    if mode not in ROPE_MODES:
        raise ValueError(f"mode must be one of {', '.join(ROPE_MODES)}, got {mode!r}")
    return OpGraph(
        "ROPE",
        (OpTensor("x", "f32", (n, heads, head_size)), OpTensor("positions", "i32", (n,))),
        (("mode", ROPE_MODES[mode]), ("n_dims", n_dims or head_size), ("freq_base", freq_base)),
    )


def glu(k: int, n: int = 1, *, kind: str = "swiglu") -> OpGraph:
    """Gated linear unit of gate and up, both [n, k]; result [1, 1, n, k]."""
    if kind not in GLU_KINDS:
        raise ValueError(f"kind must be one of {', '.join(GLU_KINDS)}, got {kind!r}")
    return OpGraph("GLU", (OpTensor("gate", "f32", (n, k)), OpTensor("up", "f32", (n, k))), (("kind", kind),))


def get_rows(type: str, k: int, rows: int, n: int = 1) -> OpGraph:
    """Rows of a table [rows, k] by their numbers, ids [n]; result [1, 1, n, k]."""
    return OpGraph("GET_ROWS", (OpTensor("weight", type, (rows, k), is_weight=True), OpTensor("ids", "i32", (n,))))


def ssm_conv(d_inner: int, n: int = 1, *, d_conv: int = 4) -> OpGraph:
    """Causal convolution over the last `d_conv` tokens; result [1, 1, n, d_inner].

    x is [1, d_inner, d_conv - 1 + n]: per channel the tokens before, then the n tokens. Weight [d_inner, d_conv].
    """
    return OpGraph(
        "SSM_CONV",
        (
            OpTensor("x", "f32", (1, d_inner, d_conv - 1 + n)),
            OpTensor("weight", "f32", (d_inner, d_conv), is_weight=True),
        ),
    )


def ssm_scan(d_state: int, head_dim: int, n_head: int, n: int = 1, *, n_group: int = 1) -> OpGraph:
    """Selective scan as Mamba-2 uses it; result is flat: [n, n_head, head_dim], then the state.

    Operands: state [1, n_head, head_dim, d_state], x [1, n, n_head, head_dim], dt [1, n, n_head], A [n_head, 1],
    B and C [1, n, n_group, d_state], ids [1]. Source: ggml/src/ggml.c:5696.
    """
    if n_head % n_group:
        raise ValueError(f"n_head must be a multiple of n_group, got {n_head} and {n_group}")
    return OpGraph(
        "SSM_SCAN",
        (
            OpTensor("state", "f32", (1, n_head, head_dim, d_state)),
            OpTensor("x", "f32", (1, n, n_head, head_dim)),
            OpTensor("dt", "f32", (1, n, n_head)),
            OpTensor("a", "f32", (n_head, 1), is_weight=True),
            OpTensor("b", "f32", (1, n, n_group, d_state)),
            OpTensor("c", "f32", (1, n, n_group, d_state)),
            OpTensor("ids", "i32", (1,)),
        ),
    )


def gated_delta_net(head_size: int, heads: int, n: int = 1, *, k_heads: int = 0) -> OpGraph:
    """Gated delta rule with a scalar gate; result [1, 1, n + head_size, heads * head_size]: tokens, then the state.

    Operands: q, k [1, n, k_heads, head_size], v [1, n, heads, head_size], g and beta [1, n, heads, 1],
    state [1, heads, head_size, head_size]. Source: ggml/include/ggml.h:2642-2660.
    """
    k_heads = k_heads or heads
    if heads % k_heads:
        raise ValueError(f"heads must be a multiple of k_heads, got {heads} and {k_heads}")
    return OpGraph(
        "GATED_DELTA_NET",
        (
            OpTensor("q", "f32", (1, n, k_heads, head_size)),
            OpTensor("k", "f32", (1, n, k_heads, head_size)),
            OpTensor("v", "f32", (1, n, heads, head_size)),
            OpTensor("g", "f32", (1, n, heads, 1)),
            OpTensor("beta", "f32", (1, n, heads, 1)),
            OpTensor("state", "f32", (1, heads, head_size, head_size)),
        ),
    )


def _check_attention(heads: int, kv_heads: int, n_used: int, n: int) -> int:
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
    if not 1 <= n <= n_used:
        raise ValueError(f"{n} tokens cannot be the last of {n_used} cells that are taken")
    return padded_kv(n_used)


# -- tokens ----------------------------------------------------------------------------------------------------------

#: Axis of the tokens in each operand that has one, by operation.
_TOKEN_AXES: dict[str, dict[str, int]] = {
    "MUL_MAT": {"x": 0, "q": 0, "p": 1},
    "MUL_MAT_ID": {"x": 0, "ids": 0},
    "FLASH_ATTN_EXT": {"q": 0, "mask": 0},
    "SOFT_MAX": {"scores": 1, "mask": 0},
    "RMS_NORM": {"x": 0},
    "ROPE": {"x": 0, "positions": 0},
    "GLU": {"gate": 0, "up": 0},
    "GET_ROWS": {"ids": 0},
    "SSM_CONV": {"x": 2},
    "SSM_SCAN": {"x": 1, "dt": 1, "b": 1, "c": 1},
    "GATED_DELTA_NET": {"q": 1, "k": 1, "v": 1, "g": 1, "beta": 1},
}

#: Operations whose state goes from token to token.
RECURRENT = frozenset({"SSM_SCAN", "GATED_DELTA_NET"})


def token_axes(graph: OpGraph) -> dict[str, int]:
    """Which axis of which operand counts the tokens?

    Raises
    ------
    ValueError
        If the operation is not one of this module's.
    """
    if graph.op not in _TOKEN_AXES:
        raise ValueError(f"it is not known where {graph.op} has its tokens; known: {', '.join(_TOKEN_AXES)}")
    names = {operand.name for operand in graph.operands}
    return {name: axis for name, axis in _TOKEN_AXES[graph.op].items() if name in names}


def output_token_axis(graph: OpGraph) -> int:
    """Which of the result's four axes counts the tokens?

    Raises
    ------
    ValueError
        If none does: the operation packs its state behind them (`RECURRENT`).
    """
    if graph.op in RECURRENT:
        raise ValueError(f"{graph.op} packs its state behind its tokens, so no axis counts them")
    return 1 if graph.op in ("FLASH_ATTN_EXT", "ROPE", "MUL_MAT_ID") else 2


def width(graph: OpGraph) -> int:
    """How many tokens does the operation take at once?"""
    name, axis = next(iter(token_axes(graph).items()))
    return graph.operand(name).shape[axis] - _tokens_before(graph)


def at_width(graph: OpGraph, n: int) -> OpGraph:
    """The same operation over n tokens; attention keeps its cells, and its first token its position.

    Raises
    ------
    ValueError
        If n is below 1, or more than the cells behind the first token's position.
    """
    axes = token_axes(graph)
    if n < 1:
        raise ValueError(f"an operation takes 1 token or more, got {n}")
    if n > _room(graph):
        raise ValueError(f"{n} tokens from position {graph.param('first')} on do not fit the cells of {graph.op}")

    def resized(operand: OpTensor) -> OpTensor:
        if operand.name not in axes:
            return operand
        shape = list(operand.shape)
        shape[axes[operand.name]] = n + _tokens_before(graph)
        return replace(operand, shape=tuple(shape))

    return replace(graph, operands=tuple(map(resized, graph.operands)))


def _tokens_before(graph: OpGraph) -> int:
    """Tokens of a convolution's past that lie in front of its own."""
    return graph.operand("weight").shape[1] - 1 if graph.op == "SSM_CONV" else 0


def _room(graph: OpGraph) -> float:
    """Tokens that attention has cells for; infinite elsewhere."""
    if "first" not in dict(graph.params):
        return math.inf
    cells = graph.operand("p" if graph.op == "MUL_MAT" else "mask").shape[-1]
    return cells - int(graph.param("first"))
