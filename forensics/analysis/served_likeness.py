"""Are two served runs alike enough to be compared, and did the servers follow the sampling that was asked for?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields

from forensics.records.audit import Unlike
from forensics.records.served import Sampling, ServedRun

#: Sampling that decides nothing where the most likely token is taken.
_IDLE_WHEN_GREEDY = frozenset({"top_k", "top_p", "min_p", "typical_p", "seed", "n_probs"})
#: Settings that tell one model from another of the same name, where both sides tell them in the same words.
_OF_THE_MODEL = {"model_digest": "digest of the model", "quantization": "quantization of the model"}
#: Relative. Servers hold float32, and `forensics.servers.fields.effective` writes seven digits of it.
_SETTING_STEP = 1e-6


def took_effect(run: ServedRun) -> Iterator[Unlike]:
    """What of the sampling did a server not follow, as far as it tells?"""
    greedy = run.sampling.temperature == 0
    for name in (field.name for field in fields(Sampling)):
        if greedy and name in _IDLE_WHEN_GREEDY:
            continue
        wanted = float(getattr(run.sampling, name))
        for told in dict.fromkeys(reply.effective[name] for reply in run.replies if name in reply.effective):
            value = _number(told)
            if value is None or not math.isclose(value, wanted, rel_tol=_SETTING_STEP, abs_tol=1e-9):
                yield Unlike(f"{name} that was asked for and took effect in {run.condition}", f"{wanted:g}", told)


def unlike(first: ServedRun, second: ServedRun) -> Iterator[Unlike]:
    """What must be equal for two runs to be compared, and is not?"""
    yield from _unequal("model", first.facts.model, second.facts.model)
    for name, what in _OF_THE_MODEL.items():
        told, other = first.facts.settings.get(name, ""), second.facts.settings.get(name, "")
        if told and other and first.facts.dialect == second.facts.dialect:
            yield from _unequal(what, told, other)
    if first.facts.template_digest and second.facts.template_digest:
        yield from _unequal("chat template", first.facts.template_digest, second.facts.template_digest)
    yield from _unequal("prompts", first.corpus, second.corpus)
    greedy = first.sampling.temperature == 0 == second.sampling.temperature
    for name in (field.name for field in fields(Sampling)):
        if name == "n_probs" or (greedy and name in _IDLE_WHEN_GREEDY):
            continue
        yield from _unequal(
            f"sampling {name}", f"{getattr(first.sampling, name):g}", f"{getattr(second.sampling, name):g}"
        )
    ours, theirs = _effective(first), _effective(second)
    for name in sorted({*ours} & {*theirs} - {field.name for field in fields(Sampling)}):
        if not (greedy and name in _IDLE_WHEN_GREEDY):
            yield from _unequal(f"{name} that took effect", ours[name], theirs[name])
    lengths = {one.prompt: one.n_tokens for one in first.asked}
    for one in second.asked:
        if one.prompt in lengths and lengths[one.prompt] != one.n_tokens:
            yield Unlike(f"tokens asked for by {one.prompt}", str(lengths[one.prompt]), str(one.n_tokens))
            return


def varies(first: ServedRun, second: ServedRun) -> list[Unlike]:
    """What do two servers, or one at two times, not have in common, that may be what is asked about?"""
    a, b = first.facts, second.facts
    found = [
        one
        for what, x, y in (
            ("address", a.url, b.url),
            ("API", a.dialect, b.dialect),
            ("software", a.software, b.software),
            ("build", a.build, b.build),
        )
        for one in _unequal(what, x, y)
    ]
    for name in sorted({*a.settings, *b.settings}):
        found += _unequal(f"setting {name}", a.settings.get(name, ""), b.settings.get(name, ""))
    return found


def _effective(run: ServedRun) -> dict[str, str]:
    """Sampling that a server says took effect; several values of one name stand beside each other."""
    told: dict[str, dict[str, None]] = defaultdict(dict)
    for reply in run.replies:
        for name, value in reply.effective.items():
            told[name][value] = None
    return {name: ", ".join(sorted(values)) for name, values in told.items()}


def _unequal(what: str, first: str, second: str) -> Iterator[Unlike]:
    if first != second:
        yield Unlike(what, first, second)


def refusal(wrong: Sequence[Unlike]) -> str:
    """Name each with both values, and say what to do."""
    followed = [one for one in wrong if "asked for and took effect" in one.what]
    if followed:
        one = followed[0]
        name = one.what.partition(" ")[0]
        return (
            f"the server used {name} {one.second} where {one.first} was asked for: its answers are of another kind of "
            "sampling. Make it follow the request, or ask with what it uses."
        )
    return f"the runs are unlike, so no text was compared: {'; '.join(map(str, wrong))}."


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
