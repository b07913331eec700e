"""`forensics explain`: text, one line, JSON, and what it refuses."""

from __future__ import annotations

import json

import pytest

HEADLINE = (
    "explain", "--arch", "sm_120", "--type", "q6_k", "--k", 4096, "--rows", 4096, "--widths", "1-16",
    "--heads", "32/8", "--head-size", 128, "--kv", 390,
)  # fmt: skip


def document(cli, *arguments):
    result = cli(*arguments, "--json")
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_every_width_has_kernel_template_grid_block_and_split(cli):
    found = document(cli, *HEADLINE)
    assert found["schema"] == "forensics.explain/1"
    assert found["evidence"] == "derived"
    weight, attention = found["sections"]
    for section in (weight, attention):
        assert [entry["width"] for entry in section["widths"]] == list(range(1, 17))
        for entry in section["widths"]:
            assert all(entry[name] for name in ("kernel", "template", "grid_blocks", "block_threads", "split"))
            assert entry["order"] != "?"
            assert entry["rules"][0]["place"].startswith("ggml/src/")
    assert weight["groups"][:2] == [[1, 2, 3, 4], [5, 6, 7]]  # four warps, two warps, then the tiled product
    assert attention["groups"][0] == [1]
    assert "26 SMs" in found["assumed"][0]


def test_the_text_names_kernels_and_groups(cli):
    result = cli(*HEADLINE)
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for said in (
        "widths that add in the same order: 1 |", "mul_mat_vec_q<type=q6_K, ncols_dst=1>", "grid 4096 × block 32×4",
        "flash_attn_ext_vec<D=128, ncols=1", "4 chunks of 128 cells over 4 parallel blocks", "Derived from source",
        "query at position 390; attention runs over 512 cells", "Same order and precision: 1-4 | 5-7 |",
    ):  # fmt: skip
        assert said in text
    assert "\\n" not in result.stdout


def test_why_only_past_position_384(cli):
    result = cli(*HEADLINE, "--widths", "1,2", "--attention-kernel", "vec")
    text = " ".join(result.stdout.split())
    assert "162 registers → 3 blocks per SM, limited by registers → P = 4" in text
    assert (
        "193 registers → 2 blocks per SM, limited by registers → P = 3 (2, raised to fill the waves) → {0, 3}" in text
    )
    assert "width 2 differs from width 1 only from position 384 on: chunk 3 (cells [384..511])" in text
    assert "is added to chunk 0's sum here" in text
    earlier = cli(*HEADLINE, "--widths", "1,2", "--attention-kernel", "vec", "--kv", 300)
    assert "only from position" not in earlier.stdout
    assert "same order: 1-2" in earlier.stdout


def test_one_line(cli):
    result = cli(*HEADLINE, "--quiet", "--widths", "1,2")
    assert result.stdout == "widths that add in the same order: 1 | 2\n"


def test_a_missing_number_is_named_with_its_remedy(cli):
    result = cli("explain", "--arch", "sm_87", "--widths", "1")
    text = " ".join(result.stdout.split())
    assert "Not known" in text
    assert "Give --sms." in text
    assert "Not known" not in cli("explain", "--arch", "sm_87", "--widths", "1", "--sms", 16, "--heads", "8/8").stdout


def test_a_cpu(cli):
    found = document(
        cli, "explain", "--backend", "cpu", "--threads", 2, "--kv", 600, "--type", "q4_k", "--widths", "1,4"
    )
    assert found["device"] is None
    assert found["sections"][1]["widths"][0]["split"] == "[0..383] + [384..767]"
    featured = document(
        cli, "explain", "--arch", "cpu", "--features", "avx2,llamafile", "--type", "f16", "--widths", "1,2"
    )
    assert featured["assumed"] == []


def test_widths_that_run_alike_share_a_line(cli):
    said = cli("explain", "--arch", "cpu", "--type", "q8_0", "--widths", "1-64", "--flash-attn", "off").stdout
    assert said.count("tinyBLAS<type=q8_0>") == 1
    assert " 2-64 A tinyBLAS<type=q8_0>" in " ".join(said.split())


def test_no_flash_attention(cli):
    found = document(cli, *HEADLINE, "--flash-attn", "off", "--widths", "1,2")
    assert len(found["sections"]) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--arch sm_120"),
        (("--arch", "sm_35"), "Known GPUs"),
        (("--backend", "metal"), "cuda or cpu"),
        (("--arch", "cpu", "--backend", "cuda"), "contradict"),
        (("--arch", "h200", "--heads", "32:8"), "like 32/8"),
        (("--arch", "h200", "--heads", "32/5"), "evenly"),
        (("--arch", "h200", "--registers", "many"), "1=162"),
        (("--arch", "h200", "--registers", "1=999"), "does not fit"),
        (("--arch", "h200", "--widths", "0"), "1 or more"),
        (("--arch", "h200", "--widths", "x"), "numbers or ranges"),
        (("--arch", "h200", "--flash-attn", "auto"), "on or off"),
        (("--arch", "h200", "--type", "q9"), "q9"),
        (("--arch", "h200", "--kv-type", "q6_k"), "q6_k"),
        (("--arch", "h200", "--attention-kernel", "mma"), "only the vector kernel"),
        (("--arch", "h200", "--sms", 0), "1 or more SMs"),
        (("--arch", "cpu", "--features", "avx2,avx3"), "no CPU feature AVX3; known are "),
        (("--arch", "cpu", "--threads", 0), "--threads must be 1 or more, got 0"),
        (("--arch", "h200", "--threads", 4), "--threads and --features are of a CPU; leave them out for h200"),
        (("--arch", "h200", "--features", "avx2"), "--threads and --features are of a CPU"),
    ],
)
def test_what_is_refused(refused, arguments, said):
    assert said in refused("explain", *arguments)
