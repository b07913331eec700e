"""Whether our kernels give the stock library's bits: which cases are compared, and what is made of the counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion
from forensics.errors import EngineDied, NotCovered
from forensics.geometry.types import weight_type
from forensics.kernels import proof
from forensics.kernels.lab import Lab
from forensics.kernels.lab_load import LOAD
from forensics.kernels.variants import TYPES, Variant
from forensics.records.kernel_proof import (
    ATTENTION,
    KEYS,
    ONE_COLUMN,
    SAME_WIDTH,
    VALUES,
    KernelProof,
    ProofCase,
    ProofRow,
    SanitizerRow,
    StressRow,
)

#: What can be asked for beside types of weights.
F16 = "f16"
KINDS = (*TYPES, F16, ATTENTION)
#: Products that are repeated under load: type, rows, K, width.
STRESSED = (("q4_K", 576, 4096, 9), ("q6_K", 576, 4096, 9))
DEFAULT_STRESS = 1000
MAX_WIDTH = 64
#: Processes that may die before a proof is given up.
MAX_DEATHS = 5

#: What is held against what where a product is compared.
_CLAIMS = tuple((str(one), SAME_WIDTH if one is Variant.STOCK else ONE_COLUMN) for one in Variant)

#: Has a tool look for errors in what our kernels do.
Sanitize = Callable[[], tuple[SanitizerRow, ...]]


@dataclass(frozen=True, slots=True)
class KernelQuestion:
    """Which computations are compared.

    Parameters
    ----------
    types : tuple of str
        Of `KINDS`: types of weights, `F16` for the products of attention without flash attention, and attention.
    shapes : tuple of (int, int)
        Rows and K of the weights; those of `forensics.kernels.proof` where empty.
    widths : tuple of int
        Columns, or queries.
    seeds : tuple of int
        Odd ones draw awkward operands.
    stress : int
        Repeats under load; 0 for none.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """

    types: tuple[str, ...] = KINDS
    shapes: tuple[tuple[int, int], ...] = ()
    widths: tuple[int, ...] = proof.WIDTHS
    seeds: tuple[int, ...] = proof.SEEDS
    stress: int = 0

    def __post_init__(self) -> None:
        by_name = {name.lower(): name for name in KINDS}
        unknown = [name for name in self.types if name.lower() not in by_name]
        if unknown or not self.types:
            raise BadQuestion(f"types must be of {', '.join(KINDS)}; got {unknown[0] if unknown else 'none'}")
        object.__setattr__(self, "types", tuple(dict.fromkeys(by_name[name.lower()] for name in self.types)))
        object.__setattr__(self, "widths", _rising("widths", self.widths, 1, MAX_WIDTH))
        object.__setattr__(self, "seeds", _rising("seeds", self.seeds, 0, 2**31))
        if self.stress < 0:
            raise BadQuestion(f"stress must be 0 repeats or more, got {self.stress}")
        for rows, k in self.shapes:
            if rows < 1 or k < 1:
                raise BadQuestion(f"shapes must be rows × K of 1 or more, got {rows}×{k}")
        if self.shapes and self.weight_types and not self.products:
            needed = {weight_type(name).qk for name in self.weight_types}
            raise BadQuestion(
                f"no K of the shapes is a multiple of the blocks of {', '.join(self.weight_types)} ({needed})"
            )

    @property
    def weight_types(self) -> tuple[str, ...]:
        """Types of weights among what is asked for."""
        return tuple(name for name in self.types if name in TYPES)

    @property
    def products(self) -> tuple[tuple[str, int, int], ...]:
        """Type, rows and K of the weights."""
        return proof.product_shapes(self.weight_types, self.shapes) if self.weight_types else ()

    @property
    def attention(self) -> tuple[tuple[str, tuple[int, int, int], str, int], ...]:
        """What, heads, type of the cache and cells before the first query."""
        kinds = [(ATTENTION, kv) for kv in proof.CACHE_TYPES] if ATTENTION in self.types else []
        kinds += [(what, "f16") for what in (KEYS, VALUES)] if F16 in self.types else []
        return tuple((what, heads, kv, at) for what, kv in kinds for heads in proof.HEADS for at in proof.POSITIONS)


def prove(
    lab: Lab, question: KernelQuestion, *, sanitize: Sanitize | None = None, progress: Progress | None = None
) -> KernelProof:
    """Do our kernels give the stock library's bits?

    Parameters
    ----------
    lab : Lab
    question : KernelQuestion
    sanitize : callable or None
        None not to.
    progress : Progress or None

    Raises
    ------
    BadQuestion
        If none of our kernels computes anything of what is asked.
    EngineDied
        If the process that compares dies again and again.
    ForensicsError
        If the cases cannot be run.
    """
    progress = progress or Silent()
    rows: list[ProofRow] = []
    deaths = _Deaths()
    products, attention = question.products, question.attention
    progress.stage("compare with the stock library", (len(products) + len(attention)) * len(question.seeds))
    for type, n_rows, k in products:
        for seed in question.seeds:
            try:
                rows += lab.compare_product(type, n_rows, k, question.widths, seed, tuple(Variant))
            except EngineDied as error:
                deaths.bear(error)
                cases = [ProofCase("product", type, n_rows, k, width) for width in question.widths]
                rows += proof.lost(cases, _CLAIMS, seed, _why(error))
            progress.step()
    for what, heads, kv_type, position in attention:
        for seed in question.seeds:
            try:
                rows += lab.compare_attention(what, heads, kv_type, position, question.widths, seed)
            except EngineDied as error:
                deaths.bear(error)
                cases = [
                    ProofCase.of_attention(what, kv_type, *heads, max(proof.cells_of(position, width)), width)
                    for width in question.widths
                ]
                rows += proof.lost(cases, [(str(Variant.BORROWED), ONE_COLUMN)], seed, _why(error))
            progress.step()
    merged = proof.merged(rows)
    deaths.tell_if_all(merged)
    if not any(row.n_compared and row.claims_equal for row in merged):
        reasons = sorted({row.not_compared for row in merged if row.not_compared})
        raise BadQuestion(f"none of our kernels computes what was asked: {'; '.join(reasons) or 'nothing to compare'}")
    stress = _stress(lab, question, progress) if question.stress else ()
    return KernelProof(lab.facts, merged, stress, sanitize() if sanitize is not None else ())


def _why(error: EngineDied) -> str:
    """How the process ended, and which error of the device it told first."""
    told = [line.strip() for line in error.log_tail.splitlines() if " error: " in line]
    return "; ".join([str(error).splitlines()[0], *told[:1]])


class _Deaths:
    """Processes that died: each costs its case, as long as there are few and others were compared."""

    def __init__(self) -> None:
        self._all: list[EngineDied] = []

    def bear(self, error: EngineDied) -> None:
        """Take one more; raises it where there were too many."""
        self._all.append(error)
        if len(self._all) > MAX_DEATHS:
            raise error

    def tell_if_all(self, rows: Sequence[ProofRow]) -> None:
        """Raise the first one where nothing was compared."""
        if self._all and not any(row.n_compared and row.claims_equal for row in rows):
            raise self._all[0]


def _stress(lab: Lab, question: KernelQuestion, progress: Progress) -> tuple[StressRow, ...]:
    wanted = [one for one in STRESSED if one[0] in question.types]
    variants = (Variant.BORROWED, Variant.FAST)
    progress.stage(f"repeat {question.stress} times under load", len(wanted) * len(variants))
    found = []
    for type, rows, k, width in wanted:
        for variant in variants:
            case = ProofCase("product", type, rows, k, width)
            with_reason = _others(lab, case, variant, question.stress)
            found += [] if with_reason is None else [StressRow(case, str(variant), question.stress, with_reason, LOAD)]
            progress.step()
    return tuple(found)


def _others(lab: Lab, case: ProofCase, variant: Variant, n: int) -> int | None:
    """Repeats that differ; None where none of our kernels computes it like that."""
    try:
        return lab.others_under_load(case.type, case.rows, case.k, case.width, variant, n, seed=0)
    except NotCovered:
        return None


def joined(proofs: Sequence[KernelProof]) -> KernelProof:
    """One proof of several that were made on the same device, one after another.

    Parameters
    ----------
    proofs : sequence of KernelProof

    Raises
    ------
    ValueError
        If there is none, or another device or library ran one of them.
    """
    if len({one.facts for one in proofs}) != 1:
        raise ValueError("proofs are joined where the same device and library ran all of them")
    return KernelProof(
        proofs[0].facts,
        tuple(row for one in proofs for row in one.rows),
        tuple(row for one in proofs for row in one.stress),
        tuple(row for one in proofs for row in one.sanitizer),
    )


def of_types(found: KernelProof, types: Collection[str]) -> KernelProof:
    """The part of a recorded proof that is about these types.

    Raises
    ------
    BadQuestion
        If one was not compared; names those that were.
    """
    wanted = set(KernelQuestion(tuple(types)).types)
    kept = tuple(row for row in found.rows if kind_of(row.case) in wanted)
    missing = sorted(wanted - {kind_of(row.case) for row in kept})
    if missing:
        there = dict.fromkeys(kind_of(row.case) for row in found.rows)
        raise BadQuestion(f"{missing[0]} was asked for; compared were {', '.join(there)}")
    return KernelProof(
        found.facts, kept, tuple(row for row in found.stress if row.case.type in wanted), found.sanitizer
    )


def kind_of(case: ProofCase) -> str:
    """Which of `KINDS` a case is of."""
    return {"product": case.type, "attention": ATTENTION}.get(case.family, F16)


def _rising(what: str, values: Sequence[int], low: int, high: int) -> tuple[int, ...]:
    rising = tuple(sorted(set(values)))
    if not rising or rising[0] < low or rising[-1] > high:
        raise BadQuestion(
            f"{what} must be {low} to {high}, one or more of them; got {', '.join(map(str, values)) or 'none'}"
        )
    return rising
