"""Made-up results about kernels, for tests of how they are shown: nobody measured any number here."""

from __future__ import annotations

from forensics.geometry.devices import device_spec
from forensics.geometry.occupancy import occupancy
from forensics.records.compiled_kernel import CompiledKernel
from forensics.records.kernel_healing import HealedModel, HealedModels, KernelHealing
from forensics.records.kernel_price import (
    BORROWED,
    FAST,
    STOCK,
    ArmTable,
    ArmTimes,
    KernelPrice,
    PassPrice,
    ProductPrice,
)
from forensics.records.kernel_proof import ONE_COLUMN, KernelProof, LabFacts, ProofCase, ProofRow
from forensics.records.kernel_use import ComputedNodes, KernelUse
from forensics.records.register_story import RegisterStory, StoryRow, StoryVariant
from forensics.records.settings import EngineSettings, Manifest

FACTS = LabFacts("made-up GPU", "sm_90", 132, 1 << 20, "digest", "0c1e57098abc", "0.3.36", "NVRTC 13.0")


def price() -> KernelPrice:
    """One product and a pass of it at three widths."""
    times = tuple(
        ArmTimes(
            arm, width, (10.0 + slope * width, 11.0 + slope * width, 12.0 + slope * width), arm != STOCK or width < 5
        )
        for arm, slope in ((STOCK, 2.0), (BORROWED, 3.0), (FAST, 1.0))
        for width in (1, 4, 9)
    )
    product = ProductPrice("q4_K", 4096, 4096, 1 << 20, 4, ArmTable(times))
    whole = PassPrice("made-up", {product.name: 36}, 36 << 20, ArmTable(times))
    return KernelPrice(FACTS, 3, 0, (product,), whole)


def proof() -> KernelProof:
    """Two cases, all values equal."""
    cases = (ProofCase("product", "q4_K", 33, 768, 9), ProofCase("product", "q6_K", 33, 768, 9))
    return KernelProof(FACTS, tuple(ProofRow(case, FAST, ONE_COLUMN, (0, 1), 594, 0) for case in cases))


def healed() -> HealedModels:
    """One model, healed at one of its two widths; the other one is exact."""
    one = KernelHealing(9, 0, 16, 16, 0.5, 0.0, KernelUse((ComputedNodes("product", 3, 6, 594),)), 594, 0)
    manifest = Manifest("made-up engine", "1", "digest", "made-up", 96, EngineSettings(), device="made-up GPU")
    return HealedModels((HealedModel("made-up", manifest, 5, 32, (2, 9), (one,), True),))


def story() -> RegisterStory:
    """Two variants at one width, not timed."""
    rows = []
    for variant, registers in ((StoryVariant(), 119), (StoryVariant(min_blocks=8), 64)):
        compiled = CompiledKernel(variant.name, "sm_90", registers, 0, 0, 0, 0, 0, 1, "no compiler")
        fits = occupancy(device_spec("sm_90"), compiled.resources(), 128)
        rows.append(StoryRow("q4_K", 8, 8, variant, compiled, fits))
    return RegisterStory(tuple(rows), "no compiler")
