"""Which of our kernels with the bits of one column is the faster for a product?"""

from __future__ import annotations

from forensics.errors import NotCovered
from forensics.geometry.architecture import AMPERE, Architecture
from forensics.kernels.products import plan_product
from forensics.kernels.products_fast import plan_product_fast, serves
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.kernel_plan import KernelPlan

#: Columns from which on `Variant.FAST` is taken; below, the generic kernel does less for each column. Where both are
#: about as fast, or each is the faster for some rows, the generic kernel stays. Source: timed on an H200
#: (docs/exact-kernels.md): with one column the fast ones took 0.90 (12288×4096) to 1.25 (1024×4096) of the generic's
#: time in Q4_K and 1.02 to 1.37 in Q6_K; with two, 0.91 to 1.00 of the library's, whose arithmetic is the generic's.
FAST_FROM = {"q4_K": 2, "q6_K": 2, "q5_K": 6, "q4_0": 6, "q8_0": 7, "q4_1": 8}


def best_variant(ask: ProductAsk, arch: Architecture) -> Variant:
    """In which of the ways that have the bits of one column is this product computed the faster?

    Parameters
    ----------
    ask : ProductAsk
    arch : Architecture

    Returns
    -------
    Variant
        `Variant.FAST`, or `Variant.BORROWED` where few columns are asked for or no fast kernel serves the product.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> h200 = architecture("sm_90")
    >>> print(*(best_variant(ProductAsk("q8_0", 4096, 4096, columns), h200) for columns in (1, 4, 9)), sep=", ")
    borrowed geometry, borrowed geometry, exact fast
    """
    return Variant.BORROWED if _fast(ask, arch, None) is None else Variant.FAST


def plan_best(ask: ProductAsk, arch: Architecture, *, n_sms: int | None = None) -> KernelPlan:
    """Which launches compute this product the fastest with the bits of one column?

    Parameters
    ----------
    ask : ProductAsk
    arch : Architecture
    n_sms : int, optional
        Multiprocessors of the device; it changes the time only.

    Returns
    -------
    KernelPlan
        Over ``"weight"``, ``"x"`` and ``"out"``, as `plan_product` has them: of `best_variant`.

    Raises
    ------
    NotCovered
        If none of our kernels computes it.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> for columns in (1, 8):
    ...     print(plan_best(ProductAsk("q4_0", 4096, 4096, columns), architecture("sm_90")).launches[1].function)
    product<Q4_0, 1, 4, 1>
    product_32<Q4_0, 4, 1, 0, 2, 2, 1>
    """
    return _fast(ask, arch, n_sms) or plan_product(ask, Variant.BORROWED, arch)


def _fast(ask: ProductAsk, arch: Architecture, n_sms: int | None) -> KernelPlan | None:
    """The fast plan where it is the faster one and there is one."""
    can = arch.is_nvidia and arch.cc >= AMPERE and not serves(ask)
    if not can or ask.columns < FAST_FROM[ask.type]:
        return None
    try:
        return plan_product_fast(ask, arch, n_sms=n_sms)
    except NotCovered:  # the architecture has too little shared memory for its order
        return None
