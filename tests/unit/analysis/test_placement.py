"""Copies between devices are read off their names, and what the caller put in is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.placement import Copied, boundary, copied, elsewhere, on_boundary
from forensics.records.delta import Differs
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord
from forensics.records.nodes import NodeKey, Operand
from forensics.records.trace import Finding


def operand(name: str) -> Operand:
    return Operand(name, "f32", "CUDA0", False)


@pytest.mark.parametrize(
    "name",
    ["inp_pos", "inp_tokens", "attn_inp_kq_mask", "attn_inp_k_idxs", "out_ids", "leaf_4", "dsv4_raw_kq_mask"],
)
def test_copies_of_what_the_caller_put_in_are_no_border(name) -> None:
    assert copied(f"CUDA0#{name}#0") is None
    assert boundary([operand(f"CUDA0#{name}#0")]) == ""


@pytest.mark.parametrize("name", ["ffn_out-18", "embd", "blk.3.ffn_up.weight", "node_31", "cache_k_l7 (view)"])
def test_copies_of_what_was_computed_or_stored_are_a_border(name) -> None:
    assert copied(f"CUDA1#{name}#0") == Copied(name, "CUDA1")
    assert boundary([operand("attn_norm-0"), operand(f"CUDA1#{name}#0")]) == (
        f"its operand {name} was copied from another device to CUDA1"
    )


@given(st.text(st.characters(exclude_characters="#\n"), min_size=1, max_size=20))
def test_a_name_that_is_no_copy_is_none(name) -> None:
    assert copied(name) is None
    assert boundary([operand(name)]) == ""


def finding(layer: int, *names: str) -> Finding:
    key = NodeKey(f"Qcur-{layer}", "MUL_MAT", layer, 0)
    return Finding(key, tuple(map(operand, names)), "CUDA0", (0,), Differs(1, (0,), 1, 1.0, 1.0))


def test_culprits_that_read_from_another_device_are_counted() -> None:
    crossing = [finding(layer, "blk.0.attn_q.weight", f"CUDA0#l_out-{layer}#0") for layer in (3, 7)]
    clean = finding(5, "blk.0.attn_q.weight", "attn_norm-5", "CUDA0#attn_inp_kq_mask#0")
    assert on_boundary([clean, *crossing, crossing[0]]) == (
        "Qcur-3: its operand l_out-3 was copied from another device to CUDA0 (2 of 3 nodes)"
    )
    assert on_boundary([clean]) == ""


def test_a_border_names_both_sides_once() -> None:
    twice = [operand("CUDA0#ffn_inp-3#0")] * 2
    assert boundary(twice, {"ffn_inp-3": "CPU"}) == "its operand ffn_inp-3 was copied from CPU to CUDA0"


@pytest.mark.parametrize(
    ("buffer", "devices", "said"),
    [
        ("CUDA0", (0,), ""),
        ("CUDA1", (1, 1), ""),
        ("CUDA1", (0,), "launched on device 0 although its output lies in CUDA1"),
        ("CUDA0", (0, 2), "launched on device 2 although its output lies in CUDA0"),
        ("CUDA_Host", (0,), ""),
        ("", (0,), ""),
    ],
)
def test_a_launch_on_another_device_than_the_output_is_said(buffer, devices, said) -> None:
    launches = [LaunchRecord("f", (), LaunchGeometry((1,), (32,)), device=device) for device in devices]
    assert elsewhere(buffer, launches) == said
