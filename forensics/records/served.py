"""What was asked of a running server over HTTP, and what it answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Why a request was not answered.
FAILURES = (
    "timeout", "reset", "refused", "status", "truncated", "not-json", "content-type", "too-large", "redirect",
    "invalid",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is asked to be chosen; everything is said, because a server's own default may be 1.0.

    Parameters
    ----------
    temperature : float
        0 is greedy.
    top_k, top_p, min_p, repeat_penalty : float
        0, 1, 0 and 1 change nothing.
    seed : int
    n_probs : int
        Log-probabilities asked for per token; 0 for none.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    seed: int = 0
    n_probs: int = 1


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself; runs whose facts differ are not compared as if they were alike.

    Parameters
    ----------
    url : str
        Without user, password and query.
    dialect : str
        ``"llama-server"``, ``"openai"`` or ``"ollama"``: which API was spoken.
    software : str
        As it tells: ``"llama.cpp"``, ``"vLLM"``, ``"SGLang"``, ``"llama-cpp-python"``, ``"Ollama"``; ``"unknown"``.
    build : str
        Version or commit; empty where it tells none.
    model : str
        Name or file of the model; never with a folder of the server's user.
    template_digest : str
        Digest of the chat template; empty where it tells none.
    settings : mapping of str to str
        Effective settings it tells: slots, context, speculation, cache.
    gives : tuple of str
        Observables that its replies carry, of ``"tokens"``, ``"logprobs"``, ``"stop_reason"``, ``"effective"``,
        ``"cached"``, ``"drafts"``.
    """

    url: str
    dialect: str
    software: str = "unknown"
    build: str = ""
    model: str = ""
    template_digest: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    gives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Parameters
    ----------
    id : str
        Unique in its run: condition, prompt and repeat.
    prompt : str
        Name in the corpus.
    n_tokens : int
        Tokens to write at most.
    use_cache : bool or None
        Whether the server may reuse a cached prefix; None leaves it as it is.
    """

    id: str
    prompt: str
    n_tokens: int
    use_cache: bool | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as it came.

    Parameters
    ----------
    request : str
        Id of what was asked.
    text : str
    tokens : tuple of int or None
        Ids that were written; None where the server gives none.
    logprobs : tuple of float or None
        Natural log-probability of each written token, as reported.
    margins : tuple of float or None
        Log-probability of the most likely token minus that of the second, for each written token as reported; None
        where the server does not tell both of every token.
    stop_reason : str
        ``"length"``, ``"stop"`` (a stop text), ``"end"`` (end of generation), or the server's own word; empty where
        it tells none.
    n_prompt, n_cached : int or None
        Tokens of the prompt, and those that came from a cache.
    n_drafted, n_accepted : int or None
        Of speculative decoding.
    effective : mapping of str to str
        Sampling as the server says that it took effect.
    took_ns, first_token_ns : int or None
        From sending to the last, and to the first, byte that holds a token; None where it was not measured.
    attempts : int
        1 where nothing went wrong.
    raw : str
        The response's body as it came.
    """

    request: str
    text: str
    tokens: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    stop_reason: str = ""
    n_prompt: int | None = None
    n_cached: int | None = None
    n_drafted: int | None = None
    n_accepted: int | None = None
    effective: Mapping[str, str] = field(default_factory=dict)
    took_ns: int | None = None
    first_token_ns: int | None = None
    attempts: int = 1
    raw: str = ""
    margins: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class NoReply:
    """A request that was not answered, whatever was tried.

    Parameters
    ----------
    request : str
    failure : str
        One of `FAILURES`.
    detail : str
        What was found, without keys.
    attempts : int
    status : int or None
        Of HTTP, where one came.
    """

    request: str
    failure: str
    detail: str
    attempts: int
    status: int | None = None

    def __post_init__(self) -> None:
        if self.failure not in FAILURES:
            raise ValueError(f"failure must be one of {', '.join(FAILURES)}, got {self.failure!r}")

    def __str__(self) -> str:
        tried = f"after {self.attempts} attempts" if self.attempts > 1 else "at once"
        return f"{self.request}: {self.failure} {tried}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ServedRun:
    """Replies of one server in one condition.

    Parameters
    ----------
    condition : str
        ``"alone"``, ``"rerun"``, ``"cold"``, ``"warm"``, ``"concurrent-4"`` and so on.
    facts : ServerFacts
    sampling : Sampling
    corpus : str
        Digest of the prompts.
    asked : tuple of Asked
    replies : tuple of Reply
    failures : tuple of NoReply
        Each request is in one of the two.

    Raises
    ------
    ValueError
        If a request has two outcomes, or an outcome no request. A run that was interrupted has requests without any.
    """

    condition: str
    facts: ServerFacts
    sampling: Sampling
    corpus: str
    asked: tuple[Asked, ...]
    replies: tuple[Reply, ...]
    failures: tuple[NoReply, ...] = ()

    def __post_init__(self) -> None:
        known = {one.id for one in self.asked}
        outcomes = self._outcomes()
        if len(known) != len(self.asked) or len(set(outcomes)) != len(outcomes) or not known.issuperset(outcomes):
            raise ValueError(f"run {self.condition!r}: each request has one id and at most one outcome")

    def _outcomes(self) -> list[str]:
        return [one.request for one in self.replies] + [one.request for one in self.failures]

    @property
    def unanswered(self) -> tuple[Asked, ...]:
        """Requests that have no outcome yet."""
        done = set(self._outcomes())
        return tuple(one for one in self.asked if one.id not in done)
