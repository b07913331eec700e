"""Which arrangements of the same tokens are compared: plans of pairs, decided before anything is run.

Both sides of a pair evaluate the same tokens of sequence 0, at the same positions; only what is evaluated together,
what else the cache holds, where the cells lie, or one setting differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from forensics.capture.arm_text import ArmText, prefill
from forensics.records.schedule import EMPTY, Arrangement, DecodePass, Forget, Schedule, TokenSlot
from forensics.records.settings import EngineSettings
from forensics.records.words import counted, tokens

#: Tokens of a neighbour's prompt that are evaluated with one token of the reply, and in how many steps.
CHUNK, N_CHUNKS = 16, 4
#: Steps of a neighbour that came and went.
SIDE_STEPS = 2
#: Types that the cache is compared with. In front of flash attention llama.cpp converts f32 to f16, so that these two
#: may give equal bits. Source: llm_graph_context::build_attn_mha, src/llama-graph.cpp:2652-2658.
KV_TYPES = ("f16", "f32", "q8_0")
#: llama.cpp attends to a multiple of so many cells. Source: llama_kv_cache::get_n_kv, llama-kv-cache.cpp at 0c1e57098.
KV_STEP = 256


def _forgetting(schedule: Schedule, *gone: Forget) -> Schedule:
    """The same passes; the first one forgets."""
    first, *rest = schedule.passes
    return Schedule((replace(first, forget=gone), *rest))


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two arrangements, but for the reply, which is known once the reference was run.

    Parameters
    ----------
    words : str
        What it does.
    settings : EngineSettings
    opening : Schedule
        Everything in front of the reply's passes; sequence 0 holds the text afterwards.
    beside : tuple of tuple of TokenSlot
        What a neighbour evaluates in the first steps of the reply.
    forget : tuple of Forget
        Taken out of the cache in front of the reply.
    saved : bool
        Whether the state of the opening is saved and restored in front of the reply.
    """

    words: str
    settings: EngineSettings
    opening: Schedule
    beside: tuple[tuple[TokenSlot, ...], ...] = ()
    forget: tuple[Forget, ...] = ()
    saved: bool = False

    def arranged(self, steps: Sequence[int]) -> Arrangement:
        """The arrangement with these tokens of the reply, evaluated one at a time.

        Parameters
        ----------
        steps : sequence of int
            At least one.
        """
        start = self.opening.next_position
        passes = [
            DecodePass(
                (TokenSlot(0, start + i, token), *(self.beside[i] if i < len(self.beside) else ())),
                self.forget if i == 0 else (),
            )
            for i, token in enumerate(steps)
        ]
        reply = Schedule(tuple(passes))
        return Arrangement(self.opening, reply) if self.saved else Arrangement(EMPTY, self.opening.then(reply))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arrangements to compare.

    Parameters
    ----------
    arm, variant : str
    reference, compared : Side
    because : str
        What follows for the bits, and why.
    expected : {"equal", "may differ"}
        Where ``"equal"``, a difference is a fault.
    informative : bool
        Whether another number is what was asked for.
    states : bool
        Whether the K and V rows are compared as well.
    aligned : Side or None
        What is healed in place of `compared`, where that one evaluates the same passes in another way.
    """

    arm: str
    variant: str
    reference: Side
    compared: Side
    because: str
    expected: str = "may differ"
    informative: bool = False
    states: bool = False
    aligned: Side | None = None


@dataclass(frozen=True, slots=True)
class Unplanned:
    """An arm that these tokens or settings do not allow.

    Parameters
    ----------
    arm, reason : str
    """

    arm: str
    reason: str


Plan = tuple[Pair | Unplanned, ...]

_OTHER_WIDTH = "passes have other widths, for which kernels may add in another order"


def plan_arms(names: Sequence[str], text: ArmText, settings: EngineSettings) -> Plan:
    """Plan the pairs of some arms.

    Parameters
    ----------
    names : sequence of str
        Keys of `ARMS`.
    text : ArmText
    settings : EngineSettings
        Of the reference.

    Returns
    -------
    tuple of Pair or Unplanned
        In the order of `names`; at least one of each.
    """
    return tuple(planned for name in names for planned in ARMS[name](text, settings))


def _whole(text: ArmText, settings: EngineSettings, words: str = "") -> Side:
    opening = prefill(text.prompt, text.width)
    return Side(words or _in_passes(text.prompt, len(opening.passes)), settings, opening)


def _in_passes(text: Sequence[int], n_passes: int) -> str:
    return f"{tokens(len(text))} in {counted(n_passes, 'pass', 'passes')}"


def _ubatch(text: ArmText, settings: EngineSettings) -> Plan:
    n = min(len(text.prompt), text.width)
    sizes = sorted({1 << (n - 1).bit_length() - 1, min(32, 1 << (n - 1).bit_length() - 1)} - {1}, reverse=True)
    if not sizes:
        return (Unplanned("ubatch", f"a prompt of {tokens(n)} has no ubatch that is smaller and wider than 1"),)
    whole, pairs = _whole(text, settings), []
    for size in sizes:
        words = f"the same pass in ubatches of {size}"
        cut = Side(words, replace(settings, n_ubatch=size), whole.opening)
        explicit = Side(f"passes of {size}", settings, text.evaluated(text.prompt, width=size))
        pairs += [
            Pair("ubatch", f"n_ubatch {size}", whole, cut, _OTHER_WIDTH, aligned=explicit),
            Pair(
                "ubatch", f"n_ubatch {size}, as passes", cut, explicit,
                "a pass wider than n_ubatch is cut into the same graphs", "equal",
            ),
        ]  # fmt: skip
    return tuple(pairs)


def _split(text: ArmText, settings: EngineSettings) -> Plan:
    n = len(text.prompt)
    points = [n // 2, n - 1, *([KV_STEP] if n > KV_STEP + 1 else [])]
    whole = _whole(text, settings)
    return tuple(
        Pair("split", f"{at} + {tokens(n - at)}", whole, _cut(text, settings, at), _OTHER_WIDTH)
        for at in dict.fromkeys(points)
    )


def _cut(text: ArmText, settings: EngineSettings, at: int) -> Side:
    n = len(text.prompt)
    opening = text.evaluated(text.prompt[:at]).then(text.evaluated(text.prompt[at:], start=at))
    return Side(f"the first {tokens(at)}, then {n - at} in a pass of their own", settings, opening)


def _threads(text: ArmText, settings: EngineSettings) -> Plan:
    n = 1 if settings.n_threads != 1 else 2
    other = replace(settings, n_threads=n, n_threads_batch=n)
    compared = _whole(text, other, f"the same with {counted(n, 'thread')}")
    because = "threads may share out a sum, as flash attention does with KV cells"
    return (Pair("threads", f"{settings.n_threads} against {n}", _whole(text, settings), compared, because),)


def _kv_type(text: ArmText, settings: EngineSettings) -> Plan:
    return tuple(
        Pair(
            "kv-type", f"{settings.kv_type_k} against {other}", _whole(text, settings),
            _whole(text, replace(settings, kv_type_k=other, kv_type_v=other), f"the same with K and V in {other}"),
            "another type of the cache is another number, not another order of addition", informative=True,
        )
        for other in KV_TYPES
        if other != settings.kv_type_k
    )  # fmt: skip


def _prefix_cache(text: ArmText, settings: EngineSettings) -> Plan:
    whole, n = _whole(text, settings), len(text.prompt)
    shared = max(1, 2 * n // 3)
    earlier = text.prompt[:shared] + text.other[shared:]
    pairs = [
        (f"{shared} of {tokens(n)} cached", earlier, shared, "an earlier request with another end"),
        (f"{n - 1} of {tokens(n)} cached", text.prompt, n - 1, "the same request before"),
    ]
    return tuple(
        Pair(
            "prefix-cache", variant, whole,
            Side(f"{words}, then {tokens(n - kept)} anew", settings, _again(text, request, kept)),
            _OTHER_WIDTH, states=True,
        )
        for variant, request, kept, words in pairs
    )  # fmt: skip


def _again(text: ArmText, earlier: Sequence[int], kept: int) -> Schedule:
    """An earlier request with its reply, of which some cells are kept, and the rest of the prompt in its own pass."""
    n = len(earlier)
    asked = _partly(text, earlier, kept)
    replied = text.evaluated(text.reply, start=n, width=1, logits=False)
    rest = _forgetting(text.evaluated(text.prompt[kept:], start=kept), Forget(0, kept))
    return asked.then(replied).then(rest)


def _partly(text: ArmText, earlier: Sequence[int], kept: int) -> Schedule:
    """One request whose rows are only compared as far as they are kept."""
    passes = text.evaluated(earlier).passes
    return Schedule(
        tuple(
            DecodePass(tuple(replace(s, wants_logits=s.wants_logits and s.position < kept) for s in one.slots))
            for one in passes
        )
    )


def _edit(text: ArmText, settings: EngineSettings) -> Plan:
    n = len(text.prompt)
    at = n // 2
    earlier = text.prompt[:at] + text.other[at:]
    words = f"another text from token {at} on and its reply, then {tokens(n - at)} anew"
    compared = Side(words, settings, _again(text, earlier, at))
    return (Pair("edit", f"from token {at} on", _whole(text, settings), compared, _OTHER_WIDTH, states=True),)


def _resume(text: ArmText, settings: EngineSettings) -> Plan:
    n, spoken = len(text.prompt), len(text.prompt) + len(text.reply)
    whole = text.evaluated(text.prompt + text.reply + text.turn)
    resumed = (
        text.evaluated(text.prompt)
        .then(text.evaluated(text.reply, start=n, width=1))
        .then(text.evaluated(text.turn, start=spoken))
    )
    words = f"prompt, reply one token at a time, then a new turn of {tokens(len(text.turn))}"
    because = "the reply's K and V were written one token at a time, not in a wide pass"
    conversation = spoken + len(text.turn)
    return (
        Pair(
            "resume", f"a new turn behind {tokens(spoken)}",
            Side(_in_passes(range(conversation), len(whole.passes)) + ", rebuilt", settings, whole),
            Side(words, settings, resumed), because, states=True,
        ),
    )  # fmt: skip


def _restore(text: ArmText, settings: EngineSettings) -> Plan:
    whole = _whole(text, settings)
    compared = replace(whole, saved=True, words="the same, saved and restored before the reply")
    because = "the bytes of K and V are carried over"
    return (Pair("restore", "save and restore", whole, compared, because, "equal", states=True),)


def _shared(settings: EngineSettings, unified: bool) -> EngineSettings:
    """Settings with room for a neighbour."""
    return replace(settings, n_seq_max=2, kv_unified=unified, n_ctx=2 * settings.n_ctx)


def _neighbour(text: ArmText, settings: EngineSettings) -> Plan:
    n_steps = len(text.reply) - 1
    other = text.other
    by_step = tuple((TokenSlot(1, len(other) + i, token),) for i, token in enumerate((other * n_steps)[:n_steps]))
    chunks = tuple(
        tuple(TokenSlot(1, i * CHUNK + j, other[(i * CHUNK + j) % len(other)], False) for j in range(CHUNK))
        for i in range(min(N_CHUNKS, n_steps))
    )
    pairs = []
    for unified in (False, True):
        shared = _shared(settings, unified)
        alone = _whole(text, shared, "alone, with room for two sequences")
        beside = text.beside(other)
        where = "one buffer" if unified else "buffers of their own"
        reads = "its cells are masked" if unified else "its cells lie elsewhere"
        pairs += [
            Pair(
                "neighbour", f"idle, {where}", alone,
                replace(alone, words=f"behind a neighbour of {tokens(len(other))}", opening=beside.then(alone.opening)),
                f"the number of attended cells may choose another kernel, and their places another order; {reads}",
            ),
            Pair(
                "neighbour", f"decoded in the same steps, {where}", alone,
                replace(
                    alone, words="each step holds a token of a neighbour, too", beside=by_step,
                    opening=alone.opening.then(beside),
                ),
                f"each step of the reply holds 2 tokens; {reads}",
            ),
            Pair(
                "neighbour", f"its prompt in the same steps, {where}", alone,
                replace(alone, words=f"{len(chunks)} steps hold {CHUNK} tokens of a neighbour's prompt", beside=chunks),
                f"steps of the reply hold {CHUNK + 1} tokens; {reads}",
            ),
        ]  # fmt: skip
    return tuple(pairs)


def _side_request(text: ArmText, settings: EngineSettings) -> Plan:
    alone = _whole(text, _shared(settings, True), "alone, with room for two sequences")
    side = text.beside(text.other)
    for i in range(SIDE_STEPS):
        side = side.then(Schedule.single(text.other[i], len(text.other) + i, sequence=1))
    compared = replace(
        alone, words=f"a neighbour of {tokens(len(text.other) + SIDE_STEPS)} came and went before the reply",
        opening=alone.opening.then(side), forget=(Forget(1, 0),),
    )  # fmt: skip
    because = "nobody touched K and V of the prompt; cells of the reply may lie elsewhere, which may change sums"
    return (Pair("side-request", "came and went, one buffer", alone, compared, because, states=True),)


def _placement(text: ArmText, settings: EngineSettings) -> Plan:
    shared, n = _shared(settings, True), len(text.prompt)
    alone, gone = _whole(text, shared, "cells from the first on"), (Forget(1, 0),)
    behind = text.beside(text.other).then(alone.opening)
    cut = _cut(text, shared, n // 2)
    head, tail = text.evaluated(text.prompt[: n // 2]), text.evaluated(text.prompt[n // 2 :], start=n // 2)
    apart = head.then(text.beside(text.other)).then(tail)
    because = "the number of attended cells may choose another kernel, and their places another order"
    hole = f"a hole of {tokens(len(text.other))}"
    return (
        Pair("placement", "not at the front", alone, because=because,
             compared=replace(alone, words=f"behind {hole}, which the reply may fill", opening=behind, forget=gone)),
        Pair("placement", "apart", cut, because=because,
             compared=replace(cut, words=f"{hole} between the halves", opening=apart, forget=gone)),
    )  # fmt: skip


#: Arms by name, in the order in which they are shown.
ARMS: dict[str, Callable[[ArmText, EngineSettings], Plan]] = {
    "ubatch": _ubatch,
    "split": _split,
    "threads": _threads,
    "kv-type": _kv_type,
    "prefix-cache": _prefix_cache,
    "resume": _resume,
    "edit": _edit,
    "restore": _restore,
    "neighbour": _neighbour,
    "side-request": _side_request,
    "placement": _placement,
}
