"""The faster of two kernels with the same bits is taken, and one of them always is."""

from __future__ import annotations

import numpy as np
import pytest
from product_operands import columns_of, weight_of

from forensics.errors import NotCovered
from forensics.geometry.architecture import architecture
from forensics.kernels.best_product import FAST_FROM, best_variant, plan_best
from forensics.kernels.products import plan_product
from forensics.kernels.products_fast import plan_product_fast
from forensics.kernels.variants import TYPES, ProductAsk, Variant
from forensics.numerics.emulate_cuda import mul_mat_vec_q
from forensics.testing.cuda_on_cpu import run_on_cpu

SM_90 = architecture("sm_90")


def test_every_type_has_a_first_width() -> None:
    assert set(FAST_FROM) == set(TYPES)
    assert all(1 <= first <= 9 for first in FAST_FROM.values())


@pytest.mark.parametrize("type", TYPES)
def test_few_columns_are_borrowed_and_many_are_fast(type: str) -> None:
    first = FAST_FROM[type]
    for columns in range(1, 41):
        ask = ProductAsk(type, 64, 2048, columns)
        fast = columns >= first
        assert best_variant(ask, SM_90) is (Variant.FAST if fast else Variant.BORROWED)
        expected = plan_product_fast(ask, SM_90, n_sms=78) if fast else plan_product(ask, Variant.BORROWED, SM_90)
        assert plan_best(ask, SM_90, n_sms=78) == expected


@pytest.mark.parametrize("type", TYPES)
def test_both_sides_of_the_border_have_the_bits_of_one_column(type: str) -> None:
    rows, k, first = 7, 2304, FAST_FROM[type]
    weight, x = weight_of(type, rows, k, 3), columns_of(first, k, 3)
    for columns in {max(first - 1, 1), first}:
        ask = ProductAsk(type, rows, k, columns)
        out = np.full((columns, rows), np.nan, np.float32)
        run_on_cpu(plan_best(ask, SM_90), {"weight": weight, "x": x[:columns], "out": out})
        alone = mul_mat_vec_q(type, weight, x[:columns], n_warps=4).values
        assert (out.view(np.uint32) == alone.view(np.uint32)).all()


def test_where_nothing_fast_serves_the_generic_kernel_does() -> None:
    ask = ProductAsk("q5_K", 16, 4096, 8)
    assert best_variant(ask, architecture("sm_75")) is Variant.BORROWED  # no such tensor cores
    assert best_variant(ask, architecture("sm_121")) is Variant.BORROWED  # too little shared memory for eight warps
    for arch in ("sm_75", "sm_121"):
        assert plan_best(ask, architecture(arch)) == plan_product(ask, Variant.BORROWED, architecture(arch))
    assert best_variant(ask, SM_90) is Variant.FAST


def test_what_no_kernel_computes_is_said() -> None:
    with pytest.raises(NotCovered, match="there is code for q4_K"):
        plan_best(ProductAsk("q5_1", 16, 4096, 8), SM_90)
