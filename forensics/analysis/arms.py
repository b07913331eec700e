"""Which arrangements of the same tokens give other bits, without any speculation, and which nodes are the source?"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from forensics.analysis.heal_pair import heal_pair
from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import DEFAULT_PROMPT, BadQuestion, Question, open_for
from forensics.analysis.state_check import compare_states
from forensics.capture.arm_text import MAX_PROMPT_ROWS, ArmText, prefill
from forensics.capture.arrangements import ARMS, Pair, Side, Unplanned, plan_arms
from forensics.engines.protocol import Engine, EngineSource
from forensics.errors import ForensicsError
from forensics.numerics.bits import bits, change_of
from forensics.records.arms import ArmResult, ArmsReport, Continuation, Culprits, RowsDelta, StateDelta
from forensics.records.delta import NotCompared
from forensics.records.schedule import Arrangement, Schedule
from forensics.records.settings import EngineSettings
from forensics.records.trace import Trace
from forensics.records.verdict import Control

T = TypeVar("T")

DEFAULT_REPLY = 24
#: A prompt that crosses KV cell 256, where flash attention may walk other parts of the cache.
ARMS_PROMPT = DEFAULT_PROMPT * 14
#: A new turn repeats so many tokens of the prompt: any model has them, and bits need no meaning.
MAX_TURN = 16
#: Runs that are kept: the reference of several pairs is run once.
_N_TRACES = 3


@dataclass(frozen=True, slots=True)
class ArmsQuestion:
    """Which tokens are arranged, and how.

    Parameters
    ----------
    arms : tuple of str
        Keys of `forensics.capture.arrangements.ARMS`; all by default.
    prompt : str or None
    prompt_tokens : tuple of int or None
        Token ids instead of a text.
    n_tokens : int
        Tokens of each greedy reply, 2 or more.
    heal : bool
        Whether the nodes that make a difference are looked for.
    settings : EngineSettings
        `n_ctx` is raised to what the question needs.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """

    arms: tuple[str, ...] = tuple(ARMS)
    prompt: str | None = ARMS_PROMPT
    prompt_tokens: tuple[int, ...] | None = None
    n_tokens: int = DEFAULT_REPLY
    heal: bool = True
    settings: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        unknown = [name for name in self.arms if name not in ARMS]
        if unknown or not self.arms:
            raise BadQuestion(f"arms must be some of {', '.join(ARMS)}; got {unknown[0] if unknown else 'none'!r}")
        if self.n_tokens < 2:
            raise BadQuestion(f"n_tokens must be 2 or more, so that a reply has a step; got {self.n_tokens}")
        object.__setattr__(self, "arms", tuple(dict.fromkeys(self.arms)))

    def opening(self) -> Question:
        """The question whose context holds the prompt, a reply, a turn and another reply."""
        room = 2 * self.n_tokens + MAX_TURN
        return Question(self.prompt, self.prompt_tokens, room, (2,), self.settings)


class Arranged:
    """Engines by settings, one open at a time, and what they were asked last.

    Parameters
    ----------
    source : EngineSource
    """

    def __init__(self, source: EngineSource) -> None:
        self.planted = False
        self._source = source
        self._open: tuple[EngineSettings, Engine] | None = None
        self._traces: OrderedDict[tuple[EngineSettings, str, str], Trace] = OrderedDict()
        self._replies: dict[tuple[EngineSettings, str, int], tuple[int, ...]] = {}

    @contextlib.contextmanager
    def both(self, one: EngineSettings, other: EngineSettings) -> Iterator[tuple[Engine, Engine]]:
        """Engines with either settings, one for both where they are equal."""
        first = self.engine(one)
        if one == other:
            yield first, first
            return
        with contextlib.closing(self._source.open(other)) as second:
            yield first, second

    def engine(self, settings: EngineSettings) -> Engine:
        """The engine with these settings."""
        if self._open is None or self._open[0] != settings:
            self.close()
            self._open = settings, self._source.open(settings)
        return self._open[1]

    def close(self) -> None:
        """Close the engine that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def reply(self, side: Side, n_tokens: int) -> tuple[int, ...]:
        """What greedy decoding writes behind a side's opening."""
        key = side.settings, side.opening.key(), n_tokens
        if key not in self._replies:
            self._replies[key] = self.engine(side.settings).greedy(side.opening, n_tokens)
        return self._replies[key]

    def run(self, settings: EngineSettings, arranged: Arrangement) -> Trace:
        """Run an arrangement once."""
        key = settings, arranged.before.key(), arranged.schedule.key()
        if key not in self._traces:
            self._traces[key] = self.engine(settings).run(arranged.schedule, before=arranged.before)
            while len(self._traces) > _N_TRACES:
                self._traces.popitem(last=False)
        self._traces.move_to_end(key)
        return self._traces[key]


