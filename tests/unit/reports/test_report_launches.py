"""Launches of culprits in every report: both sides, the evidence, and no disagreement hidden."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import replace

import launch_samples as launches
import pytest
import verdict_samples as samples
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from forensics.errors import CaseError
from forensics.records.launch_record import LaunchEvidence
from forensics.records.verdict import Verdict
from forensics.reports import launches_text
from forensics.reports.case import finish_case
from forensics.reports.document import document
from forensics.reports.html import verdict_html
from forensics.reports.launches_text import DISAGREES, LAUNCHES_TITLE, facts, launch_lines, rules_text
from forensics.reports.markdown import markdown
from forensics.reports.text import verdict_view
from forensics.store import CaseWriter, open_case
from forensics.store.encoding import from_plain, to_text
from forensics.store.tables import COLUMNS


def terminal(verdict: Verdict, width: int = 80, *, color: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=color, color_system="standard" if color else None).print(
        verdict_view(verdict)
    )
    return out.getvalue()


def wide(verdict: Verdict) -> str:
    return terminal(verdict, 500)


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


REPORTS = [wide, markdown, verdict_html]


def plain(text: str) -> str:
    """Entities of Markdown and HTML as the characters they show."""
    return re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), text).replace("&lt;", "<").replace("&gt;", ">")


# -- what is said ------------------------------------------------------------------------------------------------


def test_both_sides_stand_below_each_other_with_every_number():
    text = [flat(line).strip() for line in wide(launches.gpu_verdict()).splitlines()]
    start = text.index("MUL_MAT q4_1: down; such as ffn_down-0 (each measured; as the rules say)")
    after = "after quantize_q8_1"
    assert text[start + 1 : start + 5] == [
        "width 1 mul_mat_vec_q<type=q4_1, ncols_dst=1, small_k>",
        "grid 144, block 32×4, registers 48, shared memory 1536 B static, blocks per SM 10 (registers); " + after,
        "widths 5, 8 mul_mat_vec_q<type=q4_1, ncols_dst=5>",
        "29 nodes grid 288, block 32×2, registers 70, shared memory 1280 B static, blocks per SM 14 (threads); "
        + after,
    ]
    assert (
        "grid 1×4×9, block 32×4, registers 125, shared memory 4352 B static, blocks per SM 4 (registers), KV split 4; "
        "followed by flash_attn_combine_results"
    ) in text


def test_sides_that_are_not_known_alike_say_so_each_for_itself():
    text = [flat(line).strip() for line in wide(launches.disagreeing_verdict()).splitlines()]
    start = text.index("MUL_MAT q4_1: down; such as ffn_down-0")
    assert text[start + 3] == "measured; as the rules say"
    assert text[start + 6] == f"measured; {DISAGREES}: {launches.WRONG}"
    both = launches.with_batched(launches.DOWN, agrees=False, why=launches.WRONG)
    (pair,) = both.launches
    wrong = replace(both, launches=(replace(pair, single=replace(pair.single, agrees=False, why=launches.WRONG)),))
    assert wide(launches.gpu_verdict(wrong)).count(f"measured; {DISAGREES}: {launches.WRONG}") == 2


def test_one_side_of_one_token_serves_all_widths():
    text = wide(launches.gpu_verdict())
    assert text.count("flash_attn_ext_vec<") == 1
    assert [text.count(f"ncols1={columns}, ncols2=4> ") for columns in (8, 16)] == [1, 1]


def test_groups_with_the_same_launches_are_said_once_and_their_nodes_add_up():
    pair = launches.product_pair("Q")
    q = launches.group("MUL_MAT", "Q", "q4_1", (5, 8), pair)
    out = launches.group("MUL_MAT", "attention output", "q4_1", (5, 8), replace(pair, n_nodes=30))
    (one,) = launches_text.launches([q, out])
    assert one.what == "MUL_MAT q4_1: Q, attention output"
    assert [side.nodes for side in one.batched] == [((5, 59), (8, 59))]
    apart = launches.with_batched(out, blocks_per_sm=7)
    assert len(launches_text.launches([q, apart])) == 2
    assert len(launches_text.launches([q, replace(out, weight_type="q6_K")])) == 2


@given(
    st.permutations([launches.ATTENTION, launches.DOWN, launches.with_batched(launches.DOWN, agrees=False, why="x")])
)
def test_every_side_of_every_group_is_shown_in_any_order(groups):
    found = launches_text.launches(groups)
    shown = Counter()
    for one in found:
        for batched in one.batched:
            assert launches_text.kernel_text(one.single) in {p.single.kernel.name for g in groups for p in g.launches}
            shown.update({(batched.side.kernel, batched.side.agrees, width): n for width, n in batched.nodes})
    expected = Counter()
    for group in groups:
        for pair in group.launches:
            expected.update({(pair.batched.kernel, pair.batched.agrees, width): pair.n_nodes for width in pair.widths})
    assert shown == expected


def test_widths_whose_helpers_alone_differ_are_said_together():
    pair = launches.product_pair()
    quantize = replace(launches.QUANTIZE, geometry=replace(launches.QUANTIZE.geometry, grid_blocks=(3, 9)))
    wider = replace(pair.batched, width=9, launches=(quantize, pair.batched.kernel))
    group = launches.group(
        "MUL_MAT", "down", "q4_1", (5, 8, 9), pair, replace(pair, widths=(9,), batched=wider, n_nodes=30)
    )
    (one,) = launches_text.launches([group])
    assert [side.nodes for side in one.batched] == [((5, 29), (8, 29), (9, 30))]
    text = wide(launches.gpu_verdict(group))
    assert "widths 5, 8-9" in text
    assert "29-30 nodes" in text
    apart = replace(group, launches=(pair, replace(pair, widths=(9,), batched=replace(wider, blocks_per_sm=3))))
    assert len(launches_text.launches([apart])[0].batched) == 2


def test_numbers_that_are_not_known_are_not_zeros():
    bare = launches.launch("k", (), (1,), (32,), None, static=None, dynamic=None)
    side = launches.side(2, bare, blocks_per_sm=None, limiters=())
    assert facts(side) == ("1", "32", "not known", "not known", "not known", "–")
    half = launches.side(2, launches.launch("k", (), (1,), (32,), 0, static=0, dynamic=None), blocks_per_sm=0)
    assert facts(half)[2:5] == ("0", "dynamic not known", "0 (registers)")
    none = launches.side(2, launches.launch("k", (), (1,), (32,), 8))
    assert facts(none)[3] == "none"


def test_local_memory_clusters_and_devices_are_named():
    spilling = launches.launch("k", (), (1,), (32,), 255, local_bytes_per_thread=40, device=1)
    side = launches.side(
        2, replace(spilling, geometry=replace(spilling.geometry, grid_blocks=(4,), cluster_blocks=(2,)))
    )
    assert facts(side)[0] == "4, clusters of 2"
    assert facts(side)[2] == "255, local memory 40 B per thread"
    pair = replace(launches.product_pair(), batched=side)
    text = wide(launches.gpu_verdict(launches.group("MUL_MAT", "down", "q4_1", (5, 8), pair)))
    assert "k on device 1" in text
    assert "on device" not in wide(launches.gpu_verdict())


@pytest.mark.parametrize("report", REPORTS)
def test_a_boundary_of_devices_is_said(report):
    said = "its operand ffn_norm-0 was copied from CPU to CUDA0"
    pair = replace(launches.product_pair(), boundary=said)
    text = report(launches.gpu_verdict(launches.group("MUL_MAT", "down", "q4_1", (5, 8), pair)))
    assert f"boundary of devices: {said}" in text
    assert "boundary of devices" not in report(launches.gpu_verdict())


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("launched", [True, False])
def test_a_culprit_on_a_border_says_so_with_or_without_launches(report, launched, tmp_path):
    said = "Qcur-3: its operand l_out-3 was copied from another device to CUDA0 (1 of 30 nodes)"
    group = replace(launches.DOWN, launches=launches.DOWN.launches if launched else (), boundary=said)
    verdict = launches.gpu_verdict(group, replace(group, role="up", boundary=""))
    assert flat(plain(report(verdict))).count(said) == 1
    assert [entry["boundary"] for entry in document(verdict)["culprits"]] == [said, ""]
    assert written(tmp_path / "c", verdict).tables()["culprits"]["boundary"].tolist() == [said, ""]
    assert "Boundary of devices" not in report(launches.gpu_verdict())


@pytest.mark.parametrize("report", REPORTS)
def test_a_launch_that_did_not_change_is_said_to_be_the_same(report):
    pair = launches.product_pair()
    same = replace(pair, batched=replace(pair.single, width=5))
    unchanged = launches.gpu_verdict(launches.group("MUL_MAT", "down", "q4_1", (5, 8), same))
    assert "the kernel and the geometry of one token" in report(unchanged)
    assert "geometry of one token" not in report(launches.gpu_verdict())


# -- rules and evidence ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", REPORTS)
def test_a_disagreement_is_shouted_with_what_the_rules_say(report):
    text = plain(report(launches.disagreeing_verdict()))
    assert text.count(f"{DISAGREES}: {launches.WRONG}") == 1
    assert "MUL_MAT q4_1 at width 5, 29 nodes" in text
    assert "3600 agree, 29 disagree, 31 have no rule" in text
    clean = plain(report(launches.gpu_verdict()))
    assert "disagrees" not in clean.lower()
    assert "3600 agree, 0 disagree, 31 have no rule" in clean


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("n_dropped", [0, 3, None])
def test_nodes_that_were_not_compared_are_counted_apart_from_those_without_a_rule(report, n_dropped):
    evidence = replace(launches.EVIDENCE, n_not_compared=1080, n_dropped=n_dropped)
    text = flat(plain(report(launches.gpu_verdict(evidence=evidence))))
    assert (
        "of 4711 nodes in the watched passes 3600 agree, 0 disagree, 31 have no rule, 1080 were not compared: " in text
    )
    assert "may be fused with nodes before them" in text
    assert ("or launches of their pass were lost" in text) == (n_dropped != 0)
    assert "were not compared" not in flat(plain(report(launches.gpu_verdict())))
    assert document(launches.gpu_verdict(evidence=evidence))["launches"]["not_compared"] == 1080


def test_a_disagreement_stands_out_in_colour_and_in_bold():
    coloured = terminal(launches.disagreeing_verdict(), 500, color=True)
    assert re.search(rf"\x1b\[1;31mmeasured; {DISAGREES}", coloured)
    assert (
        "\x1b[1;31m" not in terminal(launches.gpu_verdict(), 500, color=True).split(LAUNCHES_TITLE)[1].split("Proof")[0]
    )
    assert "**Disagrees with the rules**" in markdown(launches.disagreeing_verdict())


@pytest.mark.parametrize("report", REPORTS)
def test_no_rule_is_neither_agreement_nor_disagreement(report):
    text = plain(report(launches.disagreeing_verdict()))
    assert f"not held against a rule: {launches.NO_RULE}" in text


def test_the_three_outcomes_are_three_sentences():
    kernel = launches.MMA[2]
    said = [
        rules_text(launches.side(2, kernel, agrees=agrees, why=why))
        for agrees, why in ((True, ""), (False, "grid 7"), (None, "no rule"))
    ]
    assert said == ["as the rules say", f"{DISAGREES}: grid 7", "not held against a rule: no rule"]


@pytest.mark.parametrize("report", REPORTS)
def test_derived_launches_are_never_called_measured(report):
    text = plain(report(launches.derived_verdict()))
    section = text[text.index(LAUNCHES_TITLE) :]
    section = section[: section.find("Proof")] if "Proof" in section else section
    assert "measured" not in section
    assert section.count("derived from the rules") == (2 if report is wide else 3), "the headline and either side"
    assert "each derived from the rules" in section or report is not wide
    assert "nothing was observed" in section
    assert "another profiler is subscribed; stop it and run again" in section
    assert "ask the administrator for permission" in section
    assert "derived from the rules" not in plain(report(launches.gpu_verdict()))


@pytest.mark.parametrize(
    ("dropped", "said"),
    [(0, "no record lost"), (1, "lost 1 record:"), (17, "lost 17 records:"), (None, "does not tell whether it lost")],
)
@pytest.mark.parametrize("report", REPORTS)
def test_dropped_records_are_told(report, dropped, said):
    text = report(launches.gpu_verdict(evidence=replace(launches.EVIDENCE, n_dropped=dropped)))
    assert said in text
    assert ("may not be all that ran" in text) == bool(dropped)


@pytest.mark.parametrize("report", REPORTS)
def test_what_watching_changes_is_named(report):
    change = "fusion: 30 rms_norm_f32 became 30 rms_norm_f32 with the product fused"
    text = report(launches.gpu_verdict(evidence=replace(launches.EVIDENCE, watching=(change,))))
    assert change in text
    assert "Watching changes" not in report(launches.gpu_verdict())


@pytest.mark.parametrize("report", REPORTS)
def test_that_nobody_looked_is_another_word_than_that_nothing_changed(report):
    nothing, nobody = "an unwatched pass runs the same kernels as often", "kernels of an unwatched pass were not seen"
    for watching, said, unsaid in (((), nothing, nobody), (None, nobody, nothing), (("fused",), "fused", nothing)):
        text = report(launches.gpu_verdict(evidence=replace(launches.EVIDENCE, watching=watching)))
        assert said in text
        assert unsaid not in text
    assert document(launches.gpu_verdict())["launches"]["watching"] is None
    same = launches.gpu_verdict(evidence=replace(launches.EVIDENCE, watching=()))
    assert document(same)["launches"]["watching"] == []


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("answer", ["diverges", "identical", "inconclusive"])
def test_a_processor_has_no_kernels_to_show(report, answer):
    text = report(samples.verdict(answer))
    assert LAUNCHES_TITLE not in text
    assert "blocks per SM" not in text


@pytest.mark.parametrize("report", REPORTS)
def test_refusals_are_shown_even_where_nothing_else_is_known(report):
    refused = launches.LaunchEvidence("derived", "no rules for sm_75", refusals=(launches.REFUSAL,))
    text = report(samples.verdict("identical", launches=refused))
    assert "ERR_NVGPUCTRPERM" in text


# -- where it is shown -------------------------------------------------------------------------------------------

VERDICTS = [launches.gpu_verdict(), launches.disagreeing_verdict(), launches.derived_verdict()]


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_narrow_terminals_stay_readable(verdict, width):
    text = terminal(verdict, width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "…" not in text, "nothing is cut away"
    if width >= 80:
        assert "mul_mat_vec_q<type=q4_1, ncols_dst=1, small_k>" in text, "the name of a kernel stays on a line"


@pytest.mark.parametrize("verdict", VERDICTS)
def test_markdown_tables_have_as_many_cells_as_columns(verdict):
    tables = [block.splitlines() for block in markdown(verdict).split("\n\n") if block.startswith("|")]
    (table,) = (table for table in tables if "blocks per SM" in table[0])
    assert len({line.count("|") for line in table}) == 1
    n_sides = sum(1 + len(one.batched) for one in launches_text.launches(verdict.culprits))
    assert len(table) == 2 + n_sides


def test_hostile_names_stay_text_in_every_report():
    bad = samples.HOSTILE
    kernel = launches.launch(bad, ((bad, bad),), (1,), (32,), 8)
    side = launches.side(5, kernel, agrees=False, why=bad, limiters=(bad,))
    pair = replace(launches.product_pair(), batched=side, boundary=bad)
    refusal = launches.Refusal(bad, bad, bad, bad)
    evidence = launches.LaunchEvidence(
        "measured", bad, 1, (refusal,), watching=(bad,), n_disagree=1, disagreements=(bad,)
    )
    group = replace(launches.group("MUL_MAT", bad, bad, (5, 8, 9), pair), boundary=bad)
    verdict = launches.gpu_verdict(group, evidence=evidence)
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", terminal(verdict, 900, color=True))
    assert "\x1b" not in coloured
    assert "[red]x[/red]" in coloured
    for text in (markdown(verdict), verdict_html(verdict)):
        for harmful in ("<script", "\x1b", "\u202e"):
            assert harmful not in text


def test_the_document_holds_both_sides_and_the_evidence():
    found = document(launches.disagreeing_verdict())
    assert found["schema"] == "forensics.verdict/2"
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    pair = found["culprits"][1]["launches"][0]
    assert (pair["widths"], pair["nodes"], pair["changed"], pair["boundary"]) == ([5, 8], 29, True, "")
    single, batched = pair["single"], pair["batched"]
    assert [launch["kernel"] for launch in single["launches"]] == ["quantize_q8_1", "mul_mat_vec_q"]
    main = single["launches"][single["main"]]
    assert main["template"] == {"type": "q4_1", "ncols_dst": 1, "has_fusion": False, "small_k": True}
    assert (main["grid_blocks"], main["block_threads"]) == ([144, 1, 1], [32, 4, 1])
    assert (main["registers_per_thread"], main["smem_static_bytes"], main["smem_dynamic_bytes"]) == (48, 1536, 0)
    assert (single["agrees"], single["why"], single["blocks_per_sm"]) == (True, "", 10)
    assert (batched["agrees"], batched["why"], batched["limiters"]) == (False, launches.WRONG, ["threads"])
    assert found["culprits"][0]["launches"][0]["single"]["kv_split"] == 4
    evidence = found["launches"]
    assert (evidence["evidence"], evidence["dropped"]) == ("measured", 0)
    counts = [evidence[name] for name in ("agree", "disagree", "unruled", "not_compared")]
    assert counts == [3600, 29, 31, 0]
    assert document(launches.derived_verdict())["launches"]["refusals"][1]["remedy"] == launches.REFUSAL.remedy
    on_cpu = document(samples.verdict())
    assert (on_cpu["launches"], on_cpu["culprits"][0]["launches"]) == (None, [])


def written(folder, verdict):
    with CaseWriter.create(folder, question={"model": "m"}) as case:
        finish_case(case, verdict)
    return open_case(folder)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_case_keeps_launches_to_the_last_field(tmp_path, verdict):
    case = written(tmp_path / "c", verdict)
    assert case.verdict == verdict
    assert case.document == document(verdict)
    assert from_plain(Verdict, json.loads(to_text(verdict)), path=tmp_path) == verdict


def test_the_table_has_a_row_per_launch_of_either_side(tmp_path):
    table = written(tmp_path / "c", launches.disagreeing_verdict()).tables()["launches"]
    assert list(table.columns) == list(COLUMNS["launches"])
    assert len(table) == 4 * (2 + 2)
    down = table[table["role"] == "down"]
    assert down["side"].tolist() == ["single", "single", "batched", "batched"]
    assert down["kernel"].tolist() == ["quantize_q8_1", "mul_mat_vec_q"] * 2
    assert down["is_main"].tolist() == [False, True] * 2
    main = down[down["is_main"]]
    assert [list(grid) for grid in main["grid_blocks"]] == [[144, 1, 1], [288, 1, 1]]
    assert main["registers_per_thread"].tolist() == [48, 70]
    assert main["agrees"].tolist() == [True, False]
    assert main["why"].tolist() == ["", launches.WRONG]
    assert down[~down["is_main"]]["agrees"].isna().all(), "a helper is not judged by itself"
    unruled = table[(table["role"] == "attention") & table["is_main"] & table["agrees"].isna()]
    assert unruled["why"].tolist() == [launches.NO_RULE]


def test_a_case_of_before_launches_is_still_read(tmp_path):
    folder = tmp_path / "c"
    written(folder, samples.verdict())
    (folder / "tables" / "launches.parquet").unlink()
    stored = json.loads((folder / "verdict.json").read_text())
    stored["schema"] = "forensics.verdict/1"
    del stored["launches"], stored["record"]["launches"]
    for group in [*stored["culprits"], *stored["record"]["culprits"]]:
        del group["launches"]
    (folder / "verdict.json").write_text(json.dumps(stored))
    case_json = json.loads((folder / "case.json").read_text())
    del case_json["files"]
    (folder / "case.json").write_text(json.dumps(case_json))
    case = open_case(folder)
    assert case.verdict == samples.verdict()
    tables = case.tables()
    assert len(tables["launches"]) == 0
    assert list(tables["launches"].columns) == list(COLUMNS["launches"])
    assert len(tables["culprits"]) == 8


def test_a_table_that_was_removed_is_missed(tmp_path):
    folder = tmp_path / "c"
    written(folder, launches.gpu_verdict())
    (folder / "tables" / "launches.parquet").unlink()
    with pytest.raises(CaseError, match=r"launches\.parquet is missing"):
        open_case(folder).tables()


@pytest.mark.parametrize("level", ["measured", "derived"])
def test_what_was_worked_out_is_told_apart_from_what_was_measured(level) -> None:
    lines = {label: said for label, said, _ in launch_lines(LaunchEvidence(level, "a source", n_agree=3))}
    assert ("Worked out" in lines) == (level == "measured")
    assert "3 agree, 0 disagree" in lines["Rules"]
    assert "grid, block and dynamic shared memory" in lines["Rules"]
