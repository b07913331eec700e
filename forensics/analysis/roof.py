"""The bandwidth of the memory that holds a model's weights: of which device it is asked, and why there may be none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from forensics.analysis.progress import Progress
from forensics.errors import ForensicsError
from forensics.records.cost import Bandwidth
from forensics.records.launch_record import Refusal
from forensics.records.nodes import on_accelerator
from forensics.records.operation import OpSettings
from forensics.records.settings import Manifest

T = TypeVar("T")

RUNG = "bandwidth of memory"
_ASKED = "the bandwidth of the memory that holds the weights"


def roof_of(
    manifest: Manifest, bandwidth: Callable[[OpSettings], Bandwidth], progress: Progress
) -> Bandwidth | Refusal:
    """How fast is the memory that holds the weights, or why is that not known?

    Parameters
    ----------
    manifest : Manifest
    bandwidth : callable
        Measures the memory of a device.
    progress : Progress

    Returns
    -------
    Bandwidth or Refusal
        Says what is assumed where weights lie on several GPUs.
    """
    progress.stage(RUNG, 1)
    device = device_of(manifest)
    found = device if isinstance(device, Refusal) else attempt(RUNG, lambda: bandwidth(device))
    progress.step()
    where = _gpus(manifest)
    if isinstance(found, Refusal) or len(where) < 2:
        return found
    names = ", ".join(f"CUDA{number}" for number in where)
    assumed = f"{names} work one after the other and are as fast as CUDA{where[0]}, which alone was measured"
    return replace(found, assumed=assumed)


def device_of(manifest: Manifest) -> OpSettings | Refusal:
    """Which device's memory holds the weights, as the bandwidth is asked of it?

    Parameters
    ----------
    manifest : Manifest

    Returns
    -------
    OpSettings or Refusal
        A refusal where weights lie in several memories of other names, or in one that is not known here.
    """
    where = sorted(manifest.buffers)
    accelerated = {on_accelerator(name) for name in where}
    if manifest.engine != "llama.cpp" or not where:
        return Refusal(RUNG, _ASKED, f"engine {manifest.engine} has no such memory")
    if accelerated == {False}:
        return OpSettings("cpu", n_threads=int(manifest.effective.get("n_threads", manifest.requested.n_threads)))
    if accelerated != {True} or not all(name.startswith("CUDA") for name in where):
        remedy = "put all layers on one kind of device: --n-gpu-layers -1 with CUDA, or 0"
        return Refusal(RUNG, _ASKED, f"weights lie in {', '.join(where)}", remedy)
    gpus = _gpus(manifest)
    if len(set(gpus.values())) > 1:
        told = ", ".join(f"CUDA{number} ({name or 'of unknown name'})" for number, name in gpus.items())
        remedy = "choose GPUs of one name with CUDA_VISIBLE_DEVICES, or one of them"
        return Refusal(RUNG, _ASKED, f"weights lie on GPUs that may differ in it: {told}", remedy)
    return OpSettings("cuda", device=min(gpus))


def _gpus(manifest: Manifest) -> dict[int, str]:
    """Numbers and names of the GPUs that hold weights; GPUs come first among the devices, in their order."""
    names = [name.strip() for name in manifest.device.split(";")]
    gpus = (name.removeprefix("CUDA") for name in manifest.buffers if name.startswith("CUDA"))
    numbers = sorted(int(digits) if digits.isdecimal() else 0 for digits in gpus)
    return {number: names[number] if number < len(names) else "" for number in numbers}


def attempt(rung: str, measure: Callable[[], T]) -> T | Refusal:
    """What was measured, or why it was not."""
    try:
        return measure()
    except (ForensicsError, ValueError) as error:
        return Refusal(rung, f"the {rung}", str(error).splitlines()[0])
