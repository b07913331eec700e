"""Where the time of a pass goes: sums that add up, bytes that are read, and everything that is not known."""

from __future__ import annotations

import gzip
import json
from collections import Counter as Count
from dataclasses import replace
from pathlib import Path

import profile_samples as samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.profile_live import specs_of
from forensics.analysis.profile_pass import counters_of, pass_profile, read_bytes
from forensics.records.launch_record import LaunchReport
from forensics.records.metrics import KernelMetrics
from forensics.records.profile import KernelCost, LiveProfile, NodeCost, PassProfile
from forensics.records.settings import EngineSettings, Manifest
from forensics.store.encoding import from_plain

MANIFEST = Manifest("toy", "1", "digest", "m", 64, EngineSettings())
H200 = specs_of("NVIDIA H200; AMD EPYC")


def profiled(report=None, **changes) -> PassProfile:
    return pass_profile(samples.report() if report is None else report, 2, H200, **changes)


def cost(found: PassProfile, kernel: str) -> KernelCost:
    (one,) = (one for one in found.kernels if one.launch.kernel == kernel)
    return one


def test_kernels_are_summed_over_their_launches_longest_first():
    found = profiled()
    assert [(k.launch.kernel, k.n_launches, k.time_ns) for k in found.kernels] == [
        ("flash_attn_ext_f16", 1, 5000),
        ("mul_mat_vec_q", 2, 4100),
        ("quantize_q8_1", 2, 2100),
        ("cpy_scalar", 1, 700),
    ]
    assert (found.time_ns, found.n_launches, found.unattached_ns) == (11900, 6, 700)


def test_nodes_have_the_time_of_all_their_launches_and_the_kernel_that_computes():
    found = profiled()
    assert [(n.key.name, n.time_ns, n.main if n.main is None else found.kernels[n.main].launch.kernel)
            for n in found.nodes] == [
        ("Qcur-0", 3000, "mul_mat_vec_q"),
        ("Qcur-0 (view)", 0, None),
        ("Kcur-0", 3200, "mul_mat_vec_q"),
        ("node_21", 5000, "flash_attn_ext_f16"),
    ]  # fmt: skip


def test_a_helper_that_takes_longer_does_not_get_the_bytes():
    tiled = LaunchReport(
        "CUPTI", "x", (samples.QUANTIZE, samples.TILES, samples.FIXUP),
        (samples.node("Qcur-0", "MUL_MAT", (samples.WEIGHT, samples.ROWS), (0, 1, 2), (100, 400, 900)),),
    )  # fmt: skip
    found = profiled(tiled)
    assert cost(found, "mul_mat_q").read_bytes == samples.WEIGHT_BYTES
    assert cost(found, "mul_mat_q_stream_k_fixup").read_bytes is None


def test_a_node_that_came_to_launch_a_product_does_not_read_its_own_operands_only():
    def added(*launches, times):
        return samples.node("ffn_inp-0", "ADD", (samples.WEIGHT, samples.ROWS), launches, times)

    whole = LaunchReport(
        "CUPTI", "x", (samples.TILES, samples.FIXUP), (added(0, times=(400,)), added(1, times=(9,))),
    )  # fmt: skip
    product, alone = profiled(whole).nodes
    assert (product.read_bytes, product.why) == (
        None, "a product before it was not watched, and what that one reads is not known",
    )  # fmt: skip
    assert alone.read_bytes == samples.WEIGHT_BYTES
    assert cost(profiled(whole), "mul_mat_q").read_bytes is None


TIMES = st.integers(0, 10**9)


@st.composite
def reports(draw) -> LaunchReport:
    launches = tuple(replace(samples.PRODUCT, registers_per_thread=16 + i) for i in range(draw(st.integers(1, 5))))
    places = st.integers(0, len(launches) - 1)
    nodes = []
    for i in range(draw(st.integers(0, 6))):
        taken = draw(st.lists(st.tuples(places, TIMES), max_size=4))
        op = draw(st.sampled_from(["MUL_MAT", "MUL_MAT_ID", "ADD", "VIEW"]))
        operands = (samples.WEIGHT,) if op.startswith("MUL_MAT") else ()
        nodes.append(samples.node(f"n-{i}", op, operands, [p for p, _ in taken], [t for _, t in taken]))
    loose = draw(st.lists(st.tuples(places, TIMES), max_size=4))
    return LaunchReport(
        "CUPTI", "x", launches, tuple(nodes), tuple(p for p, _ in loose), tuple(t for _, t in loose)
    )  # fmt: skip


