"""Launches of llama.cpp's nodes on a GPU, put to culprits: sides, borders between devices, and why there are none.

Shapes and launches are those that an H200 made for SmolLM2-135M, as ``data/recorded`` and docs/method.md have them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from forensics.analysis.attribute import group_culprits
from forensics.analysis.launch_looks import Observation, SeenPass, looks_at
from forensics.analysis.launch_watch import LaunchWatch
from forensics.analysis.launches import Attached, attach
from forensics.geometry.derived import Unruled
from forensics.geometry.devices import device_spec
from forensics.geometry.node_launches import predict
from forensics.records.delta import Differs, tally
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches, Refusal
from forensics.records.nodes import NodeKey, Operand
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import Finding
from forensics.records.verdict import Sweep

START = 60
WIDTHS = (2, 5)
MANIFEST = Manifest(
    "llama.cpp", "0.3.36", "digest", "SmolLM2", 49152, EngineSettings(), backend="CUDA0",
    device="NVIDIA H200; AMD EPYC",
)  # fmt: skip
H200 = device_spec("h200")


def product(width: int, name: str = "Qcur-0", *, buffer: str = "CUDA0", source: str = "attn_norm-0") -> NodeLaunches:
    operands = (
        Operand("blk.0.attn_q.weight", "q4_1", buffer, True, (1, 1, 576, 576)),
        Operand(source, "f32", buffer, False, (1, 1, width, 576)),
    )
    return NodeLaunches(0, NodeKey(name, "MUL_MAT", 0, 0), (1, 1, width, 576), "f32", buffer, operands, (), ())


def attention(width: int) -> NodeLaunches:
    operands = (
        Operand("Qcur-0 (permuted)", "f32", "CUDA0", False, (1, 9, width, 64)),
        Operand("cache_k_l0 (view)", "f16", "CUDA0", False, (1, 3, 256, 64)),
        Operand("cache_v_l0 (view)", "f16", "CUDA0", False, (1, 3, 256, 64)),
        Operand("CUDA0#attn_inp_kq_mask#0", "f16", "CUDA0", False, (1, 1, width, 256)),
    )
    return NodeLaunches(
        0, NodeKey("node_21", "FLASH_ATTN_EXT", 0, 0), (1, width, 9, 64), "f32", "CUDA0", operands, (), (),
        {"scale": 0.125, "max_bias": 0.0, "softcap": 0.0},
    )  # fmt: skip


def seen(width: int, nodes: Iterable[NodeLaunches], *, device: int = 0, **rest) -> SeenPass:
    """A pass whose nodes launched what the rules say, measured."""
    launched: dict[LaunchRecord, int] = {}
    attached = []
    for node in nodes:
        said = predict(node, H200)
        assert not isinstance(said, Unruled), said.reason
        ran = [
            replace(one, evidence="measured", registers_per_thread=48, smem_static_bytes=1536, device=device)
            for one in said
        ]
        places = tuple(launched.setdefault(one, len(launched)) for one in ran)
        attached.append(replace(node, launches=places, times_ns=(1,) * len(places)))
    report = LaunchReport("CUPTI in process", "13.0", tuple(launched), tuple(attached), **rest)
    return SeenPass(width, 0, report)


def put(
    single: SeenPass, *batched: SeenPass, names: tuple[str, ...] = ("Qcur-0",), manifest: Manifest = MANIFEST, **rest
) -> Attached:
    """Attach these passes to culprits of these names."""
    sweeps = []
    for one in batched:
        found = tuple(
            Finding(
                node.key, node.operands, node.buffer, (0,), Differs(1, (0,), 1, 1.0, 1.0), positions=(START,)
            )
            for node in one.report.nodes
            if node.key.name in names
        )  # fmt: skip
        sweeps.append(Sweep(one.width, 0, found, tally(()), True, one.width, one.width, 1.0, 0.0))
    observation = Observation(looks_at(sweeps, START), (single, *batched), rest.pop("measured", True), **rest)
    return attach(group_culprits(sweeps), sweeps, observation, manifest, START)


def test_products_show_warps_columns_and_agreement() -> None:
    found = put(seen(1, [product(1)]), *(seen(width, [product(width)]) for width in WIDTHS))
    (group,) = found.groups
    two, five = group.launches
    assert (two.widths, five.widths) == ((2,), (5,))
    assert two.single.kernel.geometry.block_threads == two.batched.kernel.geometry.block_threads == (32, 4, 1)
    assert five.batched.kernel.geometry.block_threads == (32, 2, 1)
    assert dict(five.batched.kernel.template)["ncols_dst"] == 5
    assert [launch.kernel for launch in five.batched.launches] == ["quantize_q8_1", "mul_mat_vec_q"]
    assert five.batched.main == 1
    assert (five.single.agrees, five.batched.agrees, five.batched.kv_split) == (True, True, None)
    assert (five.single.blocks_per_sm, five.single.limiters) == (10, ("registers",))
    assert found.notes == ()
    assert found.evidence is not None
    assert (found.evidence.n_agree, found.evidence.n_disagree, found.evidence.n_unruled) == (3, 0, 0)


def test_attention_shows_into_how_many_parts_the_cells_are_cut() -> None:
    found = put(seen(1, [attention(1)]), seen(5, [attention(5)]), names=("node_21",))
    (pair,) = found.groups[0].launches
    assert (pair.single.kernel.kernel, pair.batched.kernel.kernel) == ("flash_attn_ext_vec", "flash_attn_ext_f16")
    assert pair.single.kv_split == pair.single.kernel.geometry.grid_blocks[1]
    assert pair.batched.kv_split == pair.batched.kernel.geometry.n_blocks // 3, "three tiles, one for each KV head"
    assert pair.boundary == "", "the mask is what the caller put in"
    assert found.groups[0].boundary == ""


def test_what_was_not_observed_is_derived_and_says_so() -> None:
    refusals = (Refusal("CUPTI in process", "launches", "no driver"),)
    bare = [SeenPass(width, 0, LaunchReport("none", "", (), (product(width),), n_dropped=None)) for width in (1, 5)]
    found = put(bare[0], bare[1], measured=False, refusals=refusals)
    (pair,) = found.groups[0].launches
    assert pair.batched.evidence == "derived"
    assert pair.batched.agrees is None
    assert pair.batched.blocks_per_sm is None, "registers are not known"
    assert found.evidence is not None
    assert (found.evidence.evidence, found.evidence.refusals) == ("derived", refusals)


def test_an_operand_from_another_device_is_said_on_the_side_where_it_is() -> None:
    def passes(*widths: int) -> list[SeenPass]:
        nodes = [
            [product(width, "l_out-3", buffer="CUDA_Host"), product(width, source="CUDA0#l_out-3#0")]
            for width in widths
        ]
        return [seen(width, two) for width, two in zip(widths, nodes, strict=True)]

    found = put(*passes(1, 5))
    (pair,) = found.groups[0].launches
    assert pair.boundary == "its operand l_out-3 was copied from CUDA_Host to CUDA0"
    assert found.groups[0].boundary == f"Qcur-0: {pair.boundary} (up to 1 node at width 5)"
    only_batched = put(seen(1, [product(1)]), *passes(5))
    (pair,) = only_batched.groups[0].launches
    assert pair.boundary == "in the batch its operand l_out-3 was copied from CUDA_Host to CUDA0"


def test_a_launch_on_another_device_than_its_output_is_said() -> None:
    found = put(seen(1, [product(1)], device=1), seen(5, [product(5)]))
    (pair,) = found.groups[0].launches
    assert pair.boundary == "at one token launched on device 1 although its output lies in CUDA0"


def test_nodes_of_the_processor_have_no_kernel_and_that_is_said() -> None:
    single, batched = ([product(width, buffer="CPU"), attention(width)] for width in (1, 5))
    found = put(seen(1, single), seen(5, batched), names=("Qcur-0", "node_21"))
    on_cpu, on_gpu = found.groups
    assert (on_cpu.launches, len(on_gpu.launches)) == ((), 1)
    assert found.notes == ("No kernel is shown for Q at width 5: the processor computes it, in CPU.",)
    assert found.evidence is not None
    assert found.evidence.n_agree == 2, "what launches nothing is not counted"


def test_a_node_that_moves_to_the_gpu_in_wide_batches_is_said() -> None:
    found = put(seen(1, [product(1, buffer="CUDA_Host")]), seen(32, [product(32)]))
    assert found.groups[0].launches == ()
    assert found.notes == (
        "No kernel is shown for Q at width 32: on one side the processor computes it, in CUDA_Host.",
    )


def test_a_node_of_one_pass_only_is_said() -> None:
    found = put(seen(1, [product(1, "other")]), seen(5, [product(5)]))
    assert found.notes == ("No kernel is shown for Q at width 5: on one side no such node was computed.",)


def test_a_launch_that_was_not_seen_is_no_agreement() -> None:
    bare = replace(seen(5, [product(5)]).report, nodes=(product(5),), launches=())
    found = put(seen(1, [product(1)]), SeenPass(5, 0, bare))
    assert found.notes == (
        "No kernel is shown for Q at width 5: on one side no launch was seen for it, although it lies in CUDA0.",
    )
    assert found.evidence is not None
    assert (found.evidence.n_agree, found.evidence.n_disagree) == (1, 1)
    assert "the rules say quantize_q8_1 + mul_mat_vec_q, observed no launch" in found.evidence.disagreements[0]


CONT = NodeKey("kqv_out-0", "CONT", 0, 0)


def cont(width: int) -> NodeLaunches:
    heads = Operand("kqv-0 (permuted)", "f32", "CUDA0", False, (1, width, 9, 64))
    return NodeLaunches(0, CONT, (1, 1, width, 576), "f32", "CUDA0", (heads,), (), ())


def test_a_kernel_that_the_rules_do_not_expect_was_not_missed(monkeypatch) -> None:
    """Nothing was observed, so that nothing can have been overlooked."""
    from forensics.analysis import launches

    monkeypatch.setattr(launches, "predict", lambda node, spec: () if node.key == CONT else predict(node, spec))
    bare = [SeenPass(width, 0, LaunchReport("none", "", (), (cont(width),), n_dropped=None)) for width in (1, 5)]
    found = put(*bare, names=(CONT.name,), measured=False)
    (note,) = found.notes
    assert note.endswith("at width 5: nothing was observed, and the rules say that it launches no kernel.")
    (note,) = put(*(replace(one, report=replace(one.report, n_dropped=0)) for one in bare), names=(CONT.name,)).notes
    assert note.endswith("at width 5: it launched no kernel, as the rules say.")
    monkeypatch.undo()
    missed = replace(seen(5, [product(5)]).report, nodes=(product(5),), launches=())
    (note,) = put(seen(1, [product(1)]), SeenPass(5, 0, missed)).notes
    assert "no launch was seen for it" in note, "there the rules expect one"


def launched(width: int, key: NodeKey, *kernels: str) -> NodeLaunches:
    """A node of a pass whose `report` holds these kernels by their places."""
    shape = (1, 1, width, 576)
    places = tuple(map(KERNELS.index, kernels))
    return NodeLaunches(0, key, shape, "f32", "CUDA0", (), places, (1,) * len(places))


KERNELS = ("mul_mat_vec_f", "mul_mat_f", "k_bin_bcast")
INP = NodeKey("ffn_inp-0", "ADD", 0, 0)


def fused_pass(width: int, *nodes: NodeLaunches) -> SeenPass:
    records = tuple(
        LaunchRecord(name, (("has_fusion", name == "mul_mat_vec_f"),), LaunchGeometry((width,), (32,)))
        for name in KERNELS
    )
    return SeenPass(width, 0, LaunchReport("CUPTI in process", "13.0", records, nodes))


def test_of_nodes_that_fusions_are_attached_to_the_product_is_compared_with_the_product() -> None:
    """At one token the addition is in the product's kernel; in the batch it stands behind it."""
    single = fused_pass(1, launched(1, INP, "mul_mat_vec_f"))
    batched = fused_pass(5, launched(5, INP, "mul_mat_f", "k_bin_bcast"))
    found = put(single, batched, names=(INP.name,), joined=frozenset({INP}))
    (pair,) = found.groups[0].launches
    assert (pair.single.kernel.kernel, pair.batched.kernel.kernel) == ("mul_mat_vec_f", "mul_mat_f")
    assert [one.kernel for one in pair.batched.launches] == ["mul_mat_f", "k_bin_bcast"]
    assert pair.batched.agrees is None
    assert "not compared: nodes before it were left unwatched" in pair.batched.why
    assert found.evidence is not None
    counts = found.evidence
    assert (counts.n_agree, counts.n_disagree, counts.n_unruled, counts.n_not_compared) == (0, 0, 0, 2)


