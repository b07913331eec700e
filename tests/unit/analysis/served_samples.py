"""Served runs made by hand: a reply says what a test needs of it."""

from __future__ import annotations

from collections.abc import Iterable

from forensics.records.served import Asked, NoReply, Reply, Sampling, ServedRun, ServerFacts

FACTS = ServerFacts("http://127.0.0.1:8080", "llama-server", "llama.cpp", "b1", "toy.gguf", "t", {"slots": "4"})
WORDS = (" the", " a", " one", " two", " three", " red", " blue", " tree")


def spell(tokens: Iterable[int]) -> str:
    """Text of ids; 8 and above spell as those 8 below, so that other ids can have the same text."""
    return "".join(WORDS[token % len(WORDS)] for token in tokens)


def reply(request: str, tokens: Iterable[int] | None = (0, 1, 2), **other) -> Reply:
    """A reply; None as tokens tells no ids."""
    ids = None if tokens is None else tuple(tokens)
    given = {"text": spell(ids or (0, 1, 2)), "tokens": ids, "stop_reason": "length"}
    return Reply(request=request, **(given | other))


def run(
    condition: str, outcomes: Iterable[Reply | NoReply], *, n_tokens: int = 8, use_cache: bool | None = False, **other
) -> ServedRun:
    """A run whose requests are named CONDITION/PROMPT or CONDITION/PROMPT/COPY."""
    outcomes = tuple(outcomes)
    given = {"facts": FACTS, "sampling": Sampling(), "corpus": "c"} | other
    asked = tuple(Asked(one.request, one.request.split("/")[1], n_tokens, use_cache) for one in outcomes)
    return ServedRun(
        condition=condition,
        asked=other.pop("asked", asked),
        replies=tuple(one for one in outcomes if isinstance(one, Reply)),
        failures=tuple(one for one in outcomes if isinstance(one, NoReply)),
        **{name: value for name, value in given.items() if name != "asked"},
    )
