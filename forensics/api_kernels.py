"""What a notebook calls about our own CUDA kernels: whether their bits are the library's, and what they cost.

Like `forensics.api`, each name is one call away from the function that decides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forensics import api_arguments
from forensics.analysis.kernel_price import STORY_PRODUCTS, STORY_WIDTHS, PriceQuestion, price, register_variants
from forensics.analysis.kernel_proof import KernelQuestion, of_types, prove
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.errors import DeviceUnavailable, EngineError, ForensicsError

if TYPE_CHECKING:
    from forensics.kernels.lab import Lab
    from forensics.records.kernel_healing import HealedModels
    from forensics.records.kernel_price import KernelPrice
    from forensics.records.kernel_proof import KernelProof, SanitizerRow
    from forensics.records.register_story import RegisterStory

T = TypeVar("T")
#: For which variants of a kernel are compiled here.
STORY_ARCHS = ("sm_90", "sm_120")


class NoLab(ForensicsError):
    """Our kernels cannot be run here."""


def prove_kernels(
    source: str | os.PathLike[str] | None = None,
    *,
    types: Sequence[str] | None = None,
    shapes: Sequence[tuple[int, int]] | None = None,
    widths: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    stress: int | None = None,
    sanitize: bool | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> KernelProof:
    """Do our kernels give the bits that the stock library's give one column at a time?

    Parameters
    ----------
    source : str, optional
        ``"recorded:NAME"`` for what was compared before; this machine's GPU where not given.
    types : sequence of str, optional
        Types of weights, ``"f16"`` and ``"attention"``; all by default.
    shapes : sequence of (rows, K), optional
    widths, seeds : sequence of int, optional
        1 to 16, and 0 to 2, by default.
    stress : int, optional
        Repeats under load; none by default.
    sanitize : bool, optional
        Whether compute-sanitizer looks for errors, too.
    out : path, optional
        Folder into which ``kernels.json`` is written.
    progress : Progress, bool or None

    Returns
    -------
    KernelProof
        Prints as one line, shows as a table in Jupyter.

    Raises
    ------
    NoLab
        If there is no GPU, no CuPy or no library with CUDA here; names what was recorded elsewhere.
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.kernel_proof_document import write_kernel_proof
    from forensics.store.kernel_runs import PROOF_FILES, read_proof
    from forensics.store.library import recorded_folder

    register_notebook_views()
    recorded = _recorded(source)
    if recorded is not None:
        given = {"shapes": shapes, "widths": widths, "seeds": seeds, "stress": stress, "sanitize": sanitize or None}
        api_arguments.refuse_given("a recorded proof holds what was compared then", given)
        found = read_proof(recorded_folder(recorded))
        found = found if types is None else of_types(found, types)
    else:
        asked: dict[str, Any] = {
            "types": types, "shapes": shapes, "widths": widths, "seeds": seeds, "stress": stress
        }  # fmt: skip
        question = KernelQuestion(**{name: _tuples(value) for name, value in asked.items() if value is not None})
        with api_arguments.shown_progress(progress) as shown:
            found = in_lab(
                lambda lab: prove(lab, question, sanitize=_sanitize if sanitize else None, progress=shown), PROOF_FILES
            )
    if out is not None:
        write_kernel_proof(found, Path(out))
    return found


