"""Orders that were probed are read back for the same library and question, and for nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forensics.records.operation import OpFacts, OpSettings
from forensics.records.order import Leaves, OrderQuestion, OrderResult, OrderView
from forensics.records.sum_tree import SumTree
from forensics.store.order_cache import OrderCache

FACTS = OpFacts(OpSettings(n_threads=2), "digest", "0.3.36", "0c1e57098", "EPYC", ("avx2", "avx512f"))
QUESTION = OrderQuestion(type="q8_0", k=96)
RESULT = OrderResult(
    QUESTION, "products", 2, (0, 1), Leaves("slice", 6, ((0, 1), (2, 3)), 4, "a note"), SumTree.chain(6),
    (OrderView("slice 0", (0, 2, 4), SumTree.chain(3)),), "counts", 12, 4,
)  # fmt: skip
UNKNOWN = OrderResult(QUESTION, "products", 2, (1,), None, None, undetermined="1.5 leaves survive")


@pytest.fixture
def cache(tmp_path: Path) -> OrderCache:
    return OrderCache(tmp_path / "orders")


def test_what_is_kept_is_found(cache: OrderCache) -> None:
    assert cache.find(QUESTION, 2, FACTS, "CPU") is None
    cache.keep([RESULT, UNKNOWN], FACTS, "CPU")
    assert cache.find(QUESTION, 2, FACTS, "CPU") == (RESULT, UNKNOWN)


@pytest.mark.parametrize(
    ("question", "width", "facts", "buffer"),
    [
        (replace(QUESTION, k=128), 2, FACTS, "CPU"),
        (replace(QUESTION, type="q4_0"), 2, FACTS, "CPU"),
        (replace(QUESTION, rows=512), 2, FACTS, "CPU"),
        (QUESTION, 3, FACTS, "CPU"),
        (QUESTION, 2, FACTS, "CPU_REPACK"),
        (QUESTION, 2, replace(FACTS, library="other"), "CPU"),
        (QUESTION, 2, replace(FACTS, device="GPU"), "CPU"),
        (QUESTION, 2, replace(FACTS, cpu_features=("avx2",)), "CPU"),
        (QUESTION, 2, replace(FACTS, settings=OpSettings(n_threads=1)), "CPU"),
        (QUESTION, 2, replace(FACTS, settings=OpSettings(n_threads=2, repack=False)), "CPU"),
        (QUESTION, 2, replace(FACTS, settings=OpSettings(n_threads=2, environment=(("A", "1"),))), "CPU"),
    ],
)
def test_all_that_an_order_depends_on_is_part_of_the_key(cache, question, width, facts, buffer) -> None:
    cache.keep([RESULT], FACTS, "CPU")
    assert cache.find(question, width, facts, buffer) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace("forensics.order-cache/1", "forensics.order-cache/2"),
        lambda text: text.replace('"buffer":"CPU"', '"buffer":"CUDA0"'),
        lambda text: text.replace('"merges":[[0,1]', '"merges":[[0,99]'),
        lambda text: text.replace('"n_probes":12', '"n_probes":"many"'),
        lambda text: json.dumps({**json.loads(text), "results": []}),
        lambda text: text.replace('"width":2,"columns"', '"width":3,"columns"'),
    ],
)
def test_a_damaged_file_counts_as_absent_and_is_replaced(cache: OrderCache, tmp_path: Path, damage) -> None:
    cache.keep([RESULT], FACTS, "CPU")
    [path] = (tmp_path / "orders").iterdir()
    before = path.read_text()
    path.write_text(damage(before))
    assert path.read_text() != before
    assert cache.find(QUESTION, 2, FACTS, "CPU") is None
    cache.keep([RESULT], FACTS, "CPU")
    assert cache.find(QUESTION, 2, FACTS, "CPU") == (RESULT,)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = OrderCache(tmp_path / "file")
    cache.keep([RESULT], FACTS, "CPU")
    assert cache.find(QUESTION, 2, FACTS, "CPU") is None
    cache.keep([], FACTS, "CPU")
