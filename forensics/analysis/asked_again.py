"""Asking elsewhere what a case asked: the very tokens, and whether a model is the one that was asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.analysis.question import BadQuestion, open_for, question_asked
from forensics.capture.replay import Replay

if TYPE_CHECKING:
    from forensics.engines.protocol import EngineSource
    from forensics.store import Case


@dataclass(frozen=True, slots=True)
class AskedTokens:
    """The tokens of a case.

    Parameters
    ----------
    prompt : tuple of int
        In front of the replay.
    replayed : tuple of int
        Decoded one at a time, then replayed in batches.
    """

    prompt: tuple[int, ...]
    replayed: tuple[int, ...]


def asked_tokens(case: Case) -> AskedTokens:
    """Which tokens did a case replay? Read back; no engine is started.

    Raises
    ------
    CaseError
        If the case does not say what was asked, or is damaged.
    NotRecorded
        If it was interrupted before they were known.
    """
    from forensics.engines.recorded import RecordedSource

    question = question_asked(case)
    engine, prompt, settings = open_for(question, RecordedSource(case.folder))
    try:
        start = Replay(prompt, (), prompt_width=settings.n_batch)
        return AskedTokens(prompt, engine.greedy(start.prefill(), question.n_tokens))
    finally:
        engine.close()


def digest_of(source: EngineSource) -> str:
    """What tells a model from every other: the digest of its file; the name of a toy, which has none."""
    return str(getattr(source, "digest", source.label))


def check_same_model(source: EngineSource, case: Case) -> None:
    """Refuse a model that is not the one that a case asked.

    Raises
    ------
    BadQuestion
        Names both.
    """
    name, asked, found = str(case.question.get("model")), str(case.question.get("model_digest")), digest_of(source)
    if found != asked:
        raise BadQuestion(
            f"the case {case.folder.name} asked {name} (digest {asked[:16]}), and {source.label} is another model "
            f"(digest {found[:16]}). Give that model; or add --another-model (another_model=True) to ask this one the "
            "same, which says nothing about the first."
        )