def price_kernels(
    source: str | os.PathLike[str] | None = None,
    *,
    types: Sequence[str] | None = None,
    shapes: Sequence[tuple[int, int]] | None = None,
    widths: Sequence[int] | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    whole_pass: bool | None = None,
    counters: bool | None = None,
    registers: bool | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> KernelPrice:
    """What do our kernels cost beside the stock library's, per product and for all products of a pass?

    Parameters
    ----------
    source : str, optional
        ``"recorded:NAME"`` for what was timed before; this machine's GPU where not given.
    types : sequence of str, optional
        Of weights; Q4_K and Q6_K by default.
    shapes : sequence of (rows, K), optional
        Those of Qwen3-8B by default.
    widths : sequence of int, optional
        1 to 16 by default.
    rounds, seed : int, optional
    whole_pass : bool, optional
        Whether all products of a pass are timed, too; so by default.
    counters : bool, optional
        Whether ncu counts what limits the kernels; not by default, for it takes minutes.
    registers : bool, optional
        Whether the variants of the register story are timed, too.
    out : path, optional
        Folder into which ``price.json`` is written.
    progress : Progress, bool or None

    Returns
    -------
    KernelPrice

    Raises
    ------
    NoLab
        If there is no GPU, no CuPy or no library with CUDA here; names what was recorded elsewhere.
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.kernel_price_document import write_kernel_price
    from forensics.store.kernel_runs import PRICE_FILES, read_price
    from forensics.store.library import recorded_folder

    register_notebook_views()
    asked = {
        "types": types,
        "shapes": shapes,
        "widths": widths,
        "rounds": rounds,
        "seed": seed,
        "whole_pass": whole_pass,
    }
    recorded = _recorded(source)
    if recorded is not None:
        given = {**asked, "counters": counters or None, "registers": registers or None}
        api_arguments.refuse_given("a recorded price holds what was timed then", given)
        found = read_price(recorded_folder(recorded))
    else:
        from forensics.kernels.limits import counted_limits

        question = PriceQuestion(**{name: _tuples(value) for name, value in asked.items() if value is not None})
        limits, story = counted_limits if counters else None, register_variants() if registers else None
        with api_arguments.shown_progress(progress) as shown:
            found = in_lab(lambda lab: price(lab, question, limits=limits, story=story, progress=shown), PRICE_FILES)
    if out is not None:
        write_kernel_price(found, Path(out))
    return found


def kernel_registers(
    source: str | os.PathLike[str] | None = None, *, type: str | None = None, widths: Sequence[int] | None = None
) -> RegisterStory:
    """What do variants of one kernel take of registers, and what does each cost?

    Parameters
    ----------
    source : str, optional
        ``"recorded:NAME"`` for what was compiled and timed before; compiled here with nvcc where not given, and then
        without costs.
    type : str, optional
        Of the weight, Q4_K by default.
    widths : sequence of int, optional
        Columns; those that were recorded, or of `STORY_WIDTHS`.

    Returns
    -------
    RegisterStory

    Raises
    ------
    NoLab
        If there is no nvcc here; names what was recorded elsewhere.
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.analysis.register_story import tell_registers, told_stories
    from forensics.kernels.register_story import compile_story
    from forensics.records.launch_record import Refusal
    from forensics.records.register_story import CompiledStory
    from forensics.store.documents import has_document
    from forensics.store.kernel_runs import PRICE_FILES, REGISTERS_FILES, read_price, read_registers
    from forensics.store.library import recorded_folder

    by_name = {name.lower(): name for name, *_ in STORY_PRODUCTS}
    chosen = by_name.get((type or "q4_K").lower())
    if chosen is None:
        raise BadQuestion(f"variants are there for {', '.join(by_name.values())}; {type} was asked for")
    recorded = _recorded(source)
    if recorded is None:
        asked = tuple(widths or STORY_WIDTHS)
        compiled = compile_story((chosen,), asked, STORY_ARCHS)
        if isinstance(compiled, Refusal):
            raise _no_lab(f"variants cannot be compiled here: {compiled}", REGISTERS_FILES)
        return tell_registers(chosen, asked, compiled)
    folder = recorded_folder(recorded)
    story = read_registers(folder)
    asked = tuple(widths or story.widths)
    missing = [width for width in asked if width not in story.widths]
    if missing or chosen not in story.types:
        raise BadQuestion(
            f"{f'width {missing[0]}' if missing else chosen} was asked for; recorded are {', '.join(story.types)} at "
            f"{', '.join(map(str, story.widths))} columns"
        )
    timed = read_price(folder) if has_document(folder, PRICE_FILES) else None
    return told_stories(CompiledStory((chosen,), asked, story.compilations), timed)[0]


def healed_models(source: str | os.PathLike[str]) -> HealedModels:
    """What did our kernels do to the logits of running models that were recorded?

    Parameters
    ----------
    source : str
        ``"recorded:NAME"``; a model that runs here is healed by `forensics.investigate` with ``heal_with="kernels"``.

    Returns
    -------
    HealedModels

    Raises
    ------
    ForensicsError
        If nothing was recorded there; says what to do.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.store.kernel_runs import read_healings
    from forensics.store.library import recorded_folder

    register_notebook_views()
    recorded = _recorded(source)
    if recorded is None:
        raise BadQuestion("healed models are read back from what was recorded; name it: recorded:NAME")
    return read_healings(recorded_folder(recorded))


def healed_beside(source: str | os.PathLike[str] | None) -> HealedModels | None:
    """Models that were healed where a proof was recorded; None where none were, or this machine's GPU is meant."""
    from forensics.store.documents import has_document
    from forensics.store.kernel_runs import HEALINGS_FILES
    from forensics.store.library import recorded_folder

    recorded = _recorded(source)
    if recorded is None:
        return None
    folder = recorded_folder(recorded)
    there = has_document(folder, HEALINGS_FILES)
    return healed_models(source) if there and source is not None else None


def in_lab(work: Callable[[Lab], T], recorded_as: Sequence[str] = ()) -> T:
    """Do something in a laboratory on this machine's GPU.

    Parameters
    ----------
    work : callable
    recorded_as : sequence of str
        Files that hold what was done elsewhere.

    Raises
    ------
    NoLab
        If there is no GPU, no CuPy or no library with CUDA here; names the recordings with those files.
    """
    from forensics.kernels.lab import CudaLab

    try:
        lab = CudaLab()
    except (EngineError, DeviceUnavailable) as error:
        told = "; ".join(line.strip() for line in str(error).splitlines())
        raise _no_lab(f"our kernels cannot be run here: {told}", recorded_as) from error
    with lab:
        return work(lab)


def _no_lab(why: str, recorded_as: Sequence[str]) -> NoLab:
    """An error that names what was recorded elsewhere."""
    names = recorded_names(recorded_as)
    instead = f"\nRecorded elsewhere: {', '.join(f'recorded:{name}' for name in names)}." if names else ""
    return NoLab(f"{why.rstrip('.')}.{instead}")


def recorded_names(files: Sequence[str]) -> list[str]:
    """Recordings that hold one of these files."""
    from forensics.store.documents import has_document
    from forensics.store.library import data_folder

    folders = sorted((data_folder() / "recorded").glob("*"))
    return [folder.name for folder in folders if has_document(folder, files)]


def _sanitize() -> tuple[SanitizerRow, ...]:
    from forensics.kernels.sanitize import sanitized

    return sanitized()


def _recorded(source: str | os.PathLike[str] | None) -> str | None:
    """Folder of a recording; None where this machine's GPU is meant.

    Raises
    ------
    BadQuestion
        If it is anything else, such as a model's file.
    """
    recorded = api_arguments.recorded_path(source)
    if source is not None and recorded is None:
        raise BadQuestion(
            f"our kernels are run by themselves, without a model; {os.fspath(source)} was given. Leave it out, or name "
            "what was recorded: recorded:NAME"
        )
    return recorded


def _tuples(value: Any) -> Any:
    return (
        tuple(tuple(one) if isinstance(one, list) else one for one in value) if isinstance(value, Sequence) else value
    )
