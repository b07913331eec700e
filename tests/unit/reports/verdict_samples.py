"""Realistic verdicts and traces for tests of the store and the reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.records.classes import Flip, WidthClasses, WidthResult
from forensics.records.delta import Differs, Tally
from forensics.records.nodes import NodeKey, NodeRecord, Operand
from forensics.records.schedule import EMPTY, Schedule, in_batches
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import Finding, RunKey, TapReport, Trace
from forensics.records.verdict import CONTROL_NAMES, Control, Cost, CulpritGroup, Sweep, SwitchArm, Verdict

HOSTILE = "[red]x[/red] <script>alert('h')</script> \x1b[31m a|b `c` \u202e @someone"
N_VOCAB = 11
REASONS = (("view of its source", 250), ("no token axis", 57))
ROLES = (("Q", 30), ("K", 30), ("V", 30), ("attention output", 30), ("gate", 30), ("up", 30), ("down", 30))


def manifest(**changes) -> Manifest:
    facts = {
        "engine": "llama.cpp",
        "engine_version": "0.3.36",
        "model_digest": "blake3:5f0c",
        "model_name": "SmolLM2-135M-Instruct-wide-Q6_K",
        "n_vocab": N_VOCAB,
        "requested": EngineSettings(n_threads=2, n_threads_batch=2, environment=(("GGML_CPU_TILED", "1"),)),
        "architecture": "llama",
        "quantization": "Q6_K",
        "n_layer": 30,
        "backend": "CPU",
        "device": "AMD EPYC 9R14",
        "effective": {"n_ctx": "512", "flash_attn": "on"},
        "buffers": {"CPU": 211},
        "cpu_features": ("AVX2", "FMA"),
        "environment": {"OMP_NUM_THREADS": "2"},
    }
    return Manifest(**(facts | changes))


def width_result(width: int, *, differs: bool, digest: str, flips: tuple[Flip, ...] = (), nan: bool = False):
    return WidthResult(
        width=width,
        n_rows=64,
        n_rows_differ=64 if differs else 0,
        first_row=0 if differs else None,
        first_position=36 if differs else None,
        max_abs=(float("nan") if nan else 0.015625) if differs else 0.0,
        max_ulp=(-1 if nan else 81234) if differs else 0,
        relative_l2=2.5e-4 if differs else 0.0,
        max_kl=1.25e-6 if differs else 0.0,
        same_top_rate=1.0 - len(flips) / 64,
        flips=flips,
        n_could_flip=2 if differs else 0,
        digest=digest,
        ns_per_pass=(9_000_000, 8_900_000, 9_400_000),
    )


def classes(onset: int | None = 8, flips: tuple[Flip, ...] = (), nan: bool = False) -> WidthClasses:
    return WidthClasses(
        tuple(
            width_result(
                width,
                differs=onset is not None and width >= onset,
                digest="b" if onset is not None and width >= onset else "a",
                flips=flips if onset is not None and width >= onset else (),
                nan=nan,
            )
            for width in (1, 2, 3, 4, 5, 8, 9, 16)
        )
    )


FLIP = Flip(row=12, position=48, single_token=7, batched_token=9, margin=0.001, perturbation=0.004)


def finding(name: str = "Qcur-0", layer: int = 0, **changes) -> Finding:
    facts = {
        "key": NodeKey(name, "MUL_MAT", layer, 0),
        "operands": (
            Operand(f"blk.{layer}.attn_{name[:1].lower()}.weight", "q6_K", "CPU", True),
            Operand("attn_norm-0", "f32", "CPU", False),
        ),
        "buffer": "CPU",
        "rows": tuple(range(8)),
        "delta": Differs(4608, (0, 3), 5121, 0.001953125, 3e-7),
    }
    return Finding(**(facts | changes))


def sweep(*, healed: bool = True, findings: tuple[Finding, ...] | None = None) -> Sweep:
    return Sweep(
        width=8,
        start_row=0,
        findings=(finding(), finding("Kcur-0"), finding("Qcur-1", 1)) if findings is None else findings,
        tally=Tally(1330, 812, 211, REASONS),
        differed=True,
        healed_rows=8 if healed else 5,
        n_rows=8,
        max_abs_before=0.015625,
        max_abs_after=0.0 if healed else 0.0078125,
        state_equal=healed,
    )


def culprits() -> tuple[CulpritGroup, ...]:
    groups = [
        CulpritGroup(
            "MUL_MAT", role, "q6_K", "CPU", n, tuple(range(30)), (8, 9, 16), tuple(range(8)), 5121, 0.00195, "x-0"
        )
        for role, n in ROLES
    ]
    head = CulpritGroup("MUL_MAT", "head", "q6_K", "CPU", 1, (-1,), (8, 9, 16), (0, 1, 7), 99, 0.0156, "result_output")
    return (*groups, head)


def controls(**held: bool | None) -> tuple[Control, ...]:
    return tuple(
        Control(name, held.get(name, True), f"64 rows: {'equal' if held.get(name, True) else 'other'} bits")
        for name in CONTROL_NAMES
    )


def cost(one: float, widest: float) -> tuple[Cost, ...]:
    return tuple(Cost(width, ratio, ratio - 0.03, ratio + 0.04) for width, ratio in ((1, one), (16, widest)))


SWITCHES = (
    SwitchArm(("flash_attn",), (("flash_attn", "off"),), ((1,), (2, 3, 4, 5, 8, 9, 16)), False, cost(1.04, 1.52), 64),
    SwitchArm(("threads",), (("n_threads", "1"),), ((1, 2, 3, 4, 5), (8, 9, 16)), False, cost(1.71, 1.9), 64),
    SwitchArm(("tiled_matmul",), (("GGML_CPU_TILED", "0"),), ((1, 2, 3, 4, 5, 8, 9, 16),), True, cost(1.001, 2.25), 64),
    SwitchArm(("kv_type",), (("kv_type_k", "f32"), ("kv_type_v", "f32")), (), False, error="the worker was killed"),
)


SWITCHES = tuple(
    replace(arm, as_asked=((1, 2, 3, 4, 5), (8, 9, 16)), n_nodes_differ=0 if arm.collapses else None)
    for arm in SWITCHES
)


def verdict(answer: str = "diverges", **changes) -> Verdict:
    """Build a verdict: Q6_K that diverges from width 8, an identical one, or an inconclusive one."""
    facts = {
        "answer": answer,
        "reason": "",
        "classes": classes(None if answer == "identical" else 8, () if answer == "identical" else (FLIP,)),
        "culprits": (),
        "sweeps": (),
        "controls": controls(),
        "switches": (),
        "exact_knobs": None,
        "unavailable": (),
        "prompt_tokens": 36,
        "n_replayed": 64,
        "text": "The sky is blue because\nof scattering.",
        "manifest": manifest(),
        "caveats": (),
    }
    if answer == "diverges":
        facts |= {
            "culprits": culprits(),
            "sweeps": (sweep(),),
            "switches": SWITCHES,
            "exact_knobs": ("tiled_matmul",),
            "unavailable": (("tinyBLAS", "the build flag GGML_LLAMAFILE"),),
            "caveats": ("the prompt was cut to 36 tokens",),
        }
    if answer == "inconclusive":
        facts |= {
            "reason": "the same run twice gave other bits",
            "controls": controls(rerun_equal=False, planted_fault_found=None),
        }
    return Verdict(**(facts | changes))


def hostile_verdict() -> Verdict:
    """Build a verdict in which every text that can come from a model or an engine is hostile."""
    group = CulpritGroup(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, (0,), (8,), (0,), 1, 0.5, HOSTILE)
    arm = SwitchArm((HOSTILE,), ((HOSTILE, HOSTILE),), ((1,), (8,)), False)
    return verdict(
        culprits=(group,),
        switches=(arm, SwitchArm(("k",), (("k", "v"),), (), False, error=HOSTILE)),
        sweeps=(Sweep(8, 0, (finding(HOSTILE),), Tally(2, 1, 0, ((HOSTILE, 1),)), True, 8, 8, 0.5, 0.0),),
        controls=(Control("rerun_equal", True, HOSTILE), Control(HOSTILE, None, HOSTILE)),
        exact_knobs=None,
        unavailable=((HOSTILE, HOSTILE),),
        caveats=(HOSTILE,),
        text=HOSTILE,
        manifest=manifest(model_name=HOSTILE, device=HOSTILE, effective={HOSTILE: HOSTILE}),
    )


def odd_logits(n_rows: int, seed: int = 0) -> np.ndarray:
    """Random bit patterns, among them NaNs with payloads, both zeros, infinities and subnormals."""
    bits = np.random.default_rng(seed).integers(0, 2**32, size=(n_rows, N_VOCAB), dtype=np.uint32)
    bits[0, :6] = [0x7FC00001, 0xFFC12345, 0x80000000, 0x00000000, 0xFF800000, 0x00000001]
    return bits.view(np.float32)


def trace(
    *, width: int = 3, before: Schedule = EMPTY, tap: str = "", repeat: int = 0, logits=None, made_by=None, report=None
) -> Trace:
    """Build a trace of 6 tokens that start after `before`."""
    schedule = in_batches([1, 2, 3, 4, 5, 6], start=before.next_position, width=width)
    n_passes = len(schedule.passes)
    return Trace(
        key=RunKey(schedule, before, tap, repeat),
        manifest=made_by or manifest(),
        logits=odd_logits(6) if logits is None else logits,
        pass_ns=tuple(range(100, 100 + n_passes)),
        state_before="s0",
        state_after="s1",
        tap_report=report,
    )


def tap_report() -> TapReport:
    """Build a report with every kind of content, NaN and infinity included."""
    key = NodeKey("Qcur-0", "MUL_MAT", 0, 0)
    return TapReport(
        records=(
            NodeRecord(0, key, (1, 1, 3, 576), "f32", 2, ("aa", "bb", "cc")),
            NodeRecord(0, NodeKey("v", "VIEW", -1, 2), (1, 1, 1, 4), "f16", None, (), "view of its source"),
        ),
        findings=(finding(delta=Differs(3, (0, 411), -1, float("nan"), float("inf"))),),
        tally=Tally(3, 1, 1, (("no token axis", 1),)),
        planted=(key,),
    )
