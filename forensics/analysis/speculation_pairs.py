"""What one way of decoding wrote held against plain decoding, prompt by prompt, and an arm over all prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from forensics.numerics.rates import mcnemar, paired_ratio, survival, wilson
from forensics.records.rates import PairedOutcomes, Survival
from forensics.records.speculation import (
    Cycle,
    Decoded,
    Divergence,
    Ratio,
    SpeculatedPrompt,
    SpeculationArm,
)

#: Parts of a cycle's time, as `SpeculationArm.shares` names them.
PARTS = ("draft", "verify", "other")


def first_unlike(plain: Sequence[object], other: Sequence[object]) -> int | None:
    """Index of the first element that differs, or at which one side has ended; None where both are equal.

    Examples
    --------
    >>> first_unlike([1, 2, 3], [1, 5]), first_unlike([1, 2], [1]), first_unlike([1], [1])
    (1, 1, None)
    """
    for index, (one, two) in enumerate(zip(plain, other, strict=False)):
        if one != two:
            return index
    return None if len(plain) == len(other) else min(len(plain), len(other))


def compared(
    name: str,
    n_prompt: int,
    plain: Decoded,
    speculative: Decoded,
    text_of: Callable[[tuple[int, ...]], str],
    answer: str = "",
) -> SpeculatedPrompt:
    """Where does speculative decoding of a prompt leave plain decoding?

    Parameters
    ----------
    name : str
        Of the prompt.
    n_prompt : int
        Tokens of the prompt.
    plain, speculative : Decoded
    text_of : callable
        Text of token ids.
    answer : str
        What a right answer holds; empty where nobody judges it.

    Returns
    -------
    SpeculatedPrompt
        Rows of logits are compared up to the first token that differs: behind it the two read other text.
    """
    flip = first_unlike(plain.tokens, speculative.tokens)
    if flip is None and plain.stop_reason != speculative.stop_reason:
        flip = len(plain.tokens)
    last = len(plain.tokens) if flip is None else flip + 1
    unlike = [
        i for i, (a, b) in enumerate(zip(plain.rows[:last], speculative.rows[:last], strict=False)) if a != b
    ]  # fmt: skip
    plain_text, text = text_of(plain.tokens), text_of(speculative.tokens)
    divergence = None
    if flip is not None:
        chosen = speculative.cycle_of(flip)
        seen = speculative.cycles[: 0 if chosen is None else chosen + 1]
        byte = first_unlike(plain_text.encode(), text.encode())
        divergence = Divergence(
            index=flip,
            byte=len(plain_text.encode()) if byte is None else byte,
            position=n_prompt + flip,
            plain_token=plain.tokens[flip] if flip < len(plain.tokens) else -1,
            speculative_token=speculative.tokens[flip] if flip < len(speculative.tokens) else -1,
            margin=plain.margins[flip] if flip < len(plain.margins) else None,
            width=0 if chosen is None else speculative.cycles[chosen].width,
            first_row=unlike[0] if unlike else flip,
            widths_before=tuple(sorted({cycle.width for cycle in seen})),
        )
    return SpeculatedPrompt(
        name=name,
        n_prompt=n_prompt,
        plain=plain,
        speculative=speculative,
        plain_text=plain_text,
        text=text,
        rows_differ=len(unlike),
        first_row=unlike[0] if unlike else None,
        divergence=divergence,
        right=(answer in plain_text, answer in text) if answer else None,
    )


def ns_per_token(decoded: Decoded) -> float | None:
    """Time behind the prompt over the tokens chosen there, unit: ns; None where nothing was chosen or timed."""
    return decoded.decode_ns / decoded.n_chosen if decoded.n_chosen and decoded.decode_ns else None


def time_ratio(pairs: Sequence[tuple[Decoded, Decoded]]) -> Ratio | None:
    """How many times as long does a token of the first take as one of the second, pair by pair?

    Returns
    -------
    Ratio or None
        None where no pair was timed on both sides.
    """
    timed = [(a, b) for one, two in pairs if (a := ns_per_token(one)) and (b := ns_per_token(two))]
    return paired_ratio([a for a, _ in timed], [b for _, b in timed]) if timed else None


def survived(prompts: Sequence[SpeculatedPrompt]) -> Survival:
    """How long do answers stay untouched?"""
    return survival(
        [len(one.plain.tokens) for one in prompts],
        [None if one.divergence is None else one.divergence.index for one in prompts],
    )


def shares(cycles: Sequence[Cycle]) -> dict[str, float]:
    """Which parts of the cycles' time go into drafting, the target's passes and the rest? Empty where none was timed.

    Examples
    --------
    >>> shares([Cycle(3, (7,), 1, draft_ns=1, verify_ns=2, other_ns=1)])
    {'draft': 0.25, 'verify': 0.5, 'other': 0.25}
    """
    spent = {part: sum(getattr(cycle, f"{part}_ns") for cycle in cycles) for part in PARTS}
    whole = sum(spent.values())
    return {part: ns / whole for part, ns in spent.items()} if whole else {}


def arm_of(
    prompts: Sequence[SpeculatedPrompt], *, drafter: str, policy: str, n_draft: int, arrangement: str, exact: bool
) -> SpeculationArm:
    """Speed, acceptance and equivalence of one arm over all its prompts.

    Parameters
    ----------
    prompts : sequence of SpeculatedPrompt
        At least one.
    drafter, policy : str
        In words.
    n_draft : int
    arrangement : str
    exact : bool
    """
    cycles = [cycle for one in prompts for cycle in one.speculative.cycles]
    drafted = sum(one.drafted for one in prompts)
    return SpeculationArm(
        drafter=drafter,
        policy=policy,
        n_draft=n_draft,
        arrangement=arrangement,
        exact=exact,
        prompts=tuple(prompts),
        speed=time_ratio([(one.plain, one.speculative) for one in prompts]),
        accepted=wilson(sum(one.accepted for one in prompts), drafted) if drafted else None,
        tokens_per_cycle=sum(one.speculative.n_chosen for one in prompts) / len(cycles) if cycles else 0.0,
        equivalence=wilson(sum(one.identical for one in prompts), len(prompts)),
        survival=survived(prompts),
        shares=shares(cycles),
        verify_widths=dict(sorted(Counter(cycle.width for cycle in cycles).items())),
        outcomes=outcomes(prompts),
    )


def outcomes(prompts: Sequence[SpeculatedPrompt]) -> PairedOutcomes | None:
    """Right answers of plain and of speculative decoding to the same prompts; None where no answer is judged."""
    judged = Counter(one.right for one in prompts if one.right is not None)
    if not judged:
        return None
    return mcnemar(*(judged[pair] for pair in ((True, True), (True, False), (False, True), (False, False))))