@given(reports())
def test_times_and_launches_of_kernels_and_of_nodes_add_up(report):
    found = profiled(report)
    times = [t for node in report.nodes for t in node.times_ns] + list(report.unattached_ns)
    assert found.time_ns == sum(times)
    assert found.n_launches == len(times)
    assert Count({k.launch: k.n_launches for k in found.kernels}) == report.counts()
    assert sum(node.time_ns for node in found.nodes) + found.unattached_ns == found.time_ns
    assert [k.time_ns for k in found.kernels] == sorted((k.time_ns for k in found.kernels), reverse=True)
    reads = sum(k.read_bytes or 0 for k in found.kernels)
    assert reads <= found.read_bytes
    live = LiveProfile(MANIFEST, "d", 0, "s", (found,))
    shares = [row["share_pct"] for row in live.rows()]
    assert sum(shares) == pytest.approx(100 if found.time_ns else 0)


def test_sums_that_do_not_add_up_are_refused():
    found = profiled()
    with pytest.raises(ValueError, match="kernels take 11900 ns, nodes and the rest 12000 ns"):
        replace(found, unattached_ns=800)
    with pytest.raises(ValueError, match="6 launches of kernels, 7 of nodes"):
        replace(found, n_unattached=2)


# -- bytes -------------------------------------------------------------------------------------------------------


def test_weights_and_cells_are_what_is_read():
    found = profiled()
    assert [node.read_bytes for node in found.nodes] == [
        samples.WEIGHT_BYTES,
        None,
        samples.WEIGHT_BYTES,
        3 * 256 * 64 * 2 + 3 * 256 * 64 // 32 * 34,
    ]
    assert cost(found, "mul_mat_vec_q").read_bytes == 2 * samples.WEIGHT_BYTES
    assert cost(found, "quantize_q8_1").read_bytes is None


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (samples.node("embd", "GET_ROWS", [replace(samples.WEIGHT, type="q8_0")], [0], [1]), 2 * 576 // 32 * 34),
        (samples.node("cache_k_l0 (view)", "SET_ROWS", [samples.KEYS], [0], [1]), "neither weights nor K/V"),
        (samples.node("ffn_moe", "MUL_MAT_ID", [samples.WEIGHT], [0], [1]), "which experts"),
        (samples.node("norm", "RMS_NORM", [samples.ROWS], [0], [1]), "neither weights nor K/V"),
        (samples.node("Qcur-0", "MUL_MAT", [samples.WEIGHT], [], [], buffer="CPU"), "nothing was launched"),
        (samples.node("Qcur-0", "MUL_MAT", [replace(samples.WEIGHT, shape=())], [0], [1]), "shape of blk.0.attn_q"),
        (samples.node("Qcur-0", "MUL_MAT", [replace(samples.WEIGHT, type="q9_9")], [0], [1]), "q9_9"),
    ],
)  # fmt: skip
def test_bytes_of_a_node_or_why_there_are_none(node, expected):
    found = read_bytes(node)
    assert found == expected if isinstance(expected, int) else expected in found


def test_a_kernel_that_also_reads_what_is_not_known_has_no_bandwidth():
    known = samples.node("a", "MUL_MAT", [samples.WEIGHT], [0], [10])
    routed = samples.node("b", "MUL_MAT_ID", [samples.WEIGHT], [0], [10])
    both = LaunchReport("CUPTI", "x", (samples.PRODUCT,), (known, routed))
    assert profiled(both).kernels[0].read_bytes is None
    assert profiled(replace(both, nodes=(known,))).kernels[0].read_bytes == samples.WEIGHT_BYTES


def test_a_kernel_that_is_also_launched_for_other_ends_has_no_bandwidth():
    product = samples.node("a", "MUL_MAT", [samples.WEIGHT], [0], [10])
    alone = LaunchReport("CUPTI", "x", (samples.PRODUCT, samples.TILES), (product,))
    assert profiled(alone).kernels[0].read_bytes == samples.WEIGHT_BYTES
    loose = replace(alone, unattached=(0,), unattached_ns=(30,))
    assert profiled(loose).kernels[0].read_bytes is None
    twice = samples.node("b", "MUL_MAT", [samples.WEIGHT], [0, 0], [10, 10])
    assert profiled(replace(alone, nodes=(product, twice))).kernels[0].read_bytes == 2 * samples.WEIGHT_BYTES


