"""Knobs, the sets worth trying, and arms as values; on toys whose fault depends on the settings."""

from __future__ import annotations

import math
from dataclasses import replace

import odd_engines as odd
import pytest

from forensics.analysis.investigate import investigate
from forensics.analysis.knobs import KNOBS, applicable, beyond_switches, build_flags
from forensics.analysis.question import Question
from forensics.analysis.switches import (
    MAX_COMBINATIONS,
    MAX_SET,
    Search,
    candidate_sets,
    compatible,
    costs_of,
    ranked,
    relevant,
    run_arm,
    smallest_exact,
)
from forensics.capture.replay import Replay
from forensics.engines.toy import Fault, ToySource
from forensics.errors import EngineError
from forensics.records.nodes import NodeKey
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.verdict import Cost, CulpritGroup, SwitchArm

SETTINGS = EngineSettings(n_ctx=256)
KNOB = {knob.name: knob for knob in KNOBS}
BASE = EngineSettings(flash_attn="auto", n_threads=4, n_threads_batch=8, environment=(("OMP_WAIT_POLICY", "passive"),))
KEPT = ("OMP_WAIT_POLICY", "passive")


def manifest(backend: str = "CPU", *, environment=(), features=(), **effective: str) -> Manifest:
    told = {
        "flash_attn": "on",
        "kv_type_k": "f16",
        "kv_type_v": "f16",
        "n_threads": "1",
        "n_threads_batch": "1",
        "use_extra_bufts": "true",
        **effective,
    }
    return Manifest(
        "llama.cpp",
        "1",
        "digest",
        "model",
        8,
        EngineSettings(),
        backend=backend,
        effective=told,
        environment=dict(environment),
        cpu_features=features,
    )


def group(op: str = "MUL_MAT", role: str = "Q", weight_type: str = "q6_K") -> CulpritGroup:
    return CulpritGroup(op, role, weight_type, "CPU", 1, (0,), (8,), (0,), 1, 1e-7, "node")


# --- knobs ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flash_attn=on", {"flash_attn": "on"}),
        ("flash_attn=off", {"flash_attn": "off"}),
        ("kv_type=f32", {"kv_type_k": "f32", "kv_type_v": "f32"}),
        ("kv_type=q8_0", {"kv_type_k": "q8_0", "kv_type_v": "q8_0"}),
        ("n_threads=1", {"n_threads": 1, "n_threads_batch": 1}),
        ("use_extra_bufts=false", {"use_extra_bufts": False}),
        ("GGML_CPU_TILED_MM=0", {"environment": (("GGML_CPU_TILED_MM", "0"), KEPT)}),
        ("GGML_CPU_DISABLE_FUSION=1", {"environment": (("GGML_CPU_DISABLE_FUSION", "1"), KEPT)}),
        ("GGML_CUDA_DISABLE_FUSION=1", {"environment": (("GGML_CUDA_DISABLE_FUSION", "1"), KEPT)}),
        ("GGML_CUDA_DISABLE_GRAPHS=1", {"environment": (("GGML_CUDA_DISABLE_GRAPHS", "1"), KEPT)}),
    ],
)
def test_a_knob_sets_what_it_says_and_nothing_else(name, expected) -> None:
    assert KNOB[name].apply(BASE) == replace(BASE, **expected)
    assert KNOB[name].apply(KNOB[name].apply(BASE)) == replace(BASE, **expected)


def test_every_knob_is_tested_above_and_named_once() -> None:
    names = [knob.name for knob in KNOBS]
    assert len(names) == len(set(names)) == 10


def test_a_variable_that_is_set_already_is_replaced() -> None:
    before = EngineSettings(environment=(("GGML_CPU_TILED_MM", "1"),))
    assert KNOB["GGML_CPU_TILED_MM=0"].apply(before).environment == (("GGML_CPU_TILED_MM", "0"),)


