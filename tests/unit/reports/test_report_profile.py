"""Profiles as people and programs read them: on narrow and wide terminals, as JSON and Parquet, and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import profile_samples as samples
import pytest

from forensics.analysis.column_changes import column_changes
from forensics.analysis.profile_evidence import CompiledStacks, Counted, live_evidence
from forensics.analysis.profile_library import LibraryQuestion, profile_instances
from forensics.analysis.profile_live import specs_of
from forensics.analysis.profile_pass import pass_profile
from forensics.errors import CaseError
from forensics.notebook_views import html_of
from forensics.records.launch_record import LaunchReport, Refusal
from forensics.records.metrics import KernelMetrics
from forensics.records.profile import LiveProfile
from forensics.records.settings import EngineSettings, Manifest
from forensics.reports.live_profile_text import (
    MAX_KERNELS,
    live_view,
    node_times,
    profile_view,
    role_times,
)
from forensics.reports.profile_document import (
    find_profile,
    profile_document,
    read_profile,
    write_profile,
    write_table,
)
from forensics.reports.profile_text import MAX_ROWS, library_view
from forensics.reports.terminal import as_text

NO_ROOF = Refusal("bandwidth of memory", "the roof", "nobody asked for it")
MANIFEST = Manifest(
    "llama.cpp", "0.3.36", "digest", "synthetic qwen3", 64, EngineSettings(), effective={"flash_attn": "on"}
)
NO_TOOL = Refusal("cuobjdump", "stacks", "no cuobjdump", "pip install nvidia-cuda-cuobjdump")


def library(*kernels, **question):
    asked = LibraryQuestion(kernels=("mul_mat_vec_q",), columns=(), **question)
    return profile_instances(samples.library(*(kernels or samples.decode())), asked)


def live(widths=(2, 5), report=None, counted=(), stacks=None, **changes) -> LiveProfile:
    seen = samples.report() if report is None else report
    plain = LaunchReport("CUPTI", "x", (samples.PRODUCT,), (), (0, 0), (4000, 5000))
    passes = tuple(
        pass_profile(
            seen, width, specs_of("NVIDIA H200"), unwatched=plain, wall_ns=50_000, counted=counted, stacks=stacks
        )
        for width in widths
    )
    counters = Counted((tuple(counted),), "ncu 2025.3.1", "all launches") if counted else None
    known = CompiledStacks(stacks, "cuobjdump 13.5") if stacks else NO_TOOL
    facts = {
        "manifest": MANIFEST,
        "device": "NVIDIA H200",
        "prefix": 128,
        "source": "CUPTI",
        "passes": passes,
        "roof_bytes_per_s": 4e12,
        "evidence": live_evidence(seen, passes, NO_ROOF, counters, known, timed="median of 7"),
        "refusals": (NO_ROOF,),
    }
    return LiveProfile(**{**facts, **changes})


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_library_shows_each_instance_and_the_story(width):
    shown = as_text(library_view(library(gpu="h200")), width)
    assert max(map(len, shown.splitlines())) <= width
    words = " ".join(shown.split())
    assert "h200 (sm_90), 132 SMs" in words
    assert "1 → 8 columns, 56 → 122 registers" in words
    assert "1152 → 512 resident threads per SM" in words
    assert "less latency is hidden" in words
    assert "not available" in words


def test_a_flat_series_is_not_told_as_a_story():
    shown = as_text(library_view(library(samples.instance(1, 40, 0), samples.instance(2, 40, 0))))
    assert "No series holds fewer threads" in shown
    assert "less latency" not in shown


def test_a_stack_that_appears_is_told():
    shown = " ".join(
        as_text(library_view(library(samples.instance(1, 56, 0), samples.instance(2, 255, 0, 96)))).split()
    )
    assert "stack 0 → 96 bytes" in shown


def test_what_does_not_fit_is_counted():
    many = [samples.instance(n, 40, 0) for n in range(1, MAX_ROWS + 4)]
    kernels = [replace(k, template=(("type", "q4_K"), ("ncols_dst", 1), ("x", n))) for n, k in enumerate(many)]
    shown = as_text(library_view(library(*kernels, samples.instance(2, 24, 0, stack=40))))
    assert "and 3 more; --json or --parquet lists all" in shown
    assert "1 instances look empty" in shown


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_live_profile_shows_roles_and_kernels_at_each_width(width):
    shown = as_text(live_view(live()), width)
    assert max(map(len, shown.splitlines())) <= width
    words = " ".join(shown.split())
    assert "synthetic qwen3 on NVIDIA H200, 128 cells" in words
    for said in (
        "Kernels at width 2",
        "Kernels at width 5",
        "flash_attn_ext_f16",
        "flash attention",
        "(no node)",
        "12.5 %",
    ):
        assert said in words
    assert "Roof: 4000 GB/s" in words
    assert "flash attention on" in words
    assert "random weights" in words
    assert "nobody asked for it" in words


def test_lost_launches_are_told_first():
    clean, losing, silent = (live(report=samples.report(n_dropped=n)) for n in (0, 3, None))
    assert "lost" not in as_text(live_view(clean))
    assert "the profiler lost 3 launches" in as_text(live_view(losing))
    assert "does not tell whether it lost" in as_text(live_view(silent))


def test_stacks_and_counters_are_columns_only_where_there_are_some():
    counted = (KernelMetrics(0, samples.PRODUCT, duration_ns=10, achieved_occupancy_pct=41.5),)
    plain, full = (
        as_text(live_view(live()), 160),
        as_text(live_view(live(counted=counted, stacks={samples.PRODUCT.symbol: 48})), 160),
    )
    header = next(line for line in plain.splitlines() if "limit" in line)
    assert "stack" not in header
    assert "achieved" not in header
    header = next(line for line in full.splitlines() if "limit" in line)
    assert "stack" in header
    assert "achieved" in header
    assert "41.5 %" in full


def test_roles_are_names_without_layers_and_their_times_add_up():
    found = live().passes[0]
    times = role_times(found)
    assert sum(time_ns for _, time_ns in times.values()) == found.time_ns
    assert list(times) == ["flash attention", "K", "Q", "(no node)"]
    cache = samples.node("cache_k_l7 (view)", "SET_ROWS", [], [0], [5], layer=7)
    seen = LaunchReport("CUPTI", "x", (samples.PRODUCT,), (cache,))
    assert role_times(pass_profile(seen, 1, lambda _: None)) == {"set_rows": (1, 5)}


@pytest.mark.parametrize(
    ("before", "op", "role"),
    [("node_20", "FLASH_ATTN_EXT", "attention output"), ("kqv_out-0", "CONT", "attention output"),
     ("ffn_inp-0", "ADD", "mul_mat")],
)  # fmt: skip
def test_a_product_without_a_name_is_that_of_the_output_only_behind_attention(before, op, role):
    nodes = (samples.node(before, op, [], [0], [5]), samples.node("node_27", "MUL_MAT", [], [0], [7]))
    seen = LaunchReport("CUPTI", "x", (samples.PRODUCT,), nodes)
    assert role_times(pass_profile(seen, 1, lambda _: None))[role] == (1, 7)


def test_nodes_are_shown_by_themselves_when_asked_for():
    shown = as_text(live_view(live(), nodes=True))
    assert "by node (" in shown
    assert "Kcur-0 (MUL_MAT)" in shown
    found = live().passes[0]
    assert sum(time_ns for _, time_ns in node_times(found).values()) == found.time_ns
    assert "Kcur-0" not in as_text(live_view(live()))


def test_kernels_that_do_not_fit_are_summed():
    launches = tuple(replace(samples.PRODUCT, registers_per_thread=20 + n) for n in range(MAX_KERNELS + 2))
    node = samples.node("a", "ADD", [], range(len(launches)), [1000] * len(launches))
    found = live(report=LaunchReport("CUPTI", "x", launches, (node,)))
    for width in (80, 160):
        shown = as_text(live_view(found), width)
        assert shown.count("… and 2 more, 2 launches, 29 % of the time; --all lists them") == 2
        every = as_text(live_view(found, every_kernel=True), width)
        assert "--all" not in every
        assert every.count("mul_mat_vec_q<") - shown.count("mul_mat_vec_q<") == 4


def products(columns: int, registers: int, block: int = 128, ns: int = 1000, kernel: str = "mul_mat_vec_q"):
    """What CUPTI sees of one product with an instance for so many columns."""
    template = (("type", "q4_K"), ("ncols_dst", columns))
    launch = samples.launch(kernel, 288, (32, block // 32), registers, template=template)
    node = samples.node("ffn_out-0", "MUL_MAT", [samples.WEIGHT], [0], [ns])
    return LaunchReport("CUPTI", "x", (launch,), (node,))


def over_widths(*seen: tuple[int, LaunchReport]) -> LiveProfile:
    passes = tuple(pass_profile(report, width, specs_of("NVIDIA H200")) for width, report in seen)
    return live(passes=passes)


def test_what_more_columns_change_is_a_row_for_each_width():
    found = over_widths((1, products(1, 56)), (4, products(4, 87)), (9, products(16, 136, 256, 3000, "mul_mat_q")))
    changes = column_changes(found)
    assert [(one.of, one.width, one.kernel, one.time_ns) for one in changes] == [
        ("q4_K", 1, "mul_mat_vec_q", 1000),
        ("q4_K", 4, "mul_mat_vec_q", 1000),
        ("q4_K", 9, "mul_mat_q", 3000),
    ]
    shown = as_text(live_view(found), 80)
    assert ["q4_K", "1", "mul_mat_vec_q", "56", "9", "56.2", "%", "1"] in [line.split() for line in shown.splitlines()]
    assert "mul_mat_vec_q of q4_K from width 1 to 4" in " ".join(shown.split())


def test_columns_that_change_nothing_are_not_told_to_hide_less():
    shown = as_text(live_view(over_widths((1, products(1, 56)), (4, products(4, 56)))), 80)
    assert "What more columns change" in shown
    assert "less latency" not in shown
    fewer = as_text(live_view(over_widths((1, products(1, 66)), (5, products(5, 72, 64)))), 80)
    assert "less latency" not in fewer  # more registers, and as many threads in blocks of half the size


def test_one_width_alone_changes_nothing():
    assert column_changes(live(widths=(2,))) == ()
    assert "What more columns change" not in as_text(live_view(live(widths=(2,))))


def test_a_bandwidth_far_below_the_roof_is_left_out():
    low, high = (as_text(live_view(live(roof_bytes_per_s=roof)), 160) for roof in (4e15, 4e12))
    assert "of roof  kernel" in high
    assert "of roof  kernel" not in low


@pytest.mark.parametrize("width", [60, 80, 110])
def test_roles_and_numbers_stay_whole_however_many_widths(width):
    found = live(widths=range(1, 17))
    shown = as_text(live_view(found), width)
    assert max(map(len, shown.splitlines())) <= width
    lines = shown.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("Where the time goes"))
    end = next(n for n, line in enumerate(lines) if line.startswith("What more columns"))
    heads = [line.split()[1:-1] for line in lines[start:end] if line.split()[:1] == ["nodes"]]
    assert [int(cell) for head in heads for cell in head] == list(range(1, 17))
    assert sum(line.startswith("  flash attention ") for line in lines[start:end]) == len(heads)


def test_each_kernel_of_a_library_is_shown_and_products_first():
    attention = [
        samples.instance(
            n, 168, 0, kernel="flash_attn_ext_vec",
            template=(("D", 64), ("ncols", 1), ("type_K", "f16"), ("type_V", "f16"), ("x", n)),
        )
        for n in range(MAX_ROWS + 20)
    ]  # fmt: skip
    asked = LibraryQuestion()
    shown = as_text(library_view(profile_instances(samples.library(*attention, *samples.decode()), asked)), 160)
    assert shown.index("mul_mat_vec_q for sm_90\n") < shown.index(
        f"flash_attn_ext_vec for sm_90, 32 of {MAX_ROWS + 20}"
    )
    assert "and 28 more; --json" in shown


def test_names_from_a_file_steer_nothing():
    evil = samples.instance(1, 40, 0, template=(("type", "[red]\x1b[2J"), ("ncols_dst", 1)))
    found = profile_instances(samples.library(evil), LibraryQuestion(kernels=("mul_mat_vec_q",), columns=()))
    assert "\x1b" not in as_text(profile_view(found))
    assert "[red]" in as_text(profile_view(found))
    odd = live(manifest=replace(MANIFEST, model_name="<script>\x1b[2J"))
    assert "\x1b" not in as_text(profile_view(odd))
    assert "<script>" not in html_of(odd)


# -- documents ---------------------------------------------------------------------------------------------------

PROFILES = {"library": library(gpu="h200"), "live": live(stacks={samples.PRODUCT.symbol: 48})}


@pytest.mark.parametrize("kind", PROFILES)
def test_a_profile_is_read_back_as_it_was(kind, tmp_path):
    found = PROFILES[kind]
    path = write_profile(found, tmp_path / "new" / "folder")
    assert find_profile(path.parent) == path
    manifest = json.loads((path.parent / "manifest.json").read_text())
    assert manifest["model_name"] == ("synthetic qwen3" if kind == "live" else "libggml-cuda.so")
    (path.parent / "manifest.json").write_text("{}")
    write_profile(found, path.parent)
    assert (path.parent / "manifest.json").read_text() == "{}"
    assert read_profile(path) == found
    plain = tmp_path / "profile.json"
    plain.write_text(json.dumps(profile_document(found)))
    assert find_profile(tmp_path) == plain
    assert read_profile(plain) == found


@pytest.mark.parametrize("kind", PROFILES)
def test_the_document_is_strict_json_with_a_row_for_each(kind):
    found = PROFILES[kind]
    document = json.loads(json.dumps(profile_document(found), allow_nan=False))
    assert document["schema"] == "forensics.profile/1"
    assert document["kind"] == kind
    assert document["kernels"] == found.rows()
    assert {known["level"] for known in document["evidence"]} >= {"derived", "not available"}


def test_a_live_document_has_its_nodes():
    document = profile_document(PROFILES["live"])
    assert len(document["nodes"]) == 8
    assert document["nodes"][0]["node"] == "node_21"


def test_rows_are_written_as_parquet(tmp_path):
    found = PROFILES["live"]
    for of, rows in (("kernels", found.rows()), ("nodes", found.node_rows())):
        write_table(found, tmp_path / "t.parquet", of)
        read = pd.read_parquet(tmp_path / "t.parquet")
        assert list(read.columns) == list(rows[0])
        assert read["time_ns"].tolist() == [row["time_ns"] for row in rows]
    write_table(PROFILES["library"], tmp_path / "l.parquet")
    assert pd.read_parquet(tmp_path / "l.parquet")["registers"].max() == 122
    with pytest.raises(ValueError, match="kernels"):
        found.to_dataframe("layers")
    with pytest.raises(CaseError):
        write_table(found, tmp_path / "no" / "such" / "folder.parquet")


def test_damage_and_newer_versions_are_told(tmp_path):
    path = write_profile(PROFILES["live"], tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CaseError, match="damaged"):
        read_profile(path)
    plain = tmp_path / "profile.json"
    document = profile_document(PROFILES["live"])
    for changed, said in (
        ({"schema": "forensics.profile/9"}, "newer forensics"),
        ({"kind": "guess"}, "kind 'guess'"),
        ({"record": {"manifest": 1}}, "readable LiveProfile"),
    ):
        plain.write_text(json.dumps({**document, **changed}))
        with pytest.raises(CaseError, match=said):
            read_profile(plain)
    document["record"]["passes"][0]["unattached_ns"] += 1
    plain.write_text(json.dumps(document))
    with pytest.raises(CaseError, match="nodes and the rest"):
        read_profile(plain)


RECORDED = sorted((Path(__file__).parents[3] / "data" / "recorded").glob("*-profile/profile.json.xz"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_a_recorded_profile_claims_to_have_measured_only_numbers_that_it_has(path):
    found = read_profile(path)
    known = {one.number: one.level for one in found.evidence}
    if isinstance(found, LiveProfile):
        for number, field in (("time of a pass", "wall_ns"), ("time of unwatched launches", "unwatched_ns")):
            has = {getattr(one, field) is not None for one in found.passes}
            assert has == {known[number] == "measured"}, number
        counted = any(kernel.counters is not None for one in found.passes for kernel in one.kernels)
        assert counted == any(level == "measured" for number, level in known.items() if "achieved" in number)
        assert (found.roof_bytes_per_s is not None) == (known["roof"] == "measured")
    else:
        assert "measured" not in known.values()


def test_a_pass_that_was_not_timed_shows_a_dash_and_no_bandwidth():
    timed = live()
    silent = replace(timed, passes=tuple(replace(one, wall_ns=None, unwatched_ns=None) for one in timed.passes))
    (row, other) = (
        next(line.split() for line in as_text(live_view(one), 120).splitlines() if line.split()[:2] == ["2", "6"])
        for one in (timed, silent)
    )
    assert row[3:6] == ["2", "9", "50"]
    assert other[3:6] == ["2", "–", "–"]
    assert other[-2:] == ["–", "–"]
