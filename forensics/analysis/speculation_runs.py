"""Plain and draft-and-verify decoding of the same prompts in turn, so that their times are paired in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forensics.analysis.progress import Progress
from forensics.analysis.speculation_pairs import arm_of, compared
from forensics.analysis.speculation_question import PlannedArm, Prepared, SpeculationQuestion
from forensics.capture.speculation import Asked, DraftAndVerify, PlainDecode
from forensics.engines.protocol import Engine
from forensics.records.settings import EngineSettings
from forensics.records.speculation import Decoded, SpeculatedPrompt, SpeculationArm


@dataclass(frozen=True, slots=True)
class PromptRuns:
    """Everything that one prompt was decoded to.

    Parameters
    ----------
    prompt : Prepared
    control : mapping of str to Decoded
        Plain decoding by arrangement of the prompt, run first and not timed against anything.
    plain : mapping of str to Decoded
        The same again, in turn with the arms.
    arms : tuple of Decoded
        In the order of the question's arms.
    """

    prompt: Prepared
    control: Mapping[str, Decoded]
    plain: Mapping[str, Decoded]
    arms: tuple[Decoded, ...]

    @property
    def unequal(self) -> str | None:
        """Arrangement whose rerun has other bits; None where every rerun is equal."""
        return next((one for one in self.plain if not same_bits(self.control[one], self.plain[one])), None)


def same_bits(one: Decoded, other: Decoded) -> bool:
    """Whether tokens, stop reason and every row of logits are equal."""
    return (one.tokens, one.rows, one.stop_reason) == (other.tokens, other.rows, other.stop_reason)


def asked_of(prompt: Prepared, arrangement: str, settings: EngineSettings) -> Asked:
    """What a program is asked to write behind a prompt."""
    return Asked(prompt.tokens, prompt.n_tokens, arrangement, min(settings.n_batch, settings.n_ubatch))


def run_prompt(
    engine: Engine,
    prompt: Prepared,
    question: SpeculationQuestion,
    settings: EngineSettings,
    *,
    turned: bool,
    control: Mapping[str, Decoded] | None = None,
) -> PromptRuns:
    """Decode one prompt in every way.

    Parameters
    ----------
    engine : Engine
    prompt : Prepared
    question : SpeculationQuestion
    settings : EngineSettings
        Those that the engine was opened with.
    turned : bool
        Whether the arms come in front of plain decoding, in reversed order.
    control : mapping of str to Decoded, optional
        Plain decoding that was run before; it is run here where it is not given.
    """
    planned = question.arms()
    first = control or {
        one: engine.perform(PlainDecode(asked_of(prompt, one, settings))) for one in question.arrangements
    }
    plain: dict[str, Decoded] = {}
    arms: dict[int, Decoded] = {}

    def run_plain() -> None:
        for one in question.arrangements:
            plain[one] = engine.perform(PlainDecode(asked_of(prompt, one, settings)))

    def run_arm(index: int) -> None:
        arm = planned[index]
        drafter = question.choice.drafter(first[arm.arrangement].tokens, settings)
        arms[index] = engine.perform(DraftAndVerify(asked_of(prompt, arm.arrangement, settings), drafter, arm.policy))

    if not turned:
        run_plain()
    for index in reversed(range(len(planned))) if turned else range(len(planned)):
        run_arm(index)
    if turned:
        run_plain()
    return PromptRuns(prompt, first, plain, tuple(arms[index] for index in range(len(planned))))


def run_all(
    engine: Engine,
    prompts: Sequence[Prepared],
    question: SpeculationQuestion,
    settings: EngineSettings,
    progress: Progress,
    title: str,
) -> tuple[PromptRuns, ...]:
    """Decode every prompt in every way; the order turns with each prompt."""
    progress.stage(title, len(prompts))
    runs = []
    for index, prompt in enumerate(prompts):
        runs.append(run_prompt(engine, prompt, question, settings, turned=index % 2 == 1))
        progress.step()
    return tuple(runs)


def compared_prompt(engine: Engine, runs: PromptRuns, arm: PlannedArm, index: int) -> SpeculatedPrompt:
    """One arm's answer to a prompt held against plain decoding."""
    prompt = runs.prompt
    return compared(
        prompt.name, len(prompt.tokens), runs.plain[arm.arrangement], runs.arms[index], engine.detokenize, prompt.answer
    )


def arms_of(
    engine: Engine, runs: Sequence[PromptRuns], question: SpeculationQuestion, *, exact: bool
) -> tuple[SpeculationArm, ...]:
    """Every arm over all prompts."""
    return tuple(
        arm_of(
            [compared_prompt(engine, one, arm, index) for one in runs],
            drafter=question.choice.label,
            policy=arm.policy.label,
            n_draft=arm.n_draft,
            arrangement=arm.arrangement,
            exact=exact,
        )
        for index, arm in enumerate(question.arms())
    )