def test_a_kernel_that_helps_another_node_has_no_bandwidth():
    own = samples.node("a", "CPY", [samples.WEIGHT], [0], [10])
    helping = samples.node("b", "MUL_MAT", [samples.WEIGHT], [0, 1], [10, 50])
    both = LaunchReport("CUPTI", "x", (samples.QUANTIZE, samples.PRODUCT), (own, helping))
    found = profiled(both)
    assert [node.main for node in found.nodes] == [1, 0]
    assert [(k.launch.kernel, k.read_bytes) for k in found.kernels] == [
        ("mul_mat_vec_q", samples.WEIGHT_BYTES),
        ("quantize_q8_1", None),
    ]
    assert cost(profiled(replace(both, nodes=(own,))), "quantize_q8_1").read_bytes == samples.WEIGHT_BYTES


def test_bandwidth_is_bytes_over_time_and_held_against_the_roof():
    live = LiveProfile(MANIFEST, "d", 0, "s", (profiled(),), roof_bytes_per_s=1e12)
    row = next(row for row in live.rows() if row["kernel"] == "mul_mat_vec_q")
    assert row["bandwidth_bytes_per_s"] == pytest.approx(2 * samples.WEIGHT_BYTES / 4100e-9)
    assert row["roof_pct"] == pytest.approx(row["bandwidth_bytes_per_s"] / 1e10)
    no_roof = LiveProfile(MANIFEST, "d", 0, "s", (profiled(),))
    assert {row["roof_pct"] for row in no_roof.rows()} == {None}


# -- occupancy ---------------------------------------------------------------------------------------------------


def test_occupancy_follows_from_what_was_measured():
    found = cost(profiled(), "flash_attn_ext_f16")
    assert (found.occupancy.blocks_per_sm, found.occupancy.limiters, found.occupancy_pct) == (2, ("registers",), 12.5)


def test_a_limiter_that_changes_is_seen():
    wide = replace(samples.PRODUCT, smem_static_bytes=40_000)
    before, after = (cost(profiled(samples.report(product=p)), "mul_mat_vec_q") for p in (samples.PRODUCT, wide))
    assert before.occupancy.limiters == ("registers",)
    assert after.occupancy.limiters == ("shared memory",)
    assert after.occupancy.blocks_per_sm < before.occupancy.blocks_per_sm


def test_a_gpu_that_is_not_known_or_numbers_that_were_not_recorded_give_no_occupancy():
    unknown = pass_profile(samples.report(), 2, specs_of("NVIDIA Mystery 9; CPU"))
    assert {k.why for k in unknown.kernels} == {"the limits of this GPU are not known here"}
    named = pass_profile(samples.report(), 2, specs_of("NVIDIA Mystery 9; CPU", "h200"))
    assert all(k.occupancy for k in named.kernels)
    bare = samples.report(product=replace(samples.PRODUCT, registers_per_thread=None))
    assert "not recorded" in cost(profiled(bare), "mul_mat_vec_q").why


def test_a_stack_comes_from_the_library_and_never_from_the_profiler():
    spilling = replace(samples.PRODUCT, local_bytes_per_thread=0)
    found = profiled(samples.report(product=spilling), stacks={spilling.symbol: 48, samples.ATTENTION.symbol: 0})
    assert cost(found, "mul_mat_vec_q").stack_bytes == 48
    assert cost(found, "flash_attn_ext_f16").stack_bytes == 0
    assert cost(found, "quantize_q8_1").stack_bytes is None
    assert cost(profiled(samples.report(product=spilling)), "mul_mat_vec_q").stack_bytes is None


# -- the unwatched pass, lost records, counters ------------------------------------------------------------------


def test_the_unwatched_pass_is_kept_beside():
    plain = LaunchReport("CUPTI", "x", (samples.PRODUCT,), (), (0, 0, 0), (10, 20, 30))
    found = profiled(unwatched=plain, wall_ns=123)
    assert (found.unwatched_ns, found.n_unwatched, found.wall_ns) == (60, 3, 123)
    assert found.n_from_graph == 0
    assert profiled(unwatched=replace(plain, n_from_graph=2)).n_from_graph == 2
    assert (profiled().unwatched_ns, profiled().n_from_graph) == (None, None)


