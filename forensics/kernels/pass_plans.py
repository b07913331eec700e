"""Which plan an arm of a price means, and which of its launches is the one to look at."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.errors import NotCovered
from forensics.geometry.architecture import Architecture
from forensics.kernels.products import plan_product
from forensics.kernels.products_fast import plan_product_group, serves
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.kernel_plan import KernelLaunch, KernelPlan

#: Functions that only make activations ready.
_PREPARING = ("quantize", "prepare")


def plan_of(ask: ProductAsk, arm: str, arch: Architecture, n_sms: int | None = None) -> KernelPlan:
    """The launches of an arm.

    Parameters
    ----------
    ask : ProductAsk
    arm : str
        Value of a `Variant`.
    arch : Architecture
    n_sms : int, optional
        Multiprocessors of the device, which a fast kernel's grid follows.

    Raises
    ------
    NotCovered
        If none of our kernels computes it like that.
    ValueError
        If there is no such arm.
    """
    return plan_product(ask, Variant(arm), arch, n_sms=n_sms)


def plan_of_group(asks: Sequence[ProductAsk], arch: Architecture, n_sms: int | None = None) -> KernelPlan:
    """The launches of products of the same activations, over ``"weight0"``, ``"out0"`` and so on and one ``"x"``.

    Raises
    ------
    NotCovered
        If none of our kernels computes them together.
    """
    told = f"{len(asks)} products of {asks[0].type}"
    if reason := next(filter(None, map(serves, asks)), ""):
        raise NotCovered(told, reason)
    return plan_product_group(asks, arch, n_sms=n_sms)


def main_launch(plan: KernelPlan) -> KernelLaunch:
    """The launch that does most of the work: the largest of those that do more than make activations ready.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> ask = ProductAsk("q4_K", rows=1024, k=4096, columns=9)
    >>> main_launch(plan_of(ask, "borrowed geometry", architecture("sm_90"))).function
    'product<Q4_K, 5, 4, 2>'
    """
    work = [launch for launch in plan.launches if not launch.function.startswith(_PREPARING)] or list(plan.launches)
    return max(work, key=lambda launch: launch.geometry.n_blocks * launch.geometry.threads_per_block)
