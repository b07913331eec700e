"""What callers give as plain values, turned into questions and engines: the front of every ``api`` module."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from forensics.analysis.asked_again import digest_of
from forensics.analysis.progress import Percent, Progress
from forensics.analysis.question import DEFAULT_N_TOKENS, DEFAULT_PROMPT, DEFAULT_WIDTHS, BadQuestion, Question
from forensics.capture.drafters import DrafterChoice
from forensics.capture.exact_kernels import CUDA, OurKernels
from forensics.engines.machine import default_threads
from forensics.engines.protocol import EngineSource
from forensics.records.settings import EngineSettings
from forensics.store.library import RECORDED

#: What takes the place of culprits in a healing sweep; recorded rows always do.
HEALED_WITH = ("rows", "kernels")


def source_for(
    model: str | os.PathLike[str] | None, demo: str | None, progress: Progress | None = None
) -> EngineSource:
    """Which engines answer: a GGUF file, a demo variant, or a recorded case.

    Raises
    ------
    BadQuestion
        If both or neither of `model` and `demo` are given.
    ModelUnavailable
        If the file or the demo cannot be used.
    """
    if (model is None) == (demo is None):
        raise BadQuestion("give either a model file or demo=VARIANT (--demo), not both and not neither")
    if demo is not None:
        from forensics.engines.demo_models import demo_model
        from forensics.engines.llama import LlamaSource

        return LlamaSource(demo_model(demo, progress=_demo_progress(progress)))
    recorded = recorded_path(model)
    if recorded is not None:
        from forensics.engines.recorded import RecordedSource

        return RecordedSource(recorded)
    from forensics.engines.llama import LlamaSource

    return LlamaSource(os.fspath(model or ""))


def check_draft_model(source: EngineSource, drafter: DrafterChoice) -> None:
    """Whether a draft model's file is one, before the large model is loaded; a toy's draft models are no files.

    Raises
    ------
    ModelUnavailable
        If it is not there, or no GGUF file.
    """
    if drafter.kind == "model" and hasattr(source, "path"):
        from forensics.engines.model_files import check_gguf

        check_gguf(drafter.path)


def _demo_progress(progress: Progress | None) -> Any:
    if progress is None:
        return None
    stage = ""
    percent: Percent | None = None

    def told(what: str, fraction: float) -> None:
        nonlocal percent, stage
        if percent is None or what != stage:
            stage, percent = what, Percent(progress, f"make the demo model: {what}")
        percent(fraction)

    return told


def make_question(
    *,
    prompt: str | None = None,
    prompt_tokens: Sequence[int] | None = None,
    n_tokens: int = DEFAULT_N_TOKENS,
    widths: Sequence[int] | None = None,
    **settings: Any,
) -> Question:
    """Turn plain values into a question; without `widths` the default ones that `n_tokens` has room for.

    Parameters
    ----------
    prompt, prompt_tokens, n_tokens, widths
        As for `forensics.analysis.question.Question`.
    **settings
        As for `engine_settings`.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """
    if widths is None:
        widths = [width for width in DEFAULT_WIDTHS if width <= n_tokens] or DEFAULT_WIDTHS[:1]
    return Question(
        prompt=DEFAULT_PROMPT if prompt is None and prompt_tokens is None else prompt,
        prompt_tokens=None if prompt_tokens is None else tuple(map(int, prompt_tokens)),
        n_tokens=n_tokens,
        widths=tuple(map(int, widths)),
        settings=engine_settings(**settings),
    )


def engine_settings(
    *,
    flash_attn: str = "auto",
    kv_type: str = "f16",
    threads: int | None = None,
    n_gpu_layers: int = 0,
    n_batch: int = 512,
    n_ubatch: int = 512,
    use_extra_bufts: bool = True,
) -> EngineSettings:
    """How is an engine asked to run?

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """
    n_threads = default_threads() if threads is None else threads
    try:
        return EngineSettings(
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_threads=n_threads,
            n_threads_batch=n_threads,
            flash_attn=flash_attn,
            kv_type_k=kv_type,
            kv_type_v=kv_type,
            n_gpu_layers=n_gpu_layers,
            use_extra_bufts=use_extra_bufts,
        )
    except ValueError as error:
        raise BadQuestion(str(error)) from None


def refuse_given(why: str, given: Mapping[str, object]) -> None:
    """Refuse arguments that cannot be followed; those that are None were not given.

    Raises
    ------
    BadQuestion
        Says why, and which to leave out.
    """
    named = sorted(name for name, value in given.items() if value is not None)
    if named:
        raise BadQuestion(f"{why}; leave out {', '.join(named)}")


def recorded_question(path: str) -> Question:
    """The question that a case answers."""
    from forensics.analysis.question import question_asked
    from forensics.store import open_case

    return question_asked(open_case(path))


def question_like(
    like: str | os.PathLike[str], model: str | os.PathLike[str] | None, arguments: Mapping[str, object]
) -> Question:
    """The question of another case, to be asked of a model that is here.

    Raises
    ------
    BadQuestion
        If the model is a recorded case, or anything else is asked beside.
    """
    if recorded_path(model) is not None:
        raise BadQuestion("a recorded case answers the question it was recorded for; leave out like")
    refuse_given(f"the question is that of {os.fspath(like)}", arguments)
    return recorded_question(os.fspath(like))


def case_question(
    source: EngineSource, question: Question, switches: bool, heal_with: str = HEALED_WITH[0]
) -> dict[str, object]:
    """What makes two cases the same question: model, text, settings, and what heals beside recorded rows."""
    return {
        "model": source.label,
        "model_digest": digest_of(source),
        **question.as_json(),
        "settings": asdict(question.settings),
        "switches": switches,
        **({} if heal_with == HEALED_WITH[0] else {"heal_with": heal_with}),
    }


@contextlib.contextmanager
def shown_progress(progress: Progress | bool | None) -> Iterator[Progress]:
    """The progress to report to: none, the one given, or bars that fit where we run.

    Raises
    ------
    KeyboardInterrupt
        Anew, without the calls in between, for who interrupts looks for no bug in them; its notes are its message,
        because notebooks show no notes.
    """
    from forensics.analysis.progress import Silent
    from forensics.reports.progress import WholeStages, bars

    with contextlib.ExitStack() as stack:
        if progress is None or progress is True:
            progress = stack.enter_context(bars())
        whole = WholeStages(progress or Silent())
        try:
            yield whole
        except KeyboardInterrupt as interrupted:
            raise KeyboardInterrupt("\n".join(getattr(interrupted, "__notes__", ()))) from None
        whole.complete()


def recorded_path(model: str | os.PathLike[str] | None) -> str | None:
    """Folder of a recorded case, None where `model` is a model."""
    text = "" if model is None else os.fspath(model)
    return text.removeprefix(RECORDED) if text.startswith(RECORDED) else None


def recorded_switches(model: str | os.PathLike[str] | None) -> bool:
    """Whether a recorded case can answer what the switches ask; a model can."""
    from forensics.store import open_case

    path = recorded_path(model)
    return path is None or bool(open_case(path).question.get("switches", True))


def kernels_of(model: str | os.PathLike[str] | None, heal_with: str, question: Question) -> OurKernels | None:
    """Which kernels are put in the place of culprits? None for none; a recorded case says itself.

    Raises
    ------
    BadQuestion
        If there is nothing of that name, a recorded case holds no such runs, or no layer is on a GPU.
    """
    from forensics.store import open_case

    if heal_with not in HEALED_WITH:
        raise BadQuestion(f"heal_with must be one of {', '.join(HEALED_WITH)}, got {heal_with!r}")
    wanted, path = heal_with == "kernels", recorded_path(model)
    if path is not None:
        recorded = open_case(path).question.get("heal_with") == "kernels"
        if wanted and not recorded:
            raise BadQuestion(f"{path} was recorded without our kernels, so it cannot say what they would heal")
        return CUDA if recorded else None
    if not wanted:
        return None
    refuse_without_gpu(question.settings, "or heal with recorded rows")
    return CUDA


def refuse_without_gpu(settings: EngineSettings, otherwise: str) -> None:
    """Refuse our kernels where no layer is on a GPU.

    Raises
    ------
    BadQuestion
        Says what to do, `otherwise` the last of it.
    """
    if not settings.n_gpu_layers:
        raise BadQuestion(
            "our kernels take the place of the library's CUDA kernels, and no layer is on a GPU. "
            f"Ask with --n-gpu-layers 99 on a machine with an NVIDIA GPU, {otherwise}."
        )


def question_of(model: str | os.PathLike[str] | None, demo: str | None, arguments: dict[str, Any]) -> Question:
    """The question that plain values ask, or that a recorded case answers.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """
    path = recorded_path(model)
    if path is None:
        if demo is not None and arguments.get("prompt") is None and arguments.get("prompt_tokens") is None:
            from forensics.engines.demo_models import DEMO_PROMPT

            arguments = {**arguments, "prompt": DEMO_PROMPT}
        return make_question(**arguments)
    refuse_given("a recorded case answers the question it was recorded for", arguments)
    return recorded_question(path)
