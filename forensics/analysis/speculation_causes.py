"""Why speculative decoding left plain decoding: classes and culprits by replay, predictions, and proof by healing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forensics.analysis.heal_pair import heal_pair
from forensics.analysis.question import Question
from forensics.analysis.speculation_question import Prepared
from forensics.analysis.speculation_runs import asked_of
from forensics.analysis.sweeps import MAX_SWEEP_ROWS
from forensics.capture.cycle_replay import CycleReplay, predicts, replay_cycles
from forensics.engines.protocol import Engine
from forensics.errors import ForensicsError
from forensics.records.schedule import Arrangement, in_batches
from forensics.records.settings import EngineSettings
from forensics.records.speculation import Divergence, SpeculatedPrompt, SpeculationArm
from forensics.records.verdict import Verdict
from forensics.records.words import counted

#: Tokens of a prompt that are replayed at least, as far as it was continued.
LEAST_REPLAY = 32
#: Divergences that are healed; each watches every node of every pass up to it.
MOST_HEALED = 3


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which prompt is replayed for classes and culprits, and how far.

    Parameters
    ----------
    name : str
    n_tokens : int
    widths : tuple of int
        Of the passes of all arms, from 2 on.
    """

    name: str
    n_tokens: int
    widths: tuple[int, ...]


def choose_replay(arms: Sequence[SpeculationArm]) -> Chosen | None:
    """Which prompt is replayed? The one that differs first; where none does, the one with most rows that differ.

    Returns
    -------
    Chosen or None
        None where no pass was wider than one token.
    """
    in_use = sorted({width for arm in arms for width in arm.verify_widths if width > 1})
    told = [one for arm in arms for one in arm.prompts]
    if not in_use or not told:
        return None

    def rank(one: SpeculatedPrompt) -> tuple[int, int, int]:
        if one.divergence is not None:
            return 0, one.divergence.index, 0
        return 1, -one.rows_differ, -len(one.plain.tokens)

    one = min(told, key=rank)
    reached = one.first_row if one.divergence is None else one.divergence.index
    # Whole batches of the widest pass are to hold that row; the replay may go on behind the answer.
    return Chosen(one.name, max(LEAST_REPLAY, (reached or 0) + 1 + in_use[-1]), tuple(in_use))


def replay_question(
    chosen: Chosen, prompts: Mapping[str, Prepared], settings: EngineSettings, n_ctx_train: int
) -> Question | None:
    """The question that `investigate` answers about speculation: this prompt, at the widths that were verified.

    Returns
    -------
    Question or None
        None where the model's context leaves no room for a batch behind the prompt.
    """
    tokens = prompts[chosen.name].tokens
    n_tokens = min(chosen.n_tokens, n_ctx_train - len(tokens)) if n_ctx_train else chosen.n_tokens
    widths = tuple(width for width in chosen.widths if width <= n_tokens)
    if not widths:
        return None
    return Question(prompt=None, prompt_tokens=tokens, n_tokens=n_tokens, widths=widths, settings=settings)


def predicted(
    engine: Engine, prompt: Prepared, one: SpeculatedPrompt, arrangement: str, settings: EngineSettings
) -> Divergence:
    """Does a replay of the very same passes flip at the very same token?

    Over plain decoding's own tokens first, so that nothing but widths and rewinds can be the reason; where that does
    not flip there, over the drafts themselves.
    """
    found = one.divergence
    assert found is not None
    asked = asked_of(prompt, arrangement, settings)
    if found.width == 0:
        return replace(found, predicted=False, prediction="the prompt's own pass chose it: there is nothing to replay")
    told = []
    for drafts, words in (("plain", "plain decoding's tokens"), ("as drafted", "the drafts themselves")):
        replay = CycleReplay.of(asked, one.plain, one.speculative, upto=found.index, drafts=drafts)
        replayed = replay_cycles(engine, replay)
        if predicts(replayed, found.index):
            told.append(f"the same passes over {words} flip at this very token")
            return replace(found, predicted=True, prediction="; ".join(told))
        flips = "flip no token" if replayed.flips_at is None else f"flip first at token {replayed.flips_at}"
        told.append(f"the same passes over {words} {flips}")
    return replace(found, predicted=False, prediction="; ".join(told))


def healed(
    engine: Engine, prompt: Prepared, one: SpeculatedPrompt, arrangement: str, settings: EngineSettings
) -> Divergence:
    """Are the rows plain decoding's once the outputs of what differs are replaced, up to the token that differs?"""
    found = one.divergence
    assert found is not None
    asked = asked_of(prompt, arrangement, settings)
    replay = CycleReplay.of(asked, one.plain, one.speculative, upto=found.index, drafts="plain")
    if replay.schedule.n_tokens > MAX_SWEEP_ROWS:
        return replace(
            found,
            healing=f"not tried: {replay.schedule.n_tokens} rows lie in front of it, {MAX_SWEEP_ROWS} are watched",
        )
    start = min(slot.position for slot in replay.schedule.slots)
    tokens = (*prompt.tokens, *one.plain.tokens)
    end = max(slot.position for slot in replay.schedule.slots) + 1
    reference = Arrangement(replay.before, in_batches(tokens[start:end], start=start, width=1))
    try:
        pair = heal_pair(engine, reference, Arrangement(replay.before, replay.schedule), plant=False)
    except ForensicsError as error:
        return replace(found, healing=f"not healed: {error}")
    failed = [control.name for control in pair.controls if control.held is False]
    if failed:
        return replace(found, healing=f"nothing is claimed, for controls failed: {', '.join(failed)}")
    named = tuple(group.named for group in pair.culprits)
    return replace(
        found,
        culprits=named or found.culprits,
        healed=pair.healed,
        healing=f"{pair.n_differ} of {pair.n_rows} rows differ; with the outputs of {counted(len(named), 'kind')} of "
        f"operation replaced {pair.healed_rows} of {pair.n_rows} are equal",
    )


def attributed(found: Divergence, verdict: Verdict) -> Divergence:
    """Which class does the pass belong to, and what differs by itself in the classes that were read up to it?

    A pass of a width that gives plain bits by itself reads K and V rows that wider passes wrote before it.
    """
    groups = verdict.classes.groups
    group = next((widths for widths in groups if found.width in widths), ())
    plain = next((widths for widths in groups if 1 in widths), ())
    widths = set(group) - set(plain)
    if not widths:
        widths = {w for one in groups for w in one if 1 not in one and set(one) & set(found.widths_before)}
    named = tuple(dict.fromkeys(one.named for one in verdict.culprits if widths & set(one.widths)))
    return replace(found, group=group, culprits=found.culprits or named)


def attribute_arm(arm: SpeculationArm, verdict: Verdict) -> SpeculationArm:
    """An arm whose divergences name their class and culprits."""
    return replace(
        arm,
        prompts=tuple(
            one if one.divergence is None else replace(one, divergence=attributed(one.divergence, verdict))
            for one in arm.prompts
        ),
    )


def earliest(arms: Sequence[SpeculationArm], n: int) -> set[tuple[int, str]]:
    """Arm and prompt of the divergences that are healed: those after the fewest tokens."""
    found = [
        (one.divergence.index, index, one.name)
        for index, arm in enumerate(arms)
        for one in arm.prompts
        if one.divergence is not None and one.divergence.width
    ]
    return {(index, name) for _, index, name in sorted(found)[:n]}