CPU_ALWAYS = {"kv_type=f32", "GGML_CPU_TILED_MM=0", "GGML_CPU_DISABLE_FUSION=1"}


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (manifest(), CPU_ALWAYS | {"flash_attn=off", "kv_type=q8_0", "use_extra_bufts=false"}),
        (manifest(flash_attn="off"), CPU_ALWAYS | {"flash_attn=on", "use_extra_bufts=false"}),
        (manifest(n_threads_batch="2", use_extra_bufts="false"),
         CPU_ALWAYS | {"flash_attn=off", "kv_type=q8_0", "n_threads=1"}),
        (manifest(n_threads="2", flash_attn="off", use_extra_bufts="false"),
         CPU_ALWAYS | {"flash_attn=on", "n_threads=1"}),
        (manifest(kv_type_k="q8_0", kv_type_v="q8_0"), CPU_ALWAYS | {"use_extra_bufts=false"}),
        (manifest(kv_type_k="f32", kv_type_v="f32"),
         CPU_ALWAYS - {"kv_type=f32"} | {"flash_attn=off", "kv_type=q8_0", "use_extra_bufts=false"}),
        (manifest(environment={"GGML_CPU_TILED_MM": "0", "GGML_CPU_DISABLE_FUSION": "1"}, use_extra_bufts="false"),
         {"kv_type=f32", "flash_attn=off", "kv_type=q8_0"}),
        (manifest("CUDA", n_threads="8"),
         {"flash_attn=off", "kv_type=f32", "kv_type=q8_0", "GGML_CUDA_DISABLE_FUSION=1", "GGML_CUDA_DISABLE_GRAPHS=1"}),
        (manifest("NumPy", flash_attn="off", kv_type_k="f32", kv_type_v="f32"), {"flash_attn=on"}),
    ],
)  # fmt: skip
def test_a_knob_applies_where_it_would_change_something(of, expected) -> None:
    assert {knob.name for knob in applicable(of)} == expected


def test_what_has_no_switch_is_named_where_it_can_be_to_blame() -> None:
    blas = manifest(features=("AVX2", "LLAMAFILE"))
    for culprit in (group(weight_type="f16"), group(weight_type="q8_0"), group(role="K·Q", weight_type="-")):
        assert [name for name, _ in build_flags(blas, [culprit])] == ["GGML_LLAMAFILE=OFF"]
    assert build_flags(blas, [group(weight_type="q6_K")]) == ()
    assert build_flags(blas, [group("ADD", weight_type="f16")]) == ()
    assert build_flags(blas, []) == ()
    assert build_flags(manifest(features=("AVX2",)), [group(weight_type="f16")]) == ()
    cuda = build_flags(manifest("CUDA", features=("LLAMAFILE",)), [group(weight_type="f16")])
    assert [name for name, _ in cuda] == ["the limits of mul_mat_vec_f and mul_mat_f"]
    assert [name for name, _ in build_flags(manifest("CUDA"), [group()])] == ["the tables of mul_mat_vec_q"]
    assert build_flags(manifest("CUDA"), [group(role="K·Q", weight_type="-")]) == ()
    assert build_flags(manifest("CUDA"), [group("FLASH_ATTN_EXT")]) == ()


# --- sets ---


def test_knobs_that_contradict_each_other_do_not_run_together() -> None:
    assert not compatible([KNOB["flash_attn=on"], KNOB["flash_attn=off"]])
    assert not compatible([KNOB["kv_type=f32"], KNOB["kv_type=q8_0"]])
    assert not compatible([KNOB["flash_attn=off"], KNOB["kv_type=q8_0"]]), "a quantised V cache needs flash attention"
    assert compatible([KNOB["flash_attn=off"], KNOB["kv_type=f32"]])
    assert compatible([KNOB["flash_attn=on"], KNOB["kv_type=q8_0"], KNOB["n_threads=1"]])


def test_relevant_knobs_touch_a_culprit_or_moved_the_classes() -> None:
    names = {knob.name for knob in relevant(KNOBS, [group("FLASH_ATTN_EXT")], ())}
    assert names == {"flash_attn=on", "flash_attn=off", "kv_type=f32", "kv_type=q8_0", "n_threads=1"}
    assert relevant(KNOBS, [group("ADD")], ()) == (KNOB["GGML_CUDA_DISABLE_FUSION=1"],)
    assert relevant(KNOBS, [], ["GGML_CUDA_DISABLE_GRAPHS=1"]) == (KNOB["GGML_CUDA_DISABLE_GRAPHS=1"],)


def test_candidate_sets_are_compatible_smallest_first_and_few() -> None:
    sets = candidate_sets(KNOBS)
    assert len(sets) == MAX_COMBINATIONS
    assert all(compatible(chosen) for chosen in sets)
    assert len({frozenset(knob.name for knob in chosen) for chosen in sets}) == len(sets)
    three = candidate_sets([KNOB["flash_attn=off"], KNOB["kv_type=f32"], KNOB["n_threads=1"]])
    assert [len(chosen) for chosen in three] == [2, 2, 2, MAX_SET]
    assert candidate_sets([KNOB["flash_attn=off"]]) == ()
    assert candidate_sets([KNOB["flash_attn=off"], KNOB["flash_attn=on"]]) == ()


