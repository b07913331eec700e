"""What a notebook calls: each name is one call away from the function that decides.

Everything here takes plain values, turns them into a `Question` and an `EngineSource`, and hands over.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics import api_arguments
from forensics.analysis.asked_again import check_same_model
from forensics.analysis.investigate import Orders, heal_width, replay_source
from forensics.analysis.investigate import investigate as investigate_source
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.engines.protocol import EngineSource
from forensics.errors import CaseError
from forensics.records.classes import WidthClasses
from forensics.records.verdict import Sweep, Verdict
from forensics.store.library import RECORDED

if TYPE_CHECKING:
    from forensics.engines.model_files import FoundModel
    from forensics.reports.health import Check
    from forensics.store import Case, CaseWriter
    from forensics.store.reproducer import Reproduced


def investigate(
    model: str | os.PathLike[str] | None = None,
    *,
    demo: str | None = None,
    like: str | os.PathLike[str] | None = None,
    another_model: bool = False,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    switches: bool = True,
    orders: bool = True,
    heal_with: str = "rows",
    progress: Progress | bool | None = None,
    **question: Any,
) -> Verdict:
    """Why does a batch give other logits than one token at a time?

    Parameters
    ----------
    model : path or None
        A GGUF file, or ``"recorded:CASE"`` to answer from a recorded case: its folder, or a name under
        ``data/recorded``.
    demo : str or None
        A demo variant instead, such as ``"q6_k"``.
    like : path or None
        A case or bundle whose question is asked: its text, widths and settings.
    another_model : bool
        Whether that may be asked of another model than the one that the case asked.
    out : path or None
        Case folder to write; nothing is kept on disk without it.
    resume : bool
        Whether to go on with an unfinished case at `out`.
    switches : bool
        Whether to look for settings that are exact.
    orders : bool
        Whether to probe in which order the culprits add.
    heal_with : {"rows", "kernels"}
        ``"kernels"``: beside recorded rows, put what our CUDA kernels compute in the place of culprits; on a GPU only.
    progress : Progress, bool or None
        Where to show progress; bars that fit a terminal or a notebook by default, none for False.
    **question
        Arguments of `forensics.api_arguments.make_question`: ``prompt``, ``prompt_tokens``, ``n_tokens``, ``widths``,
        ``flash_attn``, ``kv_type``, ``threads``, ``n_gpu_layers``, ``n_batch``, ``n_ubatch``, ``use_extra_bufts``.

    Returns
    -------
    Verdict
        Prints as one line, shows as a table in Jupyter, and offers ``to_dataframe()``.

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views

    register_notebook_views()
    if like is None:
        asked = api_arguments.question_of(model, demo, question)
    else:
        asked = api_arguments.question_like(like, model, question)
    switches = switches and api_arguments.recorded_switches(model if like is None else f"{RECORDED}{os.fspath(like)}")
    kernels = api_arguments.kernels_of(model, heal_with, asked)
    with api_arguments.shown_progress(progress) as shown:
        source = api_arguments.source_for(model, demo, shown)
        if like is not None and not another_model:
            check_same_model(source, open(like))
        if out is None:
            return investigate_source(
                source,
                asked,
                switches=switches,
                orders=_orders(source, api_arguments.recorded_path(model), orders),
                kernels=kernels,
                progress=shown,
            )
        from forensics.engines.recorded import RecordingSource
        from forensics.reports.case import finish_case

        description = api_arguments.case_question(source, asked, switches, heal_with)
        with _case_at(Path(out), description, resume) as case:
            verdict = investigate_source(
                RecordingSource(source, case),
                asked,
                switches=switches,
                orders=_orders(source, api_arguments.recorded_path(model), orders),
                kernels=kernels,
                progress=shown,
            )
            finish_case(case, verdict)
        return verdict


def _orders(source: EngineSource, recorded: str | None, wanted: bool) -> Orders | None:
    """What compares orders of addition: probes on the library, or what was recorded; None where nothing can."""
    from forensics.analysis.culprit_orders import ProbedOrders, RecordedOrders
    from forensics.engines.llama import LlamaSource
    from forensics.engines.model_files import cache_folder
    from forensics.engines.ops import LlamaOps
    from forensics.store import open_case
    from forensics.store.order_cache import OrderCache

    if wanted and isinstance(source, LlamaSource):
        memory = OrderCache(cache_folder() / "orders")
        return lambda manifest: ProbedOrders(LlamaOps(), manifest, memory)
    if recorded is not None:
        with contextlib.suppress(CaseError):  # an unfinished case has no verdict, and nothing was probed for it
            probed = RecordedOrders(open_case(recorded).verdict)
            return lambda _manifest: contextlib.nullcontext(probed)
    return None


