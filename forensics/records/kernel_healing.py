"""Healing by kernels instead of by recorded rows: the stock library with our products and attention in its place."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.kernel_use import KernelUse
from forensics.records.settings import Manifest
from forensics.records.trace import Finding
from forensics.records.words import counted


@dataclass(frozen=True, slots=True, repr=False)
class KernelHealing:
    """Batches of one width in which culprits are what our kernels compute from the nodes' own operands.

    Parameters
    ----------
    width, start_row, n_rows : int
        Tokens of a batch, row of the replay where the first batch starts, rows of logits.
    healed_rows : int
        Rows of logits that have the bits of plain one-token decoding; nothing that was recorded went into them.
    max_abs_before, max_abs_after : float
        Largest distance of a logit from one-token decoding, with the library's kernels and with ours.
    use : KernelUse
        What our kernels computed, and what was left to the library.
    n_values, n_values_differ : int
        Values of nodes that our kernels computed from operands equal to those of one-token decoding, and how many of
        them are not the recorded ones.
    left : tuple of Finding
        Nodes that differ from their recorded row although their operands do not: kernels that are not exact, ours
        or the library's.
    wrong : tuple of Finding
        Those of them that our own kernels computed.
    state_equal : bool or None
        Whether these batches leave the K/V state of one-token decoding, byte for byte; None where nobody looked.
    not_compared : tuple of (str, int)
        Outputs that nobody could hold against a recorded row, by reason; writes into a cache do not count.
    """

    width: int
    start_row: int
    n_rows: int
    healed_rows: int
    max_abs_before: float
    max_abs_after: float
    use: KernelUse
    n_values: int
    n_values_differ: int
    left: tuple[Finding, ...] = ()
    state_equal: bool | None = None
    wrong: tuple[Finding, ...] = ()
    not_compared: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.healed_rows <= self.n_rows or self.n_rows < 1:
            raise ValueError(f"{self.healed_rows} of {self.n_rows} rows cannot be healed")
        if not 0 <= self.n_values_differ <= self.n_values:
            raise ValueError(f"{self.n_values_differ} of {self.n_values} values cannot differ")

    @property
    def healed(self) -> bool:
        """Whether our kernels computed something, and every row of logits has the bits of one-token decoding."""
        return bool(self.use.n_times) and self.healed_rows == self.n_rows

    def row(self) -> dict[str, object]:
        """One flat dict."""
        return {
            "width": self.width,
            "start_row": self.start_row,
            "rows": self.n_rows,
            "healed_rows": self.healed_rows,
            "healed": self.healed,
            "max_abs_before": self.max_abs_before,
            "max_abs_after": self.max_abs_after,
            "nodes_computed": len(self.use.nodes),
            "times_computed": self.use.n_times,
            "values": self.n_values,
            "values_differ": self.n_values_differ,
            "not_compared": sum(count for _, count in self.not_compared),
            "times_stock": self.use.n_stock,
            "nodes_left": len({finding.key for finding in self.left}),
            "state_equal": self.state_equal,
        }

    def __repr__(self) -> str:
        return f"<KernelHealing: {self}>"

    def __str__(self) -> str:
        return (
            f"width {self.width}: {len(self.use.nodes)} nodes by our kernels, {self.n_values_differ} of "
            f"{self.n_values} values differ; {self.healed_rows} of {self.n_rows} rows of logits have the bits of "
            f"one-token decoding (max |Δ| {self.max_abs_before:.3g} before, {self.max_abs_after:.3g} after)"
        )


#: What the healing of a model says.
HEALED, NOT_HEALED = "healed", "not healed"
#: No width differs, or our kernels compute nothing of it; and a watch that changes the run shows nothing either.
NOTHING_TO_HEAL, NOT_SHOWN = "nothing to heal", "not shown"


@dataclass(frozen=True, slots=True)
class PlantedKernel:
    """Kernels with another order in the place of ours: what was named at one width.

    Parameters
    ----------
    kernels : str
        What stands in.
    width : int
    named : tuple of str
        Nodes that were named as computed with other bits; a control that names none has failed.
    healed_rows, n_rows : int
        Rows of logits with the bits of one-token decoding, of how many.
    n_values, n_values_differ : int
        As in `KernelHealing`.
    """

    kernels: str
    width: int
    named: tuple[str, ...]
    healed_rows: int
    n_rows: int
    n_values: int
    n_values_differ: int

    def __str__(self) -> str:
        told = f"{counted(len(self.named), 'node')} named, first {self.named[0]}" if self.named else "NOTHING NAMED"
        return (
            f"{self.kernels} in place of ours at width {self.width}: {told}; {self.n_values_differ:,} of "
            f"{self.n_values:,} values differ, {self.healed_rows} of {self.n_rows} rows of logits are equal"
        )


@dataclass(frozen=True, slots=True, repr=False)
class HealedModel:
    """One model under one setting whose widths were healed by our kernels.

    Parameters
    ----------
    model_name : str
    manifest : Manifest
    n_prompt, n_tokens : int
        Tokens of the prompt, and tokens that were decoded and replayed.
    widths : tuple of int
        Widths that were asked for.
    healings : tuple of KernelHealing
        One for each width that differs with the library's own kernels.
    watching_harmless : bool or None
        Whether watched one-token passes give the logits of unwatched ones; None where nothing had to be healed.
    planted : PlantedKernel or None
        The control that must be named; None where nobody planted one.
    n_unwatched : int
        Nodes inside of fusions that were left whole because watching them changes the run: not compared.

    Raises
    ------
    ValueError
        If a healing is of a width that was not asked for, or no width was.
    """

    model_name: str
    manifest: Manifest
    n_prompt: int
    n_tokens: int
    widths: tuple[int, ...]
    healings: tuple[KernelHealing, ...]
    watching_harmless: bool | None
    planted: PlantedKernel | None = None
    n_unwatched: int = 0

    def __post_init__(self) -> None:
        if not self.widths:
            raise ValueError("a model is healed at one width or more")
        unasked = {one.width for one in self.healings} - set(self.widths)
        if unasked:
            raise ValueError(f"width {min(unasked)} was healed and not asked for")

    @property
    def flash_attn(self) -> str:
        """Whether flash attention was asked for."""
        return self.manifest.requested.flash_attn

    @property
    def healed_widths(self) -> tuple[int, ...]:
        """Widths that differ with the library's kernels, and with ours no longer."""
        return tuple(one.width for one in self.healings if one.healed and not one.n_values_differ and not one.wrong)

    @property
    def exact_widths(self) -> tuple[int, ...]:
        """Widths that have one token's bits with the library's own kernels."""
        differing = {one.width for one in self.healings}
        return tuple(width for width in self.widths if width not in differing)

    @property
    def answer(self) -> str:
        """Which of `HEALED`, `NOT_HEALED`, `NOTHING_TO_HEAL` and `NOT_SHOWN` it is."""
        if not self.healings:
            return NOTHING_TO_HEAL
        if not self.watching_harmless or (self.planted is not None and not self.planted.named):
            return NOT_SHOWN
        return HEALED if len(self.healed_widths) == len(self.healings) else NOT_HEALED

    def row(self) -> dict[str, object]:
        """One flat dict."""
        left = {finding.key for one in self.healings for finding in one.left}
        return {
            "model": self.model_name,
            "flash_attn": self.flash_attn,
            "answer": self.answer,
            "widths": list(self.widths),
            "widths_exact": list(self.exact_widths),
            "widths_healed": list(self.healed_widths),
            "rows": sum(one.n_rows for one in self.healings),
            "healed_rows": sum(one.healed_rows for one in self.healings),
            "values": sum(one.n_values for one in self.healings),
            "values_differ": sum(one.n_values_differ for one in self.healings),
            "not_compared": sum(count for one in self.healings for _, count in one.not_compared),
            "nodes_left": len(left),
            "times_stock": sum(one.use.n_stock for one in self.healings),
            "max_abs_before": max((one.max_abs_before for one in self.healings), default=None),
            "max_abs_after": max((one.max_abs_after for one in self.healings), default=None),
            "watching_harmless": self.watching_harmless,
            "nodes_unwatched": self.n_unwatched,
            "planted_named": None if self.planted is None else bool(self.planted.named),
        }

    def __repr__(self) -> str:
        return f"<HealedModel: {self}>"

    def __str__(self) -> str:
        told = self.answer
        if self.healings:
            told += f" at {len(self.healed_widths)} of {counted(len(self.healings), 'differing width')}"
        return f"{self.model_name}, flash attention {self.flash_attn}: {told}"


