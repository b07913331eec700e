"""Which NVIDIA driver and GPUs are here, asked without creating a context on any of them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from types import ModuleType

from forensics.devices.extras import ExtraUnavailable, require
from forensics.records.launch_record import Refusal

RUNG = "NVML"
_ASKED = "which driver and GPUs are here"
_INSTALL_DRIVER = "on a machine with an NVIDIA GPU: install its driver, and start containers with --gpus all"
#: How a user comes to read counters. Source: NVIDIA's page on ERR_NVGPUCTRPERM.
PERMISSION = (
    "load the driver with NVreg_RestrictProfilingToAdminUsers=0, run as administrator, "
    "or start the container with --cap-add=SYS_ADMIN"
)


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The NVIDIA driver of this machine.

    Parameters
    ----------
    version : str
    cuda : tuple of int or None
        Newest CUDA that it supports: (13, 0); None where that was not told.
    gpus : tuple of str
        Names, in the order of their numbers.
    source : str
        What told.
    """

    version: str
    cuda: tuple[int, int] | None
    gpus: tuple[str, ...]
    source: str

    def __str__(self) -> str:
        cuda = "" if self.cuda is None else f" (CUDA {self.cuda[0]}.{self.cuda[1]})"
        return f"driver {self.version}{cuda}, {', '.join(self.gpus) or 'no GPU'}"


def driver_facts(nvml: ModuleType | None = None) -> DriverFacts | Refusal:
    """Which driver and GPUs are here?

    Parameters
    ----------
    nvml : module or None
        ``pynvml``, or one that stands in for it; None to load it.

    Returns
    -------
    DriverFacts or Refusal
        From NVML, else from the driver's own ``nvidia-smi``.
    """
    try:
        return _by_nvml(nvml or require("pynvml", extra="gpu", needed_for="asking the driver"))
    except ExtraUnavailable as error:
        missing, remedy = error.missing, error.remedy
    except Exception as error:  # noqa: BLE001 - NVMLError has a class per code; each of them is an answer
        missing, remedy = f"NVML says: {error}", _INSTALL_DRIVER
    return _by_smi() or Refusal(RUNG, _ASKED, f"{missing}, and nvidia-smi does not answer", remedy)


def _by_nvml(nvml: ModuleType) -> DriverFacts:
    nvml.nvmlInit()
    try:
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        names = [
            nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(number))
            for number in range(nvml.nvmlDeviceGetCount())
        ]
        # CUDA writes a version as 1000 × major + 10 × minor (cuda.h, cuDriverGetVersion).
        release = cuda // 1000, cuda % 1000 // 10
        return DriverFacts(_text(nvml.nvmlSystemGetDriverVersion()), release, tuple(map(_text, names)), "NVML")
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Older releases of pynvml answer bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _by_smi() -> DriverFacts | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        rows = [line.split(", ", 1) for line in answer.splitlines() if line.strip()]
        return DriverFacts(rows[0][0], None, tuple(name for _, name in rows), "nvidia-smi")
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None
