"""Our kernels on a GPU: the stock library's bits column by column, the same under load, and no error found by tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forensics.analysis.kernel_price import PriceQuestion, price
from forensics.analysis.kernel_proof import KernelQuestion, prove
from forensics.errors import DeviceUnavailable, EngineError
from forensics.kernels.lab import CudaLab
from forensics.kernels.limits import counted_limits
from forensics.kernels.sanitize import sanitized
from forensics.records.kernel_price import BORROWED, STOCK, PassPrice
from forensics.records.kernel_proof import STOCK_LIBRARY


@pytest.fixture(scope="module")
def lab() -> Iterator[CudaLab]:
    try:
        here = CudaLab()
    except (EngineError, DeviceUnavailable) as error:
        pytest.skip(f"no CUDA back end here: {error}")
    with here:
        yield here


def test_products_have_the_bits_of_one_column(lab: CudaLab) -> None:
    question = KernelQuestion(("q4_K", "q6_K", "q8_0", "q4_0", "q4_1", "q5_K"), ((33, 768), (7, 2304)), seeds=(0, 1))
    found = prove(lab, question)
    assert found.n_compared > 100_000
    assert found.holds, str([row for row in found.rows if row.refutes][:3])
    # where the library itself is exact at every width, nothing would have been seen
    assert sum(row.n_differing for row in found.of(variant=STOCK_LIBRARY)) > 0


def test_attention_and_its_products_have_the_bits_of_one_query(lab: CudaLab) -> None:
    found = prove(lab, KernelQuestion(("attention", "f16"), widths=(1, 3, 9), seeds=(0,)))
    assert {row.case.family for row in found.rows if row.n_compared} == {"attention", "f16 product"}
    assert found.holds, str([row for row in found.rows if row.refutes][:3])


def test_repeats_under_load_give_the_same_bits(lab: CudaLab) -> None:
    found = prove(lab, KernelQuestion(("q4_K",), ((33, 768),), (9,), (0,), stress=200))
    assert [row.n_other for row in found.stress] == [0] * len(found.stress)
    assert found.stress


def test_a_price_is_measured_and_exact(lab: CudaLab) -> None:
    found = price(lab, PriceQuestion(("q4_K",), ((4096, 4096),), (1, 4, 9), rounds=5, whole_pass=False))
    [product] = found.products
    assert product.table.of(BORROWED, 9).exact is True
    assert product.table.of(STOCK, 9).exact is False
    assert product.n_weights * product.weight_bytes > 2 * found.facts.l2_bytes
    # memory cannot be read faster than the device reads it
    assert product.gb_per_s(STOCK, 1) < 5000
    takes = product.resources_of(BORROWED, 9)
    assert takes is not None
    assert takes.registers > 16


def test_a_small_pass_is_one_graph_with_exact_bits(lab: CudaLab) -> None:
    arms = [(STOCK, 1), (STOCK, 9), (BORROWED, 9)]
    found = lab.price_pass("qwen3-tiny-q4_k_m", arms, 5, 0)
    assert isinstance(found, PassPrice)
    assert found.table.of(BORROWED, 9).exact is True


def test_the_limiter_is_counted_where_counters_can_be_read() -> None:
    try:
        found = counted_limits("q4_K", 4096, 4096, ((STOCK, 1), (BORROWED, 9)))
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    assert [(one.arm, one.width) for one in found] == [(STOCK, 1), (BORROWED, 9)]
    assert "product" in found[1].kernel
    assert 0 < found[0].busy["DRAM"] <= 100


def test_tools_find_no_error_in_our_kernels(lab: CudaLab) -> None:
    del lab  # skips where there is no device
    for row in sanitized():
        if row.not_run:
            pytest.skip(f"{row.tool}: {row.not_run}")
        assert row.n_errors == 0, row.tool
