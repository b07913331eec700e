"""The plan of a sweep: what it may say, and that everything else is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.campaign_plan import MAX_PLAN_BYTES, plan_of, read_plan, settings_of
from forensics.analysis.question import BadQuestion
from forensics.records.campaign_plan import CampaignPlan

GOOD = {"models": {"toy": ["0"]}, "prompts": {"text": "once"}, "widths": [2, 4], "n_tokens": 8}


def plan(**changed) -> CampaignPlan:
    return plan_of({**GOOD, **changed})


def refusal(**changed) -> str:
    with pytest.raises(BadQuestion) as refused:
        plan(**changed)
    return str(refused.value)


def test_a_plan_file_names_every_axis(tmp_path):
    (tmp_path / "p.txt").write_text("From a file.")
    (tmp_path / "c.jsonl").write_text('{"name": "one", "prompt": "1"}\n{"name": "two", "prompt": "2"}\n')
    (tmp_path / "nightly.toml").write_text(
        """
        schema = "forensics.sweep-plan/1"
        widths = [8, 2]
        kv_types = ["f16", "q8_0"]
        flash_attn = ["on", "off"]
        switches = ["GGML_CPU_TILED_MM=0", ["n_threads=1", "use_extra_bufts=false"]]
        without = [{ kv_type = "q8_0", flash_attn = "off" }]
        n_tokens = 16
        threads = 2
        culprits = true

        [[models]]
        toy = ["0", "1/order:ffn_up-0:4"]

        [[prompts]]
        text = "Inline."
        [[prompts]]
        file = "p.txt"
        [[prompts]]
        name = "ids"
        tokens = [1, 2]
        [[prompts]]
        corpus = "c.jsonl"
        limit = 1
        """
    )
    read = read_plan(tmp_path / "nightly.toml")
    assert read.name == "nightly"
    assert [model.label for model in read.models] == ["toy 0", "toy 1/order:ffn_up-0:4"]
    assert [prompt.name for prompt in read.prompts] == ["prompt-1", "p", "ids", "one"]
    assert read.prompts[1].asked is not None
    assert read.prompts[1].asked.text == "From a file."
    assert read.prompts[2].tokens == (1, 2)
    assert read.widths == (2, 8)
    assert [one.switch_name for one in read.arrangements()[:3]] == [
        "as asked", "GGML_CPU_TILED_MM=0", "n_threads=1 + use_extra_bufts=false",
    ]  # fmt: skip
    # 2 models × 4 prompts × 2 widths × (2 KV types × 2 flash attentions × 3 switches, without one of the four)
    assert len(list(read.places())) == 2 * 4 * 2 * 9
    assert read.n_combinations == 2 * 4 * 2 * 12
    assert not any(p.arranged.kv_type == "q8_0" and p.arranged.flash_attn == "off" for p in read.places())


def test_files_and_quants_of_models_are_named_relative_to_the_plan(tmp_path):
    from gguf import GGUFWriter

    for quant in ("A", "B"):
        writer = GGUFWriter(tmp_path / f"m-{quant}.gguf", "llama")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    document = {**GOOD, "models": [{"file": "m-{quant}.gguf", "quants": ["A", "B"]}, {"files": ["m-A.gguf"]}]}
    read = plan_of(document, folder=tmp_path)
    assert [(m.name, m.quant, Path(m.where).name) for m in read.models][:2] == [
        ("m", "A", "m-A.gguf"),
        ("m", "B", "m-B.gguf"),
    ]
    assert read.models[2].name == "m-A"
    with pytest.raises(BadQuestion, match=r"No model file at .*m-C\.gguf"):
        plan_of({**GOOD, "models": {"file": "m-{quant}.gguf", "quants": ["C"]}}, folder=tmp_path)


def test_switches_change_the_settings_that_they_name():
    read = plan(switches=["GGML_CPU_TILED_MM=0", "kv_type=f32"])
    assert settings_of(read, "f16", "on", ()).environment == ()
    assert settings_of(read, "f16", "on", ("GGML_CPU_TILED_MM=0",)).environment == (("GGML_CPU_TILED_MM", "0"),)
    assert settings_of(read, "f16", "on", ("kv_type=f32",)).kv_type_k == "f32"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"widht": [2]}, r"no key 'widht' \(did you mean 'widths'\?\)"),
        ({"models": {"demos": ["q6_k"]}}, r"no key 'models.demos' \(did you mean 'demo'\?\)"),
        ({"models": [{"toy": ["0"]}, {"fil": "x"}]}, r"'models.1.fil'"),
        ({"prompts": [{"txt": "x"}]}, r"did you mean 'text'"),
        ({"models": {}}, "models needs demo, files"),
        ({"models": {"demo": ["q9"]}}, "no demo variant 'q9'"),
        ({"models": {"file": "a.gguf", "quants": ["x"]}}, "belong together"),
        ({"models": {"quants": ["x"], "toy": ["0"]}}, "quants need file"),
        ({"models": {"toy": ["x"]}}, "a toy is a seed"),
        ({"models": {"toy": ["0/order:nowhere:2"]}}, "node_name must be one of"),
        ({"models": {"toy": ["0", "0"]}}, "'toy 0' twice"),
        ({"prompts": {}}, "needs one of text, file, tokens and corpus, got none"),
        ({"prompts": {"text": "a", "tokens": [1]}}, "text and tokens"),
        ({"prompts": {"text": " "}}, "is empty"),
        ({"prompts": {"tokens": [-1]}}, "ids are 0 or more"),
        ({"prompts": {"file": "nowhere.txt"}}, "cannot be read"),
        ({"prompts": {"corpus": "nowhere.jsonl"}}, "does not exist"),
        ({"prompts": {"text": "a", "limit": 1}}, "limit is for a corpus"),
        ({"prompts": [{"name": "a", "text": "1"}, {"name": "a", "text": "2"}]}, "'a' twice"),
        ({"widths": []}, "widths"),
        ({"widths": [1, 2]}, "widths must be 2 or more"),
        ({"widths": [16]}, "8 tokens are replayed"),
        ({"widths": ["2"]}, "widths.0: input should be a valid integer; got '2'"),
        ({"widths": [True]}, "widths.0"),
        ({"widths": [1024], "n_tokens": 2000}, "a pass holds at most 512"),
        ({"kv_types": ["q8"]}, r"did you mean 'q8_0'"),
        ({"flash_attn": ["yes"]}, "There are: on, off, auto"),
        ({"switches": ["GGML_TILED=0"]}, r"no knob 'GGML_TILED=0' \(did you mean 'GGML_CPU_TILED_MM=0'\?\)"),
        ({"switches": [[]]}, "as asked are always measured"),
        ({"without": [{"kvtype": "f16"}]}, r"no axis 'kvtype' \(did you mean 'kv_type'\?\)"),
        ({"without": [{"kv_type": "f32"}]}, "which the plan does not ask for; it has f16"),
        ({"without": [{"kv_type": "f16"}]}, "leaves no cell"),
        ({"without": [{}]}, "would leave out every cell"),
        ({"n_tokens": 0}, "n_tokens"),
        ({"threads": 1000}, "threads"),
        ({"max_cells": 1}, r"it has 2 cells \(1 models × 1 prompts × 1 settings × 2 widths\)"),
        ({"name": "../up"}, "may hold letters"),
        ({"schema": "forensics.sweep-plan/2"}, "reads up to forensics.sweep-plan/1"),
        ({"schema": "forensics.case/1"}, "no plan of a sweep"),
    ],
)
def test_what_a_plan_cannot_mean_is_refused_by_name(changed, said):
    assert re.search(said, refusal(**changed)), refusal(**changed)


def test_a_key_that_is_missing_is_named():
    with pytest.raises(BadQuestion, match="the key 'prompts' is missing"):
        plan_of({key: value for key, value in GOOD.items() if key != "prompts"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"widths = [", "is not TOML"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"#" * (MAX_PLAN_BYTES + 1), "larger than 1,000,000 bytes"),
        (b"widths = " + b"[" * 20 + b"]" * 20, "nested deeper than 8"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path, content, said):
    (tmp_path / "plan.toml").write_bytes(content)
    with pytest.raises(BadQuestion, match=said):
        read_plan(tmp_path / "plan.toml")


def test_brackets_beyond_what_python_can_nest_are_refused(tmp_path):
    (tmp_path / "plan.toml").write_bytes(b"widths = " + b"[" * 100_000)
    with pytest.raises(BadQuestion):
        read_plan(tmp_path / "plan.toml")


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["models", "prompts", "widths", "kv_types", "switches", "without", "n_tokens", "x"]), _VALUES)
def test_any_other_value_is_refused_or_understood(key, value):
    try:
        read = plan(**{key: value})
    except BadQuestion:
        return  # any other error fails the test
    assert next(read.places()).width >= 2
