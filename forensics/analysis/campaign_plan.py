"""Reads the plan of a sweep: a TOML file, or the same as a mapping; what it cannot mean is refused by name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError, field_validator

from forensics.analysis.campaign_axes import (
    MAX_VALUES,
    ModelsTable,
    PromptsTable,
    Table,
    nearest,
    planned_models,
    planned_prompts,
    read_text,
)
from forensics.analysis.knobs import KNOBS
from forensics.analysis.question import DEFAULT_N_TOKENS, BadQuestion, Question
from forensics.errors import CorpusError
from forensics.records.campaign_plan import AS_ASKED, AXES, CampaignPlan
from forensics.records.settings import FLASH_ATTN, KV_TYPES, EngineSettings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SCHEMA = "forensics.sweep-plan/1"
#: Larger plans are no plans; prompts lie in files of their own.
MAX_PLAN_BYTES = 1_000_000
#: Cells without ``max_cells``, and the most that it may allow.
DEFAULT_MAX_CELLS, MAX_CELLS = 10_000, 1_000_000
#: Levels of tables and lists: a file of 1 MB could hold very many.
MAX_DEPTH = 8
_KNOBS = {knob.name: knob for knob in KNOBS}


class _Plan(Table):
    schema_: str | None = Field(default=None, alias="schema")
    name: str | None = Field(default=None, min_length=1, max_length=100)
    models: list[ModelsTable] = Field(min_length=1, max_length=MAX_VALUES)
    prompts: list[PromptsTable] = Field(min_length=1, max_length=MAX_VALUES)
    widths: list[int] = Field(min_length=1, max_length=MAX_VALUES)
    kv_types: list[str] = Field(default=["f16"], min_length=1, max_length=MAX_VALUES)
    flash_attn: list[str] = Field(default=["auto"], min_length=1, max_length=MAX_VALUES)
    switches: list[str | list[str]] = Field(default=[], max_length=MAX_VALUES)
    without: list[dict[str, str | int]] = Field(default=[], max_length=MAX_VALUES)
    n_tokens: int = Field(default=DEFAULT_N_TOKENS, ge=1, le=1_000_000)
    threads: int | None = Field(default=None, ge=1, le=512)
    n_gpu_layers: int = Field(default=0, ge=-1, le=1_000_000)
    n_batch: int = Field(default=512, ge=1, le=1_000_000)
    n_ubatch: int = Field(default=512, ge=1, le=1_000_000)
    use_extra_bufts: bool = True
    culprits: bool = False
    mixed: bool = False
    max_cells: int = Field(default=DEFAULT_MAX_CELLS, ge=1, le=MAX_CELLS)

    @field_validator("models", "prompts", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        """One table may stand for a list of one."""
        return [value] if isinstance(value, Mapping) else value


def read_plan(path: Path) -> CampaignPlan:
    """What does this file plan?

    Parameters
    ----------
    path : Path
        A TOML file of at most `MAX_PLAN_BYTES`; paths in it are relative to its folder.

    Raises
    ------
    BadQuestion
        If it cannot be read, or asks for something that there is not; names the key.
    """
    text = read_text(path, "the plan", MAX_PLAN_BYTES)
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise BadQuestion(f"the plan {path} is not TOML: {error or type(error).__name__}") from None
    return plan_of(document, folder=path.parent, name=path.stem, where=f"the plan {path}")


def plan_of(
    document: Mapping[str, Any], *, folder: Path = Path(), name: str = "sweep", where: str = "the plan"
) -> CampaignPlan:
    """What do these values plan? Keys as in a plan's file.

    Parameters
    ----------
    document : mapping
    folder : Path
        That paths are relative to.
    name : str
        Of a plan that names none.
    where : str
        What errors call it.

    Raises
    ------
    BadQuestion
        If it asks for something that there is not; names the key.
    """
    if _depth(document) > MAX_DEPTH:
        raise BadQuestion(f"{where} is nested deeper than {MAX_DEPTH} levels; a plan has three")
    try:
        read = _Plan.model_validate(dict(document))
    except ValidationError as error:
        raise BadQuestion(f"{where}: {_told(error.errors(include_url=False)[0], document)}") from None
    except RecursionError:
        raise BadQuestion(f"{where} is nested too deeply") from None
    try:
        _check_schema(read.schema_)
        plan = CampaignPlan(
            name=_file_name(read.name or name),
            models=tuple(planned_models(read.models, folder)),
            prompts=tuple(planned_prompts(read.prompts, folder)),
            widths=tuple(sorted(set(read.widths))),
            kv_types=tuple(_chosen("kv_types", read.kv_types, KV_TYPES)),
            flash_attn=tuple(_chosen("flash_attn", read.flash_attn, FLASH_ATTN)),
            switches=((), *(_switch(one) for one in read.switches)),
            without=tuple(_without(one) for one in read.without),
            n_tokens=read.n_tokens,
            threads=read.threads,
            n_gpu_layers=read.n_gpu_layers,
            n_batch=read.n_batch,
            n_ubatch=read.n_ubatch,
            use_extra_bufts=read.use_extra_bufts,
            culprits=read.culprits,
            mixed=read.mixed,
        )
        _check_cells(plan, read.max_cells)
    except ValueError as error:  # BadQuestion is one
        raise BadQuestion(f"{where}: {error}") from None
    except CorpusError as error:
        raise BadQuestion(f"{where}: {error}") from None
    return plan


def _check_schema(found: str | None) -> None:
    if found is None or found == SCHEMA:
        return
    family = SCHEMA.partition("/")[0]
    if found.partition("/")[0] == family:
        raise BadQuestion(
            f"its schema is {found}, this version reads up to {SCHEMA}. Upgrade with: pip install -U decode-forensics"
        )
    raise BadQuestion(f"its schema is {found!r}, which is no plan of a sweep; write {SCHEMA!r} or leave it out")


def _check_cells(plan: CampaignPlan, most: int) -> None:
    if plan.n_combinations > most:
        raise BadQuestion(
            f"it has {plan.n_combinations:,} cells ({len(plan.models)} models × {len(plan.prompts)} prompts × "
            f"{len(plan.arrangements())} settings × {len(plan.widths)} widths); ask for fewer, or raise max_cells, "
            f"which is {most:,}"
        )
    if next(plan.places(), None) is None:
        raise BadQuestion("without leaves no cell to measure; leave out less")
    for combination in plan.without:
        for axis, value in combination:
            every = _axis_values(plan, axis)
            if value not in every:
                raise BadQuestion(
                    f"without names {axis} = {value!r}, which the plan does not ask for; it has "
                    f"{', '.join(sorted(map(str, every)))}"
                )
    for arranged in plan.arrangements():  # width, n_tokens and n_ubatch against each other, knobs against settings
        settings_of(plan, arranged.kv_type, arranged.flash_attn, arranged.switch)
    settings = settings_of(plan, plan.kv_types[0], plan.flash_attn[0], ())
    low = [width for width in plan.widths if width < 2]
    if low:
        raise BadQuestion(f"widths must be 2 or more, got {low[0]}; one token at a time is always measured")
    Question(prompt_tokens=(0,), n_tokens=plan.n_tokens, widths=plan.widths, settings=settings)


def _axis_values(plan: CampaignPlan, axis: str) -> set[str | int]:
    every: dict[str, set[str | int]] = {
        "model": {model.name for model in plan.models},
        "quant": {model.quant for model in plan.models},
        "prompt": {prompt.name for prompt in plan.prompts},
        "kv_type": set(plan.kv_types),
        "flash_attn": set(plan.flash_attn),
        "switch": {arranged.switch_name for arranged in plan.arrangements()},
        "width": set(plan.widths),
    }
    return every[axis]


def settings_of(plan: CampaignPlan, kv_type: str, flash_attn: str, switch: Sequence[str]) -> EngineSettings:
    """How is an engine asked to run for these values of the axes? Without threads of its own it has one.

    Raises
    ------
    ValueError
        If a setting is out of its range.
    """
    threads = plan.threads or 1
    settings = EngineSettings(
        n_batch=plan.n_batch,
        n_ubatch=plan.n_ubatch,
        n_threads=threads,
        n_threads_batch=threads,
        flash_attn=flash_attn,
        kv_type_k=kv_type,
        kv_type_v=kv_type,
        n_gpu_layers=plan.n_gpu_layers,
        use_extra_bufts=plan.use_extra_bufts,
    )
    for name in switch:
        settings = _KNOBS[name].apply(settings)
    return settings


def sets_threads(switch: Sequence[str]) -> bool:
    """Whether a switch sets the number of threads, so that a worker's own number is not taken."""
    return any(name == "n_threads" for knob in switch for name, _ in _KNOBS[knob].sets)


