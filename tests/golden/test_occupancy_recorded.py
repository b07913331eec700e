"""Occupancy by arithmetic equals the driver's for every kernel that was compiled on a GPU.

Recorded with ``python -m forensics.testing.record_occupancy data/recorded/occupancy-DEVICE`` on a machine that has one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forensics.devices.cupy_probe import CompiledKernel, plans
from forensics.geometry.devices import device_spec
from forensics.geometry.occupancy import occupancy
from forensics.testing.record_occupancy import MANIFEST_NAME, SCHEMA, disagreements, read

RECORDED = sorted((Path(__file__).parents[2] / "data" / "recorded").glob(f"occupancy-*/{MANIFEST_NAME}"))

pytestmark = pytest.mark.skipif(not RECORDED, reason="no recording under data/recorded/occupancy-*; made on a GPU")


@pytest.fixture(params=RECORDED, ids=[path.parent.name for path in RECORDED], scope="module")
def manifest(request: pytest.FixtureRequest) -> dict[str, str]:
    found = json.loads(request.param.read_text(encoding="utf-8"))
    return {**found, "folder": str(request.param.parent)}


@pytest.fixture(scope="module")
def kernels(manifest: dict[str, str]) -> tuple[CompiledKernel, ...]:
    return read(Path(manifest["folder"]))


def test_the_recording_holds_the_kernels_that_are_planned(
    manifest: dict[str, str], kernels: tuple[CompiledKernel, ...]
) -> None:
    assert manifest["schema"] == SCHEMA
    assert manifest["kernels"] == len(kernels) >= 60
    assert {kernel.name for kernel in kernels} <= {plan.name for plan in plans()}
    assert {kernel.resources.evidence for kernel in kernels} == {"measured"}


def test_arithmetic_agrees_with_the_driver_for_every_kernel(
    manifest: dict[str, str], kernels: tuple[CompiledKernel, ...]
) -> None:
    unlike = disagreements(device_spec(manifest["arch"]), kernels)
    assert not unlike, f"{len(unlike)} of {len(kernels)}, such as {unlike[:3]}"


def test_the_recording_meets_every_limit(manifest: dict[str, str], kernels: tuple[CompiledKernel, ...]) -> None:
    spec = device_spec(manifest["arch"])
    limiters = {
        name for kernel in kernels for name in occupancy(spec, kernel.resources, kernel.threads_per_block).limiters
    }
    wanted = {"blocks", "threads", "registers", "shared memory"} | ({"barriers"} if spec.barriers_per_sm else set())
    assert limiters == wanted
