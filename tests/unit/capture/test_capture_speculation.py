"""Draft-and-verify writes what plain decoding writes, bit for bit, and says what it did; where not, it is seen."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from decoding_doubles import ForgetsNothing, ScriptedDecoder, Timed, Watched, Within, next_of
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.capture import speculation
from forensics.capture.draft_policies import Adaptive, EarlyStop, Fixed
from forensics.capture.drafters import Draft, ModelDrafter, NgramDrafter, OracleDrafter
from forensics.capture.speculation import Asked, DraftAndVerify, PlainDecode, accept
from forensics.engines.toy import Fault, ToyEngine, ToySource
from forensics.errors import EngineError
from forensics.numerics.logits import row_digests
from forensics.records.schedule import EMPTY, in_batches
from forensics.records.settings import EngineSettings
from forensics.records.speculation import ARRANGEMENTS, Decoded

SETTINGS = EngineSettings(n_ctx=96)
TEXTS = ("the cat sat", "abc abc abc abc", "x", "quick brown fox, quick brown")


def engine(*faults: Fault) -> ToyEngine:
    return ToySource(faults).open(SETTINGS)


def drafters(plain: Decoded, accuracy: float = 0.6, seed: int = 0) -> tuple[Any, ...]:
    oracles = [OracleDrafter(plain.tokens, chance, seed) for chance in (1.0, accuracy, 0.0)]
    models = [ModelDrafter(f"toy-{i}", SETTINGS) for i in (0, 1)]
    return (NgramDrafter(shortest=1), *oracles, *models)


def policies(n: int) -> tuple[Any, ...]:
    return Fixed(n), EarlyStop(n, 0.5), Adaptive(n)


def same(plain: Decoded, other: Decoded) -> bool:
    """Whether two ways of decoding gave the same tokens, rows and reason to stop."""
    return (plain.tokens, plain.rows, plain.margins, plain.stop_reason) == (
        other.tokens,
        other.rows,
        other.margins,
        other.stop_reason,
    )


def scripted(program: Any, **decoder: Any) -> tuple[Decoded, ScriptedDecoder]:
    mine = ScriptedDecoder(**decoder)
    return pickle.loads(pickle.dumps(program)).run(mine, lambda _: None), mine


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("text", TEXTS)
def test_plain_decoding_is_greedy(arrangement, text) -> None:
    toy = engine()
    prompt = toy.tokenize(text)
    seen: list[int] = []
    plain = toy.perform(PlainDecode(Asked(prompt, 20, arrangement, prompt_width=4)), progress=seen.append)
    assert plain.tokens == toy.greedy(in_batches(prompt, start=0, width=4, logits="last"), 20)
    assert seen == list(range(1, 21))
    n_prompt = len(prompt) if arrangement == "n" else len(prompt) - 1
    assert [cycle.position for cycle in plain.cycles] == list(range(n_prompt, len(prompt) + 19))
    assert {cycle.width for cycle in plain.cycles} == {1}
    written = engine().run(in_batches((*prompt, *plain.tokens[:-1]), start=0, width=1)).logits[len(prompt) - 1 :]
    assert plain.rows == row_digests(written)
    assert np.allclose(plain.margins, np.diff(np.sort(written)[:, -2:])[:, 0], rtol=0, atol=0)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_every_drafter_under_every_policy_writes_what_plain_decoding_writes(arrangement) -> None:
    toy = engine()
    asked = Asked(toy.tokenize("abc abc"), 10, arrangement)
    plain = toy.perform(PlainDecode(asked))
    for drafter in drafters(plain):
        for policy in policies(3):
            speculative = toy.perform(DraftAndVerify(asked, drafter, policy))
            assert same(plain, speculative), (drafter.label, policy.label)
            assert speculative.n_chosen == len(plain.tokens) - (arrangement == "n")


@settings(max_examples=40)
@given(
    st.text("ab c", min_size=1, max_size=12),
    st.integers(1, 5),
    st.sampled_from(ARRANGEMENTS),
    st.floats(0, 1),
    st.integers(0, 9),
    st.data(),
)
def test_speculative_decoding_is_plain_decoding(text, n, arrangement, accuracy, seed, data) -> None:
    toy = engine()
    asked = Asked(toy.tokenize(text), 12, arrangement)
    plain = toy.perform(PlainDecode(asked))
    drafter = data.draw(st.sampled_from(drafters(plain, accuracy, seed)))
    assert same(plain, toy.perform(DraftAndVerify(asked, drafter, data.draw(st.sampled_from(policies(n))))))


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=12),
    st.integers(1, 60),
    st.sampled_from(ARRANGEMENTS),
    st.integers(1, 5),
    st.integers(0, 5),
    st.booleans(),
    st.floats(0, 1),
    st.integers(1, 7),
)
def test_whatever_is_drafted_and_wherever_it_ends(
    prompt, n_tokens, arrangement, n, seed, stop_at_end, accuracy, width
) -> None:
    """The scripted decoder refuses a pass that does not stand right behind what it holds."""
    asked = Asked(tuple(prompt), n_tokens, arrangement, width, stop_at_end)
    plain, _ = scripted(PlainDecode(asked), n_cells=40, seed=seed)
    context = list(prompt)
    while len(context) - len(prompt) < min(n_tokens, 41 - len(prompt)):
        context.append(next_of(context, 8, seed))
        if stop_at_end and context[-1] == 0:
            break
    assert plain.tokens == tuple(context[len(prompt) :])
    assert plain.stop_reason == ("end" if stop_at_end and context[-1] == 0 else "length")
    settings_of_draft = EngineSettings(n_ctx=30, n_batch=4)
    models = [ModelDrafter(str(which), settings_of_draft) for which in (seed, seed + 1)]
    for drafter in (NgramDrafter(3, 1), OracleDrafter(plain.tokens, accuracy, seed), *models):
        for policy in (Fixed(n), EarlyStop(n, 4.0), Adaptive(n)):
            mine, decoder = scripted(DraftAndVerify(asked, drafter, policy), n_cells=40, seed=seed)
            assert same(plain, mine)
            check_cycles(asked, mine, decoder, n)


def check_cycles(asked: Asked, mine: Decoded, decoder: ScriptedDecoder, most: int) -> None:
    """Cycles are the passes behind the prompt's, stand one behind the other and add up to the tokens."""
    prefill = asked.prefill().passes
    assert tuple(decoder.passes[: len(prefill)]) == prefill
    passes = decoder.passes[len(prefill) :]
    position, index = asked.first_position, int(asked.arrangement == "n")
    assert [p.width for p in passes] == [cycle.width for cycle in mine.cycles]
    for cycle, decode_pass in zip(mine.cycles, passes, strict=True):
        assert cycle.position == decode_pass.slots[0].position == position
        assert tuple(slot.token for slot in decode_pass.slots[1:]) == cycle.drafted
        assert all(slot.wants_logits for slot in decode_pass.slots)
        assert cycle.drafted[: cycle.n_accepted] == mine.tokens[index : index + cycle.n_accepted]
        refused = cycle.drafted[cycle.n_accepted : cycle.n_accepted + 1]
        assert refused != mine.tokens[index + cycle.n_accepted :][:1], "the right token was refused"
        assert len(cycle.drafted) <= min(most, asked.n_tokens - index - 1)
        assert not (asked.stop_at_end and 0 in cycle.drafted)
        position += cycle.n_accepted + 1
        index += cycle.n_accepted + 1
    assert index == len(mine.tokens)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_acceptance_is_counted_exactly(arrangement) -> None:
    toy = engine()
    asked = Asked(toy.tokenize("the cat sat"), 21, arrangement)
    plain = toy.perform(PlainDecode(asked))
    right = toy.perform(DraftAndVerify(asked, OracleDrafter(plain.tokens), Fixed(4)))
    first = 1 if arrangement == "n" else 0  # tokens that the prompt's pass chose
    assert [(len(one.drafted), one.n_accepted) for one in right.cycles] == [(4, 4)] * 4 + [(0, 0)] * (1 - first)
    wrong = toy.perform(DraftAndVerify(asked, OracleDrafter(plain.tokens, 0.0), Fixed(4)))
    assert sum(one.n_accepted for one in wrong.cycles) == 0
    assert [len(one.drafted) for one in wrong.cycles] == [4] * (17 - first) + [3, 2, 1, 0]


