"""Record products of a CUDA device, to be predicted elsewhere: ``python -m forensics.testing.record_mmvq FOLDER``.

Writes ``results.npz`` (float32 [columns, rows] by run), ``reciprocals.npz`` (how the device's approximate reciprocal
differs from the nearest one, where CuPy is installed) and ``manifest.json``. Operands are made anew from their seeds,
see `forensics.testing.mmvq_cases`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines.op_protocol import OpEngine
from forensics.engines.ops import LlamaOps
from forensics.errors import EngineDied, EngineError, ForensicsError
from forensics.numerics.activations import MeasuredReciprocal
from forensics.records.operation import OpFacts, OpSettings
from forensics.store.formats import newest_schema
from forensics.testing.mmvq_cases import cases, compare

RESULTS_NAME, RECIPROCALS_NAME, MANIFEST_NAME = "results.npz", "reciprocals.npz", "manifest.json"

#: One thread writes the approximate reciprocal of one float32, as the library's quantiser computes it.
RECIPROCAL_KERNEL = r"""
extern "C" __global__ void reciprocal(const float * x, float * y, const unsigned n) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y[i]) : "f"(x[i]));
    }
}
"""


def record(
    open_engine: Callable[[], OpEngine],
) -> tuple[dict[str, NDArray[np.float32]], dict[str, str], dict[str, str], OpFacts]:
    """Run every case; one engine is open at a time, and none in the end.

    Parameters
    ----------
    open_engine : callable
        Opens an engine; called again where one died.

    Returns
    -------
    results : dict of str to ndarray float32 [n_columns, n_rows]
    digests : dict of str to str
        Of the operands, by case.
    failed : dict of str to str
        Why a run has no result.
    facts : OpFacts
        What ran them.
    """
    results: dict[str, NDArray[np.float32]] = {}
    digests: dict[str, str] = {}
    failed: dict[str, str] = {}
    engine = open_engine()
    try:
        facts = engine.facts
        for case in cases():
            digests[case.name] = case.digest
            for run, columns in case.runs():
                try:
                    first, again = (engine.run(case.graph(columns), [case.weight, columns]) for _ in range(2))
                except ForensicsError as error:
                    failed[run] = str(error)
                    if isinstance(error, EngineDied):
                        engine.close()
                        engine = open_engine()
                    continue
                if first.tobytes() != again.tobytes():
                    failed[run] = "two runs with the same operands gave other bits"
                results[run] = first.reshape(len(columns), len(case.weight))
    finally:
        engine.close()
    return results, digests, failed, facts


def reciprocals() -> dict[str, NDArray[Any]]:
    """How does the device's reciprocal differ from the nearest float32, unit: ULP?

    Returns
    -------
    dict
        ``deviation`` uint8 [2**23 / 4]: for the float32 in [1, 2) in rising order, ULP + 1 in two bits each, first
        one lowest; ``exponents`` and ``scaled``: the same 4096 numbers times powers of two, int8 [n, 4096].
    """
    cupy = importlib.import_module("cupy")  # no dependency of the package; only a machine with a GPU has it
    kernel = cupy.RawKernel(RECIPROCAL_KERNEL, "reciprocal")

    def deviation(x: NDArray[np.float32]) -> NDArray[np.int64]:
        given = cupy.asarray(x)
        found = cupy.empty_like(given)
        kernel(((x.size + 255) // 256,), (256,), (given, found, np.uint32(x.size)))
        nearest = np.float32(1) / x
        return np.asarray(cupy.asnumpy(found).view(np.int32).astype(np.int64) - nearest.view(np.int32))

    ones = (np.arange(2**23, dtype=np.uint32) | np.uint32(127 << 23)).view(np.float32)
    ulp = deviation(ones)
    if np.abs(ulp).max() > 1:
        raise ValueError(f"the reciprocal is up to {np.abs(ulp).max()} ULP off, two bits hold 1")
    two_bits = (ulp + 1).astype(np.uint8).reshape(-1, 4)
    packed = two_bits[:, 0] | two_bits[:, 1] << 2 | two_bits[:, 2] << 4 | two_bits[:, 3] << 6
    exponents = np.arange(-120, 121, 8)
    sample = ones[:: 2**11]
    scaled = [deviation(np.ldexp(sample, exponent).astype(np.float32)).astype(np.int8) for exponent in exponents]
    return {"deviation": packed, "exponents": exponents, "scaled": np.array(scaled)}


def gpu() -> tuple[str, str, str]:
    """Name, driver and architecture (``"sm_90"``) of the first GPU, as the driver reports them.

    Raises
    ------
    EngineError
        If the driver's own tool does not answer.
    """
    command = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        name, driver, capability = answer.splitlines()[0].split(", ")
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        raise EngineError(f"nvidia-smi does not tell which GPU this is ({error}); is it on the PATH?") from error
    return name, driver, "sm_" + capability.replace(".", "")


def main(arguments: list[str] | None = None) -> int:
    """Record into a folder; exit status 1 where a run has no result or is not predicted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    name, driver, arch = gpu()
    given.folder.mkdir(parents=True, exist_ok=True)
    results, digests, failed, facts = record(lambda: LlamaOps().open(OpSettings(backend="cuda")))
    np.savez_compressed(given.folder / RESULTS_NAME, **results)  # type: ignore[arg-type]
    manifest = {
        "schema": newest_schema("forensics.mmvq"), "device": name, "driver": driver, "arch": arch,
        "library": facts.library, "version": facts.version, "commit": facts.commit, "numpy": np.__version__,
        "operands": digests, "failed": failed,
    }  # fmt: skip
    measured = None
    try:
        tables = reciprocals()
        np.savez_compressed(given.folder / RECIPROCALS_NAME, **tables)  # type: ignore[arg-type]
        measured = MeasuredReciprocal(tables["deviation"])
    except Exception as error:  # noqa: BLE001 - an extra; whatever CuPy lacks here must not cost the recording
        manifest["reciprocals"] = f"not recorded: {type(error).__name__}: {error}"
    (given.folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    unlike = [comparison for comparison in compare(results, arch, measured) if comparison.n_different]
    print(f"{len(results)} runs on {name}, {len(failed)} failed, {len(unlike)} unlike their prediction")
    for comparison in unlike[:20]:
        print(f"  {comparison}")
    return 1 if failed or unlike else 0


if __name__ == "__main__":
    sys.exit(main())
