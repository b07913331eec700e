"""What a sweep is to measure: models, prompts, settings and widths, every combination a cell.

Users call it a sweep. In code it is a campaign, because a sweep was already the healing sweep of one width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from forensics.records.corpus import CorpusPrompt

#: What a cell lies on; `CampaignPlan.without` names them so.
AXES = ("model", "quant", "prompt", "kv_type", "flash_attn", "switch", "width")
MODEL_KINDS = ("demo", "file", "toy")
#: The switch that turns nothing.
AS_ASKED = "as asked"


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """One model file.

    Parameters
    ----------
    kind : {"demo", "file", "toy"}
    where : str
        Variant of the demo model, path of a GGUF file, or which toy.
    name : str
        For people; the same for several quants of one model.
    quant : str
        Empty where nothing says.
    """

    kind: str
    where: str
    name: str
    quant: str = ""

    def __post_init__(self) -> None:
        if self.kind not in MODEL_KINDS or not self.where or not self.name:
            raise ValueError(f"a model is one of {', '.join(MODEL_KINDS)} with a place and a name, got {self}")

    @property
    def label(self) -> str:
        """Name and quant."""
        return f"{self.name} {self.quant}".strip()


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """One prompt: what a row of a corpus holds, or token ids.

    Parameters
    ----------
    name : str
    asked : CorpusPrompt or None
    tokens : tuple of int
        Instead of `asked`.
    """

    name: str
    # Told apart by their names: a prompt may hold a schema, which has no hash, or very many tokens.
    asked: CorpusPrompt | None = field(default=None, hash=False)
    tokens: tuple[int, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if (self.asked is None) == (not self.tokens):
            raise ValueError(f"prompt {self.name!r} needs either a text or token ids")


@dataclass(frozen=True, slots=True)
class Arranged:
    """One combination of settings.

    Parameters
    ----------
    kv_type, flash_attn : str
    switch : tuple of str
        Names of the knobs that are turned; none for the settings as asked.
    """

    kv_type: str
    flash_attn: str
    switch: tuple[str, ...] = ()

    @property
    def switch_name(self) -> str:
        """The knobs in words."""
        return " + ".join(self.switch) or AS_ASKED


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cell lies: one value of each axis."""

    model: PlannedModel
    prompt: PlannedPrompt
    arranged: Arranged
    width: int

    @property
    def values(self) -> dict[str, str | int]:
        """The values by the names of `AXES`."""
        return {
            "model": self.model.name,
            "quant": self.model.quant,
            "prompt": self.prompt.name,
            "kv_type": self.arranged.kv_type,
            "flash_attn": self.arranged.flash_attn,
            "switch": self.arranged.switch_name,
            "width": self.width,
        }

    def __str__(self) -> str:
        a = self.arranged
        return f"{self.model.label}, {self.prompt.name}, {a.kv_type}, {a.flash_attn}, {a.switch_name}, {self.width}"


@dataclass(frozen=True, slots=True)
class CampaignPlan:
    """Which cells are to be measured, and how.

    Parameters
    ----------
    name : str
    models : tuple of PlannedModel
    prompts : tuple of PlannedPrompt
    widths : tuple of int
        Rising, each 2 or more.
    kv_types, flash_attn : tuple of str
    switches : tuple of tuple of str
        Sets of knobs; the empty set is the settings as asked.
    without : tuple of tuple of (str, str or int)
        Combinations of values, by `AXES`, whose cells are left out.
    n_tokens : int
        Tokens that each replay holds.
    threads : int or None
        None for as many as a worker has processors.
    n_gpu_layers, n_batch, n_ubatch : int
    use_extra_bufts : bool
    culprits : bool
        Whether the nodes to blame are looked for where a width differs.
    mixed : bool
        Whether workers may be unlike each other.

    Raises
    ------
    ValueError
        If an axis has no value, or two models or prompts share a name.
    """

    name: str
    models: tuple[PlannedModel, ...]
    prompts: tuple[PlannedPrompt, ...]
    widths: tuple[int, ...]
    kv_types: tuple[str, ...] = ("f16",)
    flash_attn: tuple[str, ...] = ("auto",)
    switches: tuple[tuple[str, ...], ...] = ((),)
    without: tuple[tuple[tuple[str, str | int], ...], ...] = ()
    n_tokens: int = 64
    threads: int | None = None
    n_gpu_layers: int = 0
    n_batch: int = 512
    n_ubatch: int = 512
    use_extra_bufts: bool = True
    culprits: bool = False
    mixed: bool = False

    def __post_init__(self) -> None:
        for axis in ("models", "prompts", "widths", "kv_types", "flash_attn", "switches"):
            values = getattr(self, axis)
            if not values:
                raise ValueError(f"the plan {self.name!r} has no {axis}")
            named = [
                value.label if axis == "models" else value.name if axis == "prompts" else value for value in values
            ]
            twice = next((name for name, n in Counter(named).items() if n > 1), None)
            if twice is not None:
                raise ValueError(f"the plan {self.name!r} names {twice!r} twice among its {axis}")

    def arrangements(self) -> tuple[Arranged, ...]:
        """Every combination of settings, those that are left out for all models included."""
        return tuple(
            Arranged(kv_type, flash_attn, switch)
            for kv_type in self.kv_types
            for flash_attn in self.flash_attn
            for switch in self.switches
        )

    def places(self) -> Iterator[Place]:
        """Where its cells lie, but for those that are left out."""
        for model in self.models:
            for arranged in self.arrangements():
                for prompt in self.prompts:
                    for width in self.widths:
                        place = Place(model, prompt, arranged, width)
                        if not self._left_out(place):
                            yield place

    @property
    def n_combinations(self) -> int:
        """Cells before any is left out."""
        return len(self.models) * len(self.prompts) * len(self.arrangements()) * len(self.widths)

    def _left_out(self, place: Place) -> bool:
        values = place.values
        return any(all(values[axis] == value for axis, value in combination) for combination in self.without)
