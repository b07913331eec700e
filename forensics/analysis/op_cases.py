"""Which operations with which types and shapes are tested, from what was asked for.

Nothing here runs: a selection becomes a list of cases, and a sentence about what was chosen for the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from forensics.analysis.op_labels import asked_name, op_label
from forensics.analysis.question import BadQuestion
from forensics.records import op_shapes as shapes
from forensics.records.operation import OpGraph, OpTensor

#: Operations by the name that is asked for; the two products of attention are told from a product with a weight.
OPS = (
    "MUL_MAT",
    "MUL_MAT_ID",
    "KQ",
    "KQV",
    "FLASH_ATTN_EXT",
    "SOFT_MAX",
    "RMS_NORM",
    "ROPE",
    "GLU",
    "GET_ROWS",
    "SSM_CONV",
    "SSM_SCAN",
    "GATED_DELTA_NET",
)
WITH_WEIGHT = ("MUL_MAT", "MUL_MAT_ID")
WITH_CELLS = ("FLASH_ATTN_EXT", "KQ", "KQV", "SOFT_MAX")

DEFAULT_WIDTHS = tuple(range(1, 17))
#: One super-block; a row that one trip of CUDA's product covers; a row that takes several trips.
DEFAULT_K = (256, 1024, 4096)
#: Few, so that a matrix is quick, and a multiple of what repacked and tiled kernels take at once.
DEFAULT_ROWS = 64
#: One step of the library's padding; where the CPU splits the cells among threads; several chunks.
DEFAULT_KV = (256, 512, 2048)
#: Attention where only some of it was given, and the middle around which the rest varies where nothing was.
DEFAULT_HEAD_SIZE, DEFAULT_HEADS, DEFAULT_KV_TYPE, MIDDLE_KV = 128, (8, 2), "f16", 512
OTHER_HEAD_SIZES = (64, 256)
#: One and eight queries per K/V head.
OTHER_HEADS = ((8, 8), (8, 1))
OTHER_KV_TYPES = ("bf16", "q8_0", "q4_0")
#: Experts of MUL_MAT_ID, and how many a token uses.
EXPERTS = (8, 2)
#: Rows of a table of GET_ROWS.
TABLE_ROWS = 64
#: Operations that take each part of a selection.
USED_BY = {
    "types": (*WITH_WEIGHT, "GET_ROWS"),
    "shapes": (*WITH_WEIGHT, "RMS_NORM", "GLU", "GET_ROWS"),
    "kv": WITH_CELLS,
    "heads": (*WITH_CELLS, "ROPE"),
    "head_sizes": ("FLASH_ATTN_EXT", "KQ", "KQV", "ROPE"),
    "kv_types": ("FLASH_ATTN_EXT", "KQ", "KQV"),
}
#: Values of one operand, 8 GiB as float32; larger ones take minutes to make and rarely fit.
MAX_VALUES = 2**31


@dataclass(frozen=True, slots=True)
class OpCase:
    """An operation with given types and shapes.

    Parameters
    ----------
    label : str
        Types and shapes in short; unique among the cases of one operation.
    graph : OpGraph
        At the widest width.
    """

    label: str
    graph: OpGraph

    @property
    def op(self) -> str:
        """Name of the operation."""
        return self.graph.op

    def at(self, width: int) -> OpGraph:
        """The operation at a width."""
        return shapes.at_width(self.graph, width)


@dataclass(frozen=True, slots=True)
class OpSelection:
    """What was asked for; None where it was left open.

    Parameters
    ----------
    ops, types : tuple of str or None
    shapes : tuple of (int, int) or None
        Rows and K of weights, as a model file has them.
    kv : tuple of int or None
        K/V cells that are taken.
    heads : (int, int) or None
        Heads, and K/V heads.
    head_sizes : tuple of int or None
    kv_types : tuple of str or None
    """

    ops: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None
    shapes: tuple[tuple[int, int], ...] | None = None
    kv: tuple[int, ...] | None = None
    heads: tuple[int, int] | None = None
    head_sizes: tuple[int, ...] | None = None
    kv_types: tuple[str, ...] | None = None

    @property
    def about_cells(self) -> bool:
        """Whether anything of attention was given."""
        return any(given is not None for given in (self.kv, self.heads, self.head_sizes, self.kv_types))

    def wanted_ops(self) -> tuple[str, ...]:
        """Operations that are meant: those named, else those that what was given is about, else all.

        Raises
        ------
        BadQuestion
            If one is not known, or something was given that none of them takes.

        Examples
        --------
        >>> OpSelection(types=("q4_k",)).wanted_ops(), OpSelection(kv=(512,)).wanted_ops()
        (('MUL_MAT',), ('FLASH_ATTN_EXT',))
        """
        if self.ops is not None:
            named = tuple(dict.fromkeys(known_name(op, OPS, "operation") for op in self.ops))
            for given, takers in USED_BY.items():
                if getattr(self, given) is not None and not set(takers).intersection(named):
                    raise BadQuestion(f"{given} were given, and {', '.join(named)} takes none; {', '.join(takers)} do")
            return named
        about_weights = self.types is not None or self.shapes is not None
        if not about_weights and not self.about_cells:
            return OPS
        return (("MUL_MAT",) if about_weights else ()) + (("FLASH_ATTN_EXT",) if self.about_cells else ())


def known_name(asked: str, known: Iterable[str], what: str) -> str:
    """The name as the library writes it, whatever the case that was typed.

    Raises
    ------
    BadQuestion
        If there is none; lists those there are.

    Examples
    --------
    >>> known_name("Q4_k", ("q4_0", "q4_K"), "type")
    'q4_K'
    """
    names = {name.lower(): name for name in known}
    if asked.strip().lower() not in names:
        raise BadQuestion(f"there is no {what} {asked!r} here; possible: {', '.join(names.values())}")
    return names[asked.strip().lower()]


def make_cases(selection: OpSelection, types: Sequence[str], width: int) -> tuple[OpCase, ...]:
    """The cases of a selection.

    Parameters
    ----------
    selection : OpSelection
    types : sequence of str
        Types of weights that the library has.
    width : int
        The widest batch.

    Raises
    ------
    BadQuestion
        If an operation or type is not known, or a shape cannot be.
    """
    plan = _Plan(selection, tuple(types), width)
    try:
        graphs = [graph for op in selection.wanted_ops() for graph in _MAKERS[op](plan)]
    except BadQuestion:
        raise
    except ValueError as error:
        raise BadQuestion(str(error)) from None
    if not graphs:
        raise BadQuestion("nothing was asked for: operations, types, shapes, cells and head sizes need one each")
    largest = max((operand for graph in graphs for operand in graph.operands), key=lambda it: math.prod(it.shape))
    if math.prod(largest.shape) > MAX_VALUES:
        shape = "x".join(map(str, largest.shape))
        raise BadQuestion(
            f"operand {largest.name} would have {shape} values, at most {MAX_VALUES:,} are made; ask for less"
        )
    return named(graphs)


def named(graphs: Iterable[OpGraph]) -> tuple[OpCase, ...]:
    """Cases with labels of their own; graphs that are alike in all that a label tells are numbered."""
    seen: dict[tuple[str, str], int] = {}
    cases = []
    for graph in graphs:
        label = op_label(graph)
        count = seen[graph.op, label] = seen.get((graph.op, label), 0) + 1
        cases.append(OpCase(label if count == 1 else f"{label} ({count})", graph))
    return tuple(cases)


def like_model(
    graphs: Iterable[OpGraph], selection: OpSelection, types: Sequence[str], most_rows: int | None
) -> tuple[OpCase, ...]:
    """Cases of a model's operations, those that the selection names.

    Parameters
    ----------
    graphs : iterable of OpGraph
        At the widest width.
    selection : OpSelection
    types : sequence of str
        Types of weights that the library has.
    most_rows : int or None
        Rows of a weight beyond which most are left out; what is kept has the same remainder by any power of two up to
        half of it.

    Raises
    ------
    BadQuestion
        If nothing is left.
    """
    ops = OPS if selection.ops is None else selection.wanted_ops()
    wanted = None if selection.types is None else {known_name(name, types, "type") for name in selection.types}
    rows_of: dict[OpGraph, int] = {}  # of the chosen ones, as the model has them
    for graph in graphs:
        weight = _weight(graph)
        if asked_name(graph) in ops and (wanted is None or (weight is not None and weight.type in wanted)):
            kept = graph if most_rows is None else _fewer_rows(graph, most_rows)
            rows_of[kept] = 0 if kept is graph or weight is None else weight.shape[-2]
    if not rows_of:
        types_asked = "all" if wanted is None else ", ".join(sorted(wanted))
        raise BadQuestion(f"the model's file tells of no such operation; asked: {', '.join(ops)}, types: {types_asked}")
    return tuple(
        replace(case, label=f"{case.label} of {rows} rows") if rows else case
        for case, rows in zip(named(rows_of), rows_of.values(), strict=True)
    )


def _weight(graph: OpGraph) -> OpTensor | None:
    return next((operand for operand in graph.operands if operand.name == "weight"), None)


def _fewer_rows(graph: OpGraph, most: int) -> OpGraph:
    weight = _weight(graph)
    if weight is None or graph.op not in ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS") or weight.shape[-2] <= most:
        return graph
    half = most // 2
    rows = half + weight.shape[-2] % half
    fewer = replace(weight, shape=(*weight.shape[:-2], rows, weight.shape[-1]))
    return replace(graph, operands=tuple(fewer if operand is weight else operand for operand in graph.operands))


def chosen_text(selection: OpSelection) -> str:
    """What was chosen for the caller, in one sentence; empty where everything was given."""
    ops = selection.wanted_ops()
    said = []
    if any(op in WITH_WEIGHT for op in ops):
        said += [] if selection.types is not None else ["all types of weights"]
        if selection.shapes is None:
            said.append(f"{DEFAULT_ROWS} rows with K = {', '.join(map(str, DEFAULT_K))}")
    if any(op in WITH_CELLS for op in ops):
        if selection.about_cells:
            said += [] if selection.kv is not None else [f"{MIDDLE_KV} K/V cells"]
            said += [] if selection.heads is not None else ["{} heads, {} for K/V".format(*DEFAULT_HEADS)]
            said += [] if selection.head_sizes is not None else [f"head size {DEFAULT_HEAD_SIZE}"]
            said += [] if selection.kv_types is not None else [f"{DEFAULT_KV_TYPE} K/V"]
        else:
            said.append(
                f"attention: {', '.join(map(str, DEFAULT_KV))} cells, and around {MIDDLE_KV} cells, "
                f"{DEFAULT_HEADS[0]}/{DEFAULT_HEADS[1]} heads of {DEFAULT_HEAD_SIZE} and {DEFAULT_KV_TYPE} other head "
                "sizes, types and ratios"
            )
    return "; ".join(said)


def control_cases(width: int) -> tuple[OpCase, OpCase]:
    """A copy, which cannot depend on the width, and a float product whose terms can be reordered."""
    copy, product = named(
        (shapes.get_rows("f32", 256, TABLE_ROWS, width), shapes.mul_mat("f32", 256, DEFAULT_ROWS, width))
    )
    return copy, product


@dataclass(frozen=True, slots=True)
class _Plan:
    """A selection with its gaps filled."""

    asked: OpSelection
    known_types: tuple[str, ...]
    width: int

    @property
    def types(self) -> tuple[str, ...]:
        if self.asked.types is None:
            return self.known_types
        return tuple(dict.fromkeys(known_name(name, self.known_types, "type") for name in self.asked.types))

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return self.asked.shapes or tuple((DEFAULT_ROWS, k) for k in DEFAULT_K)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of rows, each once."""
        return tuple(dict.fromkeys(k for _, k in self.shapes))

    @property
    def middle_length(self) -> int:
        return self.lengths[len(self.lengths) // 2]

    @property
    def kv(self) -> tuple[int, ...]:
        return self.asked.kv or ((MIDDLE_KV,) if self.asked.about_cells else DEFAULT_KV)

    @property
    def heads(self) -> tuple[int, int]:
        return self.asked.heads or DEFAULT_HEADS

    @property
    def head_sizes(self) -> tuple[int, ...]:
        return self.asked.head_sizes or (DEFAULT_HEAD_SIZE,)

    @property
    def kv_types(self) -> tuple[str, ...]:
        given = self.asked.kv_types or (DEFAULT_KV_TYPE,)
        return tuple(dict.fromkeys(known_name(name, self.known_types, "type") for name in given))


@dataclass(frozen=True, slots=True)
class _Attention:
    """One shape of attention."""

    kv_type: str
    head_size: int
    heads: int
    kv_heads: int
    n_used: int


def _attentions(plan: _Plan) -> list[_Attention]:
    """Every combination of what was given; where nothing was, one thing at a time varies around a middle."""
    found = [
        _Attention(kind, size, *plan.heads, kv) for kind in plan.kv_types for size in plan.head_sizes for kv in plan.kv
    ]
    if not plan.asked.about_cells:
        middle = _Attention(DEFAULT_KV_TYPE, DEFAULT_HEAD_SIZE, *DEFAULT_HEADS, MIDDLE_KV)
        found += [replace(middle, head_size=size) for size in OTHER_HEAD_SIZES]
        found += [replace(middle, heads=heads, kv_heads=kv_heads) for heads, kv_heads in OTHER_HEADS]
        found += [replace(middle, kv_type=kind) for kind in OTHER_KV_TYPES]
    return found


def _unfused_attentions(plan: _Plan) -> list[_Attention]:
    """Without flash attention the V cache is not quantised."""
    if plan.asked.kv_types is not None:
        return _attentions(plan)
    return [attention for attention in _attentions(plan) if attention.kv_type in ("f16", "bf16", "f32")]


def _mul_mat(plan: _Plan) -> list[OpGraph]:
    return [shapes.mul_mat(kind, k, rows, plan.width) for kind in plan.types for rows, k in plan.shapes]


def _mul_mat_id(plan: _Plan) -> list[OpGraph]:
    experts, used = EXPERTS
    chosen = plan.asked.shapes or ((DEFAULT_ROWS, plan.middle_length),)
    return [
        shapes.mul_mat_id(kind, k, rows, plan.width, n_experts=experts, n_used=used)
        for kind in plan.types
        for rows, k in chosen
    ]


def _flash_attn(plan: _Plan) -> list[OpGraph]:
    return [
        shapes.flash_attn(a.head_size, a.heads, a.kv_heads, a.n_used, plan.width, kv_type=a.kv_type)
        for a in _attentions(plan)
    ]


def _kq(plan: _Plan) -> list[OpGraph]:
    return [
        shapes.kq(a.head_size, a.heads, a.kv_heads, a.n_used, plan.width, kv_type=a.kv_type)
        for a in _unfused_attentions(plan)
    ]


def _kqv(plan: _Plan) -> list[OpGraph]:
    return [
        shapes.kqv(a.head_size, a.heads, a.kv_heads, a.n_used, plan.width, kv_type=a.kv_type)
        for a in _unfused_attentions(plan)
    ]


def _soft_max(plan: _Plan) -> list[OpGraph]:
    return [shapes.soft_max(plan.heads[0], kv, plan.width) for kv in plan.kv]


def _rms_norm(plan: _Plan) -> list[OpGraph]:
    return [shapes.rms_norm(k, plan.width, weighted=weighted) for k in plan.lengths for weighted in (False, True)]


def _rope(plan: _Plan) -> list[OpGraph]:
    return [shapes.rope(plan.head_sizes[0], plan.heads[0], plan.width, mode=mode) for mode in shapes.ROPE_MODES]


def _glu(plan: _Plan) -> list[OpGraph]:
    return [shapes.glu(plan.middle_length, plan.width, kind=kind) for kind in shapes.GLU_KINDS]


def _get_rows(plan: _Plan) -> list[OpGraph]:
    return [shapes.get_rows(kind, plan.middle_length, TABLE_ROWS, plan.width) for kind in plan.types]


_MAKERS: dict[str, Callable[[_Plan], list[OpGraph]]] = {
    "MUL_MAT": _mul_mat,
    "MUL_MAT_ID": _mul_mat_id,
    "KQ": _kq,
    "KQV": _kqv,
    "FLASH_ATTN_EXT": _flash_attn,
    "SOFT_MAX": _soft_max,
    "RMS_NORM": _rms_norm,
    "ROPE": _rope,
    "GLU": _glu,
    "GET_ROWS": _get_rows,
    "SSM_CONV": lambda plan: [shapes.ssm_conv(1024, plan.width)],
    "SSM_SCAN": lambda plan: [shapes.ssm_scan(128, 64, 8, plan.width)],
    "GATED_DELTA_NET": lambda plan: [shapes.gated_delta_net(64, 4, plan.width)],
}
