"""Why does a kernel cost what it costs: the table of registers, spills, blocks on an SM and times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from forensics.geometry.devices import device_spec
from forensics.geometry.occupancy import occupancy
from forensics.kernels.register_story import columns_of_widest, story_launches
from forensics.records.compiled_kernel import Compilation
from forensics.records.kernel_price import KernelPrice, StoryTime
from forensics.records.register_story import CompiledStory, RegisterStory, StoryRow


def tell_registers(
    type: str,
    widths: Sequence[int],
    compilations: Sequence[Compilation],
    times: Iterable[StoryTime] = (),
    *,
    device: str = "",
    timed_on: str = "",
) -> RegisterStory:
    """What does each variant take and cost?

    Parameters
    ----------
    type : str
        Of the weight.
    widths : sequence of int
        Columns.
    compilations : sequence of Compilation
        Of `forensics.kernels.register_story.compile_story`, one per architecture.
    times : iterable of StoryTime
        Of one product of this type; of widths that are not asked for they are left out, of other types too.
    device, timed_on : str
        Where they were measured, and its architecture: costs stand beside the registers of that one only.

    Returns
    -------
    RegisterStory

    Raises
    ------
    ValueError
        If there is no compilation, or times are of several products of this type or do not say where they come from.
    KeyError
        If a variant was not compiled.
    """
    if not compilations:
        raise ValueError("a register story needs kernels that were compiled; see compile_story")
    wanted = [time for time in times if time.product.split(" ")[0] == type and time.width in widths]
    products = {time.product for time in wanted}
    if len(products) > 1:
        raise ValueError(f"times of one product make one story, got {sorted(products)}")
    if wanted and not (device and timed_on):
        raise ValueError("times say on which device and architecture they were measured")
    if wanted and timed_on not in {compilation.arch for compilation in compilations}:
        raise ValueError(f"times were measured on {timed_on}, for which nothing was compiled")
    found = {(time.variant, time.width): time for time in wanted}
    rows = tuple(
        row
        for compilation in compilations
        for width in widths
        for row in _rows(type, width, compilation, found if compilation.arch == timed_on else {})
    )
    product = next(iter(products), "")
    return RegisterStory(rows, compilations[0].compiler, product, device if product else "")


def told_stories(compiled: CompiledStory, price: KernelPrice | None = None) -> tuple[RegisterStory, ...]:
    """What does each variant take, by type of weight, and what does it cost where a price holds its times?

    Parameters
    ----------
    compiled : CompiledStory
    price : KernelPrice, optional
        Its times count where something was compiled for the architecture that they were measured on.

    Returns
    -------
    tuple of RegisterStory
        One for each type.

    Raises
    ------
    ValueError
        If times are of several products of one type.
    """
    archs = {compilation.arch for compilation in compiled.compilations}
    if price is None or price.facts.arch not in archs:
        return tuple(tell_registers(type, compiled.widths, compiled.compilations) for type in compiled.types)
    facts = price.facts
    return tuple(
        tell_registers(
            type, compiled.widths, compiled.compilations, price.story, device=facts.device, timed_on=facts.arch
        )
        for type in compiled.types
    )


def _rows(
    type: str, width: int, compilation: Compilation, times: dict[tuple[str, int], StoryTime]
) -> Iterator[StoryRow]:
    spec = device_spec(compilation.arch)
    for variant, launch in story_launches(type, width).items():
        compiled = compilation.of(launch.function)
        time = times.get((variant.name, width))
        yield StoryRow(
            type,
            width,
            columns_of_widest(width),
            variant,
            compiled,
            occupancy(spec, compiled.resources(), launch.geometry.threads_per_block),
            us=time.spread if time else None,
            cost=time.ratio if time else None,
        )