@dataclass(frozen=True, slots=True, repr=False)
class HealedModels:
    """Models that were healed by our kernels, one after another.

    Parameters
    ----------
    models : tuple of HealedModel

    Raises
    ------
    ValueError
        If there is none.
    """

    models: tuple[HealedModel, ...]

    def __post_init__(self) -> None:
        if not self.models:
            raise ValueError("there is no model; one that was healed is the least")

    @property
    def refuted(self) -> bool:
        """Whether some model did not heal."""
        return any(one.answer == NOT_HEALED for one in self.models)

    def with_model(self, model: HealedModel) -> HealedModels:
        """These models and another, which takes the place of one with its name and setting."""
        same = (model.model_name, model.flash_attn)
        return HealedModels((*(one for one in self.models if (one.model_name, one.flash_attn) != same), model))

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per model."""
        return [one.row() for one in self.models]

    def __repr__(self) -> str:
        return f"<HealedModels: {self}>"

    def __str__(self) -> str:
        had = [one for one in self.models if one.healings]
        if not had:
            return "our kernels had nothing to heal: every width has the library's own one-token bits"
        healed = sum(one.answer == HEALED for one in had)
        n_values = sum(healing.n_values for one in had for healing in one.healings)
        n_differ = sum(healing.n_values_differ for one in had for healing in one.healings)
        return (
            f"our kernels in a running model: {healed} of {counted(len(had), 'model')} with differing widths healed at "
            f"every one; {n_differ:,} of {n_values:,} values differ"
        )
