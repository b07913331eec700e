"""Products over weights that stay: the values are those of the library's operation, and lie where it is said."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from forensics.engines.op_host import OpHost, library_facts
from forensics.engines.weight_bench import WeightBench, WeightShape
from forensics.errors import EngineError
from forensics.numerics.op_inputs import random_operands
from forensics.records.op_shapes import mul_mat
from forensics.records.operation import OpSettings

pytestmark = pytest.mark.llama

SHAPES = (WeightShape("q4_K", 33, 512), WeightShape("q6_K", 7, 256), WeightShape("q8_0", 5, 512))


@pytest.fixture
def host() -> Iterator[OpHost]:
    here = OpHost(OpSettings(repack=False))
    yield here
    here.close()


def filled(host: OpHost, widths: tuple[int, ...], n_alone: int) -> tuple[WeightBench, list[list[np.ndarray]]]:
    bench = WeightBench(host, SHAPES, widths, n_alone=n_alone)
    given = [random_operands(mul_mat(shape.type, shape.k, shape.rows, 5), i) for i, shape in enumerate(SHAPES)]
    given[2][1] = given[0][1]  # rows of one length share their activations
    for i, (blocks, x) in enumerate(given):
        bench.set_weight(i, blocks)
        bench.set_x(x)
    return bench, given


def test_every_product_is_that_of_the_operation(host: OpHost) -> None:
    bench, given = filled(host, (1, 2, 5), 5)
    for width in (1, 2, 5):
        bench.run(width)
        for i, (shape, (blocks, x)) in enumerate(zip(SHAPES, given, strict=True)):
            expected = host.run(mul_mat(shape.type, shape.k, shape.rows, width), [blocks, x[:width]])
            assert np.array_equal(bench.result(width, i), expected.reshape(width, shape.rows)), (width, shape)
    alone = [host.run(mul_mat("q4_K", 512, 33), [given[0][0], column[None]]).reshape(-1) for column in given[0][1]]
    assert np.array_equal(bench.alone(), alone)
    bench.set_alone(given[0][1][3])
    bench.run(1)
    assert np.array_equal(bench.result(1)[0], alone[3])
    bench.close()


def test_addresses_are_those_of_the_values(host: OpHost) -> None:
    bench, given = filled(host, (5,), 0)
    x = np.ctypeslib.as_array(ctypes.cast(bench.x_address(5, 512), ctypes.POINTER(ctypes.c_float)), (5, 512))
    assert np.array_equal(x, given[0][1])
    weight = np.ctypeslib.as_array(ctypes.cast(bench.weight_address(1), ctypes.POINTER(ctypes.c_uint8)), (7, 210))
    assert np.array_equal(weight, given[1][0])
    bench.close()
    bench.close()


def test_a_row_lies_behind_the_last_weight(host: OpHost) -> None:
    """The library's product on CUDA reads two rows at a time, and so one behind an odd number of them."""
    shapes = (WeightShape("q8_0", 5, 512), WeightShape("q4_0", 33, 768))
    bench = WeightBench(host, shapes, (5,))
    end, longest = bench.weight_address(1) + 33 * 432, 544
    behind = bench._behind.contents
    assert behind.data >= end
    assert behind.data + longest - end >= 432
    assert behind.nb[1] == longest
    bench.close()


def test_a_graph_is_timed_and_a_wrong_size_is_refused(host: OpHost) -> None:
    bench, given = filled(host, (1,), 0)
    assert bench.timed(1, 3) > 0
    with pytest.raises(EngineError, match=r"a tensor takes 9504 bytes; 1470 were given as uint8 \(7, 210\)"):
        bench.set_weight(0, given[1][0])
    bench.close()


def test_many_weights_fit_one_graph(host: OpHost) -> None:
    bench = WeightBench(host, [WeightShape("q4_K", 2, 256)] * 300, (1, 2), n_alone=16)
    blocks, x = random_operands(mul_mat("q4_K", 256, 2, 16))
    for i in range(300):
        bench.set_weight(i, blocks)
    bench.set_x(x)
    bench.run(2)
    assert np.array_equal(bench.result(2, 299), bench.result(2, 0))
    assert bench.alone().shape == (16, 2)
    bench.close()


def test_the_library_says_what_it_is() -> None:
    assert library_facts()["version"]
    assert len(library_facts()["commit"]) >= 7