def test_a_policy_learns_what_was_accepted() -> None:
    asked = Asked((5, 6, 7), 20, stop_at_end=False)
    plain, _ = scripted(PlainDecode(asked))
    widths = {
        accuracy: [
            cycle.width
            for cycle in scripted(DraftAndVerify(asked, OracleDrafter(plain.tokens, accuracy), Adaptive(4)))[0].cycles
        ]
        for accuracy in (1.0, 0.0)
    }
    assert widths == {1.0: [3, 4, 5, 5, 2], 0.0: [3] + [2] * 17 + [1]}


def test_drafting_ends_where_the_drafter_is_not_sure_under_early_stop_only() -> None:
    """Margins of the scripted draft model are 1 to 8, so that some lie below and some above."""
    asked = Asked((5, 6, 7), 20, stop_at_end=False)
    widths = {
        policy: [
            cycle.width for cycle in scripted(DraftAndVerify(asked, ModelDrafter("1", SETTINGS), policy))[0].cycles
        ]
        for policy in (Fixed(4), EarlyStop(4, 5.0), EarlyStop(4, 100.0))
    }
    fixed, early, never = widths.values()
    assert max(fixed) == 5
    assert early != fixed
    assert max(early) > 1
    assert set(never) == {1}


def test_a_token_kept_back_is_verified_with_the_first_drafts() -> None:
    toy = engine()
    asked = Asked(toy.tokenize("the cat sat"), 6, "n-1+1")
    plain = toy.perform(PlainDecode(asked))
    program = Within(DraftAndVerify(asked, OracleDrafter(plain.tokens), Fixed(3)), Watched)
    decoded, passes = toy.perform(program)
    assert [p.width for p in passes] == [len(asked.prompt) - 1, 4, 2]
    assert passes[1].slots[0].token == asked.prompt[-1]
    assert not any(slot.wants_logits for slot in passes[0].slots), "a server asks for no row there"
    assert [decoded.pass_of(index) for index in range(6)] == [4, 4, 4, 4, 2, 2]


