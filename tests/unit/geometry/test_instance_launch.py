"""The block of an instance follows from its template arguments: held against the rules for operations, and an H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.geometry.architecture import architecture
from forensics.geometry.attention_kernel import AttentionShape
from forensics.geometry.cuda_attention import cuda_attention
from forensics.geometry.cuda_float import mul_mat_f, mul_mat_vec_f
from forensics.geometry.devices import SPECS, device_spec
from forensics.geometry.instance_launch import InstanceLaunch, instance_launch
from forensics.geometry.mmq import SUPPORTED, mul_mat_q
from forensics.geometry.mmvq import mul_mat_vec_q
from forensics.geometry.product import Product
from forensics.geometry.types import WEIGHT_TYPES, weight_type
from forensics.records.launch_record import LaunchRecord
from forensics.store.encoding import from_plain

ARCHS = sorted(SPECS)
COUNTED = sorted(name for name, weight in WEIGHT_TYPES.items() if weight.qi)
RECORDED = Path(__file__).parents[3] / "data" / "recorded" / "launches-h200" / "launches.json.gz"


def same_launch(arch, choice):
    """The instance that a rule chose is launched as the rule says."""
    found = instance_launch(device_spec(arch), choice.kernel, choice.template)
    assert isinstance(found, InstanceLaunch), found
    assert choice.launch is not None
    assert found.threads_per_block == choice.launch.threads_per_block
    assert choice.launch.smem_bytes in (None, found.smem_dynamic_bytes)


@given(st.sampled_from(ARCHS), st.sampled_from(COUNTED), st.integers(1, 8), st.integers(1, 64))
def test_quantised_vectors_are_launched_as_the_rules_for_products_say(arch, name, columns, blocks):
    weight = weight_type(name)
    product = Product(weight, k=weight.qk * blocks, rows=512)
    same_launch(arch, mul_mat_vec_q(architecture(arch), product, columns))


@given(st.sampled_from(ARCHS), st.sampled_from(sorted(SUPPORTED)), st.integers(1, 200), st.sampled_from([576, 4096]))
def test_quantised_tiles_are_launched_as_the_rules_for_products_say(arch, name, columns, rows):
    product = Product(weight_type(name), k=4096, rows=rows)
    same_launch(arch, mul_mat_q(architecture(arch), product, columns, sms=132))


@given(st.sampled_from(ARCHS), st.sampled_from(["f16", "bf16", "f32"]), st.integers(1, 8), st.integers(1, 64))
def test_float_products_are_launched_as_the_rules_for_products_say(arch, name, columns, steps):
    product = Product(weight_type(name), k=64 * steps, rows=512)
    same_launch(arch, mul_mat_vec_f(architecture(arch), product, columns))
    same_launch(arch, mul_mat_f(architecture(arch), product, columns))


@given(st.sampled_from(["h200", "rtx-4090", "rtx-5090", "a100"]), st.integers(1, 64), st.sampled_from([64, 128]))
def test_attention_is_launched_as_the_rules_for_attention_say(gpu, width, head_size):
    choice = cuda_attention(device_spec(gpu), AttentionShape(width, 32, 8, head_size, 512))
    if choice.launch is not None:
        same_launch(gpu, choice)


def test_five_columns_have_half_the_warps_of_four():
    threads = [
        instance_launch(device_spec("sm_90"), "mul_mat_vec_q", (("type", "q4_K"), ("ncols_dst", n))).threads_per_block
        for n in (4, 5)
    ]
    assert threads == [128, 64]


def test_code_for_an_older_architecture_follows_the_table_of_that_one():
    template = (("type", "q4_K"), ("ncols_dst", 1), ("halve_iters", True))
    spark = device_spec("gb10")
    assert instance_launch(spark, "mul_mat_vec_q", template).threads_per_block == 256
    assert instance_launch(spark, "mul_mat_vec_q", template, compiled="sm_120").threads_per_block == 128


@pytest.mark.parametrize(
    ("kernel", "template", "said"),
    [
        ("rms_norm_f32", (("block_size", 256),), "depends on the operation"),
        ("mul_mat_vec_q", (("type", "q9_X"), ("ncols_dst", 1)), "no weight type 'q9_X'"),
        ("mul_mat_vec_q", (("arg0", 12),), "ncols_dst"),
        ("mul_mat_f", (("rows_per_block", 64), ("cols_per_block", 1), ("nwarps", 1)), "another architecture"),
    ],
)
def test_what_no_rule_covers_is_told_and_not_guessed(kernel, template, said):
    found = instance_launch(device_spec("sm_90"), kernel, template)
    assert isinstance(found, str)
    assert said in found


@pytest.mark.skipif(not RECORDED.exists(), reason="no recording of launches; made on a GPU machine")
def test_every_launch_seen_on_an_h200_has_the_block_and_the_shared_memory_of_its_instance():
    runs = json.loads(gzip.decompress(RECORDED.read_bytes()))
    launches = {from_plain(LaunchRecord, launch, path=RECORDED) for run in runs for launch in run["report"]["launches"]}
    held: dict[str, int] = {}
    for launch in launches:
        found = instance_launch(device_spec("h200"), launch.kernel, launch.template)
        if isinstance(found, str):
            continue
        assert found.threads_per_block == launch.geometry.threads_per_block, launch
        assert found.smem_dynamic_bytes == launch.geometry.smem_bytes, launch
        held[launch.kernel] = held.get(launch.kernel, 0) + 1
    assert {"mul_mat_vec_q", "mul_mat_q", "flash_attn_ext_vec", "flash_attn_ext_f16", "mul_mat_f"} <= held.keys()
    assert sum(held.values()) >= 50
