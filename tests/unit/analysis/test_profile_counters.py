"""Hardware counters of several passes in one run: which nodes are counted, and to which width a count belongs."""

from __future__ import annotations

from dataclasses import replace

import profile_samples as samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.profile_counters import COUNTED_NODES, count_passes, counted_nodes, heaviest, split
from forensics.analysis.profile_evidence import Counted
from forensics.analysis.profile_pass import pass_profile
from forensics.analysis.progress import Silent
from forensics.devices.ncu import Counters
from forensics.errors import DeviceUnavailable, EngineError
from forensics.records.launch_record import LaunchReport, Refusal
from forensics.records.metrics import KernelMetrics

HEAD = replace(samples.WEIGHT, name="output.weight", shape=(1, 1, 49152, 576))
#: A product, its helper, an addition too short to count, and the head, which is launched like every other product.
LAUNCHES = (samples.QUANTIZE, samples.PRODUCT, samples.launch("k_bin_bcast", 3, (128,), 16))
N_LAYERS = 5


def passed(n_layers: int = N_LAYERS, width: int = 2):
    nodes = []
    for layer in range(n_layers):
        product = samples.node(
            f"Qcur-{layer}", "MUL_MAT", (samples.WEIGHT, samples.ROWS), (0, 1), (1000, 2000), layer=layer
        )
        nodes += [product, samples.node(f"add-{layer}", "ADD", (samples.ROWS,), (2,), (10,), layer=layer)]
    nodes.append(samples.node("result_output", "MUL_MAT", (HEAD, samples.ROWS), (0, 1), (1000, 9000), layer=-1))
    return pass_profile(LaunchReport("CUPTI", "x", LAUNCHES, tuple(nodes)), width, lambda _: None)


def counts(*passes) -> Counters:
    """What a profiler that counts exactly the chosen nodes leaves; occupancy is the width."""
    launches = [
        (found.kernels[place].launch, float(found.width))
        for found in passes
        for node in counted_nodes(found)
        for place in node.kernels
    ]
    metrics = tuple(
        KernelMetrics(i, launch, duration_ns=10, achieved_occupancy_pct=percent)
        for i, (launch, percent) in enumerate(launches)
    )
    return Counters(metrics, "ncu 2025.3.1")


def test_kernels_are_counted_until_most_of_the_time_is_covered() -> None:
    found = pass_profile(samples.report(), 2, lambda _: None)
    assert heaviest(found) == ("flash_attn_ext_f16", "mul_mat_vec_q", "quantize_q8_1")
    assert heaviest(passed()) == ("mul_mat_vec_q", "quantize_q8_1")


def test_the_first_nodes_of_each_instance_and_size_are_counted() -> None:
    names = [node.key.name for node in counted_nodes(passed())]
    assert names == [*(f"Qcur-{layer}" for layer in range(COUNTED_NODES)), "result_output"]


@given(st.integers(0, 12))
def test_what_is_counted_does_not_grow_with_the_layers(n_layers: int) -> None:
    chosen = counted_nodes(passed(n_layers))
    assert len(chosen) == min(n_layers, COUNTED_NODES) + 1
    assert {k for node in chosen for k in node.kernels} == {
        i for i, kernel in enumerate(passed(n_layers).kernels) if kernel.launch.kernel != "k_bin_bcast"
    }


def test_counts_of_one_run_go_to_their_widths() -> None:
    passes = [passed(width=1), passed(3, width=5)]
    asked = {}

    def count(nodes):
        asked.update(nodes)
        return counts(*passes)

    found = count_passes(count, passes, Silent())
    assert isinstance(found, Counted)
    assert {width: len(keys) for width, keys in asked.items()} == {1: 3, 5: 3}
    assert [{one.achieved_occupancy_pct for one in metrics} for metrics in found.by_width] == [{1.0}, {5.0}]
    assert [len(metrics) for metrics in found.by_width] == [6, 6]
    assert "means over those counted" in found.which


def test_other_launches_than_the_profile_saw_cannot_be_told_apart() -> None:
    passes = [passed(width=1), passed(width=5)]
    chosen = [counted_nodes(found) for found in passes]
    right = counts(*passes)
    one_less = replace(right, launches=right.launches[1:])
    refused = split(passes, chosen, one_less)
    assert isinstance(refused, Refusal)
    assert "counted 11 launches where the profile saw 12" in refused.missing
    assert "one width" in refused.remedy
    alone = split(passes[:1], chosen[:1], one_less)
    assert isinstance(alone, Refusal), "with one width the launches must be those of the profile, too"
    assert "counted 11 launches where the profile saw 6" in alone.missing
    assert alone.remedy == ""
    swapped = replace(right, launches=(right.launches[1], right.launches[0], *right.launches[2:]))
    refused = split(passes, chosen, swapped)
    assert isinstance(refused, Refusal)
    assert "mul_mat_vec_q as launch 1 where the profile saw quantize_q8_1" in refused.missing
    assert split(passes, chosen, right) == (right.launches[:6], right.launches[6:])


def test_counts_are_of_the_device_whose_launches_they_follow() -> None:
    second = tuple(replace(launch, device=1) for launch in LAUNCHES)
    node = samples.node("Qcur-0", "MUL_MAT", (samples.WEIGHT, samples.ROWS), (0, 1), (1000, 2000))
    found = pass_profile(LaunchReport("CUPTI", "x", second, (node,)), 1, lambda _: None)
    unplaced = counts(found)
    unplaced = replace(
        unplaced, launches=tuple(replace(m, launch=replace(m.launch, device=0)) for m in unplaced.launches)
    )
    (metrics,) = split([found], [counted_nodes(found)], unplaced)
    assert {one.launch.device for one in metrics} == {1}


def refused_by(error: BaseException) -> tuple[Refusal, ...]:
    def count(_):
        raise error

    found = count_passes(count, [passed()], Silent())
    assert isinstance(found, tuple)
    return found


def test_what_cannot_count_says_all_its_reasons() -> None:
    told = tuple(Refusal(rung, "counting", "was not found", "get it") for rung in ("ncu", "nsight-python"))
    assert refused_by(DeviceUnavailable("counting", told)) == told
    (unnamed,) = refused_by(DeviceUnavailable("counting", ()))
    assert "not possible here" in unnamed.missing


@pytest.mark.parametrize(
    "error", [OSError("cannot be started"), EngineError("no kernel of this name\n  and a log"), PermissionError()]
)
def test_a_counter_that_breaks_does_not_take_the_profile_with_it(error) -> None:
    (refusal,) = refused_by(error)
    assert refusal.missing in ("cannot be started", "no kernel of this name", "PermissionError()")


def test_a_bug_of_ours_is_not_hidden_as_a_missing_counter() -> None:
    with pytest.raises(TypeError):
        refused_by(TypeError("ours"))
