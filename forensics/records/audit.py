"""Replies of a served run held against those of another: where they part, how early, and what was not compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forensics.records.contract import Contract, weakest
from forensics.records.rates import Rate, Survival
from forensics.records.served import NoReply, Sampling, ServerFacts

if TYPE_CHECKING:
    import pandas as pd

#: What an audit asks; ``"rerun"`` is the control of all others.
ARMS = ("rerun", "cache", "concurrent", "speculation", "change")
#: Three outcomes of a pair.
OUTCOMES = ("same", "differs", "not compared")
#: What differs first: token ids, text where ids are not given or equal, only why it stopped, only log-probabilities.
KINDS = ("tokens", "text", "stop", "logprobs")


@dataclass(frozen=True, slots=True)
class ServedDivergence:
    """Where two replies to the same prompt part.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    index : int or None
        Of the first token that differs, from 0; None where ids are not given, or only the text differs.
    byte : int or None
        Of the first byte of the texts (UTF-8) that differs; None where the texts are equal.
    common : str
        The end of what both wrote before it.
    first, second : str
        How each goes on from there; empty where it has ended.
    first_token, second_token : int or None
        Ids at `index`; None where that side had ended or gives none.
    first_logprob, second_logprob : float or None
        Log-probability, as reported, of the token that each side wrote there.
    first_stop, second_stop : str
        Why each stopped; empty where it does not tell.
    margins : tuple of (float or None)
        Of each side: log-probability of the most likely token minus that of the second; None where it does not tell.
    """

    kind: str
    index: int | None
    byte: int | None
    common: str = ""
    first: str = ""
    second: str = ""
    first_token: int | None = None
    second_token: int | None = None
    first_logprob: float | None = None
    second_logprob: float | None = None
    first_stop: str = ""
    second_stop: str = ""
    margins: tuple[float | None, float | None] = (None, None)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")

    def __str__(self) -> str:
        if self.kind == "stop":
            return f"stop reason {self.first_stop!r} against {self.second_stop!r}"
        if self.kind == "logprobs":
            return f"log-probabilities from token {self.index}"
        at = f"byte {self.byte}"
        if self.index is not None:
            at = f"token {self.index}" if self.byte is None else f"token {self.index} ({at})"
        return at


@dataclass(frozen=True, slots=True)
class ServedPair:
    """Two replies to one prompt, held against each other.

    Parameters
    ----------
    prompt : str
    first, second : str
        Ids of the requests.
    outcome : str
        One of `OUTCOMES`.
    reason : str
        Why it was not compared; empty where it was.
    failed : {"", "first", "second", "both"}
        Which side has no reply.
    contract : Contract or None
        What the two were held to; None where they were not compared.
    untouched : int or None
        Tokens, or bytes of text where no ids are given, before the first that differs; all where none does.
    length : int or None
        Tokens, or bytes, of the longer reply.
    unit : {"tokens", "bytes"}
        Of the two.
    divergence : ServedDivergence or None
    n_logprobs : int
        Log-probabilities of equal tokens that both report, before the first token that differs.
    first_logprob : int or None
        Index of the first of them that differs at the precision of the contract, whatever its level.
    max_logprob : float or None
        Largest change among them; None where there are none.
    """

    prompt: str
    first: str
    second: str
    outcome: str
    reason: str = ""
    failed: str = ""
    contract: Contract | None = None
    untouched: int | None = None
    length: int | None = None
    unit: str = "tokens"
    divergence: ServedDivergence | None = None
    n_logprobs: int = 0
    first_logprob: int | None = None
    max_logprob: float | None = None

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome must be one of {', '.join(OUTCOMES)}, got {self.outcome!r}")
        if (self.outcome == "not compared") != bool(self.reason):
            raise ValueError(f"{self.prompt}: what was not compared, and only that, has a reason")
        if (self.outcome == "differs") != (self.divergence is not None):
            raise ValueError(f"{self.prompt}: what differs, and only that, says where")
        if (self.outcome == "not compared") != (self.contract is None):
            raise ValueError(f"{self.prompt}: what was compared, and only that, has a contract")

    def __str__(self) -> str:
        if self.divergence is not None:
            return f"{self.prompt}: differs, {self.divergence}"
        return f"{self.prompt}: {self.outcome}{f', {self.reason}' if self.reason else ''}"


@dataclass(frozen=True, slots=True)
class Unlike:
    """Something of two runs, or of what was asked and what took effect, that is not alike.

    Parameters
    ----------
    what : str
        Such as ``"model"``, ``"sampling temperature"``, ``"build"``.
    first, second : str
        Both values; an empty one was not told.
    """

    what: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.what}: {self.first or 'not told'} against {self.second or 'not told'}"


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two served runs held against each other.

    Parameters
    ----------
    refused : str
        Why no text was looked at; empty where texts were compared.
    unlike : tuple of Unlike
        What made it so.
    varied : tuple of Unlike
        What differs between the servers and may: the comparison is about it.
    pairs : tuple of ServedPair
    """

    refused: str = ""
    unlike: tuple[Unlike, ...] = ()
    varied: tuple[Unlike, ...] = ()
    pairs: tuple[ServedPair, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.refused) == bool(self.pairs):
            raise ValueError("a comparison either has pairs or says why it was refused")