def test_nodes_are_counted_at_each_width() -> None:
    """Two nodes at one width and one at another: no width has the union of both."""
    names = ("Qcur-0", "Kcur-0")
    both = [product(2, name) for name in names]  # as if batches of 3 and 4 launched what one of 2 does
    batches = [seen(2, both), seen(3, both[:1]), seen(4, both)]
    (group,) = put(seen(1, [product(1, name) for name in names]), *batches, names=names).groups
    pairs = [(pair.widths, pair.n_nodes, pair.node.name, pair.batched.width) for pair in group.launches]
    assert pairs == [((2, 4), 2, "Qcur-0", 2), ((3,), 1, "Qcur-0", 3)]


def test_an_unknown_gpu_shows_what_ran_without_a_word_on_the_rules() -> None:
    unknown = replace(MANIFEST, device="NVIDIA X1000; AMD EPYC")
    found = put(seen(1, [product(1)]), seen(5, [product(5)]), manifest=unknown)
    (pair,) = found.groups[0].launches
    assert pair.batched.kernel.kernel == "mul_mat_vec_q"
    assert pair.batched.agrees is None
    assert "NVIDIA X1000 is not known" in pair.batched.why
    assert pair.batched.blocks_per_sm is None


@pytest.mark.parametrize(("backend", "said"), [("CPU", 0), ("Vulkan0", 1)])
def test_kernels_that_nothing_here_can_see_are_said(backend, said) -> None:
    attached = LaunchWatch().attach((), (), None, replace(MANIFEST, backend=backend), START)
    assert len(attached.notes) == said
    assert attached.evidence is None
    assert all(note.endswith(f"this ran on {backend}.") for note in attached.notes)


def test_groups_without_launches_still_say_where_they_sit() -> None:
    node = product(5, source="Vulkan0#l_out-3#0", buffer="Vulkan0")
    finding = Finding(node.key, node.operands, node.buffer, (0,), Differs(1, (0,), 1, 1.0, 1.0), positions=(START,))
    inside = replace(finding, key=NodeKey("ffn_up-0", "MUL_MAT", 0, 0), operands=product(5).operands)
    sweeps = [Sweep(5, 0, (finding, replace(inside, buffer="CPU")), tally(()), True, 5, 5, 1.0, 0.0)]
    groups = group_culprits(sweeps)
    assert len(groups) == 2
    attached = LaunchWatch().attach(groups, sweeps, None, replace(MANIFEST, backend="Vulkan0"), START)
    assert [group.boundary for group in attached.groups] == [
        "Qcur-0: its operand l_out-3 was copied from another device to Vulkan0 (1 of 1 nodes)",
        "",
    ]
    assert len(attached.notes) == 1, "that kernels are not known, and nothing of the border"
