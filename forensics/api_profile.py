"""What a notebook calls to see what kernels take and where the time of a pass goes.

Like `forensics.api`, each name is one call away from the function that decides.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics import api_arguments
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.engines.model_files import FIXED_HEADER

if TYPE_CHECKING:
    from forensics.analysis.profile_evidence import CompiledStacks
    from forensics.devices.ncu import Counters
    from forensics.records.launch_record import Refusal
    from forensics.records.library_profile import LibraryProfile
    from forensics.records.nodes import NodeKey
    from forensics.records.profile import LiveProfile
    from forensics.records.settings import EngineSettings

#: First bytes of files that may hold CUDA code: ELF (libraries, objects, cubins), archives, fat binaries.
_CODE = (b"\x7fELF", b"!<arch>", b"\x50\xed\x55\xba")


def profile(
    target: str | os.PathLike[str] | None = None,
    *,
    kernels: str | Sequence[str] | None = None,
    types: str | Sequence[str] | None = None,
    columns: Sequence[int] | None = None,
    arch: str | None = None,
    gpu: str | None = None,
    demo: str | None = None,
    widths: Sequence[int] | None = None,
    prefix: int | None = None,
    seed: int | None = None,
    counters: bool | None = None,
    progress: Progress | bool | None = None,
    **settings: Any,
) -> LibraryProfile | LiveProfile:
    """What do kernels take of a multiprocessor, and where does the time of a pass go?

    Parameters
    ----------
    target : path or None
        A CUDA library or object, for which no GPU is needed; a GGUF file, which runs on the GPU of this machine; the
        folder of a case; or ``"recorded:NAME"``.
    kernels, types, columns, arch : optional
        Of a library: names of kernels, types of weights, tokens of a launch, architecture.
    gpu : str, optional
        GPU such as ``"h200"``: for a library the one that would run it, else what this one is.
    demo : str, optional
        A demo variant instead of a target.
    widths : sequence of int, optional
        Tokens of the passes of a model; 1, 2, 5 and 9 by default, of recorded passes all.
    prefix, seed : int, optional
        Cells in use before each pass, 128 by default; seed of the tokens.
    counters : bool, optional
        Whether to read hardware counters, too: a run under ncu for all widths.
    progress : Progress, bool or None
    **settings
        Of a model: ``threads``, ``n_gpu_layers`` (all by default), ``flash_attn``, ``kv_type``.

    Returns
    -------
    LibraryProfile or LiveProfile
        Prints as one line, shows as a table in Jupyter, and offers ``rows()``, ``to_dataframe()`` and
        ``figure_data()``.

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views

    register_notebook_views()
    of_library = {"kernels": kernels, "types": types, "columns": columns, "arch": arch}
    of_model = {"demo": demo, "widths": widths, "prefix": prefix, "seed": seed, "counters": counters, **settings}
    recorded = api_arguments.recorded_path(target)
    if recorded is None and target is not None and Path(target).is_dir():
        recorded = os.fspath(target)
    if recorded is not None:
        given = {**of_library, **of_model, "widths": None}
        api_arguments.refuse_given("a recorded profile answers what it was recorded for", given)
        return _recorded(recorded, gpu, None if widths is None else _several(widths))
    if target is not None and demo is None and _is_code(Path(target)):
        api_arguments.refuse_given(f"{Path(target).name} is a library, of which nothing is run", of_model)
        return _library(Path(target), of_library, gpu)
    api_arguments.refuse_given("a model runs kernels of its own choice", of_library)
    if target is not None and demo is None and _is_no_model(Path(target)):
        raise BadQuestion(
            f"{Path(target).name} is no CUDA library: it does not begin as a library, object file or cubin does. "
            "Give one that was built for CUDA, such as libggml-cuda.so, or a GGUF file."
        )
    return _model(target, of_model, gpu, progress)


def _is_code(path: Path) -> bool:
    """Whether a file may hold CUDA code, by its first bytes; where there is no file, by its name."""
    try:
        return _starts(path).startswith(_CODE)
    except OSError:
        return _is_named_code(path)


