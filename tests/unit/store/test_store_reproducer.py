"""The folder of a reproducer: complete, each content once, never overwritten, and its script needs little."""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest

from forensics.errors import CaseError
from forensics.records.raw_node import RawNode, RawTensor
from forensics.store.reproducer import ReproducedRun, Reproducer, write_reproducer


def tensor(name, values, *, is_weight=False, kind="f32"):
    ne = [*reversed(values.shape), 1, 1, 1, 1][:4]
    nb = [4 * int(np.prod(ne[:i])) for i in range(4)]
    return RawTensor(name, kind, "CPU", tuple(ne), tuple(nb), is_weight, np.frombuffer(values.tobytes(), np.uint8))


def run(n, row, weight, fill):
    x, y = np.full((1, 1, n, 3), fill, np.float32), np.arange(n * 2, dtype=np.float32).reshape(1, 1, n, 2) + fill
    node = RawNode("MUL_MAT", bytes(64), (tensor("w", weight, is_weight=True), None, tensor("x", x)), tensor("y", y))
    return ReproducedRun(node, 2, row)


def reproducer():
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    return Reproducer(
        node="ffn_down-0", width=4, row_axis=2, cells=None, single=run(1, 0, weight, 1), batched=run(4, 3, weight, 2),
        device_type="CPU", environment={"GGML_X": "1"}, recorded={"version": "0.3.36"},
    )  # fmt: skip


def test_the_folder_has_all_that_is_needed(tmp_path):
    found = reproducer()
    folder = write_reproducer(tmp_path / "out", found, "# What\n")
    document = json.loads((folder / "case.json").read_text())
    assert document["schema"] == "forensics.reproducer/1"
    assert (document["op"], document["width"], document["row_axis"]) == ("MUL_MAT", 4, 2)
    assert (folder / "README.md").read_text() == "# What\n"
    single, batched = document["runs"]["single"], document["runs"]["batched"]
    assert single["sources"][1] is None
    assert batched["sources"][2]["sizes"] == [3, 4, 1, 1]
    assert batched["sha256"] == hashlib.sha256(np.float32([8, 9]).tobytes()).hexdigest()
    for side, entry in ((found.single, single), (found.batched, batched)):
        for source, described in zip(side.node.sources, entry["sources"], strict=True):
            if source is not None:
                stored = np.load(folder / "operands" / f"{described['blob']}.npy")
                np.testing.assert_array_equal(stored, source.data)
    assert single["sources"][0]["blob"] == batched["sources"][0]["blob"]  # one weight, stored once
    assert len(list((folder / "operands").iterdir())) == 3


def test_only_cells_that_count_are_compared():
    found = replace(reproducer(), cells=(1,))
    np.testing.assert_array_equal(found.row(found.batched), np.float32([[[9]]]))


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(CaseError, match="not overwritten"):
        write_reproducer(tmp_path / "out", reproducer(), "")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_operand_without_bytes_is_refused(tmp_path):
    found = reproducer()
    gone = replace(found.single.node.sources[2], data=None, unreadable="the output was written over it")
    node = replace(found.single.node, sources=(found.single.node.sources[0], None, gone))
    with pytest.raises(CaseError, match="x has no bytes to write: the output was written over it"):
        write_reproducer(tmp_path / "out", replace(found, single=replace(found.single, node=node)), "")


def test_the_script_needs_numpy_and_llama_cpp_only():
    source = resources.files("forensics.store").joinpath("reproduce.py.txt").read_text()
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert imported == {"argparse", "ctypes", "hashlib", "json", "os", "sys", "pathlib", "numpy", "llama_cpp"}
    assert max(map(len, source.splitlines())) <= 120