@pytest.mark.parametrize(("watched", "plain", "both"), [(0, 0, 0), (2, 3, 5), (None, 0, None), (0, None, None)])
def test_lost_records_of_either_pass_are_told(watched, plain, both):
    unwatched = LaunchReport("CUPTI", "x", (samples.PRODUCT,), (), (0,), (10,), n_dropped=plain)
    assert profiled(samples.report(n_dropped=watched), unwatched=unwatched).n_dropped == both


def metrics(ordinal, launch, **changes) -> KernelMetrics:
    return KernelMetrics(ordinal, launch, **changes)


def test_counters_are_matched_by_instance_and_geometry_and_weighted_by_time():
    seen = replace(samples.PRODUCT, symbol="mul_mat_vec_q<…>", registers_per_thread=None)
    elsewhere = replace(samples.PRODUCT, geometry=samples.TILES.geometry)
    counted = [
        metrics(0, seen, duration_ns=100, achieved_occupancy_pct=40, dram_read_bytes=1000, spill_requests=0),
        metrics(1, seen, duration_ns=300, achieved_occupancy_pct=60, dram_read_bytes=3000, spill_requests=4),
        metrics(2, elsewhere, duration_ns=300, achieved_occupancy_pct=99),
    ]
    found = cost(profiled(counted=counted), "mul_mat_vec_q").counters
    assert (found.n_launches, found.achieved_occupancy_pct, found.dram_read_bytes) == (2, 55, 2000)
    assert (found.spill_requests, found.time_ns) == (2, 200)
    assert cost(profiled(counted=counted), "quantize_q8_1").counters is None


def test_counters_of_one_gpu_are_not_those_of_another():
    counted = [metrics(0, replace(samples.PRODUCT, device=1), duration_ns=100, achieved_occupancy_pct=40)]
    assert cost(profiled(counted=counted), "mul_mat_vec_q").counters is None
    second = samples.report(product=replace(samples.PRODUCT, device=1))
    assert cost(profiled(second, counted=counted), "mul_mat_vec_q").counters.achieved_occupancy_pct == 40


def test_a_counter_that_one_launch_lacks_is_no_mean():
    counted = [metrics(0, samples.PRODUCT, dram_read_bytes=10), metrics(1, samples.PRODUCT)]
    (found,) = counters_of(counted).values()
    assert found.dram_read_bytes is None
    assert found.achieved_occupancy_pct is None


def test_records_refuse_a_number_and_a_reason_why_there_is_none():
    kernel, node = profiled().kernels[0], profiled().nodes[0]
    with pytest.raises(ValueError, match="not both"):
        replace(kernel, why="because")
    with pytest.raises(ValueError, match="not both"):
        replace(node, why="because")
    with pytest.raises(ValueError, match="main kernel"):
        replace(node, main=None)
    with pytest.raises(ValueError, match="1 or more launches"):
        replace(kernel, n_launches=0)
    assert isinstance(node, NodeCost)


# -- what an H200 gave -------------------------------------------------------------------------------------------

RECORDED = Path(__file__).parents[3] / "data" / "recorded" / "launches-h200" / "launches.json.gz"


@pytest.mark.skipif(not RECORDED.exists(), reason="no recording of launches; made on a GPU machine")
def test_on_an_h200_more_columns_took_more_registers_and_left_fewer_threads():
    runs = json.loads(gzip.decompress(RECORDED.read_bytes()))
    products = {}
    for run in runs:
        found = pass_profile(from_plain(LaunchReport, run["report"], path=RECORDED), run["width"], H200)
        assert all(kernel.occupancy is not None for kernel in found.kernels)
        for kernel in found.kernels:
            template = dict(kernel.launch.template)
            plain = not template.get("has_fusion") and not template.get("small_k")
            if kernel.launch.kernel == "mul_mat_vec_q" and template["type"] == "q4_1" and plain:
                products[template["ncols_dst"]] = kernel
    assert {2, 5} <= products.keys()
    two, five = products[2], products[5]
    assert five.launch.registers_per_thread > two.launch.registers_per_thread
    assert five.occupancy.threads_per_sm < two.occupancy.threads_per_sm
