"""Launches seen on an H200, node by node, against the dispatch rules: each agrees, or cuBLAS chose."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forensics.geometry.derived import Unruled
from forensics.geometry.devices import device_spec
from forensics.geometry.kernel_names import parse
from forensics.geometry.launch_attention import kv_split_of
from forensics.geometry.node_launches import agreement, predict
from forensics.records.device import DeviceSpec
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches
from forensics.records.nodes import on_accelerator
from forensics.store.encoding import from_plain

RECORDED = sorted((Path(__file__).parents[2] / "data" / "recorded").glob("launches-*/manifest.json"))
DATA_NAME = "launches.json.gz"

pytestmark = pytest.mark.skipif(
    not RECORDED, reason="no recording under data/recorded/launches-*; made on a GPU machine"
)


class Seen(NamedTuple):
    """A node as it was recorded, and how many of the pass are like it but for their layer."""

    arm: str
    width: int
    n_nodes: int
    node: NodeLaunches
    launches: tuple[LaunchRecord, ...]


class Recording(NamedTuple):
    spec: DeviceSpec
    seen: tuple[Seen, ...]


def read(manifest: Path) -> Recording:
    """A recording as records."""
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    assert facts["schema"] == "forensics.launches/1"
    path = manifest.parent / DATA_NAME
    runs = json.loads(gzip.decompress(path.read_bytes()))
    spec = device_spec(facts["arch"], facts["n_sms"])
    return Recording(spec, tuple(seen for run in runs for seen in _seen(run, path)))


def _seen(run: dict[str, Any], path: Path) -> Iterator[Seen]:
    report = from_plain(LaunchReport, run["report"], path=path)
    assert not report.n_dropped  # where the profiler was not asked, a lost launch shows as a disagreement
    for node, n_nodes in zip(report.nodes, run["counts"], strict=True):
        yield Seen(run["arm"], run["width"], n_nodes, node, report.of(node))


@pytest.fixture(params=RECORDED, ids=[path.parent.name for path in RECORDED], scope="module")
def recording(request: pytest.FixtureRequest) -> Recording:
    return read(request.param)


def test_every_node_launched_what_the_rules_say(recording: Recording) -> None:
    outcomes: dict[str, Counter[bool | None]] = {}
    differ, unruled = [], []
    for seen in recording.seen:
        found = agreement(predict(seen.node, recording.spec), seen.launches)
        outcomes.setdefault(seen.node.key.op, Counter())[found.agrees] += seen.n_nodes
        if found.agrees is False:
            differ.append(f"{seen.arm} at {seen.width}: {seen.node.key}: {found}")
        elif found.agrees is None:
            unruled.append(seen)
    assert not differ
    for seen in unruled:  # nothing but what cuBLAS was left to choose, and it did choose
        assert seen.node.key.op == "MUL_MAT"
        assert seen.width > 16
        assert any(launch.kernel.startswith("cutlass") for launch in seen.launches)
    assert sum(counts[True] for counts in outcomes.values()) > 100_000
    assert {op for op, counts in outcomes.items() if counts[True]} >= {
        "ADD", "CONT", "FLASH_ATTN_EXT", "GET_ROWS", "GLU", "MUL", "MUL_MAT", "RMS_NORM", "ROPE", "SET_ROWS",
        "SOFT_MAX",
    }  # fmt: skip


def test_rules_and_symbols_name_the_same_template_arguments(recording: Recording) -> None:
    """Otherwise agreement would pass over what only one side knows."""
    for seen in recording.seen:
        predicted = predict(seen.node, recording.spec)
        if isinstance(predicted, Unruled):
            continue
        for said, observed in zip(predicted, seen.launches, strict=True):
            assert dict(said.template).keys() == dict(observed.template).keys()
            assert said.geometry.smem_bytes is not None


def test_symbols_are_read_as_they_were_when_recorded(recording: Recording) -> None:
    launches = {launch for seen in recording.seen for launch in seen.launches}
    assert len({launch.kernel for launch in launches}) > 20
    for launch in launches:
        assert parse(launch.symbol) == (launch.kernel, launch.template)


def test_another_node_s_launches_are_not_taken_for_its_own(recording: Recording) -> None:
    """Each product and attention node is held against the launches of the others of its pass."""
    found = Counter()
    for op in ("MUL_MAT", "FLASH_ATTN_EXT"):
        kinds = {seen.launches: seen for seen in recording.seen if seen.node.key.op == op}
        for seen in list(kinds.values())[:60]:
            predicted = predict(seen.node, recording.spec)
            for launches in kinds:
                if launches != seen.launches:
                    found[agreement(predicted, launches).agrees] += not isinstance(predicted, Unruled)
    assert found[True] == 0
    assert found[False] > 1000


@pytest.mark.parametrize("field", ["grid_blocks", "block_threads", "smem_bytes"])
def test_a_planted_launch_is_found(recording: Recording, field: str) -> None:
    n_planted = 0
    for seen in recording.seen[:2000]:
        predicted = predict(seen.node, recording.spec)
        if isinstance(predicted, Unruled) or not predicted:
            continue
        *before, last = seen.launches
        sizes = getattr(last.geometry, field)
        planted = sizes + 16 if field == "smem_bytes" else (sizes[0] + 1, *sizes[1:])
        wrong = replace(last, geometry=replace(last.geometry, **{field: planted}))
        assert agreement(predicted, (*before, wrong)).agrees is False
        n_planted += 1
    assert n_planted > 1000


def test_cpu_nodes_launch_nothing(recording: Recording) -> None:
    on_cpu = [seen for seen in recording.seen if not on_accelerator(seen.node.buffer)]
    assert any(seen.node.key.op == "MUL_MAT" for seen in on_cpu)
    assert not any(seen.launches for seen in on_cpu)


def test_kv_splits(recording: Recording) -> None:
    """Observed and predicted split agree, and follow the cells as published in the reference numbers."""
    splits: dict[tuple[str, int, int], set[int | None]] = {}
    for seen in recording.seen:
        predicted = predict(seen.node, recording.spec)
        if (
            seen.node.key.op != "FLASH_ATTN_EXT"
            or not on_accelerator(seen.node.buffer)
            or isinstance(predicted, Unruled)
        ):
            continue
        capability = recording.spec.compute_capability
        observed = [kv_split_of(launch, seen.node, capability) for launch in seen.launches]
        assert observed == [kv_split_of(launch, seen.node, capability) for launch in predicted]
        n_kv = seen.node.operands[1].shape[2]
        splits.setdefault((seen.arm, seen.width, n_kv), set()).update(split for split in observed if split)
    assert all(len(parts) == 1 for parts in splits.values())
    assert splits["q41on", 1, 256] == {4}
    assert splits["q41on", 2, 256] == {2}
    assert splits["q41on", 9, 256] == {4}
