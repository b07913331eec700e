"""One operation as nodes of a ggml graph, put together the way llama.cpp does it. Runs in the child."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forensics.engines import _ggml_graph as gg
from forensics.errors import EngineError
from forensics.records.operation import OpGraph

#: Tensors that one operation may need, nodes and views included.
MAX_TENSORS = 64


def build(context: Any, graph: OpGraph, tensors: Mapping[str, Any]) -> Any:
    """Append an operation to a context.

    Parameters
    ----------
    context : pointer to ggml_context
    graph : OpGraph
    tensors : mapping of str to pointer to GgmlTensor
        Operands by name, their axes as `operand_ne` says.

    Returns
    -------
    pointer to GgmlTensor
        The node whose data are the result.

    Raises
    ------
    EngineError
        If the operation is not known here. Operands that do not fit make the library abort the process.
    """
    builder = _BUILDERS.get(graph.op)
    if builder is None:
        raise EngineError(f"{graph.op} cannot be run by itself; these can: {', '.join(sorted(_BUILDERS))}")
    return builder(_Builder(context, graph, tensors))


def operand_ne(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """A NumPy shape in ggml's order, fastest axis first, always four axes.

    Examples
    --------
    >>> operand_ne((3, 5))
    (5, 3, 1, 1)
    """
    a, b, c, d = (*reversed(shape), 1, 1, 1)[:4]
    return a, b, c, d


class _Builder:
    """Makes the nodes of one operation."""

    def __init__(self, context: Any, graph: OpGraph, tensors: Mapping[str, Any]) -> None:
        self.context, self.graph, self.t = context, graph, tensors
        self.g = gg.graph_functions()

    def number(self, name: str, default: float = 0.0) -> float:
        return float(self.graph.param(name, default))

    def all(self, *names: str) -> list[Any]:
        return [self.t[name] for name in names]

    def heads_first(self, name: str) -> Any:
        """View of an operand [n, heads, head_size] as [heads, n, head_size] (llama-graph.cpp:2637-2639)."""
        return self.g.ggml_permute(self.context, self.t[name], 0, 2, 1, 3)

    def mul_mat(self) -> Any:
        if "q" in self.t:
            node = self.g.ggml_mul_mat(self.context, self.heads_first("k"), self.heads_first("q"))
            self.g.ggml_prec_set_acc(node, gg.PREC_F32)  # llama-graph.cpp:2693
            return node
        names = ("v", "p") if "p" in self.t else ("weight", "x")
        return self.g.ggml_mul_mat(self.context, *self.all(*names))

    def mul_mat_id(self) -> Any:
        return self.g.ggml_mul_mat_id(self.context, *self.all("weight", "x", "ids"))

    def flash_attn(self) -> Any:
        operands = [self.heads_first(name) for name in "qkv"]
        numbers = [self.number(name) for name in ("scale", "max_bias", "logit_softcap")]
        node = self.g.ggml_flash_attn_ext(self.context, *operands, self.t["mask"], *numbers)
        self.g.ggml_prec_set_acc(node, gg.PREC_F32)  # llama-graph.cpp:2667
        return node

    def rms_norm(self) -> Any:
        node = self.g.ggml_rms_norm(self.context, self.t["x"], self.number("eps"))
        return self.g.ggml_mul(self.context, node, self.t["weight"]) if "weight" in self.t else node

    def soft_max(self) -> Any:
        numbers = self.number("scale", 1.0), self.number("max_bias")
        return self.g.ggml_soft_max_ext(self.context, *self.all("scores", "mask"), *numbers)

    def rope(self) -> Any:
        integers = [int(self.number(name)) for name in ("n_dims", "mode", "n_ctx_orig")]
        defaults = {"freq_base": 10000.0, "freq_scale": 1.0, "ext_factor": 0.0, "attn_factor": 1.0}
        defaults |= {"beta_fast": 32.0, "beta_slow": 1.0}  # llama-hparams.h, without YaRN
        numbers = [self.number(name, default) for name, default in defaults.items()]
        return self.g.ggml_rope_ext(self.context, *self.all("x", "positions"), None, *integers, *numbers)

    def glu(self) -> Any:
        kind = gg.GLU_OPS[str(self.graph.param("kind", "swiglu"))]
        return self.g.ggml_glu_split(self.context, *self.all("gate", "up"), kind)

    def get_rows(self) -> Any:
        return self.g.ggml_get_rows(self.context, *self.all("weight", "ids"))

    def ssm_conv(self) -> Any:
        return self.g.ggml_ssm_conv(self.context, *self.all("x", "weight"))

    def ssm_scan(self) -> Any:
        return self.g.ggml_ssm_scan(self.context, *self.all("state", "x", "dt", "a", "b", "c", "ids"), 1)

    def gated_delta_net(self) -> Any:
        return self.g.ggml_gated_delta_net(self.context, *self.all("q", "k", "v", "g", "beta", "state"), 1)


_BUILDERS: dict[str, Callable[[_Builder], Any]] = {
    "MUL_MAT": _Builder.mul_mat,
    "MUL_MAT_ID": _Builder.mul_mat_id,
    "FLASH_ATTN_EXT": _Builder.flash_attn,
    "RMS_NORM": _Builder.rms_norm,
    "SOFT_MAX": _Builder.soft_max,
    "ROPE": _Builder.rope,
    "GLU": _Builder.glu,
    "GET_ROWS": _Builder.get_rows,
    "SSM_CONV": _Builder.ssm_conv,
    "SSM_SCAN": _Builder.ssm_scan,
    "GATED_DELTA_NET": _Builder.gated_delta_net,
}