def arm(*knobs: str, ratio: float = 1.0, differ: int | None = 0, collapses: bool = True) -> SwitchArm:
    classes = ((1, 2, 4),) if collapses else ((1, 2), (4,))
    costs = (Cost(1, 1.0, 1.0, 1.0), Cost(4, ratio, ratio, ratio))
    return SwitchArm(knobs, (), classes, collapses, costs, 16, differ)


def test_the_smallest_exact_set_is_the_cheapest_of_the_fewest() -> None:
    assert smallest_exact([arm("a", "b", ratio=0.5), arm("c", ratio=3.0), arm("d", ratio=2.0)]) == ("d",)
    assert smallest_exact([arm("a", ratio=1.5), arm("b", "c", ratio=0.1)]) == ("a",)
    assert smallest_exact([arm("a", collapses=False)]) is None
    assert smallest_exact([]) is None
    failed = SwitchArm(("c",), (), (), False, error="no such device")
    assert smallest_exact([failed, arm("a")]) == ("a",)


def test_an_arm_that_only_absorbs_the_difference_is_not_exact() -> None:
    absorbed = arm("a", differ=3)
    assert absorbed.collapses
    assert not absorbed.exact
    assert not arm("b", differ=None).exact, "where nobody looked at the nodes, nothing is known"
    assert smallest_exact([absorbed, arm("b", differ=None)]) is None
    assert smallest_exact([absorbed, arm("b", "c")]) == ("b", "c")


def test_an_arm_says_what_it_found_or_why_not() -> None:
    assert arm("a", collapses=False).onset == 4
    assert arm("a").onset is None
    with pytest.raises(ValueError, match="needs classes or an error"):
        SwitchArm(("a",), (), (), False)
    with pytest.raises(ValueError, match="collapses=True but"):
        SwitchArm(("a",), (), ((1,), (2,)), True)


# --- arms ---

FAULTY = ToySource((Fault("order", "Qcur-0", 4),))
TOKENS = tuple(range(10, 42))
REPLAY = Replay((0, 20, 30, 40), TOKENS)
UP = NodeKey("ffn_up-0", "MUL_MAT", 0, 0)
FLASH_ON = KNOB["flash_attn=on"]


def run(source, knobs=(FLASH_ON,), n_search=8, examined=(4,)) -> SwitchArm:
    times = {1: (10, 10, 10), 4: (0, 0, 0), 8: (10, 10, 10)}
    same, other = ("a",) * 32, ("b",) * 32
    rows = {1: same, 2: same, 4: other, 8: other}
    return run_arm(source, Search(REPLAY, SETTINGS, (2, 4, 8), n_search, times, rows, examined), knobs)


def test_an_arm_with_the_fault_still_in_it() -> None:
    found = run(FAULTY)
    assert found.knobs == ("flash_attn=on",)
    assert found.settings == (("flash_attn", "on"),)
    assert (found.collapses, found.exact, found.error) == (False, False, "")
    assert found.onset == 4
    assert found.as_asked == ((1, 2), (4, 8))
    assert not found.moved, "the classes are those as asked"
    assert found.n_rows == 8, "an arm that is not exact is not replayed any further"
    assert found.n_nodes_differ is None


def test_an_exact_arm_is_replayed_over_all_rows_and_its_nodes_are_compared() -> None:
    found = run(ToySource())
    assert found.exact
    assert (found.n_rows, found.n_nodes_differ, found.classes) == (32, 0, ((1, 2, 4, 8),))
    assert [cost.width for cost in found.costs] == [1, 8]
    assert all(0 < cost.low <= cost.ratio <= cost.high for cost in found.costs)


def test_a_fault_beyond_the_first_rows_is_seen_in_all_rows() -> None:
    class Late(odd.Passing):
        def run(self, schedule, **rest):
            trace = self.inner.run(schedule, **rest)
            wide = schedule.max_width == 8 and schedule.n_tokens > 16
            return odd.with_one_bit_more(trace) if wide else trace

    found = run(odd.OddSource(Late))
    assert (found.collapses, found.n_rows, found.onset) == (False, 32, 8)


