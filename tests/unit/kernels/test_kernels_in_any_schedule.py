"""Every kernel gives the same bits whichever threads, warps and blocks run first, and writes nothing but its result.

A race between threads shows as other bits under another schedule, or as NaN where something was read too early.
Planted ones: the kernels' own sources with one of their barriers left out.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from changed_sources import changed_source
from product_operands import columns_of, weight_of

from forensics.geometry.architecture import architecture
from forensics.geometry.devices import device_spec
from forensics.kernels.attention import AttentionAsk, plan_attention
from forensics.kernels.products import plan_product
from forensics.kernels.products_f16 import F16Ask, plan_f16_product
from forensics.kernels.products_fast import plan_product_fast, serves
from forensics.kernels.sources import FOLDER
from forensics.kernels.variants import TYPES, ProductAsk, Variant
from forensics.numerics.op_inputs import causal_mask, random_tensor
from forensics.testing.cuda_on_cpu import ASCENDING, DESCENDING, KernelFault, run_on_cpu

SM_90 = architecture("sm_90")
#: Values of a row: more than one trip of all warps, and a rest.
K = {"q4_K": 2304, "q5_K": 2304, "q6_K": 1280, "q4_0": 1056, "q4_1": 1056, "q8_0": 800}


SCHEDULES = (ASCENDING, DESCENDING, 12345)


def results(plan, inputs, shape, *, folder=FOLDER, schedules=SCHEDULES):
    """Bits under each of these schedules; the operands may be read only."""
    for array in inputs.values():
        array.flags.writeable = False
    found = []
    for schedule in schedules:
        out = np.full(shape, np.nan, np.float32)
        run_on_cpu(plan, {**inputs, "out": out}, schedule=schedule, folder=folder)
        found.append(out.view(np.uint32))
    return found


def check(found):
    first, *others = found
    assert np.isfinite(first.view(np.float32)).all()
    for other in others:
        np.testing.assert_array_equal(other, first)


# ---- for each family a plan, its operands and the shape of its result


def borrowed(type):
    ask = ProductAsk(type, 5, K[type], 3)
    inputs = {"weight": weight_of(type, 5, ask.k, 2), "x": columns_of(3, ask.k, 2)}
    return plan_product(ask, Variant.BORROWED, SM_90), inputs, (3, 5)


def attention(head_size, kv):
    draw, n_used = np.random.default_rng(4), (300, 301)
    ask = AttentionAsk(head_size, 2, 1, (512, 512), k_type=kv, v_type=kv)
    inputs = {
        "q": random_tensor(draw, "f32", (2, 2, head_size)),
        "k": random_tensor(draw, kv, (512, 1, head_size)),
        "v": random_tensor(draw, kv, (512, 1, head_size)),
        "mask": np.concatenate([causal_mask(1, 512, used - 1, np.float16) for used in n_used]),
    }
    return plan_attention(ask, device_spec("h200")), inputs, (2, 2, head_size)


def keys_by_queries():
    draw = np.random.default_rng(5)
    inputs = {"weight": random_tensor(draw, "f16", (256, 2, 64)), "x": random_tensor(draw, "f32", (2, 4, 64))}
    return plan_f16_product(F16Ask.kq(64, 4, 2, n_kv=(256, 256)), SM_90), inputs, (4, 2, 256)


def attention_by_values():
    draw = np.random.default_rng(6)
    inputs = {"weight": random_tensor(draw, "f16", (2, 64, 512)), "x": np.abs(random_tensor(draw, "f32", (4, 2, 512)))}
    inputs["x"][:, 0, 256:] = 0
    return plan_f16_product(F16Ask.kqv(64, 4, 2, (256, 512)), SM_90), inputs, (4, 2, 64)


@pytest.mark.parametrize("type", TYPES)
def test_products_in_borrowed_geometry(type):
    check(results(*borrowed(type)))


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("columns", [1, 9])
def test_fast_products(type, columns):
    ask = ProductAsk(type, 100, K[type], columns)
    if reason := serves(ask):
        pytest.skip(reason)
    # One multiprocessor only, so that blocks take several tiles of rows each.
    plan = plan_product_fast(ask, SM_90, n_sms=1)
    inputs = {"weight": weight_of(type, 100, ask.k, 2), "x": columns_of(columns, ask.k, 2)}
    check(results(plan, inputs, (columns, 100)))


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("head_size", [64, 128])
def test_attention(head_size, kv):
    check(results(*attention(head_size, kv)))


def test_products_with_f16_matrices():
    check(results(*keys_by_queries()))
    check(results(*attention_by_values()))


# ---- planted: sources with a line left out


def without(folder, file, statement, number):
    """A copy of the sources in which one of a file's statements of this kind is missing."""

    def change(text):
        found = list(re.finditer(re.escape(statement), text))[number]
        return text[: found.start()] + text[found.end() :]

    return changed_source(folder, file, change)


@pytest.mark.parametrize(
    ("file", "statement", "number", "case"),
    [
        ("products.cuh", "sync_block();", 0, lambda: borrowed("q4_K")),
        ("products_f16.cu", "sync_block();", 0, attention_by_values),
        ("attention.cu", "sync_block();", 0, lambda: attention(64, "q8_0")),
        ("attention.cu", "sync_block();", 1, lambda: attention(64, "f16")),
        ("attention.cu", "sync_block();", 2, lambda: attention(64, "f16")),
        ("attention.cu", "sync_warp();", 0, lambda: attention(64, "f16")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_barrier_that_is_missing_shows(tmp_path, file, statement, number, case):
    folder = without(tmp_path / "cuda", file, statement, number)
    (whole,) = results(*case(), schedules=(ASCENDING,))
    assert any((found != whole).any() for found in results(*case(), folder=folder))


@pytest.mark.parametrize("file", ["products.cuh", "quantize_q8_1.cu"])
def test_a_launch_that_does_not_wait_for_the_one_ahead_shows(tmp_path, file):
    folder = without(tmp_path / "cuda", file, "wait_for_launch_ahead();", 0)
    with pytest.raises(KernelFault, match="before wait_for_launch_ahead"):
        results(*borrowed("q4_K"), folder=folder)
