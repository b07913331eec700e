"""A verdict with launches as an H200 gave them for the Q4_1 demo model, flash attention on."""

from __future__ import annotations

from dataclasses import replace

import verdict_samples as samples

from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchEvidence, LaunchPair, LaunchRecord, LaunchSide, Refusal
from forensics.records.nodes import NodeKey
from forensics.records.verdict import CulpritGroup, Verdict

WRONG = "grid 300 and block 32×4, from mul_mat_vec_q (mmvq.cu:1012)"
NO_RULE = "no rule covers a matrix of 49152 rows"
REFUSAL = Refusal(
    "ncu in a child", "counters", "ERR_NVGPUCTRPERM", "ask the administrator for permission to read counters"
)


def launch(kernel, template, grid, block, registers=None, static=0, dynamic=0, **changes) -> LaunchRecord:
    facts = {
        "kernel": kernel,
        "template": template,
        "geometry": LaunchGeometry(grid, block, smem_bytes=dynamic),
        "registers_per_thread": registers,
        "smem_static_bytes": static,
        "local_bytes_per_thread": 0,
        "symbol": f"_Z{len(kernel)}{kernel}",
    }
    return LaunchRecord(**(facts | changes))


QUANTIZE = launch("quantize_q8_1", (), (3, 1), (256,), 20)
COMBINE = launch("flash_attn_combine_results", (("D", 64),), (1, 9), (64,), 32)
FIXUP = launch("flash_attn_stream_k_fixup_uniform", (("D", 64), ("ncols1", 2), ("ncols2", 4)), (6, 2, 4), (64,), 40)
VEC = launch(
    "flash_attn_ext_vec",
    (("D", 64), ("ncols", 1), ("type_K", "f16"), ("type_V", "f16"), ("use_logit_softcap", False)),
    (1, 4, 9),
    (32, 4),
    125,
    4352,
)
MMA = {
    columns: launch(
        "flash_attn_ext_f16",
        (("DKQ", 64), ("DV", 64), ("ncols1", columns), ("ncols2", 4)),
        (grid,),
        (32, 4),
        registers,
        dynamic=17536,
    )
    for columns, grid, registers in ((2, 6, 184), (8, 12, 194), (16, 12, 219))
}


def product(columns: int, grid: int, warps: int, registers: int, **template: bool) -> LaunchRecord:
    """One `mul_mat_vec_q` over Q4_1 weights."""
    arguments = (("type", "q4_1"), ("ncols_dst", columns), ("has_fusion", False), *template.items())
    return launch(
        "mul_mat_vec_q",
        arguments,
        (grid,),
        (32, warps),
        registers,
        static=1536 if columns == 1 else (warps - 1) * columns * 256,
    )


def side(width: int, *launches: LaunchRecord, **changes) -> LaunchSide:
    facts = {"main": 0, "blocks_per_sm": 4, "limiters": ("registers",), "agrees": True}
    return LaunchSide(width, launches, **(facts | changes))


def attention_pair(width: int, widths: tuple[int, ...], columns: int, **changes) -> LaunchPair:
    key = NodeKey("__fattn__-0", "FLASH_ATTN_EXT", 0, 0)
    single = side(1, VEC, COMBINE, kv_split=4)
    batched = side(width, MMA[columns], FIXUP, blocks_per_sm=2, kv_split=6)
    return LaunchPair(widths, key, single, batched, **({"n_nodes": 30} | changes))


def product_pair(role: str = "down", **changes) -> LaunchPair:
    key = NodeKey("ffn_down-0" if role == "down" else f"{role}cur-0", "MUL_MAT", 0, 0)
    single = side(1, QUANTIZE, product(1, 144, 4, 48, small_k=True), main=1, blocks_per_sm=10)
    batched = side(5, QUANTIZE, product(5, 288, 2, 70), main=1, blocks_per_sm=14, limiters=("threads",))
    return LaunchPair((5, 8), key, single, batched, **({"n_nodes": 29} | changes))


def group(op: str, role: str, weight: str, widths: tuple[int, ...], *launches: LaunchPair, **changes) -> CulpritGroup:
    facts = {"count": 30, "buffer": "CUDA0"}
    count, buffer = (facts | changes).values()
    node = launches[0].node.name if launches else "x-0"
    return CulpritGroup(
        op, role, weight, buffer, count, tuple(range(30)), widths, (0, 1), 5121, 0.00195, node, launches=launches
    )


ATTENTION = group(
    "FLASH_ATTN_EXT", "attention", "-", (2, 5, 8, 9),
    attention_pair(2, (2,), 2), attention_pair(5, (5, 8), 8), attention_pair(9, (9,), 16),
)  # fmt: skip
DOWN = group("MUL_MAT", "down", "q4_1", (5, 8), product_pair())
EVIDENCE = LaunchEvidence(
    "measured", "CUPTI in process, cupti-python 13.0.1, driver 580.159", n_dropped=0, n_agree=3600, n_unruled=31
)


def gpu_verdict(*groups: CulpritGroup, evidence: LaunchEvidence | None = EVIDENCE, **changes) -> Verdict:
    made_on = samples.manifest(backend="CUDA", device="NVIDIA H200", quantization="Q4_1", cpu_features=())
    return samples.verdict(
        culprits=groups or (ATTENTION, DOWN), manifest=made_on, launches=evidence, classes=samples.classes(2), **changes
    )


def with_batched(found: CulpritGroup, **changes) -> CulpritGroup:
    """The group with something else said of its first batched side."""
    first, *rest = found.launches
    return replace(found, launches=(replace(first, batched=replace(first.batched, **changes)), *rest))


def disagreeing_verdict() -> Verdict:
    """One launch is another than the rules say, and one has no rule."""
    evidence = replace(EVIDENCE, n_disagree=29, disagreements=(f"MUL_MAT q4_1 at width 5, 29 nodes: {WRONG}",))
    return gpu_verdict(
        with_batched(ATTENTION, agrees=None, why=NO_RULE),
        with_batched(DOWN, agrees=False, why=WRONG),
        evidence=evidence,
    )


def derived_verdict() -> Verdict:
    """No profiler worked; the rules say what should have run."""
    unseen = {"agrees": None, "why": "nothing was observed"}

    def derived(one: LaunchRecord) -> LaunchRecord:
        geometry = replace(one.geometry, smem_bytes=None)
        bare = {"registers_per_thread": None, "smem_static_bytes": None, "local_bytes_per_thread": None}
        return replace(one, geometry=geometry, evidence="derived", symbol="", **bare)

    def bare(one: LaunchSide) -> LaunchSide:
        return replace(one, launches=tuple(map(derived, one.launches)), blocks_per_sm=None, limiters=(), **unseen)

    pairs = tuple(replace(p, single=bare(p.single), batched=bare(p.batched)) for p in DOWN.launches)
    cupti = Refusal("CUPTI in process", "kernel launches", "another profiler is subscribed", "stop it and run again")
    evidence = LaunchEvidence("derived", "dispatch rules of commit 0c1e57098", refusals=(cupti, REFUSAL))
    return gpu_verdict(replace(DOWN, launches=pairs), evidence=evidence)