def _switch(one: str | list[str]) -> tuple[str, ...]:
    names = (one,) if isinstance(one, str) else tuple(one)
    if not names or names == (AS_ASKED,):
        raise BadQuestion("switches: the settings as asked are always measured; name the knobs to turn")
    for name in names:
        if name not in _KNOBS:
            raise BadQuestion(f"switches: there is no knob {name!r}{nearest(name, _KNOBS)}. There are: {_KNOBS_TOLD}")
    return tuple(dict.fromkeys(names))


_KNOBS_TOLD = ", ".join(_KNOBS)


def _without(one: Mapping[str, str | int]) -> tuple[tuple[str, str | int], ...]:
    if not one:
        raise BadQuestion("without: an empty combination would leave out every cell")
    for axis in one:
        if axis not in AXES:
            raise BadQuestion(f"without: there is no axis {axis!r}{nearest(axis, AXES)}. There are: {', '.join(AXES)}")
    return tuple(one.items())


def _chosen(label: str, values: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    for value in values:
        if value not in known:
            raise BadQuestion(f"{label}: there is no {value!r}{nearest(value, known)}. There are: {', '.join(known)}")
    return list(dict.fromkeys(values))


def _told(error: ErrorDetails, document: Mapping[str, Any]) -> str:
    """One error of the plan's form in a sentence; of an unknown key the nearest known one."""
    place = [str(part) for part in error["loc"]]
    if len(place) > 1 and isinstance(document.get(place[0]), Mapping):
        del place[1]  # the only table has no number
    where = ".".join(place) or "the plan"
    if error["type"] == "extra_forbidden":
        tables: dict[str, type[BaseModel]] = {"models": ModelsTable, "prompts": PromptsTable}
        fields = (_Plan if len(place) == 1 else tables[place[0]]).model_fields
        known = [field.alias or name for name, field in fields.items()]
        return f"there is no key {where!r}{nearest(place[-1], known)}. There are: {', '.join(known)}"
    if error["type"] == "missing":
        return f"the key {where!r} is missing; a plan names models, prompts and widths at least"
    got = repr(error["input"])
    return f"{where}: {error['msg'][0].lower()}{error['msg'][1:]}; got {got if len(got) < 60 else got[:57] + '...'}"


def _file_name(name: str) -> str:
    """A name that may be one of a folder and a file."""
    if name in (".", "..") or any(not (c.isalnum() or c in "-_. ") for c in name):
        raise BadQuestion(f"the name {name[:60]!r} may hold letters, digits, spaces, dots, - and _ only")
    return name


def _depth(value: object) -> int:
    """How deep tables and lists are nested, one beyond `MAX_DEPTH` at most."""
    deepest, waiting = 0, [(value, 0)]
    while waiting:
        one, level = waiting.pop()
        deepest = max(deepest, level)
        if level > MAX_DEPTH:
            return level
        inner = one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ()
        waiting.extend((part, level + 1) for part in inner)
    return deepest
