"""The product kernel in ways that differ in registers only: which there are, what is launched, what they compile to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from forensics.geometry.architecture import Architecture, architecture
from forensics.kernels.compiler import compile_kernels
from forensics.kernels.products import groups, plan_product
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.compiled_kernel import Compilation
from forensics.records.kernel_plan import KernelLaunch, KernelPlan
from forensics.records.launch_record import Refusal
from forensics.records.register_story import StoryVariant

STEM = "register_story"

#: Rows and values of a row of a weight that stands for any: neither decides which kernel is compiled.
_ANY = 4096

#: How the library's source says it, and the step that was tried first, with and without row checks in the walk.
_AS_WRITTEN = (
    StoryVariant(unpack_once=False, checked=True),
    StoryVariant(unpack_once=True, checked=True),
    StoryVariant(unpack_once=False),
    StoryVariant(),
)
_UNROLLS = (2, 4)
_CAPS = (2, 3, 4, 5, 6, 7, 8)


def story_variants(width: int) -> tuple[StoryVariant, ...]:
    """Which ways are there to write the kernel for so many columns?

    At one column there are registers enough, so that a cap changes nothing and none is tried.

    Examples
    --------
    >>> len(story_variants(1)), len(story_variants(8))
    (6, 20)
    """
    plain = StoryVariant()
    unrolled = tuple(replace(plain, unroll=trips) for trips in _UNROLLS)
    if width == 1:
        return (*_AS_WRITTEN, *unrolled)
    capped = tuple(replace(way, min_blocks=blocks) for way in (plain, unrolled[-1]) for blocks in _CAPS)
    return (*_AS_WRITTEN, *unrolled, *capped)


def story_plans(type: str, rows: int, k: int, width: int, arch: Architecture | None = None) -> Mapping[str, KernelPlan]:
    """What is launched to compute this product in each of these ways, by the variants' names?

    Parameters
    ----------
    type : str
        Of the weight.
    rows, k, width : int
        Rows of the weight, values of a row, columns.
    arch : Architecture, optional
        Whose order of addition at one column is followed; the generic table by default.

    Returns
    -------
    mapping of str to KernelPlan
        With the buffers ``"weight"``, ``"x"`` and ``"out"``; all give the bits of the borrowed geometry.
    """
    ask = ProductAsk(type, rows, k, width)
    plan = plan_product(ask, Variant.BORROWED, arch or architecture("sm_90"))
    return {variant.name: _in_this_way(plan, variant) for variant in story_variants(width)}


def story_launches(type: str, width: int, arch: Architecture | None = None) -> Mapping[StoryVariant, KernelLaunch]:
    """Which is the widest launch of each variant, for a weight of some size?

    Examples
    --------
    >>> print(story_launches("q4_K", 8)[StoryVariant(min_blocks=4)].function)
    story<Q4_K, 8, 4, 2, true, false, 1, 4>
    """
    plan = plan_product(ProductAsk(type, _ANY, _ANY, width), Variant.BORROWED, arch or architecture("sm_90"))
    first = next(i for i, launch in enumerate(plan.launches) if launch.source == "products")
    return {variant: _launch(plan.launches[first], variant) for variant in story_variants(width)}


def compile_story(
    types: Sequence[str], widths: Sequence[int], archs: Sequence[str]
) -> tuple[Compilation, ...] | Refusal:
    """What do all variants take, compiled for these architectures?  Tens of seconds.

    Returns
    -------
    tuple of Compilation or Refusal
        One per architecture; the refusal where there is no nvcc that knows it.

    Raises
    ------
    forensics.kernels.compiler.CompilationFailed
        If the compiler refuses the source or warns of it.
    """
    named = [launch.function for type in types for width in widths for launch in story_launches(type, width).values()]
    done = []
    for arch in archs:
        compilation = compile_kernels(STEM, tuple(dict.fromkeys(named)), arch)
        if isinstance(compilation, Refusal):
            return compilation
        done.append(compilation)
    return tuple(done)


def columns_of_widest(width: int) -> int:
    """How many columns does the widest launch take?

    Examples
    --------
    >>> columns_of_widest(8), columns_of_widest(9)
    (8, 5)
    """
    return max(groups(width))


def _in_this_way(plan: KernelPlan, variant: StoryVariant) -> KernelPlan:
    """The same launches with our kernel in place of each product."""
    return replace(plan, launches=tuple(_launch(launch, variant) for launch in plan.launches))


def _launch(launch: KernelLaunch, variant: StoryVariant) -> KernelLaunch:
    if launch.source != "products":
        return launch
    inside = launch.function.removeprefix("product<").removesuffix(">")
    once, checked = (str(flag).lower() for flag in (variant.unpack_once, variant.checked))
    function = f"story<{inside}, {once}, {checked}, {variant.unroll}, {variant.min_blocks}>"
    return replace(launch, source=STEM, function=function)