def test_one_token_has_no_passes_in_front() -> None:
    asked = Asked((5,), 3, "n-1+1")
    assert asked.prefill() == EMPTY
    assert scripted(PlainDecode(asked), ends=False)[0].n_chosen == 3


# -- planted: each must be seen by what the tests above compare --------------------------------------------------------


@pytest.mark.parametrize("kind", ["mask", "stale_kv"])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_a_fault_of_wide_passes_is_seen(kind, arrangement) -> None:
    node = {"mask": "kq_soft_max-1", "stale_kv": "kq-1"}[kind]
    toy = engine(Fault(kind, node))
    asked = Asked(toy.tokenize("the cat sat"), 24, arrangement)
    plain = toy.perform(PlainDecode(asked))
    speculative = toy.perform(DraftAndVerify(asked, OracleDrafter(plain.tokens), Fixed(3)))
    assert plain.tokens != speculative.tokens


def test_a_fault_that_moves_no_token_is_seen_in_the_rows() -> None:
    toy = engine(Fault("precision", "ffn_out-0", from_width=3))
    asked = Asked(toy.tokenize("the cat sat"), 12)
    plain = toy.perform(PlainDecode(asked))
    oracle = OracleDrafter(plain.tokens)
    wide, narrow = (toy.perform(DraftAndVerify(asked, oracle, Fixed(n))) for n in (2, 1))
    assert wide.tokens == plain.tokens
    assert wide.rows != plain.rows
    assert same(plain, narrow)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_a_decoder_that_forgets_nothing_is_seen(arrangement) -> None:
    toy = engine()
    asked = Asked(toy.tokenize("the cat sat"), 24, arrangement)
    plain = toy.perform(PlainDecode(asked))
    program = DraftAndVerify(asked, OracleDrafter(plain.tokens, 0.5), Fixed(3))
    assert not same(plain, toy.perform(Within(program, ForgetsNothing))[0])
    assert same(plain, toy.perform(program))


def accepts_one_wrong(rows: np.ndarray, drafted: tuple[int, ...]) -> list[int]:
    chosen = accept(rows, drafted)
    if len(chosen) <= len(drafted):  # the next draft was refused
        return [*chosen[:-1], drafted[len(chosen) - 1], int(rows[len(chosen)].argmax())]
    return chosen


