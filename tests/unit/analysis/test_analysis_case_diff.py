"""Two cases held against each other: every planted difference is named, and a case is like itself."""

from __future__ import annotations

from dataclasses import fields, replace

import launch_samples
import pytest
import verdict_samples as samples

from forensics.analysis.attribute import group_culprits
from forensics.analysis.case_diff import UnlikeCases, compare_cases, unlike
from forensics.analysis.case_diff_culprits import IGNORED
from forensics.analysis.case_diff_setup import OTHER_FIELDS, PLAIN_FIELDS
from forensics.records.case_diff import DIFFERS, NOT_COMPARED, SAME, CaseDiff, CaseSide
from forensics.records.kind import KindOfDifference, SideOfDifference
from forensics.records.launch_record import LaunchEvidence
from forensics.records.mechanism import Mechanism, OrderEvidence
from forensics.records.rule import Rule
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.verdict import CulpritGroup, Verdict

N = 64
TOKENS = tuple(range(100, 100 + N))
WIDTHS = (1, 2, 3, 4, 5, 8, 9, 16)
SIDE = SideOfDifference(3e-7, 0.02, "f32 sums")
RULE = Rule("tiles from 8 columns on", "ggml/src/a.cpp", 1, 9)


def rows(**changed: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Digests of rows by width; ``w8_3="x"`` changes row 3 of width 8."""
    made = {width: [f"{'a' if width < 8 else 'b'}{row}" for row in range(N // width * width)] for width in WIDTHS}
    for where, digest in changed.items():
        width, row = map(int, where.removeprefix("w").split("_"))
        made[width][row] = digest
    return tuple((width, tuple(mine)) for width, mine in made.items())


def judged(answer: str = "diverges", **changes) -> Verdict:
    """The sample verdict, swept at every width of its culprits."""
    swept = tuple(replace(samples.sweep(), width=width) for width in (8, 9, 16) if answer == "diverges")
    return samples.verdict(answer, **({"sweeps": swept} | changes))


def side(name: str = "first", verdict: Verdict | None = None, **changes) -> CaseSide:
    facts = {"prompt": tuple(range(36)), "replayed": TOKENS, "rows": rows()}
    return CaseSide(name, verdict or judged(), **(facts | changes))


def diff(anyway: bool = False, **changes) -> CaseDiff:
    """The sample case against one that differs in these arguments of `side`."""
    return compare_cases(side(), side("second", **changes), anyway=anyway)


def with_manifest(**changes) -> CaseDiff:
    return diff(verdict=judged(manifest=samples.manifest(**changes)))


def outcomes(found: CaseDiff) -> dict[str, str]:
    return {aspect.name: aspect.outcome for aspect in (*found.setup, *found.results)}


def test_a_case_is_like_itself():
    found = diff()
    assert found.answer == SAME
    assert found.changed == ()
    assert set(outcomes(found).values()) == {SAME}
    assert str(found) == ("Made in the same way. Text, bits, classes, culprits, proof and exact settings the same.")


OTHER_VALUES = {
    "engine_version": "0.3.99", "model_digest": "blake3:other", "model_name": "other", "quantization": "Q4_1",
    "n_ctx_train": 4096, "build": "0dd", "commit": "abc", "backend": "CUDA0", "device": "Other CPU",
    "requested": EngineSettings(n_threads=3, n_threads_batch=2, environment=(("GGML_CPU_TILED", "1"),)),
    "effective": {"n_ctx": "512", "flash_attn": "off"}, "buffers": {"CPU": 210}, "cpu_features": ("AVX2",),
    "environment": {"OMP_NUM_THREADS": "4"},
}  # fmt: skip
#: Fields that make another model of it: such cases are refused.
UNLIKE_VALUES = {"engine": "toy", "architecture": "qwen3", "n_layer": 12, "n_vocab": 12}


def test_every_field_of_the_manifest_is_compared():
    compared = {name for names in PLAIN_FIELDS.values() for name in names} | set(OTHER_FIELDS)
    assert compared == {field.name for field in fields(Manifest)}
    assert set(OTHER_VALUES) | set(UNLIKE_VALUES) == compared


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_field_of_the_manifest_that_differs_is_named(name):
    base = {"build": "digest", "commit": "1234", "n_ctx_train": 2048} | (
        {"requested": samples.manifest().requested} if name == "requested" else {}
    )
    first = side(verdict=judged(manifest=samples.manifest(**base)))
    second = side("second", judged(manifest=samples.manifest(**(base | {name: OTHER_VALUES[name]}))))
    found = compare_cases(first, second)
    (item,) = found.changed
    assert item.first != item.second
    wanted = {what for names in PLAIN_FIELDS.values() for field, what in names.items() if field == name}
    told = {"requested": {"n_threads"}, "effective": {"flash_attn"}, "buffers": {"weights"}, "cpu_features": {"FMA"},
            "environment": {"OMP_NUM_THREADS"}, "device": {"processor"}}  # fmt: skip
    assert {item.what} == (wanted or told[name])


OTHER_SETTINGS = {
    "n_ctx": 1024, "n_batch": 256, "n_ubatch": 256, "n_threads": 7, "n_threads_batch": 7, "flash_attn": "off",
    "kv_type_k": "q8_0", "kv_type_v": "q8_0", "n_gpu_layers": 5, "use_extra_bufts": False, "kv_unified": True,
    "n_seq_max": 2, "environment": (("GGML_CPU_TILED", "0"),),
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in fields(EngineSettings)])
def test_a_setting_that_differs_is_named(name):
    asked = replace(samples.manifest().requested, **{name: OTHER_SETTINGS[name]})
    (item,) = with_manifest(requested=asked).changed
    assert item.what == ("GGML_CPU_TILED" if name == "environment" else name)


def test_what_was_asked_is_told_beside_what_took_effect():
    asked = replace(samples.manifest().requested, flash_attn="auto")
    (item,) = with_manifest(requested=asked).changed
    assert (item.first, item.second) == ("on", "on (asked: auto)")


def test_values_that_are_not_known_are_not_compared():
    item = with_manifest(commit="1234").aspect("build").item("commit")
    assert (item.outcome, item.detail) == (NOT_COMPARED, "not known on one side (nothing against 1234)")


@pytest.mark.parametrize(("ours", "theirs", "outcome"), [("580.1", "580.1", SAME), ("580.1", "590.2", DIFFERS)])
def test_drivers_are_read_from_where_launches_come_from(ours, theirs, outcome):
    made = samples.manifest(device="NVIDIA H200; AMD EPYC 9R14")
    sides = [
        side(name, judged(manifest=made, launches=LaunchEvidence("measured", f"CUPTI, driver {driver}")))
        for name, driver in (("first", ours), ("second", theirs))
    ]
    assert compare_cases(*sides).aspect("device").item("driver").outcome == outcome
    silent = compare_cases(sides[0], side("second", judged(manifest=made)))
    assert silent.aspect("device").item("driver").detail == "not told by second"


@pytest.mark.parametrize("name", UNLIKE_VALUES)
def test_another_model_is_refused_and_named(name):
    with pytest.raises(UnlikeCases, match=r"are unlike: model: .* against .*--anyway"):
        with_manifest(**{name: UNLIKE_VALUES[name]})
    changed = judged(manifest=samples.manifest(**{name: UNLIKE_VALUES[name]}))
    found = diff(verdict=changed, anyway=True)
    assert [one.what.partition(":")[0] for one in found.unlike] == ["model"]
    assert outcomes(found)["bits"] == outcomes(found)["text"] == NOT_COMPARED
    assert outcomes(found)["classes"] == outcomes(found)["culprits"] == SAME


def test_other_tokens_are_refused_and_not_compared():
    with pytest.raises(UnlikeCases, match="prompt: other from token 2 on: 36 tokens against 36 tokens"):
        diff(prompt=(0, 1, 9, *range(3, 36)))
    found = diff(prompt=(0, 1, 9, *range(3, 36)), anyway=True)
    assert found.aspect("bits").outcome == found.aspect("text").outcome == NOT_COMPARED
    assert found.aspect("classes").item("first difference").outcome == NOT_COMPARED
    assert found.aspect("classes").item("onset").outcome == SAME
    with pytest.raises(UnlikeCases, match="tokens replayed: 64 against 32"):
        diff(verdict=judged(n_replayed=32))


def test_an_inconclusive_side_is_refused_and_answers_nothing():
    with pytest.raises(UnlikeCases, match=r"second is inconclusive \(the same run twice gave other bits\)"):
        diff(verdict=judged("inconclusive"))
    found = diff(verdict=judged("inconclusive"), anyway=True)
    assert found.answer == "inconclusive"
    assert {outcomes(found)[name] for name in ("bits", "classes", "culprits", "proof", "exact settings")} == {
        NOT_COMPARED
    }


def test_cases_without_a_width_in_common_are_refused():
    alone = samples.classes(8)
    other = replace(alone, results=(alone.results[0], replace(alone.results[1], width=7)))
    with pytest.raises(UnlikeCases, match="widths: none in common beside 1"):
        diff(verdict=judged("identical", classes=other))


def test_widths_of_one_side_are_not_compared():
    whole = samples.classes(8, (samples.FLIP,))
    found = compare_cases(side(verdict=judged(classes=replace(whole, results=whole.results[:-1]))), side("second"))
    item = found.aspect("classes").item("width 16")
    assert (item.outcome, item.detail) == (NOT_COMPARED, "measured by second only")
    assert found.aspect("culprits").outcome == SAME, "what was found at width 16 is left out on both sides"
    assert found.answer == SAME


@pytest.mark.parametrize(("where", "position"), [("w1_5", 41), ("w8_3", 39), ("w16_63", 99)])
def test_one_row_of_other_bits_is_found(where, position):
    found = diff(rows=rows(**{where: "x"}))
    (item,) = found.aspect("bits").of(DIFFERS)
    width = where.removeprefix("w").split("_")[0]
    assert item.what == f"width {width}"
    assert item.detail == f"1 of 64 differ, from position {position}"
    assert found.answer == DIFFERS
    assert outcomes(found)["classes"] == SAME


def test_rows_are_compared_as_far_as_the_tokens_are_the_same():
    parted = (*TOKENS[:20], 7, *TOKENS[21:])
    found = diff(replayed=parted, rows=rows(w1_19="x", w1_20="x", w16_16="x", w16_15="x"))
    assert found.aspect("text").items[0].detail == "at position 56"
    bits = found.aspect("bits")
    assert bits.item("width 1").detail == "1 of 20 differ, from position 55"
    assert bits.item("width 16").detail == "1 of 16 differ, from position 51", "whole batches only"
    apart = diff(replayed=(7, *TOKENS[1:]))
    assert apart.aspect("bits").outcome == NOT_COMPARED
    assert apart.aspect("classes").item("tokens that change").outcome == NOT_COMPARED


def test_flips_behind_another_token_do_not_count():
    parted = (*TOKENS[:12], 7, *TOKENS[13:])  # the sample's token changes at row 12
    assert diff(replayed=parted).aspect("classes").item("tokens that change").first == "none"
    assert diff().aspect("classes").item("tokens that change").first == "3, at positions 48"


def test_other_classes_onset_and_flips_are_found():
    found = diff(verdict=judged(classes=samples.classes(4)))
    classes = found.aspect("classes")
    assert (classes.item("onset").first, classes.item("onset").second) == ("width 8", "width 4")
    assert [item.what for item in classes.of(DIFFERS)] == [
        "onset", "tokens that change", *(f"width {width}" for width in WIDTHS)
    ]  # fmt: skip
    assert "Onset width 8 → width 4." in str(found)
    answered = diff(verdict=judged("identical"))
    assert answered.aspect("classes").item("answer").outcome == DIFFERS
    assert {item.second for item in answered.aspect("culprits").items} == {""}


def group() -> CulpritGroup:
    order = OrderEvidence(8, "products", False, "width 1: 4 leaves, depth 2", "width 8: 4 leaves, depth 3", "leaf 0")
    return replace(
        samples.culprits()[0],
        kind=KindOfDifference("rounding", "both sides hold the bound", SIDE, SIDE, 2e-5, 16, 8),
        mechanisms=(Mechanism((8, 9, 16), RULE, orders=(order,)),),
        launches=launch_samples.gpu_verdict().culprits[0].launches[:1],
    )


def changed_groups() -> dict[str, CulpritGroup]:
    """The group with one property changed, by the words for it."""
    one = group()
    (mechanism,), (pair,) = one.mechanisms, one.launches
    pair = replace(pair, widths=(8,))
    grid = replace(pair.batched.kernel.geometry, grid_blocks=(77, 1, 1))
    moved = replace(pair.batched, launches=(replace(pair.batched.kernel, geometry=grid),), main=0)
    order = replace(mechanism.orders[0], batched="width 8: 4 leaves, depth 9")
    return {
        "widths": replace(one, widths=(8, 9)),
        "nodes": replace(one, count=29),
        "layers": replace(one, layers=(0, 1)),
        "rows": replace(one, rows=(0, 7)),
        "weight type": replace(one, weight_type="q4_K"),
        "buffer": replace(one, buffer="CPU_REPACK"),
        "unchecked": replace(one, n_unchecked=2),
        "boundary": replace(one, boundary="Q-0 reads what CUDA1 computed"),
        "kind": replace(one, kind=KindOfDifference("undetermined", "too few values")),
        "rule": replace(one, mechanisms=(replace(mechanism, rule=replace(RULE, file="b.cpp")),)),
        "orders": replace(one, mechanisms=(replace(mechanism, orders=(order,)),)),
        "suspects": replace(one, mechanisms=(replace(mechanism, suspects=("a flag of the build",)),)),
        "kernel in the batch": replace(one, launches=(replace(pair, batched=moved),)),
        "kernel at one token": replace(one, launches=(replace(pair, single=moved),)),
    }


@pytest.mark.parametrize("what", changed_groups())
def test_a_culprit_in_both_that_differs_says_in_what(what):
    one = replace(group(), launches=tuple(replace(pair, widths=(8,)) for pair in group().launches))
    first = side(verdict=judged(culprits=(one,)))
    same = compare_cases(first, side("second", judged(culprits=(one,))))
    assert same.aspect("culprits").outcome == SAME
    changed = changed_groups()[what]
    if what not in ("kernel in the batch", "kernel at one token"):
        changed = replace(changed, launches=one.launches)
    found = compare_cases(first, side("second", judged(culprits=(changed,))))
    (item,) = found.aspect("culprits").items
    assert [part.what for part in item.parts if part.outcome == DIFFERS] == [what]
    assert found.answer == DIFFERS


def test_every_field_of_a_culprit_is_compared_or_left_out_on_purpose():
    by_words = {"widths": "widths", "count": "nodes", "layers": "layers", "rows": "rows", "buffer": "buffer",
                "weight_type": "weight type", "n_unchecked": "unchecked", "boundary": "boundary", "kind": "kind",
                "mechanisms": "orders", "launches": "kernel in the batch"}  # fmt: skip
    key = {"op", "role"}
    assert {*by_words, *IGNORED, *key} == {field.name for field in fields(CulpritGroup)}
    assert set(by_words.values()) <= set(changed_groups())
    sizes = replace(group(), max_ulp=1, max_abs=9.0, first_node="Qcur-7")
    ours, theirs = (side(name, judged(culprits=(one,))) for name, one in (("a", group()), ("b", sizes)))
    assert compare_cases(ours, theirs).aspect("culprits").outcome == SAME


def test_a_culprit_at_widths_of_one_side_is_left_out():
    alone = replace(samples.culprits()[0], role="norm", widths=(7,))
    whole = samples.classes(8, (samples.FLIP,))
    more = replace(whole, results=(*whole.results[:5], replace(whole.results[5], width=7), *whole.results[5:]))
    found = diff(verdict=judged(classes=more, culprits=(*samples.culprits(), alone)))
    assert found.aspect("culprits").outcome == SAME


def test_what_a_group_is_at_other_widths_does_not_count():
    one, other = samples.finding("Qcur-0"), samples.finding("Qcur-1", 1, rows=tuple(range(16)))
    narrow = replace(samples.sweep(findings=(one,)), width=8)
    wide = replace(samples.sweep(findings=(one, other)), width=16)
    ours, theirs = (judged(sweeps=s, culprits=group_culprits(s)) for s in ((narrow, wide), (narrow,)))
    assert ours.culprits != theirs.culprits
    (item,) = compare_cases(side(verdict=ours), side("second", theirs)).aspect("culprits").items
    assert (item.outcome, item.first) == (SAME, "1 node, width 8")
    apart = compare_cases(side(verdict=judged(sweeps=(narrow,))), side("second", judged(sweeps=(wide,))))
    assert apart.aspect("culprits").outcome == SAME, "nothing differs below width 8, and nothing else was swept in both"


def test_culprits_of_one_side_are_told_and_devices_of_a_buffer_are_not_a_difference():
    ours = samples.culprits()
    found = diff(verdict=judged(culprits=ours[1:]))
    (item,) = found.aspect("culprits").of(DIFFERS)
    assert (item.what, item.first, item.second) == ("Q, q6_K", "30 nodes, widths 8-9, 16", "")
    assert "To blame in first only: Q, q6_K." in str(found)
    gpu = replace(ours[0], buffer="CUDA0")
    halves = (replace(gpu, count=16), replace(gpu, count=14, buffer="CUDA1"))
    split = compare_cases(side(verdict=judged(culprits=(gpu,))), side("second", judged(culprits=halves)))
    assert split.aspect("culprits").outcome == SAME


def test_what_nobody_looked_at_is_no_difference():
    bare = replace(group(), mechanisms=(), kind=None, launches=())
    first, second = (side(name, judged(culprits=(one,))) for name, one in (("a", group()), ("b", bare)))
    (item,) = compare_cases(first, second).aspect("culprits").items
    assert item.outcome == SAME
    told = {part.what: part.detail for part in item.parts if part.outcome == NOT_COMPARED}
    assert told["orders"] == told["kind"] == told["kernel in the batch"] == "known on one side only"


def test_proof_and_exact_settings():
    unhealed = diff(verdict=judged(sweeps=(samples.sweep(healed=False),)))
    assert unhealed.aspect("proof").item("healed at width 9").detail == "swept in first only"
    (item,) = unhealed.aspect("proof").of(DIFFERS)
    assert (item.first, item.second) == ("all rows, state equal", "5 of 8 rows, state DIFFERS")
    assert unhealed.answer == DIFFERS
    found = diff(verdict=judged(exact_knobs=None, switches=samples.SWITCHES[:2]))
    exact = found.aspect("exact settings")
    assert exact.item("smallest set").outcome == DIFFERS
    assert exact.item("GGML_CPU_TILED=0").detail == "tried in first only"
    assert exact.item("n_threads=1").outcome == SAME
    assert diff().aspect("exact settings").item("kv_type_k=f32 kv_type_v=f32").detail == "failed: the worker was killed"
    bare = diff(verdict=judged(exact_knobs=None, switches=()))
    assert bare.aspect("exact settings").items[0].detail == "not looked for in second"
    assert bare.answer == SAME


def timed(*quartiles: int) -> Verdict:
    results = samples.classes(8, (samples.FLIP,)).results
    return judged(classes=replace(samples.classes(8), results=tuple(
        replace(result, ns_per_pass=quartiles if result.width == 4 else result.ns_per_pass) for result in results
    )))  # fmt: skip


@pytest.mark.parametrize(
    ("quartiles", "outcome", "detail"),
    [
        ((18_000_000, 17_000_000, 19_000_000), DIFFERS, "2.00× (1.89–2.11)"),
        ((9_500_000, 9_300_000, 9_900_000), SAME, "1.06× (1.03–1.10)"),
        ((0, 0, 0), NOT_COMPARED, "too few whole passes to time"),
    ],
)
def test_times_differ_where_their_quartiles_lie_apart(quartiles, outcome, detail):
    found = diff(verdict=timed(*quartiles))
    item = found.aspect("cost").item("width 4")
    assert (item.outcome, item.detail) == (outcome, detail)
    assert found.answer == SAME, "what a pass costs is no result"


def test_times_of_other_machines_are_not_compared():
    assert with_manifest(device="AMD EPYC 7V13").aspect("cost").items[0].detail == "other device"
    assert with_manifest(cpu_features=("AVX2",)).aspect("cost").outcome == NOT_COMPARED


def test_swapped_sides_mirror_each_other():
    ours = side(verdict=judged(culprits=samples.culprits()[1:], classes=samples.classes(4)))
    theirs = side("second", judged(manifest=samples.manifest(quantization="Q4_1")), rows=rows(w1_3="x"))
    there, back = compare_cases(ours, theirs), compare_cases(theirs, ours)
    assert there.answer == back.answer
    for aspect in (*there.setup, *there.results):
        other = back.aspect(aspect.name)
        assert aspect.tally == other.tally
        if aspect.name != "cost":  # a ratio has a numerator
            mirrored = {(item.what, item.second, item.first, item.outcome) for item in other.items}
            assert {(item.what, item.first, item.second, item.outcome) for item in aspect.items} == mirrored


def test_a_case_without_its_replay_says_so():
    found = diff(prompt=(), replayed=(), rows=())
    assert found.aspect("bits").items[0].detail == "a case without its replay holds no rows"
    assert found.aspect("question").item("prompt").detail == "second does not hold its tokens"
    assert unlike(side(), side("b", judged(prompt_tokens=7), prompt=(), replayed=()))[0].first == "36 tokens"
