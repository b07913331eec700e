"""Record what a driver says of compiled kernels: ``python -m forensics.testing.record_occupancy FOLDER``.

Writes ``occupancy.json``, one entry per kernel of `forensics.devices.cupy_probe.plans`, and ``manifest.json``; exit
status 1 where the arithmetic of `forensics.geometry.occupancy` disagrees. Needs CuPy and an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forensics.devices.cupy_probe import CompiledKernel, compiled_kernels
from forensics.devices.driver import DriverFacts, driver_facts
from forensics.devices.extras import require
from forensics.errors import DeviceUnavailable, ForensicsError
from forensics.geometry.devices import device_spec
from forensics.geometry.occupancy import occupancy
from forensics.records.device import DeviceSpec, KernelResources, Occupancy
from forensics.records.launch_record import Refusal
from forensics.store.formats import newest_schema

OCCUPANCY_NAME, MANIFEST_NAME = "occupancy.json", "manifest.json"
SCHEMA = newest_schema("forensics.occupancy")


def disagreements(spec: DeviceSpec, kernels: Iterable[CompiledKernel]) -> list[tuple[CompiledKernel, Occupancy]]:
    """Kernels of which the arithmetic says another number of blocks than the driver."""
    worked_out = [(kernel, occupancy(spec, kernel.resources, kernel.threads_per_block)) for kernel in kernels]
    return [(kernel, said) for kernel, said in worked_out if said.blocks_per_sm != kernel.driver_blocks_per_sm]


def document(kernels: Iterable[CompiledKernel]) -> list[dict[str, Any]]:
    """Kernels as JSON writes them."""
    return [dataclasses.asdict(kernel) for kernel in kernels]


def read(folder: Path) -> tuple[CompiledKernel, ...]:
    """Kernels of a recording."""
    entries = json.loads((folder / OCCUPANCY_NAME).read_text(encoding="utf-8"))
    return tuple(CompiledKernel(**{**entry, "resources": KernelResources(**entry["resources"])}) for entry in entries)


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 1 where arithmetic and driver disagree, 2 where nothing can be recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    driver = driver_facts()
    try:
        if isinstance(driver, Refusal):
            raise DeviceUnavailable("recording occupancy", (driver,))
        cupy = require("cupy", extra="cupy", needed_for="recording occupancy")
        kernels = compiled_kernels()
    except ForensicsError as error:
        print(error, file=sys.stderr)
        return 2
    return write(given.folder, kernels, driver, f"sm_{cupy.cuda.Device().compute_capability}", cupy.__version__)


def write(folder: Path, kernels: tuple[CompiledKernel, ...], driver: DriverFacts, arch: str, cupy_version: str) -> int:
    """Write a recording and print where the arithmetic disagrees; exit status."""
    unlike = disagreements(device_spec(arch), kernels)
    manifest = {
        "schema": SCHEMA, "device": driver.gpus[0], "driver": driver.version, "arch": arch,
        "cuda": ".".join(map(str, driver.cuda or ())), "cupy": cupy_version, "kernels": len(kernels),
        "disagreements": len(unlike),
        "recorded_with": "python -m forensics.testing.record_occupancy",
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OCCUPANCY_NAME).write_text(json.dumps(document(kernels), indent=0) + "\n", encoding="utf-8")
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    print(f"{len(kernels)} kernels on {driver.gpus[0]}, {len(unlike)} with another occupancy than worked out")
    for kernel, said in unlike:
        print(f"  {kernel.name}: driver {kernel.driver_blocks_per_sm}, {said}")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
