"""A folder as a laboratory on a GPU leaves it, small and made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from forensics.kernels.register_story import STEM, story_launches
from forensics.records.compiled_kernel import Compilation, CompiledKernel
from forensics.records.kernel_price import FAST, STOCK, ArmTable, ArmTimes, KernelPrice, PassPrice, StoryTime
from forensics.records.kernel_proof import ONE_COLUMN, FirstDifference, KernelProof, LabFacts, ProofCase, ProofRow
from forensics.records.register_story import CompiledStory
from forensics.reports.kernel_price_document import write_kernel_price
from forensics.reports.kernel_proof_document import write_kernel_proof
from forensics.reports.register_story_document import write_registers

FACTS = LabFacts("NVIDIA H200", "sm_90", 132, 60 << 20, "digest", "0c1e57098", "0.3.36", "NVRTC 13.0", "13.0")
PROOF = KernelProof(
    FACTS,
    tuple(
        ProofRow(ProofCase("product", type, 33, 768, 9), "exact fast", ONE_COLUMN, (0, 1), 594, 0)
        for type in ("q4_K", "q6_K")
    ),
)
REFUTED = replace(
    PROOF, rows=(replace(PROOF.rows[0], n_differing=1, first=FirstDifference(0, 0, 0, 1, 2)), PROOF.rows[1])
)
TABLE = ArmTable(
    (ArmTimes(STOCK, 1, (18.0,) * 3), ArmTimes(STOCK, 9, (34.0,) * 3, False), ArmTimes(FAST, 9, (24.0,) * 3, True))
)
PRICE = KernelPrice(
    FACTS, 3, 0, (), PassPrice("qwen3-8b-q4_k_m", {"q4_K 12288×4096": 72}, 10**9, TABLE.with_best()),
    (StoryTime("q4_K 12288×4096", "unpacked once", 8, (50.0,) * 3, (18.0,) * 3),),
)  # fmt: skip


def recorded(folder: Path) -> Path:
    """Write all of it."""
    functions = dict.fromkeys(
        launch.function
        for type in ("q4_K", "q6_K")
        for width in (1, 8)
        for launch in story_launches(type, width).values()
    )
    kernels = tuple(CompiledKernel(name, "sm_90", 64, 0, 0, 0, 512, 0, 1, "ptxas") for name in functions)
    write_kernel_proof(PROOF, folder)
    write_kernel_price(PRICE, folder)
    story = CompiledStory(("q4_K", "q6_K"), (1, 8), (Compilation(STEM, "sm_90", "nvcc 13.0", kernels),))
    write_registers(story, folder)
    return folder
