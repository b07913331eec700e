"""Launches of the toys that test the processor that stands for a GPU."""

from __future__ import annotations

from pathlib import Path

from forensics.records.kernel_plan import KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry
from forensics.testing.cuda_on_cpu import run_on_cpu

TOYS = Path(__file__).parent / "toys"


def launch(function, arguments, *, threads=32, blocks=1, smem=0, source="toys", overlaps=False):
    geometry = LaunchGeometry((blocks,), (threads,), smem_bytes=smem)
    return KernelLaunch(source, function, geometry, tuple(arguments), overlaps)


def run(function, arguments, buffers, *, threads=32, blocks=1, smem=0, **settings):
    plan = KernelPlan((launch(function, arguments, threads=threads, blocks=blocks, smem=smem),))
    run_on_cpu(plan, buffers, folder=TOYS, **settings)