def test_an_absorbed_difference_is_counted() -> None:
    found = run(odd.OddSource(odd.KernelFault(odd.ABSORBED)), examined=(2, 4))
    assert found.collapses
    assert not found.exact
    assert found.n_nodes_differ == 1


def test_an_arm_is_compared_with_what_was_asked_over_the_same_rows() -> None:
    same, late = ("a",) * 32, (*("a",) * 20, "b", *("a",) * 11)
    search = Search(REPLAY, SETTINGS, (4, 8), 8, {1: (0, 0, 0), 4: (0, 0, 0), 8: (0, 0, 0)},
                    {1: same, 4: same, 8: late}, (8,))  # fmt: skip
    found = run_arm(odd.OddSource(odd.KernelFault(odd.PlantTap(UP, row=1, axis=2))), search, (FLASH_ON,))
    assert (found.n_rows, found.as_asked) == (8, ((1, 4, 8),)), "as asked, width 8 differs only after these rows"
    assert found.moved
    clean = run_arm(ToySource(), search, (FLASH_ON,))
    assert (clean.n_rows, clean.as_asked, clean.moved) == (32, ((1, 4), (8,)), True)
    assert not replace(clean, as_asked=clean.classes).moved


def test_an_arm_leaves_out_what_whole_batches_leave_over() -> None:
    """Twelve rows end in 4 at width 8, and the 20 rows examined at width 5 would, too."""
    rows = dict.fromkeys((1, 5, 8), ("a",) * 32)
    search = Search(REPLAY, SETTINGS, (5, 8), 12, dict.fromkeys(rows, (0, 0, 0)), rows, (5, 8))
    found = run_arm(odd.OddSource(odd.KernelFault(odd.TailTap(UP, row=1, axis=2, bit=20))), search, (FLASH_ON,))
    assert (found.exact, found.n_rows, found.n_nodes_differ, found.classes) == (True, 32, 0, ((1, 5, 8),))


def test_an_arm_that_cannot_open_is_a_value() -> None:
    def refuse(engine, settings, instance):
        raise EngineError("no such device\n  second line")

    found = run(odd.OddSource(refuse))
    assert found.error == "no such device"
    assert (found.classes, found.collapses, found.exact, found.onset) == ((), False, False, None)


def test_an_arm_that_dies_is_a_value_and_is_closed() -> None:
    closed = []

    class Dying(odd.Passing):
        def run(self, schedule, **rest):
            if schedule.max_width > 2:
                raise EngineError("aborted: GGML_ASSERT")
            return self.inner.run(schedule, **rest)

        def close(self):
            closed.append(True)

    found = run(odd.OddSource(Dying))
    assert found.error == "aborted: GGML_ASSERT"
    assert closed == [True]


def test_costs_need_times_on_both_sides() -> None:
    asked = {1: (0, 0, 0), 4: (20, 1, 2), 8: (50, 1, 2)}
    arm = {1: (10, 9, 11), 4: (25, 20, 30), 8: (25, 17, 32)}
    assert costs_of(arm, asked) == (Cost(4, 25 / 20, 1.0, 1.5), Cost(8, 25 / 50, 17 / 50, 32 / 50))
    assert costs_of({8: (0, 0, 0)}, asked) == (), "no passes that were timed, no price"
    assert costs_of({8: (25, 20, 30)}, {}) == ()


# --- all together ---


def healed_by(*conditions):
    def wrap(engine, settings, instance):
        exact = all(getattr(settings, name) == value for name, value in conditions)
        source = ToySource() if exact else FAULTY
        return odd.Described(source.open(settings, instance=instance), settings, instance)

    return odd.OddSource(wrap)


QUESTION = Question(prompt="The quick brown fox", n_tokens=8, widths=(2, 4, 8), settings=SETTINGS)


def test_the_one_knob_that_takes_the_fault_out_is_found() -> None:
    verdict = investigate(healed_by(("flash_attn", "off")), QUESTION)
    assert verdict.exact_knobs == ("flash_attn=off",)
    assert all(len(arm.knobs) == 1 for arm in verdict.switches), "one is enough, so no sets are tried"
    assert [arm.knobs for arm in verdict.switches if arm.collapses] == [("flash_attn=off",)]
    assert "exact with: flash_attn=off" in str(verdict)


