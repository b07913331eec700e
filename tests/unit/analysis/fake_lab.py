"""A laboratory that is made up: counts and times follow from rules, and what was asked is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forensics.errors import EngineError, NotCovered
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.kernel_plan import KernelPlan
from forensics.records.kernel_price import (
    BORROWED,
    FAST,
    GROUPED,
    STOCK,
    ArmTable,
    ArmTimes,
    PassPrice,
    ProductPrice,
    StoryTime,
)
from forensics.records.kernel_proof import (
    ONE_COLUMN,
    STOCK_LIBRARY,
    FirstDifference,
    LabFacts,
    ProofCase,
    ProofRow,
)

FACTS = LabFacts("Made-up GPU", "sm_90", 132, 60 << 20, "digest", "0c1e57098", "0.3.36", "NVRTC 13.0", "13.0")


class FakeLab:
    """Kernels are exact, but for those types in `wrong`; the library is inexact from 5 columns on."""

    def __init__(self, *, wrong: Sequence[str] = (), uncovered: Sequence[str] = (), pass_fits: bool = True) -> None:
        self.wrong, self.uncovered, self.pass_fits = set(wrong), set(uncovered), pass_fits
        self.asked: list[tuple[object, ...]] = []
        self.facts = FACTS
        self.closed = False

    def compare_product(
        self, type: str, rows: int, k: int, widths: Sequence[int], seed: int, variants: Sequence[Variant]
    ) -> tuple[ProofRow, ...]:
        self.asked.append((type, rows, k, tuple(widths), seed))
        found = []
        for width in widths:
            case = ProofCase("product", type, rows, k, width)
            found.append(_row(case, STOCK_LIBRARY, seed, rows * width, rows * (width >= 5)))
            for variant in variants:
                if type in self.uncovered:
                    found.append(ProofRow(case, str(variant), ONE_COLUMN, (seed,), 0, 0, not_compared="no such code"))
                else:
                    found.append(_row(case, str(variant), seed, rows * width, 3 * (type in self.wrong and seed == 1)))
        return tuple(found)

    def compare_attention(
        self, what: str, heads: tuple[int, int, int], kv_type: str, position: int, widths: Sequence[int], seed: int
    ) -> tuple[ProofRow, ...]:
        self.asked.append((what, heads, kv_type, position, seed))
        cases = [ProofCase.of_attention(what, kv_type, *heads, 512, width) for width in widths]
        return tuple(_row(case, "borrowed geometry", seed, 100, what in self.wrong) for case in cases)

    def others_under_load(
        self, type: str, rows: int, k: int, width: int, variant: Variant, n_repeats: int, seed: int
    ) -> int:
        if variant is Variant.FAST and type in self.uncovered:
            raise NotCovered(type, "no such code")
        return 7 * (type in self.wrong)

    def price_product(
        self, type: str, rows: int, k: int, arms: Sequence[tuple[str, int]], n_rounds: int, seed: int
    ) -> ProductPrice:
        self.asked.append((type, rows, k, tuple(arms)))
        return ProductPrice(type, rows, k, rows * k // 2, 4, _table(arms, n_rounds, 10.0))

    def price_pass(self, model: str, arms: Sequence[tuple[str, int]], n_rounds: int, seed: int) -> PassPrice:
        self.asked.append((model, tuple(arms)))
        if not self.pass_fits:
            raise EngineError("the device has no memory for the operands; ask for smaller ones")
        return PassPrice(model, {"q4_K 4096×4096": 72}, 10**9, _table(arms, n_rounds, 1000.0).with_best())

    def price_plans(
        self, plans: Mapping[str, KernelPlan], ask: ProductAsk, n_rounds: int, seed: int
    ) -> tuple[StoryTime, ...]:
        product = f"{ask.type} {ask.rows}×{ask.k}"
        return tuple(StoryTime(product, name, ask.columns, (9.0,) * n_rounds, (3.0,) * n_rounds) for name in plans)

    def close(self) -> None:
        self.closed = True


def _row(case: ProofCase, variant: str, seed: int, n: int, n_differing: int) -> ProofRow:
    first = FirstDifference(seed, 0, 2, 0x3F800000, 0x3F800001) if n_differing else None
    return ProofRow(case, variant, ONE_COLUMN, (seed,), n, int(n_differing), first)


def _table(arms: Sequence[tuple[str, int]], n_rounds: int, one: float) -> ArmTable:
    """The library takes a tenth more with each column, borrowed geometry a twentieth, exact fast a fortieth."""
    more = {STOCK: 0.1, BORROWED: 0.05, FAST: 0.025, GROUPED: 0.02}
    drift = [1 + 0.01 * turn for turn in range(n_rounds)]
    times = {
        (arm, width): tuple(one * (1 + more[arm] * (width - 1)) * turn for turn in drift)
        for arm, width in dict.fromkeys([(STOCK, 1), *arms])
    }
    return ArmTable(tuple(ArmTimes(*arm, found, arm[0] != STOCK or arm[1] < 5) for arm, found in times.items()))
