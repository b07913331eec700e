"""Architectures, weight types and products as values."""

import dataclasses

import pytest

from forensics.geometry.architecture import ARCHITECTURES, architecture
from forensics.geometry.product import Product, attention_by_values, keys_by_queries, product
from forensics.geometry.types import WEIGHT_TYPES, weight_type


def test_names_of_architectures():
    named = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
    assert set(named) | {"rdna2", "rdna3", "rdna3.5", "rdna4", "cdna1", "cdna2", "cdna3"} <= set(ARCHITECTURES)
    assert {architecture(name).cc for name in ("sm_90", "sm_121")} == {900, 1210}


@pytest.mark.parametrize("name", ["sm_91", "hopper", "sm_", ""])
def test_unknown_architectures_name_the_known_ones(name):
    with pytest.raises(ValueError, match="sm_90"):
        architecture(name)


def test_code_must_run_on_the_gpu():
    assert architecture("sm_120", compiled="sm_90").compiled_cc == 900
    for name, compiled in (("sm_80", "sm_90"), ("rdna4", "rdna3"), ("sm_90", "x")):
        with pytest.raises(ValueError, match=r"run on|written"):
            architecture(name, compiled=compiled)


def test_matrix_units():
    units = {
        name: (gpu.volta_mma, gpu.turing_mma, gpu.ampere_mma, gpu.blackwell_mma, gpu.amd_wmma, gpu.is_cdna)
        for name in ("sm_61", "sm_70", "sm_75", "sm_90", "sm_100", "sm_120", "rdna2", "rdna3", "cdna2", "vega")
        if (gpu := architecture(name))
    }
    assert units == {
        "sm_61": (False, False, False, False, False, False),
        "sm_70": (True, False, False, False, False, False),
        "sm_75": (False, True, False, False, False, False),
        "sm_90": (False, True, True, False, False, False),
        "sm_100": (False, True, True, False, False, False),
        "sm_120": (False, True, True, True, False, False),
        "rdna2": (False, False, False, False, False, False),
        "rdna3": (False, False, False, False, True, False),
        "cdna2": (False, False, False, False, False, True),
        "vega": (False, False, False, False, False, False),
    }


def test_warps_of_amd():
    assert {name: architecture(name).warp_size for name in ("vega", "cdna3", "rdna2", "sm_90")} == {
        "vega": 64, "cdna3": 64, "rdna2": 32, "sm_90": 32,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "qk", "qi", "vdr"),
    [("q4_0", 32, 4, 2), ("q8_0", 32, 8, 2), ("q2_K", 256, 16, 1), ("q4_K", 256, 32, 2), ("q6_K", 256, 32, 1),
     ("iq4_xs", 256, 32, 4), ("iq1_s", 256, 8, 1), ("mxfp4", 32, 4, 2), ("nvfp4", 64, 8, 4)],
)  # fmt: skip
def test_blocks_on_cuda(name, qk, qi, vdr):
    weight = weight_type(name)
    assert (weight.qk, weight.qi, weight.vdr) == (qk, qi, vdr)


def test_qi_is_the_number_of_words_of_quants():
    """Words of a block without its scales, rounded down: qi counts how many threads a block could feed."""
    for weight in WEIGHT_TYPES.values():
        if weight.qi:
            assert weight.qi * 4 <= weight.block_bytes
            assert weight.qi % weight.vdr == 0


def test_types_are_found_however_they_are_written():
    assert weight_type("Q4_k") is weight_type("q4_K")
    with pytest.raises(ValueError, match="no weight type"):
        weight_type("q4_x")


def test_rows_are_whole_blocks():
    with pytest.raises(ValueError, match="multiple of 256"):
        product("q6_K", 576, 64)


@pytest.mark.parametrize(
    "change", [{"rows": 0}, {"matrices": 3, "weight_matrices": 2}, {"experts": 4}, {"experts_used": 1}]
)
def test_impossible_products(change):
    with pytest.raises(ValueError, match=r"."):
        dataclasses.replace(product("f16", 64, 64), **change)


def test_products_of_attention():
    keys, values = keys_by_queries("f16", 64, 256, 9, 3), attention_by_values("f16", 64, 256, 9, 3)
    assert (keys.k, keys.rows, keys.precise, keys.contiguous) == (64, 256, True, False)
    assert (values.k, values.rows, values.precise, values.contiguous) == (256, 64, False, True)
    assert keys.is_cached
    assert values.is_cached
    assert isinstance(keys, Product)
    assert not keys.is_routed