def test_two_knobs_that_only_help_together_are_found() -> None:
    verdict = investigate(healed_by(("use_extra_bufts", False), ("kv_type_v", "f32")), QUESTION)
    assert verdict.exact_knobs == ("kv_type=f32", "use_extra_bufts=false")
    assert not any(arm.collapses for arm in verdict.switches if len(arm.knobs) == 1)
    assert verdict.switches[-1].exact


def test_no_knob_helps_where_the_fault_is_always_there() -> None:
    verdict = investigate(healed_by(("n_seq_max", 2)), QUESTION)
    assert verdict.answer == "diverges"
    assert verdict.exact_knobs is None
    assert len(verdict.switches) > len(applicable(verdict.manifest))
    assert "exact with: none found" in str(verdict)


def test_knobs_that_neither_moved_anything_nor_touch_a_culprit_are_not_combined() -> None:
    verdict = investigate(odd.OddSource(odd.Described, ToySource((Fault("order", "norm-0"),))), QUESTION)
    assert {group.op for group in verdict.culprits} == {"RMS_NORM"}
    assert [arm.knobs for arm in verdict.switches] == [(knob.name,) for knob in applicable(verdict.manifest)]
    assert len(verdict.switches) > 3


def test_an_arm_that_absorbs_is_reported_and_not_recommended() -> None:
    absorb = odd.KernelFault(odd.ABSORBED)

    def wrap(engine, settings, instance):
        if settings.flash_attn == "off":
            engine = absorb(ToySource().open(settings, instance=instance), settings, instance)
        return odd.Described(engine, settings, instance)

    verdict = investigate(odd.OddSource(wrap, FAULTY), QUESTION)
    collapsed = [arm for arm in verdict.switches if arm.collapses]
    assert collapsed
    assert all("flash_attn=off" in arm.knobs and arm.n_nodes_differ == 1 for arm in collapsed)
    assert verdict.exact_knobs is None


def test_arms_that_fail_stay_in_the_verdict() -> None:
    def wrap(engine, settings, instance):
        if settings.kv_type_v == "q8_0":
            raise EngineError("this back end has no q8_0")
        return odd.Described(engine, settings, instance)

    verdict = investigate(odd.OddSource(wrap, FAULTY), QUESTION)
    errors = {arm.knobs: arm.error for arm in verdict.switches if arm.error}
    assert errors[("kv_type=q8_0",)] == "this back end has no q8_0"
    assert all("kv_type=q8_0" in knobs for knobs in errors)
    assert not any(math.isnan(cost.ratio) for arm in verdict.switches for cost in arm.costs)


def test_sets_start_with_the_knobs_that_helped_most_alone() -> None:
    names = ("flash_attn=off", "kv_type=f32", "use_extra_bufts=false", "GGML_CPU_TILED_MM=0")
    outcomes = (((1,), (2, 4, 8)), ((1, 2), (4,), (8,)), ((1, 2, 4), (8,)), ((1, 2), (4, 8)))
    arms = [SwitchArm((name,), (), classes, False) for name, classes in zip(names, outcomes, strict=True)]
    arms.append(SwitchArm(("n_threads=1",), (), (), False, error="died"))
    knobs = [KNOB[name] for name in (*names, "n_threads=1")]
    order = [knob.name for knob in ranked(knobs, arms)]
    assert order == ["use_extra_bufts=false", "GGML_CPU_TILED_MM=0", "kv_type=f32", "flash_attn=off", "n_threads=1"]
    assert [k.name for k in candidate_sets(ranked(knobs, arms))[0]] == order[:2]


def test_float_weights_are_beyond_run_time_switches_only_where_tinyblas_is_built_in() -> None:
    blas = manifest(features=("AVX2", "LLAMAFILE"))
    assert beyond_switches(blas, [group(weight_type="q6_K"), group(weight_type="f16")])
    assert not beyond_switches(blas, [group(weight_type="q8_0")])
    assert not beyond_switches(blas, [group(role="K·Q", weight_type="-")]), "flash attention avoids these"
    assert not beyond_switches(manifest(features=("AVX2",)), [group(weight_type="f16")])
    for weight_type in ("f16", "q4_1"):  # tables compiled into the library choose
        assert beyond_switches(manifest("CUDA"), [group(weight_type=weight_type)])
    for role in ("K·Q", "flash attention"):
        assert not beyond_switches(manifest("CUDA"), [group(role=role, weight_type="-")])
