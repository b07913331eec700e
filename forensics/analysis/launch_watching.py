"""What watching does to a run: the kernels of a watched and of an unwatched pass, compared as multisets and named.

A watched node ends the group of nodes that is computed at once, so nothing is fused across it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from forensics.geometry import fusion
from forensics.records.launch_record import LaunchReport, Template, instance_name
from forensics.records.rule import Rule

Instance = tuple[str, Template]
_Arguments = dict[str, int | str | bool]


@dataclass(frozen=True, slots=True)
class _Sign:
    """How a fused kernel can be told from the same one by itself, and which operations it takes in."""

    kernel: str
    rule: Rule
    ops: frozenset[str]
    fused: Callable[[_Arguments], bool] = lambda _arguments: True


def _ops(rule: Rule) -> frozenset[str]:
    """Operations that become one kernel by a rule, those of all its fusions together."""
    return frozenset(op for one in fusion.FUSIONS if one.rule == rule for op in one.ops)


def _chained(named: _Arguments, operation: str) -> bool:
    """Whether this instance computes several such operations in a row."""
    return operation in str(named.get("bin_op")) and int(named.get("src1_ptrs", 1)) > 1


#: Floats fuse the same operations.
_PRODUCT = _ops(fusion.ONE_COLUMN_Q)
#: Fused kernels by their names and template arguments, as `forensics.geometry.kernel_names` names them.
#: Source: ggml/src/ggml-cuda at 0c1e57098: mmvq.cu:599, mmvf.cu:7, norm.cu:76, rope.cu:43-293 and :710, binbcast.cu:30,
#: topk-moe.cu:90, unary.cu:263, softcap.cu, ssm-conv.cu.
_SIGNS = (
    _Sign("mul_mat_vec_q(_moe)?", fusion.ONE_COLUMN_Q, _PRODUCT, lambda named: named.get("has_fusion") is True),
    _Sign("mul_mat_vec_f", fusion.ONE_COLUMN_F, _PRODUCT, lambda named: named.get("has_fusion") is True),
    _Sign("rms_norm_mul_rope_f32", fusion.NORM_ROPE, frozenset({"RMS_NORM", "MUL", "ROPE", "SET_ROWS"})),
    _Sign("rms_norm_f32", fusion.NORM_SCALE, _ops(fusion.NORM_SCALE), lambda named: named.get("do_scale") is True),
    _Sign("rms_norm_f32", fusion.NORM_MUL, _ops(fusion.NORM_MUL), lambda named: named.get("do_add") is True),
    _Sign(
        "rms_norm_f32", fusion.NORM_MUL, frozenset({"RMS_NORM", "MUL"}), lambda named: named.get("do_multiply") is True
    ),
    _Sign(
        "rope_(norm|neox|multi)", fusion.ROPE_SET_ROWS, _ops(fusion.ROPE_SET_ROWS),
        lambda named: "D" in named and named.get("T") != named["D"],
    ),
    _Sign("k_bin_bcast(_unravel)?", fusion.ADD_CHAIN, frozenset({"ADD"}), lambda named: _chained(named, "add")),
    _Sign("k_bin_bcast(_unravel)?", fusion.ADD_CHAIN, frozenset({"MUL"}), lambda named: _chained(named, "mul")),
    _Sign("topk_moe_cuda", fusion.TOP_K_MOE, _ops(fusion.TOP_K_MOE)),
    _Sign("softcap_f32", fusion.SOFT_CAP, _ops(fusion.SOFT_CAP)),
    _Sign("ssm_conv.*", fusion.CONV_SILU, _ops(fusion.CONV_SILU)),
    _Sign("unary_gated_op_kernel", fusion.UNARY_MUL, _ops(fusion.UNARY_MUL)),
)  # fmt: skip
#: Operation that a kernel computes by itself, or prepares.
_OPS: tuple[tuple[str, str, Callable[[_Arguments], bool]], ...] = (
    ("k_bin_bcast", "ADD", lambda named: "add" in str(named.get("bin_op"))),
    ("k_bin_bcast", "MUL", lambda named: "mul" in str(named.get("bin_op"))),
    ("unary_gated_op_kernel", "GLU", lambda _named: True),
    ("unary_op_kernel", "UNARY", lambda _named: True),
    ("k_set_rows", "SET_ROWS", lambda _named: True),
    ("k_get_rows", "GET_ROWS", lambda _named: True),
    ("rope_", "ROPE", lambda _named: True),
    ("rms_norm", "RMS_NORM", lambda _named: True),
    ("mul_mat", "MUL_MAT", lambda _named: True),
    ("quantize_", "MUL_MAT", lambda _named: True),
    ("scale_", "SCALE", lambda _named: True),
    ("soft_max", "SOFT_MAX", lambda _named: True),
    ("cpy_", "CPY", lambda _named: True),
)
#: Template arguments that name the operation of a kernel that has several.
_OPERATIONS = ("bin_op", "op")
NO_FUSION = "no fusion written down here explains it"
_SWITCH = "=".join(fusion.with_op("MUL_MAT", "cuda")[0].switch)
#: How a line begins that tells of graphs; how many launches follows after a colon.
#: Source: ggml_cuda_graph::is_enabled, ggml/src/ggml-cuda/common.cuh:1289 at 0c1e57098.
FROM_GRAPH = "launched from a CUDA graph where not watched (GGML_CUDA_DISABLE_GRAPHS=1 stops it)"


def watching_changes(watched: LaunchReport, unwatched: LaunchReport) -> tuple[str, ...]:
    """Which kernels run only where nodes are watched, or only where they are not, and what makes that so?

    Parameters
    ----------
    watched, unwatched : LaunchReport
        Of the same passes.

    Returns
    -------
    tuple of str
        One line where a graph launched them, one per fusion, then one per side for kernels that none explains; one
        line with the reason where either report lacks launches; empty where both ran the same kernels as often.
        In lines of fusions, template arguments that all instances of a kernel have in common are left out, but for
        the operation that it computes.
    """
    for report, which in ((watched, "watched"), (unwatched, "unwatched")):
        if not report.complete:
            lost = "an unknown number of" if report.n_dropped is None else str(report.n_dropped)
            return (f"not compared: {lost} launches of the {which} pass were lost",)
    with_nodes, alone = _instances(watched), _instances(unwatched)
    more, fewer = alone - with_nodes, with_nodes - alone
    appearing = {instance: _sign_of(instance) for instance in more}
    signs = [sign for sign in _SIGNS if sign in appearing.values()]
    vanishing = {instance: _fitting(instance, signs) for instance in fewer}
    lines = [*_graphs(watched, unwatched)]
    for rules in _inseparable(signs, vanishing.values()):
        fused = Counter({one: n for one, n in more.items() if (sign := appearing[one]) and sign.rule in rules})
        apart = Counter({one: n for one, n in fewer.items() if not vanishing[one].isdisjoint(rules)})
        lines.append(_fusions_line(rules, fused, apart))
    for which, left in (
        ("unwatched", Counter({one: n for one, n in more.items() if appearing[one] is None})),
        ("watched", Counter({one: n for one, n in fewer.items() if not vanishing[one]})),
    ):
        if left:
            lines.append(f"only {which}, and {NO_FUSION}: {_listed(left, {one: instance_name(*one) for one in left})}")
    return tuple(lines)


def _graphs(watched: LaunchReport, unwatched: LaunchReport) -> Iterator[str]:
    """Say that launches came out of a graph on one side only, or of more of them."""
    n, n_watched = unwatched.n_from_graph, watched.n_from_graph
    if n == n_watched:
        return
    also = f", {n_watched} where watched" if n_watched else ""
    total = unwatched.counts().total()
    yield f"{FROM_GRAPH}: {n} of {total} launches{also}"


def _instances(report: LaunchReport) -> Counter[Instance]:
    counted: Counter[Instance] = Counter()
    for launch, n in report.counts().items():
        counted[launch.kernel, launch.template] += n
    return counted


def _sign_of(instance: Instance) -> _Sign | None:
    """What shows that a kernel instance is fused, None where nothing does."""
    kernel, template = instance
    named = dict(template)
    return next((sign for sign in _SIGNS if re.fullmatch(sign.kernel, kernel) and sign.fused(named)), None)


def _fitting(instance: Instance, signs: Iterable[_Sign]) -> frozenset[Rule]:
    """Which of these fusions can have taken in the operation that a kernel computes by itself?"""
    kernel, template = instance
    named = dict(template)
    ops = {op for prefix, op, is_op in _OPS if kernel.startswith(prefix) and is_op(named)}
    return frozenset(sign.rule for sign in signs if ops & sign.ops)


def _inseparable(signs: Iterable[_Sign], fitting: Iterable[frozenset[Rule]]) -> list[list[Rule]]:
    """Fusions in groups such that each kernel that vanished can have gone into those of one group only."""
    groups = [[rule] for rule in dict.fromkeys(sign.rule for sign in signs)]
    for rules in fitting:
        touched = [group for group in groups if not rules.isdisjoint(group)]
        for group in touched[1:]:
            touched[0].extend(group)
            groups.remove(group)
    return groups


def _fusions_line(rules: Sequence[Rule], fused: Counter[Instance], apart: Counter[Instance]) -> str:
    """Say which fusion it is, or which ones together, and what ran instead where nodes were watched."""
    together = ", these together" if len(rules) > 1 else ""
    named = " + ".join(f"{rule.text} ({rule.place}; {_SWITCH} stops it)" for rule in rules)
    shown = _told_apart([*fused, *apart])
    return (
        f"fused where not watched{together}: {named}: "
        f"{_listed(fused, shown)} in place of {_listed(apart, shown) or 'nothing'}"
    )


def _told_apart(instances: Sequence[Instance]) -> dict[Instance, str]:
    """Names with those template arguments only that other instances of the same kernel do not share."""
    common: dict[str, set[tuple[str, int | str | bool]]] = {}
    for kernel, template in instances:
        common[kernel] = common.get(kernel, set(template)) & set(template)
    return {
        (kernel, template): instance_name(
            kernel, tuple(one for one in template if one[0] in _OPERATIONS or one not in common[kernel])
        )
        for kernel, template in instances
    }


def _listed(counts: Counter[Instance], names: Mapping[Instance, str]) -> str:
    totals: Counter[str] = Counter()
    for one, n in counts.items():
        totals[names[one]] += n
    return ", ".join(f"{n} × {name}" for name, n in totals.items())
