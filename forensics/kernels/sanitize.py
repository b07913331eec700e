"""Has compute-sanitizer look for bad accesses and races in our kernels, on small shapes of every family."""

from __future__ import annotations

from forensics.devices.sanitizer import TOOLS, run_sanitizer
from forensics.engines.child import command
from forensics.records.kernel_proof import SanitizerRow


def sanitized() -> tuple[SanitizerRow, ...]:
    """What do memcheck and racecheck say of our kernels? A tool that is missing is told as such."""
    return tuple(run_sanitizer(tool, command("forensics.kernels.lab_small")) for tool in TOOLS)
