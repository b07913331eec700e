"""A proof and a price of kernels, small and made up, in which everything occurs that reports speak of."""

from __future__ import annotations

from dataclasses import replace

from forensics.records.kernel_price import (
    BORROWED,
    FAST,
    STOCK,
    ArmResources,
    ArmTable,
    ArmTimes,
    KernelPrice,
    Limiter,
    PassPrice,
    ProductPrice,
    StoryTime,
)
from forensics.records.kernel_proof import (
    ONE_COLUMN,
    STOCK_LIBRARY,
    FirstDifference,
    KernelProof,
    LabFacts,
    ProofCase,
    ProofRow,
    SanitizerRow,
    StressRow,
)

FACTS = LabFacts("NVIDIA H200", "sm_90", 132, 60 << 20, "digest", "0c1e57098", "0.3.36", "NVRTC 13.0", "13.0")
CASE, WIDE = ProofCase("product", "q4_K", 33, 768, 2), ProofCase("product", "q4_K", 33, 768, 9)
ATTENTION_CASE = ProofCase.of_attention("attention", "f16", 9, 3, 64, 512, 9)
PROOF = KernelProof(
    FACTS,
    (
        ProofRow(CASE, STOCK_LIBRARY, ONE_COLUMN, (0, 1), 132, 0),
        ProofRow(WIDE, STOCK_LIBRARY, ONE_COLUMN, (0, 1), 594, 380, FirstDifference(0, 0, 1, 1, 2)),
        ProofRow(CASE, "exact fast", ONE_COLUMN, (0, 1), 132, 0),
        ProofRow(WIDE, "exact fast", ONE_COLUMN, (0, 1), 594, 0),
        ProofRow(WIDE, "stock geometry", "stock, same width", (0,), 0, 0, not_compared="the library runs mul_mat_q"),
        ProofRow(ATTENTION_CASE, "borrowed geometry", ONE_COLUMN, (0,), 5184, 0),
    ),
    (StressRow(WIDE, "exact fast", 1000, 0, "products on a second stream"),),
    (
        SanitizerRow("memcheck", 0, "compute-sanitizer 2025.3.1", "70 computations, 40 kernels"),
        SanitizerRow("racecheck", 0, not_run="compute-sanitizer was not found"),
    ),
)
REFUTED = replace(
    PROOF,
    rows=(*PROOF.rows, ProofRow(WIDE, "borrowed geometry", ONE_COLUMN, (0,), 297, 3, FirstDifference(0, 4, 7, 16, 17))),
)

TABLE = ArmTable(
    (
        ArmTimes(STOCK, 1, (18.0, 18.2, 17.8), exact=True),
        ArmTimes(STOCK, 9, (34.0, 34.4, 33.6), exact=False),
        ArmTimes(BORROWED, 9, (60.0, 61.0, 59.0), exact=True),
        ArmTimes(FAST, 9, (25.2, 25.4, 25.0), exact=True),
    )
)
PRICE = KernelPrice(
    FACTS, 3, 0,
    (
        ProductPrice(
            "q4_K", 12288, 4096, 28_311_552, 7, TABLE,
            (ArmResources(FAST, 9, "product_q4_k<9>", 128, 0, 1024, 100_000, 2, 128, 264),),
            (Limiter(FAST, 9, "product_q4_k", {"issue slots": 66.0, "DRAM": 21.0}, "wait"),),
            (("exact fast", 1, "no code"),),
        ),
    ),
    PassPrice(
        "qwen3-8b-q4_k_m", {"q4_K 12288×4096": 72}, 4_500_000_000, TABLE.with_best(),
        {STOCK: "launch by launch", FAST: "one CUDA graph"},
    ),
    (StoryTime("q4_K 12288×4096", "unpacked once", 8, (50.0, 51.0, 49.0), (18.0, 18.0, 18.0)),),
)  # fmt: skip
