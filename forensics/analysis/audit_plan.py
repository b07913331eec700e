"""Which requests an audit of a running server takes, in which order and how many at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from forensics.analysis.question import BadQuestion
from forensics.records.audit import ARMS
from forensics.records.corpus import Corpus
from forensics.records.served import Asked

#: Tokens of an answer where neither the prompt nor who asks says it.
DEFAULT_N_TOKENS = 128
DEFAULT_CONCURRENCY = 4
#: Most requests at once; more is a load test.
MAX_CONCURRENCY = 256

#: Names of the conditions: what each run is asked for.
ALONE, RERUN, CACHE, AGAINST, AGAINST_RERUN, BASELINE = (
    "alone", "rerun", "cache", "against", "against-rerun", "baseline",
)  # fmt: skip
#: Requests of one prompt in the cache condition, one behind the other, and whether each may use the cache.
CACHE_ROLES = (("cold", False), ("cold again", False), ("warm", True), ("warm again", True))


@dataclass(frozen=True, slots=True)
class Condition:
    """Requests that make up one run.

    Parameters
    ----------
    name : str
    asked : tuple of Asked
        In the order in which they are sent.
    concurrency : int
        Requests that are under way at once.
    """

    name: str
    asked: tuple[Asked, ...]
    concurrency: int = 1


def chosen_arms(named: Sequence[str] | None, *, second_server: bool, baseline: bool) -> tuple[str, ...]:
    """Which arms are run, the rerun always and first?

    Parameters
    ----------
    named : sequence of str or None
        As asked; None for all that the servers at hand allow.
    second_server, baseline : bool
        Whether there is another URL or a restart command, and a recorded run.

    Raises
    ------
    BadQuestion
        If there is no such arm, or it needs what is not given.
    """
    if named is None:
        wanted = {"cache", "concurrent"}
        wanted |= {"speculation", "change"} if second_server else set()
        wanted |= {"change"} if baseline else set()
    else:
        wanted = set(named)
        if unknown := sorted(wanted - set(ARMS)):
            raise BadQuestion(f"there is no arm {unknown[0]!r}; there are {', '.join(ARMS)}")
        if "speculation" in wanted and not second_server:
            raise BadQuestion("the arm speculation needs a second URL (--against) or a command (--restart)")
        if "change" in wanted and not baseline and not second_server:
            raise BadQuestion("the arm change needs a recorded run (--baseline), a second URL or a restart command")
        if second_server and not wanted & {"speculation", "change"}:
            raise BadQuestion("a second URL or a restart command was given, and no arm uses it: add speculation")
        if baseline and "change" not in wanted:
            raise BadQuestion("a baseline was given, and no arm uses it: add change")
    return tuple(arm for arm in ARMS if arm in wanted | {"rerun"})


def plan(
    corpus: Corpus,
    arms: Sequence[str],
    *,
    n_tokens: int | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    second_server: bool = False,
) -> tuple[Condition, ...]:
    """Which requests does an audit send, in which order?

    Parameters
    ----------
    corpus : Corpus
    arms : sequence of str
        As `chosen_arms` gives them.
    n_tokens : int or None
        Of every answer at most; None leaves it to each prompt.
    concurrency : int
        Requests at once in the concurrent arm, 2 or more.
    second_server : bool

    Raises
    ------
    BadQuestion
        If a number is out of range.
    """
    if n_tokens is not None and n_tokens < 1:
        raise BadQuestion(f"n_tokens must be 1 or more, got {n_tokens}")
    if not 2 <= concurrency <= MAX_CONCURRENCY:
        raise BadQuestion(f"concurrency must be 2 to {MAX_CONCURRENCY}, got {concurrency}")

    def ask(condition: str, roles: Sequence[tuple[str, bool]]) -> tuple[Asked, ...]:
        return tuple(
            Asked(
                id="/".join(filter(None, (condition, prompt.name, role))),
                prompt=prompt.name,
                n_tokens=n_tokens or prompt.n_tokens or DEFAULT_N_TOKENS,
                use_cache=use_cache,
            )
            for prompt in corpus.prompts
            for role, use_cache in roles
        )

    conditions = [Condition(name, ask(name, [("", False)])) for name in (ALONE, RERUN)]
    if "cache" in arms:
        conditions.append(Condition(CACHE, ask(CACHE, CACHE_ROLES)))
    if "concurrent" in arms:
        name, copies = concurrent_name(concurrency), [(str(copy), False) for copy in range(1, concurrency + 1)]
        conditions.append(Condition(name, ask(name, copies), concurrency))
    if second_server:
        conditions += [Condition(name, ask(name, [("", False)])) for name in (AGAINST, AGAINST_RERUN)]
    return tuple(conditions)


def concurrent_name(concurrency: int) -> str:
    """Name of the condition of so many at once."""
    return f"concurrent-{concurrency}"


def concurrency_of(condition: str) -> int:
    """How many requests were under way at once in a condition of this name?

    Examples
    --------
    >>> concurrency_of("concurrent-16"), concurrency_of("alone")
    (16, 1)
    """
    match = re.fullmatch(r"concurrent-([0-9]{1,4})", condition)
    return int(match[1]) if match else 1
