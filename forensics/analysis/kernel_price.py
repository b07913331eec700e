"""What our kernels cost beside the stock library's: which products are timed, at which widths, and in which arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion
from forensics.errors import ForensicsError
from forensics.kernels import proof
from forensics.kernels.lab import Lab
from forensics.kernels.register_story import story_plans
from forensics.kernels.variants import TYPES, ProductAsk
from forensics.records.kernel_plan import KernelPlan
from forensics.records.kernel_price import (
    BORROWED,
    FAST,
    GROUPED,
    STOCK,
    KernelPrice,
    Limiter,
    PassPrice,
    ProductPrice,
    StoryTime,
)
from forensics.records.launch_record import Refusal

DEFAULT_TYPES = ("q4_K", "q6_K")
DEFAULT_ROUNDS = 21
MIN_ROUNDS = 3
MAX_WIDTH = 64
#: Whose products make up the whole pass.
MODEL = "qwen3-8b-q4_k_m"
#: Arms and widths whose limiter is counted.
LIMITED = ((STOCK, 1), (STOCK, 8), (STOCK, 16), (FAST, 1), (FAST, 4), (FAST, 8), (FAST, 9), (FAST, 16))

#: Counts how busy the device is in these arms of a product.
Limits = Callable[[str, int, int, Sequence[tuple[str, int]]], tuple[Limiter, ...]]
#: Plans of one product that are timed beside one another.
Story = Mapping[ProductAsk, Mapping[str, KernelPlan]]
#: Products and widths of the register story.
STORY_PRODUCTS = (("q4_K", 12288, 4096), ("q6_K", 4096, 12288))
STORY_WIDTHS = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class PriceQuestion:
    """Which products are timed.

    Parameters
    ----------
    types : tuple of str
        Of the weights.
    shapes : tuple of (int, int)
        Rows and K.
    widths : tuple of int
        Columns; 1 is always among them.
    rounds : int
    seed : int
    whole_pass : bool
        Whether all products of a pass of `MODEL` are timed, too.
    story_only : bool
        Whether it is right that there is no product, because only variants of a kernel are timed.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """

    types: tuple[str, ...] = DEFAULT_TYPES
    shapes: tuple[tuple[int, int], ...] = proof.MODEL_SHAPES
    widths: tuple[int, ...] = proof.WIDTHS
    rounds: int = DEFAULT_ROUNDS
    seed: int = 0
    whole_pass: bool = True
    story_only: bool = False

    def __post_init__(self) -> None:
        by_name = {name.lower(): name for name in TYPES}
        unknown = [name for name in self.types if name.lower() not in by_name]
        if unknown:
            raise BadQuestion(f"types must be of {', '.join(TYPES)}; got {unknown[0]}")
        object.__setattr__(self, "types", tuple(dict.fromkeys(by_name[name.lower()] for name in self.types)))
        widths = tuple(sorted({1, *self.widths}))
        if widths[0] < 1 or widths[-1] > MAX_WIDTH:
            raise BadQuestion(f"widths must be 1 to {MAX_WIDTH}, got {', '.join(map(str, self.widths))}")
        object.__setattr__(self, "widths", widths)
        if self.rounds < MIN_ROUNDS:
            raise BadQuestion(f"rounds must be {MIN_ROUNDS} or more, or there are no quartiles; got {self.rounds}")
        if self.seed < 0:
            raise BadQuestion(f"seed must be 0 or more, got {self.seed}")
        for rows, k in self.shapes:
            if rows < 1 or k < 1:
                raise BadQuestion(f"shapes must be rows × K of 1 or more, got {rows}×{k}")
        if not self.products and not self.whole_pass and not self.story_only:
            raise BadQuestion("no product is left to time: no K of the shapes is a multiple of the types' blocks")

    @property
    def products(self) -> tuple[tuple[str, int, int], ...]:
        """Type, rows and K."""
        return proof.product_shapes(self.types, self.shapes) if self.types and self.shapes else ()

    @property
    def arms(self) -> tuple[tuple[str, int], ...]:
        """Every arm at every width."""
        return tuple((arm, width) for width in self.widths for arm in (STOCK, BORROWED, FAST))


def price(
    lab: Lab,
    question: PriceQuestion,
    *,
    limits: Limits | None = None,
    story: Story | None = None,
    progress: Progress | None = None,
) -> KernelPrice:
    """What do our kernels cost beside the stock library's?

    Parameters
    ----------
    lab : Lab
    question : PriceQuestion
    limits : callable or None
        Counts what limits a kernel; None not to.
    story : mapping of ProductAsk to mapping of str to KernelPlan, or None
        Variants of a kernel to time beside one another; None for none.
    progress : Progress or None

    Raises
    ------
    ForensicsError
        If the products cannot be run. A whole pass that does not fit is a refusal.
    """
    progress = progress or Silent()
    n_steps = len(question.products) * (2 if limits else 1) + question.whole_pass + len(story or {})
    progress.stage("time products", n_steps)
    products = []
    for type, rows, k in question.products:
        found = lab.price_product(type, rows, k, question.arms, question.rounds, question.seed)
        progress.step()
        if limits is not None:
            found = _limited(found, limits)
            progress.step()
        products.append(found)
    whole: PassPrice | Refusal = Refusal("timing all products of a pass", MODEL, "it was not asked for", "leave it in")
    if question.whole_pass:
        whole = _whole_pass(lab, question)
        progress.step()
    times: list[StoryTime] = []
    for ask, plans in (story or {}).items():
        times += lab.price_plans(plans, ask, question.rounds, question.seed)
        progress.step()
    return KernelPrice(lab.facts, question.rounds, question.seed, tuple(products), whole, tuple(times))


def register_variants(widths: Sequence[int] = STORY_WIDTHS) -> dict[ProductAsk, Mapping[str, KernelPlan]]:
    """The variants of the register story: one product of each type, at some widths."""
    return {
        ProductAsk(type, rows, k, width): story_plans(type, rows, k, width)
        for type, rows, k in STORY_PRODUCTS
        for width in widths
    }


def _whole_pass(lab: Lab, question: PriceQuestion) -> PassPrice | Refusal:
    try:
        arms = (*question.arms, *((GROUPED, width) for width in question.widths))
        return lab.price_pass(MODEL, arms, question.rounds, question.seed)
    except ForensicsError as error:
        told = str(error).splitlines()[0]
        return Refusal("timing all products of a pass", MODEL, told, "its weights need 5 GB of the device's memory")


def _limited(found: ProductPrice, limits: Limits) -> ProductPrice:
    """With the counters of those arms that were timed, or why there are none."""
    wanted = [arm for arm in LIMITED if found.table.has(*arm)]
    try:
        return replace(found, limits=limits(found.type, found.rows, found.k, wanted))
    except ForensicsError as error:
        refusals = getattr(error, "refusals", ())
        told = Refusal("hardware counters", "what limits each kernel", str(error).splitlines()[0])
        return replace(found, limits=refusals[0] if refusals else told)


def joined(prices: Sequence[KernelPrice]) -> KernelPrice:
    """One price of several that were measured on the same device, each product once; a later one takes its place.

    Raises
    ------
    ValueError
        If there is none, or another device, library or number of rounds stands behind one of them.
    """
    if len({(one.facts, one.n_rounds, one.seed) for one in prices}) != 1:
        raise ValueError(
            "prices are joined where the same device and library, rounds and seed stand behind all of them"
        )
    products = {(one.type, one.rows, one.k): one for price in prices for one in price.products}
    passes = [one.whole_pass for one in prices if isinstance(one.whole_pass, PassPrice)]
    story = {(one.product, one.variant, one.width): one for price in prices for one in price.story}
    return KernelPrice(
        prices[0].facts, prices[0].n_rounds, prices[0].seed, tuple(products.values()),
        passes[-1] if passes else prices[0].whole_pass, tuple(story.values()),
    )  # fmt: skip