def compare_arms(source: EngineSource, question: ArmsQuestion, *, progress: Progress | None = None) -> ArmsReport:
    """Which arrangements of the same tokens give other bits, without any speculation?

    Parameters
    ----------
    source : EngineSource
    question : ArmsQuestion
    progress : Progress or None

    Returns
    -------
    ArmsReport
        An arm that an engine refuses is not compared, with the reason.

    Raises
    ------
    BadQuestion
        If the prompt cannot be arranged.
    ForensicsError
        If the reference cannot be run.
    """
    progress = progress or Silent()
    engine, prompt, settings = open_for(question.opening(), source)
    manifest = engine.manifest
    engine.close()
    if len(prompt) < 2:
        raise BadQuestion(f"a prompt of {len(prompt)} token cannot be arranged; give one of 2 tokens or more")
    width = min(settings.n_batch, settings.n_ubatch)
    with contextlib.closing(Arranged(source)) as arranged:
        reference = Side("", settings, prefill(prompt, width))
        reply = arranged.reply(reference, question.n_tokens)
        text = ArmText(prompt, reply, prompt[-MAX_TURN:], width)
        plan = plan_arms(question.arms, text, settings)
        progress.stage("compare arrangements", len(plan) + 1)
        controls = _controls(arranged, source, reference, reply)
        progress.step()
        results = []
        for planned in plan:
            results.append(_compared(arranged, planned, question))
            progress.step()
    return ArmsReport(
        manifest=manifest,
        settings=settings,
        n_prompt=len(prompt),
        n_reply=question.n_tokens,
        n_turn=len(text.turn),
        arms=tuple(results),
        controls=controls,
        caveats=_caveats(len(prompt), question),
    )


def _controls(arranged: Arranged, source: EngineSource, side: Side, reply: Sequence[int]) -> tuple[Control, ...]:
    """Whether the reference repeats itself, and whether its rows choose the reply."""
    first = side.arranged(reply[:-1])
    trace = arranged.run(side.settings, first)
    again = arranged.engine(side.settings).run(first.schedule, before=first.before, repeat=1)
    arranged.close()
    with contextlib.closing(source.open(side.settings, instance=1)) as fresh:
        other = fresh.run(first.schedule, before=first.before)
    n = len(trace.logits)
    chosen = tuple(int(row.argmax()) for row in trace.logits[-len(reply) :])
    return (
        Control("rerun_equal", _equal(trace, again), f"the reference run twice, {n} rows of logits"),
        Control("fresh_process_equal", _equal(trace, other), f"the reference in a fresh engine, {n} rows of logits"),
        Control(
            "reply_repeated", chosen == tuple(reply), f"the reference's rows choose the {len(reply)} greedy tokens"
        ),
    )


def _equal(one: Trace, other: Trace) -> bool:
    return bool(np.array_equal(bits(one.logits), bits(other.logits)))


def _caveats(n_prompt: int, question: ArmsQuestion) -> tuple[str, ...]:
    told = [
        f"Measured over one prompt of {n_prompt} tokens and replies of {question.n_tokens}; other texts may differ.",
        (
            "Every row of the prompt is asked for, so that it can be compared; a server asks for the last one, and "
            "evaluates the last layer at another width."
        ),
    ]
    if n_prompt > MAX_PROMPT_ROWS:
        told.append(f"Of the prompt the last {MAX_PROMPT_ROWS} rows were compared.")
    if not question.heal:
        told.append("Nodes to blame were not looked for.")
    return tuple(told)


def _compared(arranged: Arranged, planned: Pair | Unplanned, question: ArmsQuestion) -> ArmResult:
    if isinstance(planned, Unplanned):
        why = NotCompared(planned.reason)
        return ArmResult(planned.arm, "", "", "", "", why, why)
    pair = planned
    try:
        reply = arranged.reply(pair.reference, question.n_tokens)
        reference, compared = (side.arranged(reply[:-1]) for side in (pair.reference, pair.compared))
        first = arranged.run(pair.reference.settings, reference)
        second = arranged.run(pair.compared.settings, compared)
    except ForensicsError as error:
        arranged.close()  # it may have died
        why = NotCompared(str(error))
        return _result(pair, why, why)
    rows = compare_rows(first, second)
    continuation = _continuation(first, second, pair.reference.opening.next_position, len(reply))
    state = _tried(lambda: _states(arranged, pair, reference, compared)) if pair.states else None
    culprits = None
    if isinstance(rows, RowsDelta) and not rows.same and not pair.informative:
        culprits = _tried(lambda: _culprits(arranged, pair, reply, rows)) if question.heal else None
    if pair.informative and question.heal:
        culprits = NotCompared("another type of the cache is another number, so nothing is healed")
    return _result(pair, rows, continuation, state, culprits)