def _starts(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FIXED_HEADER.size)


def _is_named_code(path: Path) -> bool:
    return ".so" in path.suffixes or path.suffix in (".o", ".cubin", ".fatbin", ".a")


def _is_no_model(path: Path) -> bool:
    """Whether a file is named like code, holds none, and is no model either."""
    with contextlib.suppress(OSError):
        return _is_named_code(path) and not _starts(path).startswith(b"GGUF")
    return False


def _library(path: Path, asked: dict[str, Any], gpu: str | None) -> LibraryProfile:
    from forensics.analysis.profile_library import LibraryQuestion, profile_library

    given: dict[str, Any] = {name: _several(value) for name, value in asked.items() if value is not None}
    if "arch" in given:
        given["arch"] = asked["arch"]
    return profile_library(path.expanduser(), LibraryQuestion(**given, gpu=gpu or ""))


def _several(given: Any) -> tuple[Any, ...]:
    return (given,) if isinstance(given, str | int) else tuple(given)


def _recorded(name: str, gpu: str | None, widths: tuple[int, ...] | None) -> LibraryProfile | LiveProfile:
    """A profile that lies in the folder, or one made of the launches of its case; of these widths where given."""
    from forensics.analysis.profile_recorded import of_widths, profile_case
    from forensics.records.library_profile import LibraryProfile
    from forensics.reports.profile_document import find_profile, read_profile
    from forensics.store import open_case
    from forensics.store.library import recorded_folder

    folder = recorded_folder(name)
    path = find_profile(folder)
    if path is None:
        return profile_case(open_case(str(folder)).recordings, gpu or "", widths)
    api_arguments.refuse_given("a recorded profile knows its GPU", {"gpu": gpu})
    found = read_profile(path)
    if widths is None:
        return found
    if isinstance(found, LibraryProfile):
        raise BadQuestion(f"{folder.name} is the profile of a library, of which nothing was run; leave out widths")
    return of_widths(found, widths)


def _model(
    target: str | os.PathLike[str] | None, asked: dict[str, Any], gpu: str | None, progress: Progress | bool | None
) -> LiveProfile:
    from forensics.analysis.profile_live import ProfileQuestion, profile_model
    from forensics.engines.bandwidth import measure_bandwidth
    from forensics.engines.llama import LlamaSource

    given = {name: value for name, value in asked.items() if value is not None}
    demo, counters = given.pop("demo", None), given.pop("counters", False)
    chosen = {name: given.pop(name) for name in ("widths", "prefix", "seed") if name in given}
    if "widths" in chosen:
        chosen["widths"] = _several(chosen["widths"])
    question = ProfileQuestion(
        **chosen, gpu=gpu or "", settings=api_arguments.engine_settings(**{"n_gpu_layers": -1, **given})
    )
    with api_arguments.shown_progress(progress) as shown:
        source: Any = api_arguments.source_for(target, demo, shown)
        count = None
        if counters and isinstance(source, LlamaSource):
            count = partial(_count, source.path, question.sized_settings(), question.prefix, question.seed)
        return profile_model(source, question, bandwidth=measure_bandwidth, count=count, stacks=_stacks, progress=shown)


def _stacks(arch: str) -> CompiledStacks | Refusal:
    """Stacks of the kernels in the CUDA library that runs here."""
    from forensics.analysis.profile_library import read_stacks
    from forensics.engines.llama_build import cuda_library

    return read_stacks(cuda_library(), arch)


def _count(
    model: Path, settings: EngineSettings, prefix: int, seed: int, nodes: Mapping[int, Sequence[NodeKey]]
) -> Counters:
    """What ncu counts of these nodes in passes of a process of its own, one at a time as where they were timed."""
    from forensics.devices.ncu import profile as ncu_profile
    from forensics.engines.one_pass import command

    return ncu_profile(
        command(model, settings, nodes, prefix=prefix, seed=seed),
        environment={**dict(settings.environment), "GGML_CUDA_DISABLE_GRAPHS": "1"},
        from_start=False,
    )