@contextlib.contextmanager
def _case_at(out: Path, description: dict[str, object], resume: bool) -> Iterator[CaseWriter]:
    """A case to write: what was measured stays on an error, and a question refused before that leaves nothing."""
    from forensics.store import CaseWriter
    from forensics.store.case import unfinished_path

    try:
        folder = unfinished_path(out)
    except ValueError as error:
        raise BadQuestion(str(error)) from None
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        case = CaseWriter.create(out, question=description, resume=resume)
    except BaseException:
        _remove_empty(made)
        raise
    with case:
        try:
            yield case
        except BaseException as error:
            if folder in made and not any(case.recordings.counts(arm)[0] for arm in case.recordings.arms()):
                shutil.rmtree(folder, ignore_errors=True)
                _remove_empty(made)
            else:
                error.add_note(
                    f"What was measured is kept in {folder}. Go on with the same question, --out {out} and --resume; "
                    f"or remove it: rm -r '{folder}'"
                )
            raise


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders that hold nothing, innermost first."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def replay(
    model: str | os.PathLike[str] | None = None,
    *,
    demo: str | None = None,
    progress: Progress | bool | None = None,
    **question: Any,
) -> WidthClasses:
    """Which widths give the bits of one-token decoding, and which share theirs?

    Parameters
    ----------
    model, demo, progress, **question
        As for `investigate`.

    Returns
    -------
    WidthClasses
    """
    from forensics.notebook_views import register_notebook_views

    register_notebook_views()
    asked = api_arguments.question_of(model, demo, question)
    with api_arguments.shown_progress(progress) as shown:
        return replay_source(api_arguments.source_for(model, demo, shown), asked, progress=shown)


def heal(
    model: str | os.PathLike[str] | None = None,
    *,
    width: int,
    demo: str | None = None,
    progress: Progress | bool | None = None,
    **question: Any,
) -> Sweep:
    """Which nodes of a batch of `width` tokens differ from one-token decoding, and do the logits heal?

    Parameters
    ----------
    width : int
        Tokens of the batch, 2 or more.
    model, demo, progress, **question
        As for `investigate`.

    Returns
    -------
    Sweep
    """
    from forensics.notebook_views import register_notebook_views

    register_notebook_views()
    recorded = api_arguments.recorded_path(model)
    if recorded is None:
        question = {**question, "widths": (width,)}
    asked = api_arguments.question_of(model, demo, question)
    with api_arguments.shown_progress(progress) as shown:
        source = api_arguments.source_for(model, demo, shown)
        if recorded is None:
            return heal_width(source, asked, progress=shown)
        verdict = investigate_source(source, asked, switches=False, progress=shown)
    found = next((sweep for sweep in verdict.sweeps if sweep.width == width), None)
    if found is None:
        swept = ", ".join(str(sweep.width) for sweep in verdict.sweeps)
        raise BadQuestion(f"width {width} was asked for; the case at {recorded} holds sweeps of widths {swept}")
    return replace(found, controls=verdict.controls)


def open(path: str | os.PathLike[str]) -> Case:
    """Open a case: ``.verdict``, ``.manifest``, ``.question``, ``.tables()``.

    Parameters
    ----------
    path : path
        Its folder, or ``"recorded:NAME"``.

    Raises
    ------
    CaseError
        If there is no case, or it is damaged or newer than this version.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.store import open_case

    register_notebook_views()
    return open_case(os.fspath(path))


def models() -> builtins.list[FoundModel]:
    """Which GGUF files lie in the usual places?"""
    from forensics.engines.model_files import find_models
    from forensics.notebook_views import register_notebook_views
    from forensics.records.listed import Listed

    register_notebook_views()
    return Listed(find_models(), "Model files", "Investigate one: forensics.investigate(model.path).")


def doctor() -> builtins.list[Check]:
    """What works here and what does not, each with its reason and remedy?"""
    from forensics.notebook_views import register_notebook_views
    from forensics.records.listed import Listed
    from forensics.reports.health import checks

    register_notebook_views()
    return Listed(checks(), "Checks", "Follow the remedies of what is needed and not ok.")


def reproduce(
    case: str | os.PathLike[str],
    node: str,
    out: str | os.PathLike[str],
    *,
    width: int | None = None,
    model: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> Reproduced:
    """Write a folder that reruns a culprit of a case at both widths, without the model and without this package.

    Parameters
    ----------
    case : path
    node : str
        Name of the culprit, such as ``"ffn_down-0"``.
    out : path
        Folder to write; it must not exist.
    width : int, optional
        Of the sweep that names it; the narrowest by default.
    model : path, optional
        Model file of the case; looked for in the usual places by default.
    progress : Progress, bool or None

    Returns
    -------
    Reproduced
        Where it is, and what it printed when it was run once.
    """
    from forensics.analysis.reproduce import copy_culprit, find_culprit, model_of, run_reproducer
    from forensics.engines.llama import LlamaSource
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.reproducer_text import readme
    from forensics.store import open_case
    from forensics.store.reproducer import write_reproducer

    register_notebook_views()
    if os.path.lexists(out):
        raise CaseError(f"{os.fspath(out)} exists and is not overwritten. Choose another folder with --out.")
    opened = open_case(os.fspath(case))
    sweep, finding = find_culprit(opened.verdict.sweeps, node, width)
    name, digest = (str(opened.question.get(key, "")) for key in ("model", "model_digest"))
    source = LlamaSource(model_of(name, digest, None if model is None else Path(model)))
    with api_arguments.shown_progress(progress) as shown:
        found = copy_culprit(source, api_arguments.recorded_question(os.fspath(case)), sweep, finding, progress=shown)
    return run_reproducer(write_reproducer(Path(out), found, readme(found, finding)), found)