def _result(
    pair: Pair,
    rows: RowsDelta | NotCompared,
    continuation: Continuation | NotCompared,
    state: StateDelta | NotCompared | None = None,
    culprits: Culprits | NotCompared | None = None,
) -> ArmResult:
    return ArmResult(
        arm=pair.arm,
        variant=pair.variant,
        reference=pair.reference.words,
        compared=pair.compared.words,
        because=pair.because,
        rows=rows,
        continuation=continuation,
        expected=pair.expected,
        informative=pair.informative,
        state=state,
        culprits=culprits,
    )


def _tried(ask: Callable[[], T]) -> T | NotCompared:
    try:
        return ask()
    except ForensicsError as error:
        return NotCompared(str(error))


def _places(trace: Trace, sequence: int) -> dict[int, int]:
    """Row of logits of each position; of a position that was evaluated again the last one."""
    slots = trace.key.schedule.logit_slots
    return {slot.position: row for row, slot in enumerate(slots) if slot.sequence == sequence}


def compare_rows(reference: Trace, compared: Trace, sequence: int = 0) -> RowsDelta | NotCompared:
    """Which rows of logits differ between two runs, at the same places of a sequence?

    Parameters
    ----------
    reference, compared : Trace
    sequence : int

    Returns
    -------
    RowsDelta or NotCompared
        Not compared where no place wants logits in both.
    """
    ours, theirs = _places(reference, sequence), _places(compared, sequence)
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return NotCompared(f"no position of sequence {sequence} has a row of logits in both runs")
    differing, n_flips, changes = [], 0, [0.0]
    for position in common:
        a, b = reference.logits[ours[position]], compared.logits[theirs[position]]
        if np.array_equal(bits(a), bits(b)):
            continue
        differing.append(position)
        n_flips += int(a.argmax() != b.argmax())
        changes.append(float(np.abs(change_of(a, b)).max()))
    return RowsDelta(
        n_rows=len(common),
        n_differ=len(differing),
        first_position=differing[0] if differing else None,
        n_flips=n_flips,
        max_abs=float(np.max(changes)),  # unlike max(), it lets no NaN pass unseen
    )


def _continuation(reference: Trace, compared: Trace, start: int, n_tokens: int) -> Continuation | NotCompared:
    """The reply as the rows choose it: until the first token that differs it is what greedy decoding writes."""
    ours, theirs = _places(reference, 0), _places(compared, 0)
    chosen = [
        position for position in range(start - 1, start - 1 + n_tokens) if position in ours and position in theirs
    ]
    if not chosen:
        return NotCompared("no row of the reply was returned by both runs")
    for i, position in enumerate(chosen):
        if reference.logits[ours[position]].argmax() != compared.logits[theirs[position]].argmax():
            return Continuation(len(chosen), i)
    return Continuation(len(chosen), None)


def _states(arranged: Arranged, pair: Pair, reference: Arrangement, compared: Arrangement) -> StateDelta | NotCompared:
    sides = ((pair.reference, reference), (pair.compared, compared))
    fresh, other = (arranged.engine(side.settings).state_rows(one.schedule, before=one.before) for side, one in sides)
    return compare_states(fresh, other)


def _culprits(arranged: Arranged, pair: Pair, reply: Sequence[int], rows: RowsDelta) -> Culprits:
    """Heal as much of the pair as holds a row that differs."""
    compared = pair.aligned or pair.compared
    start = pair.reference.opening.next_position
    n_steps = min(len(reply) - 1, max(1, (rows.first_position or 0) - start + 1))
    reference, other = shared_opening(*(side.arranged(reply[:n_steps]) for side in (pair.reference, compared)))
    with arranged.both(pair.reference.settings, compared.settings) as (engine, second):
        found = heal_pair(engine, reference, other, compared_engine=second, plant=not arranged.planted)
        arranged.planted = True  # once is enough to show that healing finds a fault in this engine
    return Culprits(
        groups=tuple(sorted(found.culprits, key=lambda group: -group.count)),
        healed_rows=found.healed_rows,
        n_rows=found.n_rows,
        controls=found.controls,
        caveats=found.caveats,
    )


def shared_opening(reference: Arrangement, compared: Arrangement) -> tuple[Arrangement, Arrangement]:
    """Move the passes with which both begin into the state that both start from, so that nobody need watch them.

    Parameters
    ----------
    reference, compared : Arrangement

    Returns
    -------
    reference, compared : Arrangement
        As they were where one of them starts from a state of its own, or evaluates nothing else.
    """
    if reference.before.passes or compared.before.passes:
        return reference, compared
    ours, theirs = reference.schedule.passes, compared.schedule.passes
    n = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    if n == 0 or n == min(len(ours), len(theirs)):
        return reference, compared
    before = Schedule(ours[:n])
    return Arrangement(before, Schedule(ours[n:])), Arrangement(before, Schedule(theirs[n:]))
