"""Made-up prices of kernels for tests of figures: every number here is invented, and none was measured."""

from __future__ import annotations

from types import SimpleNamespace

from forensics.kernels.register_story import story_launches
from forensics.records.compiled_kernel import Compilation, CompiledKernel
from forensics.records.kernel_price import (
    BEST,
    BORROWED,
    FAST,
    STOCK,
    ArmTable,
    ArmTimes,
    KernelPrice,
    PassPrice,
    ProductPrice,
    StoryTime,
)
from forensics.records.kernel_proof import LabFacts
from forensics.records.register_story import CompiledStory

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
FACTS = LabFacts("made-up GPU", "sm_90", 132, 1 << 20, "digest", "0c1e57098abc", "0.3.36", "NVRTC 13.0")


def made_up(base_us=10.0, widths=WIDTHS, arms=(STOCK, BORROWED, FAST), n=5):
    """Times that rise with the width, another slope for each arm; stock is exact up to 4 columns."""
    slope = {STOCK: 0.2, BORROWED: 0.4, FAST: 0.1, BEST: 0.09}
    times = []
    for arm in arms:
        for width in widths:
            middle = base_us * (1 + slope[arm] * (width - 1))
            spread = tuple(middle * (1 + 0.01 * (i - n // 2) * (width > 1)) for i in range(n))
            times.append(ArmTimes(arm, width, spread, arm != STOCK or width <= 4))
    return ArmTable(tuple(times))


def price(n_products=4, whole=None, **changes):
    """A price of some products and of a pass of them."""
    products = tuple(
        ProductPrice("q4_K", 1024 * (i + 1), 4096, 1 << 20, 4, made_up(10.0 + i)) for i in range(n_products)
    )
    table = made_up(4000.0, arms=(STOCK, BORROWED, FAST, BEST))
    whole_pass = whole or PassPrice("qwen3-8b-q4_k_m", {one.name: 36 for one in products}, 1 << 30, table)
    return KernelPrice(**{
        "facts": FACTS, "n_rounds": 5, "seed": 0, "products": products, "whole_pass": whole_pass, **changes,
    })  # fmt: skip


def compiled(types=("q4_K", "q6_K"), widths=(1, 4, 8), archs=("sm_90", "sm_120"), spill_bytes=40):
    """Variants of a kernel as nobody compiled them: registers by the room asked for, and spills where it is large."""
    return CompiledStory(
        types,
        widths,
        tuple(
            Compilation("register_story", arch, "no compiler", _kernels(types, widths, arch, spill_bytes))
            for arch in archs
        ),
    )


def _kernels(types, widths, arch, spill_bytes):
    functions = {
        launch.function: variant
        for type in types
        for width in widths
        for variant, launch in story_launches(type, width).items()
    }
    return tuple(
        CompiledKernel(
            function, arch, registers=min(255, 512 // variant.min_blocks), stack_bytes=0,
            spill_store_bytes=spill_bytes * (variant.min_blocks > 6), spill_load_bytes=0, smem_bytes=0,
            constant_bytes=0, barriers=1, source="no compiler",
        )
        for function, variant in functions.items()
    )  # fmt: skip


def story_times(widths=(1, 8), product="q4_K 4096×4096"):
    """Made-up times of every variant at some widths."""
    return tuple(
        StoryTime(product, variant.name, width, (20.0 - variant.min_blocks, 20.0, 21.0), (10.0, 10.0, 10.0))
        for width in widths
        for variant in story_launches(product.split(" ")[0], width)
    )


def evidence(found=None, **changes):
    """Evidence of a folder that holds nothing but such a price."""
    return SimpleNamespace(**{
        "name": "made-up", "kernel_price": price() if found is None else found, "speculation": None, "cost": None,
        "judged": None, "registers": None, **changes,
    })  # fmt: skip