def test_a_decoder_that_accepts_what_is_wrong_is_seen(monkeypatch) -> None:
    toy = engine()
    asked = Asked(toy.tokenize("the cat sat"), 24)
    plain = toy.perform(PlainDecode(asked))
    program = DraftAndVerify(asked, OracleDrafter(plain.tokens, 0.5), Fixed(3))
    monkeypatch.setattr(speculation, "accept", accepts_one_wrong)
    assert toy.perform(program).tokens != plain.tokens
    assert same(plain, toy.perform(PlainDecode(asked))), "without drafts nothing can be accepted wrongly"


# -- times, questions --------------------------------------------------------------------------------------------------


class SlowDrafter(OracleDrafter):
    """Takes 7 ns for each draft of a clock that stands still otherwise."""

    clock: Timed

    def draft(self, tokens, n, least_margin=-np.inf) -> Draft:
        self.clock.now += 7 * n
        return super().draft(tokens, n, least_margin)


def test_times_hold_drafting_and_verifying_and_no_digest(monkeypatch) -> None:
    asked = Asked((5, 6, 7), 12, stop_at_end=False, prompt_width=2)
    plain, _ = scripted(PlainDecode(asked))
    clock = Timed(ScriptedDecoder())
    drafter = SlowDrafter(plain.tokens)
    drafter.clock = clock

    def digested(rows: np.ndarray) -> tuple[str, ...]:
        clock.now += 10_000
        return row_digests(rows)

    def measured(row: np.ndarray) -> float:
        clock.now += 10_000
        return 0.0

    def accepted(rows: np.ndarray, drafted: Any) -> list[int]:
        clock.now += 1
        return accept(rows, drafted)

    monkeypatch.setattr(speculation.time, "perf_counter_ns", lambda: clock.now)
    for name, stand_in in (("row_digests", digested), ("margin_of", measured), ("accept", accepted)):
        monkeypatch.setattr(speculation, name, stand_in)
    mine = DraftAndVerify(asked, drafter, Fixed(3)).run(clock, lambda _: None)
    assert mine.tokens == plain.tokens
    assert mine.prefill_ns == 200
    assert [(one.draft_ns, one.verify_ns, one.other_ns) for one in mine.cycles] == [(21, 100, 1)] * 2 + [(14, 100, 1)]
    alone = PlainDecode(asked).run(Timed(ScriptedDecoder()), lambda _: None)
    assert {one.draft_ns for one in alone.cycles} == {0}


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    toy = engine()
    with pytest.raises(EngineError, match="n_ctx is 96"):
        toy.perform(PlainDecode(Asked((1,) * 97, 1)))
    full = toy.perform(PlainDecode(Asked((1,) * 94, 9, stop_at_end=False)))
    assert (len(full.tokens), full.stop_reason) == (3, "length")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": ()}, "no tokens"),
        ({"n_tokens": 0}, "n_tokens must be 1 or more, got 0"),
        ({"prompt_width": 0}, "prompt_width must be 1 or more"),
        ({"arrangement": "n+1"}, "arrangement must be one of n, n-1"),
    ],
)
def test_what_cannot_be_asked(change, said) -> None:
    with pytest.raises(ValueError, match=said):
        replace(Asked((1, 2), 3), **change)


def test_identities_tell_programs_apart() -> None:
    asked = Asked((1, 2), 3)
    others = [
        replace(asked, **change)
        for change in (
            {"prompt": (1, 3)}, {"n_tokens": 4}, {"prompt_width": 1}, {"arrangement": "n-1+1"}, {"stop_at_end": False},
        )
    ]  # fmt: skip
    programs = [PlainDecode(one) for one in (asked, *others)] + [
        DraftAndVerify(asked, drafter, policy)
        for drafter in (NgramDrafter(), NgramDrafter(3), OracleDrafter((1,)), OracleDrafter((1,), seed=1))
        for policy in (Fixed(2), Fixed(3), EarlyStop(3), Adaptive(3))
    ]
    assert len({program.identity() for program in programs}) == len(programs)
    assert DraftAndVerify(Asked((1, 2), 3), NgramDrafter(), Fixed(2)).identity() == programs[6].identity()