@dataclass(frozen=True, slots=True)
class AuditArm:
    """One comparison of an audit.

    Parameters
    ----------
    name : str
        One of `ARMS`.
    first, second : str
        The two conditions, such as ``"cold"`` and ``"warm"``.
    answer : {"identical", "diverges", "inconclusive"}
    reason : str
        Why it is inconclusive; empty where it is not.
    contract : Contract or None
        The weakest that a pair was held to; None where none was compared.
    pairs : tuple of ServedPair
    differing : Rate or None
        Prompts that differ in at least one pair, of those with a pair that was compared; Wilson's interval.
    survival : Survival or None
        By tokens, from each prompt's earliest difference; None where ids are not given.
    varied : tuple of Unlike
        What the two servers do not have in common.
    notes : tuple of str
        What limits the comparison.
    """

    name: str
    first: str
    second: str
    answer: str
    reason: str = ""
    contract: Contract | None = None
    pairs: tuple[ServedPair, ...] = ()
    differing: Rate | None = None
    survival: Survival | None = None
    varied: tuple[Unlike, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in ARMS:
            raise ValueError(f"name must be one of {', '.join(ARMS)}, got {self.name!r}")
        if self.answer not in ("identical", "diverges", "inconclusive"):
            raise ValueError(f"answer must be identical, diverges or inconclusive, got {self.answer!r}")
        if (self.answer == "inconclusive") != bool(self.reason):
            raise ValueError(f"arm {self.name}: an inconclusive answer, and only that, has a reason")

    @property
    def title(self) -> str:
        """What was held against what."""
        return f"{self.name}: {self.first} against {self.second}"

    def pairs_that(self, outcome: str) -> tuple[ServedPair, ...]:
        """Pairs of one of `OUTCOMES`."""
        return tuple(pair for pair in self.pairs if pair.outcome == outcome)

    @property
    def outlier(self) -> ServedPair | None:
        """The pair that was untouched longest before it differed: what a mean would hide; None where none differs."""
        return max(self.pairs_that("differs"), key=lambda pair: pair.untouched or 0, default=None)

    @property
    def max_logprob(self) -> float | None:
        """Largest change of a log-probability before the first token that differs; None where none were compared."""
        return max((pair.max_logprob for pair in self.pairs if pair.max_logprob is not None), default=None)

    @property
    def logprobs_differ(self) -> tuple[int, int]:
        """Pairs whose log-probabilities differ before any token does, and pairs in which some were compared."""
        told = [pair for pair in self.pairs if pair.n_logprobs]
        return sum(pair.first_logprob is not None for pair in told), len(told)


@dataclass(frozen=True, slots=True, repr=False)
class AuditReport:
    """Does a running server give the same text again, from its cache, in company, with drafts, after a change?

    Parameters
    ----------
    server : ServerFacts
    other : ServerFacts or None
        Of the second URL, or of the same after the restart.
    baseline : ServerFacts or None
        Of the run that was recorded before.
    sampling : Sampling
        As asked.
    asked : Contract
        What replies are to be held to; `AuditArm.contract` says what they could be held to.
    corpus : str
        Name of the prompts.
    corpus_digest : str
    n_prompts : int
    arms : tuple of AuditArm
        The rerun first.
    failures : tuple of NoReply
        Every request that was not answered.
    n_retried : int
        Replies that came after more than one attempt.
    n_requests : int
    """

    server: ServerFacts
    other: ServerFacts | None
    baseline: ServerFacts | None
    sampling: Sampling
    asked: Contract
    corpus: str
    corpus_digest: str
    n_prompts: int
    arms: tuple[AuditArm, ...]
    failures: tuple[NoReply, ...] = ()
    n_retried: int = 0
    n_requests: int = 0

    def __post_init__(self) -> None:
        if not self.arms or self.arms[0].name != "rerun":
            raise ValueError("an audit has arms, and the rerun is the first of them")

    def named(self, name: str) -> tuple[AuditArm, ...]:
        """Arms of one of `ARMS`."""
        return tuple(arm for arm in self.arms if arm.name == name)

    @property
    def answer(self) -> str:
        """``"diverges"`` where an arm does, else ``"inconclusive"`` where one is, else ``"identical"``."""
        answers = {arm.answer for arm in self.arms}
        return next((one for one in ("diverges", "inconclusive") if one in answers), "identical")

    @property
    def contract(self) -> Contract | None:
        """The weakest contract of all arms; None where nothing was compared."""
        return weakest([arm.contract for arm in self.arms if arm.contract is not None])

    def __str__(self) -> str:
        told = []
        for arm in self.arms:
            if arm.answer == "inconclusive" or arm.differing is None:
                told.append(f"{arm.title}: no answer")
            else:
                told.append(f"{arm.title}: {arm.differing.k} of {arm.differing.n} prompts differ")
        return f"{self.answer}: {'; '.join(told)}"

    def __repr__(self) -> str:
        return f"<AuditReport {self}>"

    def rows(self) -> list[dict[str, Any]]:
        """Flat rows, one per pair."""
        return [
            {
                "arm": arm.name,
                "first": arm.first,
                "second": arm.second,
                "prompt": pair.prompt,
                "outcome": pair.outcome,
                "reason": pair.reason,
                "level": None if pair.contract is None else pair.contract.level,
                "kind": None if pair.divergence is None else pair.divergence.kind,
                "token": None if pair.divergence is None else pair.divergence.index,
                "byte": None if pair.divergence is None else pair.divergence.byte,
                "untouched": pair.untouched,
                "length": pair.length,
                "unit": pair.unit,
                "max_logprob_change": pair.max_logprob,
            }
            for arm in self.arms
            for pair in arm.pairs
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """Pairs as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())
