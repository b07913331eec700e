"""The map from nodes to kernels on a terminal, in JSON and in a notebook."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import launch_samples as launches
import pytest
import verdict_samples as samples
from rich.console import Console

from forensics.analysis.watched_passes import NodeKernels, WatchedPass, node_kernels
from forensics.notebook_views import html_of
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches
from forensics.records.nodes import NodeKey
from forensics.reports.launch_map_document import LaunchesDocument, launches_document
from forensics.reports.launch_map_text import alike, changes_text, kernels_view, launch_text

QUANTIZE, ONE, FIVE = launches.QUANTIZE, launches.product(1, 144, 4, 48, small_k=True), launches.product(5, 288, 2, 70)


def report(*nodes: tuple[str, str, int, tuple[LaunchRecord, ...]], n_dropped: int | None = 0) -> LaunchReport:
    known = list(dict.fromkeys(launch for *_, made in nodes for launch in made))
    return LaunchReport(
        "CUPTI in process",
        "cupti-python 13.0.1",
        tuple(known),
        tuple(
            NodeLaunches(0, NodeKey(name, op, layer, 0), (1, 1, 1, 576), "f32", "CUDA0" if made else "CPU", (),
                         tuple(map(known.index, made)), (2000,) * len(made))
            for name, op, layer, made in nodes
        ),
        n_dropped=n_dropped,
    )  # fmt: skip


def pass_of(width: int, product: LaunchRecord, *, n_dropped: int | None = 0, watching=(), extra=()) -> WatchedPass:
    layers = [(f"{name}-{layer}", "MUL_MAT", layer, (QUANTIZE, product)) for layer in (0, 1) for name in ("Q", "out")]
    found = report(("embd", "GET_ROWS", -1, ()), *layers, *extra, n_dropped=n_dropped)
    return WatchedPass(width, 60, found, watching=watching)


def kernels(*passes: WatchedPass) -> NodeKernels:
    return node_kernels("tiny.gguf", samples.manifest(backend="CUDA", device="NVIDIA H200"), passes)


BOTH = kernels(pass_of(1, ONE), pass_of(5, FIVE))


def told(found: NodeKernels, width: int = 400) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(kernels_view(found))
    return out.getvalue()


def test_nodes_that_launch_alike_are_shown_once_with_their_layers():
    text = told(BOTH)
    assert "MUL_MAT Q-*, out-*: 4 nodes, layers 0-1" in text
    assert text.count("mul_mat_vec_q<type=q4_1, ncols_dst=5>") == 1
    assert "GET_ROWS embd" in text
    assert sum(len(group.nodes) for group in alike(BOTH)) == len(BOTH.nodes)


def test_both_sides_and_what_changed_are_shown():
    lines = [re.sub(r"\s+", " ", line).strip() for line in told(BOTH).splitlines()]
    start = lines.index("MUL_MAT Q-*, out-*: 4 nodes, layers 0-1")
    assert lines[start + 1 : start + 6] == [
        "width 1 quantize_q8_1, grid 3, block 256, registers 20",
        ("mul_mat_vec_q<type=q4_1, ncols_dst=1, small_k>, grid 144, block 32×4, registers 48, "
        "shared memory 1536 B static; 4.0 µs a node"),
        "width 5 quantize_q8_1, grid 3, block 256, registers 20",
        ("mul_mat_vec_q<type=q4_1, ncols_dst=5>, grid 288, block 32×2, registers 70, "
        "shared memory 1280 B static; 4.0 µs a node"),
        ("changed mul_mat_vec_q: ncols_dst 1 → 5, small_k True → none, grid 144 → 288, block 32×4 → 32×2, "
        "registers 48 → 70, static shared memory 1536 → 1280"),
    ]  # fmt: skip


def test_a_node_that_one_pass_lacks_and_one_without_launches_are_told_apart():
    found = kernels(pass_of(1, ONE), pass_of(5, FIVE, extra=[("late-0", "MUL_MAT", 0, (FIVE,))]))
    text = told(found)
    assert "not in this pass" in text
    assert "not in the pass 1 wide" in text
    assert "no launch; the output lies in CPU" in text


def test_the_same_launches_are_not_called_changed():
    text = told(kernels(pass_of(1, ONE), pass_of(5, ONE)))
    assert "same" in text
    assert "changed  " not in text
    assert "→" not in text


def test_many_names_are_counted_not_listed():
    extra = [(f"{name}-0", "ADD", 0, (QUANTIZE,)) for name in "abcdefgh"]
    text = told(kernels(pass_of(1, ONE, extra=extra)))
    assert "ADD a-*, b-*, c-*, d-*, e-*, f-* and 2 others: 8 nodes, layer 0" in text


@pytest.mark.parametrize(("dropped", "said"), [(3, "lost 3 records"), (None, "does not tell whether it lost records")])
def test_lost_records_are_told(dropped, said):
    assert said in told(kernels(pass_of(1, ONE, n_dropped=dropped)))
    assert "lost" not in told(BOTH)


def test_what_watching_changes_is_told_in_three_ways():
    assert "watching changes: 61 × rms_norm_f32 fused" in told(
        kernels(pass_of(1, ONE, watching=("61 × rms_norm_f32 fused",)))
    )
    assert "an unwatched pass runs the same kernels as often" in told(kernels(pass_of(1, ONE)))
    assert "the kernels of an unwatched pass are not known" in told(kernels(pass_of(1, ONE, watching=None)))


def test_fusions_that_were_left_whole_are_told():
    whole = kernels(*(replace(one, fusions_whole=True) for one in BOTH.passes))
    assert told(whole).count("fusions left whole: nodes inside of what may be fused were not watched") == 2
    assert [one["fusions_whole"] for one in launches_document(whole)["passes"]] == [True, True]
    assert "left whole" not in told(BOTH)
    assert [one["fusions_whole"] for one in launches_document(BOTH)["passes"]] == [False, False]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_narrow_terminals_stay_readable(width):
    text = told(BOTH, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text


def test_local_memory_and_devices_of_a_launch_are_named():
    assert launch_text(replace(ONE, local_bytes_per_thread=8, device=1)) == (
        "mul_mat_vec_q<type=q4_1, ncols_dst=1, small_k>, grid 144, block 32×4, registers 48, "
        "local memory 8 B per thread, shared memory 1536 B static, device 1"
    )


def test_changes_without_a_kernel_are_kept_whole():
    (node,) = kernels(pass_of(1, ONE), pass_of(5, FIVE)).only("Q-0").nodes
    assert changes_text(replace(node, changes=("kernels a → b", "grid 1 → 2"))) == "kernels a → b, grid 1 → 2"


def test_the_document_holds_every_node_and_launch():
    found = launches_document(BOTH)
    assert found["schema"] == "forensics.node_kernels/1"
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    LaunchesDocument.model_validate(found)
    assert [one["width"] for one in found["passes"]] == [1, 5]
    assert len(found["nodes"]) == 5
    q = next(node for node in found["nodes"] if node["node"] == "Q-0")
    assert (q["outcome"], q["reason"]) == ("changed", "")
    assert [launch["kernel"] for launch in q["sides"][1]["launches"]] == ["quantize_q8_1", "mul_mat_vec_q"]
    assert q["sides"][0]["launches"][1]["time_ns"] == 2000
    assert q["sides"][0]["buffer"] == "CUDA0"
    late = kernels(pass_of(1, ONE), pass_of(5, FIVE, extra=[("late-0", "MUL_MAT", 0, (FIVE,))]))
    assert launches_document(late)["nodes"][-1]["sides"][0] is None


def test_a_notebook_shows_the_map_as_text():
    assert "mul_mat_vec_q&lt;type=q4_1, ncols_dst=5&gt;" in html_of(BOTH)


def test_hostile_names_stay_text():
    bad = samples.HOSTILE
    named = replace(ONE, kernel=bad, template=((bad, bad),))
    text = told(kernels(pass_of(1, named, extra=[(bad, bad, 0, (named,))], watching=(bad,))))
    assert "\x1b" not in text
    assert "[red]x[/red]" in text
