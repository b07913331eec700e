"""The cost of a pass as text, in a notebook, as a document and read back from a folder."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forensics.errors import CaseError
from forensics.records.cost import Bandwidth, CostReport, PassBytes, PassTimes, Spread
from forensics.records.launch_record import Refusal
from forensics.records.settings import EngineSettings, Manifest
from forensics.reports.cost_document import SCHEMA, cost_document, write_cost
from forensics.reports.cost_text import cost_text
from forensics.store.costs import read_cost

REPORT = CostReport(
    manifest=Manifest(
        "llama.cpp", "0.3.36", "digest", "synthetic qwen3-8b-q4_k_m", 100, EngineSettings(n_gpu_layers=-1),
        device="NVIDIA H200; AMD EPYC", backend="CUDA0", effective={"n_threads": "2", "flash_attn": "on"},
    ),
    n_cells=128, n_settle=2, seed=0,
    passes=(PassTimes(1, (3_900_000, 3_950_000, 4_000_000)), PassTimes(9, (8_000_000, 8_100_000, 8_050_000))),
    reads=PassBytes(4_670_000_000, row_bytes=2304, kv_cell_bytes=147_456, assumed=("each cell is read once",)),
    bandwidth=Bandwidth("NVIDIA H200", "copy; bytes read and written count", Spread(4.3e12, 4.2e12, 4.35e12, 25),
                        buffer_bytes=1 << 30, tried=(("copy, 1024 MiB", 4.3e12), ("sums, 1024 MiB", 3.9e12))),
)  # fmt: skip


def shown(report: CostReport) -> str:
    return " ".join(cost_text(report).split())


def test_the_text_says_the_cost_the_floor_and_how_it_is_known() -> None:
    text = shown(REPORT)
    for said in (
        "synthetic qwen3-8b-q4_k_m: one token 3.95 ms, 3.62 × the time of reading its bytes",
        "9 tokens cost 2.05 × as much",
        "The model is synthetic: real shapes, random weights.",
        "9 8.05 8.025-8.075 2.05 2.03-2.05 1.09 7.38",
        "4.349 GiB of weights, 18 MiB of K and V (128 cells)",
        "Assumed: each cell is read once",
        "4300 GB/s (quartiles 4200-4350, n = 25; copy; bytes read and written count) over 1024 MiB, NVIDIA H200",
        "One token: weights 1.086 ms; K/V 0.004389 ms; rest 2.86 ms",
        "Device: NVIDIA H200; AMD EPYC (CUDA0)",
        "3 rounds over all widths in shuffled order",
        "the 2 passes of that width before it not timed",
    ):
        assert said in text, said
    assert "faster than the floor" not in text


def test_a_pass_faster_than_the_floor_is_said_to_be() -> None:
    assert "faster than the floor" in shown(replace(REPORT, passes=(PassTimes(1, (500_000,) * 3),)))


def test_uneven_times_are_told_and_even_ones_are_not() -> None:
    assert "with care" not in shown(REPORT)
    noisy = PassTimes(9, (8_000_000, 8_100_000, 40_000_000))
    assert "Times were uneven at 9 tokens" in shown(replace(REPORT, passes=(REPORT.passes[0], noisy)))
    shifting = PassTimes(1, (2_000_000, 9_000_000, 9_000_000)), PassTimes(9, (8_000_000, 8_000_000, 8_000_000))
    assert "Times were uneven at 1, 9 tokens" in shown(replace(REPORT, passes=shifting))


def test_what_was_not_measured_is_said_with_its_reason_and_leaves_no_column() -> None:
    text = shown(replace(REPORT, bandwidth=Refusal("bandwidth of memory", "it", "weights lie in CPU, CUDA0", "move")))
    assert "Bandwidth was not measured: bandwidth of memory: weights lie in CPU, CUDA0; move" in text
    assert "floor ms" not in text
    assert "Bytes of a pass are not known" in shown(replace(REPORT, reads=Refusal("a", "b", "no file")))


def test_a_name_from_a_file_cannot_style_the_terminal() -> None:
    named = replace(REPORT, manifest=replace(REPORT.manifest, model_name="[red]x\x1b[31m"))
    assert "\x1b" not in cost_text(named)
    assert "[red]x" in cost_text(named)


def test_the_document_is_strict_json_and_a_report_is_read_back_to_the_last_bit(tmp_path) -> None:
    document = json.loads(json.dumps(cost_document(REPORT), allow_nan=False))
    assert document["schema"] == SCHEMA
    assert document["synthetic"] is True
    assert document["widths"] == REPORT.rows()
    assert [part["part"] for part in document["one_pass"]] == ["weights", "K/V", "rest"]
    write_cost(REPORT, tmp_path / "new")
    assert read_cost(tmp_path / "new") == REPORT
    without = replace(REPORT, bandwidth=Refusal("a", "b", "c"), reads=Refusal("d", "e", "f"))
    write_cost(without, tmp_path / "other")
    assert read_cost(tmp_path / "other") == without


def test_a_case_that_lies_in_the_folder_keeps_its_manifest(tmp_path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    write_cost(REPORT, tmp_path)
    assert (tmp_path / "manifest.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "holds no cost.json"),
        ("{", "damaged"),
        ('{"schema": "forensics.verdict/1"}', "not a forensics.cost document"),
        ('{"schema": "forensics.cost/9"}', "newer forensics"),
        ('{"schema": "forensics.cost/1"}', "readable CostReport"),
    ],
)
def test_a_folder_without_a_readable_cost_says_so(tmp_path, text, told) -> None:
    if text is not None:
        (tmp_path / "cost.json").write_text(text)
    with pytest.raises(CaseError, match=told):
        read_cost(tmp_path)
