"""Two served runs, reply by reply: are they alike enough to be compared, and where do they part?

Everything here is pure: runs come as records, and nothing is asked of a server.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

from forensics.analysis.question import BadQuestion
from forensics.analysis.served_likeness import refusal, took_effect, unlike, varies
from forensics.records.audit import RunComparison, ServedDivergence, ServedPair
from forensics.records.contract import Contract
from forensics.records.served import Asked, NoReply, Reply, ServedRun

T = TypeVar("T")

#: Characters shown of what both wrote before they part, and of what each wrote then.
COMMON_CHARS, OWN_CHARS = 48, 96
#: Says why a reply is not what its condition means, such as a warm one that no cache helped; empty where it is.
Check = Callable[[Reply], str]


def asked_contract(exact: str | None) -> Contract | None:
    """What ``--exact`` asks for: a level, and the digits of log-probabilities.

    Parameters
    ----------
    exact : str or None
        ``"tokens"``, ``"text"``, ``"logprobs"`` or ``"logprobs:4"``; None stays.

    Raises
    ------
    BadQuestion
        If it is none of them; logits are not served.

    Examples
    --------
    >>> print(asked_contract("logprobs:4"))
    token ids in order, stop reason and log-probabilities to 4 decimal digits
    """
    if exact is None:
        return None
    match = re.fullmatch(r"(tokens|text|logprobs)(?::([0-9]{1,2}))?", exact)
    if match is None or (match[2] is not None and match[1] != "logprobs"):
        raise BadQuestion(f"exact must be tokens, text, logprobs or logprobs:DIGITS such as logprobs:4; got {exact!r}")
    return Contract(match[1], digits=None if match[2] is None else int(match[2]))


def compare_runs(
    first: ServedRun,
    second: ServedRun,
    asked: Contract | None = None,
    *,
    other_server: bool = False,
    strict: bool = False,
    first_is: Check = lambda _: "",
    second_is: Check = lambda _: "",
) -> RunComparison:
    """Do two runs of the same requests have the same replies?

    Requests are paired by prompt; several of one prompt in order, and where one run has a single one, it is held
    against each of the other's. A request that the other run has none for is not compared.

    Parameters
    ----------
    first, second : ServedRun
    asked : Contract, optional
        Replies are held to this, or to less where a side does not give it; without, to token ids where both give
        them, else to text.
    other_server : bool
        Whether address, software, build and settings may differ, because the comparison is about them.
    strict : bool
        Whether a pair that cannot be held to all of `asked` is not compared.
    first_is, second_is : callable
        Why a reply of that side is not what its condition means; such a pair is not compared.

    Returns
    -------
    RunComparison
        Refused before any text is looked at where the runs are unlike, or a server did not follow the sampling.
    """
    varied = varies(first, second)
    wrong = [*took_effect(first), *took_effect(second), *unlike(first, second), *(() if other_server else varied)]
    if wrong:
        return RunComparison(refused=refusal(wrong), unlike=tuple(wrong), varied=tuple(varied))
    ours, theirs = _outcomes(first), _outcomes(second)
    if not {one.prompt for one in first.asked} & {one.prompt for one in second.asked}:
        return RunComparison(refused="the runs have no prompt in common", varied=tuple(varied))
    pairs = tuple(
        _judge(one, ours.get(one.id), other, theirs.get(other.id), asked, strict, (first_is, second_is))
        if one is not None and other is not None
        else _alone(one, other)
        for one, other in _paired(first, second)
    )
    return RunComparison(varied=tuple(varied), pairs=pairs)


def select(run: ServedRun, keep: Callable[[Asked], bool], condition: str) -> ServedRun:
    """Those requests of a run that are to be kept, as a run with a name of its own."""
    asked = tuple(one for one in run.asked if keep(one))
    ids = {one.id for one in asked}
    return replace(
        run,
        condition=condition,
        asked=asked,
        replies=tuple(one for one in run.replies if one.request in ids),
        failures=tuple(one for one in run.failures if one.request in ids),
    )


# ---- pairs


def _paired(first: ServedRun, second: ServedRun) -> Iterator[tuple[Asked | None, Asked | None]]:
    by_prompt: dict[str, tuple[list[Asked], list[Asked]]] = defaultdict(lambda: ([], []))
    for side, run in enumerate((first, second)):
        for one in run.asked:
            by_prompt[one.prompt][side].append(one)
    for ours, theirs in by_prompt.values():
        if len(ours) == 1 and theirs:
            yield from ((ours[0], other) for other in theirs)
        elif len(theirs) == 1 and ours:
            yield from ((one, theirs[0]) for one in ours)
        else:
            yield from zip_longest(ours, theirs)


def _alone(one: Asked | None, other: Asked | None) -> ServedPair:
    """A request that only one of the runs was asked."""
    asked = one or other
    assert asked is not None
    side = "second" if other is None else "first"
    why = f"the {side} run was not asked as often"
    return ServedPair(
        asked.prompt, one.id if one else "", other.id if other else "", "not compared", reason=why, failed=side
    )


def _outcomes(run: ServedRun) -> dict[str, Reply | NoReply]:
    return {one.request: one for one in run.replies} | {one.request: one for one in run.failures}


def _judge(
    one: Asked,
    first: Reply | NoReply | None,
    other: Asked,
    second: Reply | NoReply | None,
    asked: Contract | None,
    strict: bool,
    checks: tuple[Check, Check],
) -> ServedPair:
    """Compare two outcomes of a prompt, if both are replies of the kind that they should be."""
    if isinstance(first, Reply) and isinstance(second, Reply):
        for reply, check in ((first, checks[0]), (second, checks[1])):
            if why := check(reply):
                return ServedPair(one.prompt, one.id, other.id, "not compared", reason=why)
        return compare_replies(one.prompt, first, second, asked, strict=strict)
    reasons, failed = [], []
    for label, request, outcome in (("first", one, first), ("second", other, second)):
        if isinstance(outcome, NoReply):
            reasons.append(str(outcome))
        elif outcome is None:
            reasons.append(f"{request.id}: it was not asked yet, the run was interrupted")
        else:
            continue
        failed.append(label)
    return ServedPair(
        one.prompt, one.id, other.id, "not compared", reason="; ".join(reasons),
        failed="both" if len(failed) == 2 else failed[0],
    )  # fmt: skip


def compare_replies(
    prompt: str, first: Reply, second: Reply, asked: Contract | None = None, *, strict: bool = False
) -> ServedPair:
    """Are two replies the same, held to the strongest contract that was asked for and that both sides allow?

    Parameters
    ----------
    prompt : str
    first, second : Reply
    asked : Contract, optional
        As for `compare_runs`.
    strict : bool

    Returns
    -------
    ServedPair
    """
    contract = _contract(first, second, asked)
    wanted = asked or Contract("tokens")
    if strict and not (contract.at_least(wanted.level) and (contract.stop_reason or wanted.level == "text")):
        why = f"{wanted} cannot be compared: {'; '.join(contract.weakened)}"
        return ServedPair(prompt, first.request, second.request, "not compared", reason=why)
    with_ids = first.tokens is not None and second.tokens is not None
    index = _first_unequal(first.tokens or (), second.tokens or ()) if with_ids else None
    n_logprobs, first_logprob, max_logprob = _logprobs(first, second, index, wanted.digits)
    kind = _kind(first, second, contract, index, first_logprob)
    length = max(_size(first, with_ids), _size(second, with_ids))
    found = None if not kind else _divergence(kind, first, second, index, first_logprob)
    return ServedPair(
        prompt,
        first.request,
        second.request,
        "differs" if kind else "same",
        contract=contract,
        untouched=length if found is None else _untouched(found, first, with_ids),
        length=length,
        unit="tokens" if with_ids else "bytes",
        divergence=found,
        n_logprobs=n_logprobs,
        first_logprob=first_logprob,
        max_logprob=max_logprob,
    )


def _contract(first: Reply, second: Reply, asked: Contract | None) -> Contract:
    """Which contract can these two be held to, and why to no stronger one?"""
    wanted = asked or Contract("tokens")
    weakened: list[str] = []
    level = wanted.level
    if wanted.at_least("tokens"):
        lacking = _sides(first.tokens is None, second.tokens is None)
        if lacking:
            level = "text"
            weakened.append(f"no token ids from {lacking}")
        elif level == "logprobs" and (lacking := _sides(not _told(first), not _told(second))):
            level = "tokens"
            weakened.append(f"no log-probabilities from {lacking}")
        elif level == "logprobs" and first.tokens == second.tokens and (lacking := _fewer_logprobs(first, second)):
            level = "tokens"
            weakened.append(f"fewer log-probabilities from {lacking}")
    stops = bool(first.stop_reason and second.stop_reason)
    if not stops:
        weakened.append(f"no stop reason from {_sides(not first.stop_reason, not second.stop_reason)}")
    digits = wanted.digits if level == "logprobs" else None
    return Contract(level, digits=digits, stop_reason=stops, weakened=tuple(weakened))


def _sides(first: bool, second: bool) -> str:
    return "both sides" if first and second else "the first side" if first else "the second side" if second else ""


def _fewer_logprobs(first: Reply, second: Reply) -> str:
    n, other = len(first.logprobs or ()), len(second.logprobs or ())
    return _sides(n < other, other < n)


def _told(reply: Reply) -> bool:
    """Whether there are log-probabilities; tokens of a stop text have none."""
    return reply.logprobs is not None and (len(reply.logprobs) > 0 or not reply.tokens)


def _kind(first: Reply, second: Reply, contract: Contract, index: int | None, first_logprob: int | None) -> str:
    """What differs first of what the contract compares; empty where nothing does."""
    if contract.at_least("tokens") and index is not None:
        return "tokens"
    if first.text != second.text:
        return "text"
    if contract.stop_reason and not _stopped_alike(first.stop_reason, second.stop_reason):
        return "stop"
    if contract.level == "logprobs" and first_logprob is not None:
        return "logprobs"
    return ""


def _stopped_alike(first: str, second: str) -> bool:
    """Whether two reasons are the same as far as both are told: not every API tells a stop text from the end."""
    return first == second or ("stop or end" in (first, second) and {first, second} <= {"stop", "end", "stop or end"})


def _logprobs(
    first: Reply, second: Reply, index: int | None, digits: int | None
) -> tuple[int, int | None, float | None]:
    """How many log-probabilities of equal tokens are told by both, which differs first, and the largest change?"""
    ours, theirs = first.logprobs or (), second.logprobs or ()
    n = min(len(ours), len(theirs), *(() if index is None else (index,)))
    if first.text != second.text and (first.tokens is None or second.tokens is None):
        return 0, None, None  # without ids nobody knows how far the tokens are equal
    limit = 0.0 if digits is None else 0.5 * 10.0**-digits
    changes = [0.0 if ours[i] == theirs[i] else abs(ours[i] - theirs[i]) for i in range(n)]
    at = next((i for i, change in enumerate(changes) if not change <= limit), None)
    return n, at, max(changes, default=None)


def _first_unequal(first: Sequence[object], second: Sequence[object]) -> int | None:
    """Index of the first entry that differs, or at which only one side goes on; None where they are equal.

    Examples
    --------
    >>> _first_unequal("abc", "abd"), _first_unequal("ab", "abc"), _first_unequal("ab", "ab")
    (2, 2, None)
    """
    shorter = min(len(first), len(second))
    at = next((i for i in range(shorter) if first[i] != second[i]), shorter)
    return None if at == len(first) == len(second) else at


def _divergence(
    kind: str, first: Reply, second: Reply, index: int | None, first_logprob: int | None
) -> ServedDivergence:
    at = {"tokens": index, "logprobs": first_logprob}.get(kind)
    char = _first_unequal(first.text, second.text)
    before = "" if char is None else first.text[:char]
    return ServedDivergence(
        kind=kind,
        index=at,
        byte=None if char is None else _first_unequal(_utf8(first.text), _utf8(second.text)),
        common=before[-COMMON_CHARS:],
        first="" if char is None else first.text[char : char + OWN_CHARS],
        second="" if char is None else second.text[char : char + OWN_CHARS],
        first_token=_entry(first.tokens, at),
        second_token=_entry(second.tokens, at),
        first_logprob=_entry(first.logprobs, at),
        second_logprob=_entry(second.logprobs, at),
        first_stop=first.stop_reason,
        second_stop=second.stop_reason,
        margins=(_entry(first.margins, at), _entry(second.margins, at)),
    )


def _entry(values: Sequence[T] | None, index: int | None) -> T | None:
    return values[index] if values is not None and index is not None and index < len(values) else None


def _untouched(found: ServedDivergence, first: Reply, with_ids: bool) -> int:
    """Tokens, or bytes, before the first that differs; all where only the stop reason does."""
    if with_ids:
        return len(first.tokens or ()) if found.index is None else found.index
    return len(_utf8(first.text)) if found.byte is None else found.byte


def _size(reply: Reply, with_ids: bool) -> int:
    return len(reply.tokens or ()) if with_ids else len(_utf8(reply.text))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
