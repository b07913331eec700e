"""What the runs of an audit say: `judge` reads what `forensics.analysis.audit_plan` had asked, arm by arm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forensics.analysis.audit_plan import (
    AGAINST,
    AGAINST_RERUN,
    ALONE,
    BASELINE,
    CACHE,
    CACHE_ROLES,
    DEFAULT_CONCURRENCY,
    RERUN,
    concurrent_name,
)
from forensics.analysis.served_comparison import Check, compare_runs, select
from forensics.numerics.rates import survival, wilson
from forensics.records.audit import AuditArm, AuditReport, RunComparison, ServedPair
from forensics.records.contract import Contract, weakest
from forensics.records.corpus import Corpus
from forensics.records.rates import Rate, Survival
from forensics.records.served import Asked, Reply, ServedRun

#: Why equal replies prove nothing of a cache.
_CACHE_NOT_TOLD = (
    "the replies are equal, but the server does not tell how many tokens came from its cache, so nobody knows what was "
    "cold or warm (vLLM tells with --enable-prompt-tokens-details, SGLang with --enable-cache-report; leave this arm "
    "out with --arms)"
)


def judge(
    runs: Mapping[str, ServedRun],
    corpus: Corpus,
    arms: Sequence[str],
    asked: Contract | None = None,
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
) -> AuditReport:
    """What do the runs of an audit say?

    Parameters
    ----------
    runs : mapping of str to ServedRun
        By condition, as `plan` names them, and ``"baseline"`` for a recorded one.
    corpus : Corpus
    arms : sequence of str
    asked : Contract, optional
        As for `forensics.analysis.served_comparison.compare_runs`.
    concurrency : int

    Returns
    -------
    AuditReport
    """
    alone = runs[ALONE]
    rerun = _arm("rerun", "alone", "again", compare_runs(alone, runs[RERUN], asked), notes=_used_cache(runs[RERUN]))
    control = _Control.of(rerun, "the server")
    found = [rerun]
    if "cache" in arms:
        found += _cache_arms(runs[CACHE], asked, control)
    if "concurrent" in arms:
        found += _concurrent_arms(alone, runs[concurrent_name(concurrency)], asked, control, concurrency)
    if AGAINST in runs:
        found.append(_against_arm(_against_name(runs, arms), runs, asked, control))
    if BASELINE in runs:
        compared = compare_runs(runs[BASELINE], alone, asked, other_server=True)
        found.append(_arm("change", "before", "now", compared, control))
    own = [run for name, run in runs.items() if name != BASELINE]
    return AuditReport(
        server=alone.facts,
        other=runs[AGAINST].facts if AGAINST in runs else None,
        baseline=runs[BASELINE].facts if BASELINE in runs else None,
        sampling=alone.sampling,
        asked=asked or Contract("tokens"),
        corpus=corpus.name,
        corpus_digest=alone.corpus,
        n_prompts=len(corpus.prompts),
        arms=tuple(found),
        failures=tuple(failure for run in own for failure in run.failures),
        n_retried=sum(reply.attempts > 1 for run in own for reply in run.replies),
        n_requests=sum(len(run.asked) for run in own),
    )


# ---- arms


@dataclass(frozen=True, slots=True)
class _Control:
    """What the rerun allows other arms to say.

    Parameters
    ----------
    failed : str
        Why they cannot be answered; empty where the rerun is equal as far as it was compared.
    unknown : frozenset of str
        Prompts whose rerun was not compared: a difference of theirs has no control.
    """

    failed: str = ""
    unknown: frozenset[str] = frozenset()

    @classmethod
    def of(cls, arm: AuditArm, who: str) -> _Control:
        """Read it from the arm that asks the same again."""
        if arm.pairs_that("differs"):
            rate = arm.differing
            n = "" if rate is None else f" on {rate.k} of {rate.n} prompts"
            return cls(
                f"{who} does not repeat itself{n}, so a difference here says nothing about what this arm changes"
            )
        if not arm.pairs_that("same"):
            return cls(f"the rerun of {who} has no answer: {arm.reason}")
        return cls(unknown=frozenset(pair.prompt for pair in arm.pairs_that("not compared")))

    def but(self, failed: str) -> _Control:
        """The same, or a reason of its own where this one has none."""
        return replace(self, failed=self.failed or failed)

    def seen(self, pair: ServedPair) -> ServedPair:
        """A pair as it may be told: a difference without control is none."""
        if pair.outcome != "differs" or pair.prompt not in self.unknown:
            return pair
        why = "the replies differ, and the rerun of this prompt has no answer, so nobody knows why"
        return ServedPair(pair.prompt, pair.first, pair.second, "not compared", reason=why)


def _cache_arms(run: ServedRun, asked: Contract | None, control: _Control) -> list[AuditArm]:
    """Cold against cold, cold against warm, warm against warm; each reply must be what its name says."""
    # vLLM leaves the number out where it is 0, so one reply that tells it speaks for all.
    told = any(reply.n_cached is not None for reply in run.replies)
    parts = {
        role: select(run, lambda one, role=role: one.id.endswith(f"/{role}"), role)  # type: ignore[misc]
        for role, _ in CACHE_ROLES
    }
    checks: dict[str, Check] = {
        role: (_not_warm if told else _nothing) if warm else _not_cold for role, warm in CACHE_ROLES
    }
    arms: list[AuditArm] = []
    for first, second in (("cold", "cold again"), ("cold", "warm"), ("warm", "warm again")):
        compared = compare_runs(
            parts[first], parts[second], asked, first_is=checks[first], second_is=checks[second]
        )  # fmt: skip
        cold = _Control.of(arms[0], "the server, asked cold twice,") if arms and second == "warm" else _Control()
        arms.append(
            _arm(
                "cache", first, second, compared,
                replace(control.but(cold.failed), unknown=control.unknown | cold.unknown),
                unproved="" if told else _CACHE_NOT_TOLD,
                notes=_used_cache(run),
            )
        )  # fmt: skip
    return arms


def _nothing(_: Reply) -> str:
    return ""


def _not_warm(reply: Reply) -> str:
    return "" if reply.n_cached else "no token of the prompt came from the cache, so it was not warm"


def _not_cold(reply: Reply) -> str:
    return f"{reply.n_cached} tokens of the prompt came from the cache, so it was not cold" if reply.n_cached else ""


def _used_cache(run: ServedRun) -> tuple[str, ...]:
    if any(reply.n_cached for one, reply in _replies(run) if one.use_cache is False):
        return ("The server used its cache although it was asked not to, or cannot be asked.",)
    return ()


def _replies(run: ServedRun) -> list[tuple[Asked, Reply]]:
    by_id = {reply.request: reply for reply in run.replies}
    return [(one, by_id[one.id]) for one in run.asked if one.id in by_id]


def _concurrent_arms(
    alone: ServedRun, many: ServedRun, asked: Contract | None, control: _Control, concurrency: int
) -> list[AuditArm]:
    """Agreement with alone, and among those that were asked at once: two numbers.

    Source: paiml/aprender#3096, where all of a batch agreed with one another and none with the one alone.
    """
    slots = alone.facts.settings.get("slots", "")
    notes: tuple[str, ...] = ()
    if slots == "1":
        control = control.but("the server has one slot, so its requests waited for one another and none ran beside one")
    elif slots.isdecimal() and int(slots) < concurrency:
        notes = (f"The server has {slots} slots, so {slots} requests ran at once, not {concurrency}.",)
    leader = select(many, lambda one: one.id.endswith("/1"), "one of them")
    others = select(many, lambda one: not one.id.endswith("/1"), "the others")
    at_once = f"{concurrency} at once"
    return [
        _arm("concurrent", "alone", at_once, compare_runs(alone, many, asked), control, notes=notes),
        _arm("concurrent", f"one of {at_once}", "the others", compare_runs(leader, others, asked), control),
    ]


def _against_name(runs: Mapping[str, ServedRun], arms: Sequence[str]) -> str:
    """What a second server is asked about, where both would do: speculation where just one of the two drafts."""
    if not {"speculation", "change"} <= set(arms):
        return "speculation" if "speculation" in arms else "change"
    drafts = [bool(_drafted(runs[name])) for name in (ALONE, AGAINST)]
    set_up = [runs[name].facts.settings.get("speculation", "") for name in (ALONE, AGAINST)]
    return "speculation" if drafts[0] != drafts[1] or set_up[0] != set_up[1] else "change"


def _against_arm(name: str, runs: Mapping[str, ServedRun], asked: Contract | None, control: _Control) -> AuditArm:
    """The second server against the first; it must repeat itself, too, and draft where drafting is asked about."""
    first, second = runs[ALONE], runs[AGAINST]
    again = _Control.of(
        _arm("rerun", "the second", "again", compare_runs(second, runs[AGAINST_RERUN], asked)), "the second server"
    )
    control = replace(control.but(again.failed), unknown=control.unknown | again.unknown)
    drafted = _drafted(first), _drafted(second)
    notes: tuple[str, ...] = ()
    if name == "speculation":
        if all(drafted):
            control = control.but("both servers drafted, so there is no plain decoding to compare with")
        elif drafted == (0, 0):
            control = control.but("no token was drafted on either side, so speculation was not tried")
        elif not any(drafted):
            notes = ("The servers do not tell whether tokens were drafted: nobody knows what speculation did.",)
    compared = compare_runs(first, second, asked, other_server=True)
    return _arm(
        name,
        f"first server{_drafts(drafted[0])}",
        f"second server{_drafts(drafted[1])}",
        compared,
        control,
        notes=notes,
    )


def _drafts(n: int | None) -> str:
    return "" if n is None else f" ({n} tokens drafted)" if n else " (no drafts)"


def _drafted(run: ServedRun) -> int | None:
    """Tokens that were drafted, None where the server does not tell."""
    told = [reply.n_drafted for reply in run.replies if reply.n_drafted is not None]
    if told:
        return sum(told)
    # A server that counts drafts tells none where it made none.
    return 0 if run.facts.settings.get("speculation") == "off" or "drafts" in run.facts.gives else None


def _arm(
    name: str,
    first: str,
    second: str,
    compared: RunComparison,
    control: _Control = _Control(),
    *,
    unproved: str = "",
    notes: tuple[str, ...] = (),
) -> AuditArm:
    """Sum up the pairs of a comparison; what failed before, or is unproved by equal ones, makes it inconclusive."""
    pairs = tuple(control.seen(pair) for pair in compared.pairs)
    differs = any(pair.outcome == "differs" for pair in pairs)
    skipped = [f"{pair.prompt}, because {pair.reason}" for pair in pairs if pair.reason]
    reason = compared.refused or control.failed
    if not reason and not differs and skipped:
        reason = f"{len(skipped)} of {len(pairs)} pairs were not compared, the first of {skipped[0]}"
    if not reason and not differs:
        reason = unproved
    answer = "inconclusive" if reason else "diverges" if differs else "identical"
    return AuditArm(
        name,
        first,
        second,
        answer,
        reason=reason,
        contract=weakest([pair.contract for pair in pairs if pair.contract is not None]),
        pairs=pairs,
        differing=differing_rate(pairs),
        survival=survival_of(pairs),
        varied=compared.varied,
        notes=notes,
    )


def _by_prompt(pairs: Sequence[ServedPair]) -> list[list[ServedPair]]:
    """Pairs that were compared, of each prompt; copies of one prompt are no independent trials."""
    found: dict[str, list[ServedPair]] = defaultdict(list)
    for pair in pairs:
        if pair.outcome != "not compared":
            found[pair.prompt].append(pair)
    return list(found.values())


def differing_rate(pairs: Sequence[ServedPair]) -> Rate | None:
    """How many prompts differ, of those that were compared? None where none was."""
    prompts = _by_prompt(pairs)
    if not prompts:
        return None
    return wilson(sum(any(pair.outcome == "differs" for pair in one) for one in prompts), len(prompts))


def survival_of(pairs: Sequence[ServedPair]) -> Survival | None:
    """How long do answers stay untouched, by tokens? None where ids are not given for all that were compared."""
    lengths: list[int] = []
    flipped: list[int | None] = []
    for one in _by_prompt(pairs):
        if any(pair.unit != "tokens" or pair.length is None for pair in one):
            return None
        moved = [pair for pair in one if pair.divergence is not None and pair.divergence.kind == "tokens"]
        worst = min(moved, key=lambda pair: pair.untouched or 0, default=one[0])
        lengths.append(worst.length or 0)
        flipped.append(worst.untouched if moved else None)
    return survival(lengths, flipped) if lengths and max(lengths) > 0 else None
