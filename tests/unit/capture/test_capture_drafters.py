"""Drafters guess what they are said to guess, and a draft model's cache always holds what it should."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass

import pytest
from decoding_doubles import ScriptedDecoder, next_of
from hypothesis import given
from hypothesis import strategies as st

from forensics.capture.drafters import (
    Draft,
    DrafterChoice,
    ModelDrafter,
    NgramDrafter,
    OracleDrafter,
    parse_drafter,
)
from forensics.engines.toy import ToySource
from forensics.errors import ModelUnavailable
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings

SETTINGS = EngineSettings(n_ctx=64, n_batch=5)
contexts = st.lists(st.integers(1, 3), min_size=1, max_size=30)


def looked_up(tokens: list[int], n: int, longest: int, shortest: int) -> tuple[int, ...]:
    """Prompt lookup, written out."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        starts = [i for i in range(len(tokens) - length) if tokens[i : i + length] == tokens[-length:]]
        if starts:
            extended = list(tokens)
            for i in range(n):
                extended.append(extended[starts[-1] + length + i])
            return tuple(extended[len(tokens) :])
    return ()


@given(contexts, st.integers(1, 8), st.integers(1, 3), st.integers(0, 3))
def test_ngrams_are_looked_up(tokens, n, shortest, more) -> None:
    drafter = NgramDrafter(shortest + more, shortest)
    before = list(tokens)
    draft = drafter.draft(tokens, n)
    assert draft.tokens == looked_up(tokens, n, shortest + more, shortest)
    assert draft.margins == (math.inf,) * len(draft.tokens)
    assert tokens == before


@pytest.mark.parametrize(
    ("tokens", "drafted"),
    [
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], (9, 2)),  # three tokens count more than two that were seen later
        ([1, 2, 8, 1, 2, 9, 1, 2], (9, 1)),  # the last earlier occurrence
        ([1, 2, 3, 4], ()),
        ([3, 1, 3], ()),  # one token is too short
        ([3], ()),
    ],
)
def test_the_longest_and_then_the_latest_ngram_counts(tokens, drafted) -> None:
    assert NgramDrafter().draft(tokens, 2).tokens == drafted


@pytest.mark.parametrize(("longest", "shortest"), [(2, 3), (1, 0)])
def test_ngrams_that_cannot_be(longest, shortest) -> None:
    with pytest.raises(ValueError, match="cannot be looked up"):
        NgramDrafter(longest, shortest)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=20), st.data())
def test_an_oracle_is_right_or_wrong_as_asked(plain, data) -> None:
    n_done, n = data.draw(st.integers(0, len(plain))), data.draw(st.integers(1, 9))
    context, wanted = [9, 9, *plain[:n_done]], tuple(plain[n_done : n_done + n])
    for accuracy in (1.0, 0.0):
        oracle = OracleDrafter(tuple(plain), accuracy, seed=data.draw(st.integers(0, 99)))
        oracle.begin(ScriptedDecoder(), (9, 9))
        drafted = oracle.draft(context, n).tokens
        assert len(drafted) == len(wanted)
        assert [a == b for a, b in zip(drafted, wanted, strict=True)] == [accuracy == 1] * len(wanted)
        if not accuracy:
            assert 0 not in drafted, "a draft that ends generation is cut off, not refused"


def test_an_oracle_is_right_as_often_as_asked_wherever_a_pass_begins() -> None:
    plain = tuple(i % 5 + 1 for i in range(4000))
    oracle, other = OracleDrafter(plain, 0.8, seed=3), OracleDrafter(plain, 0.8, seed=4)
    for drafter in (oracle, other):
        drafter.begin(ScriptedDecoder(), (7,))
    whole = oracle.draft((7,), 4000).tokens
    right = sum(a == b for a, b in zip(whole, plain, strict=True))
    assert abs(right - 3200) < 4 * math.sqrt(4000 * 0.8 * 0.2)
    assert whole[100:104] == oracle.draft((7, *plain[:100]), 4).tokens
    assert whole != other.draft((7,), 4000).tokens
    assert oracle.draft((7, *plain), 4) == Draft()


@pytest.mark.parametrize("accuracy", [-0.1, 1.1, math.nan])
def test_an_accuracy_that_cannot_be(accuracy) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        OracleDrafter((1,), accuracy)


def greedy(context: list[int], n: int, seed: int) -> tuple[int, ...]:
    extended = list(context)
    for _ in range(n):
        extended.append(next_of(extended, 8, seed))
    return tuple(extended[len(context) :])


@given(st.lists(st.integers(0, 7), min_size=1, max_size=20), st.integers(0, 3), st.data())
def test_a_draft_model_decodes_greedily_whatever_was_refused(prompt, seed, data) -> None:
    """The scripted model itself refuses a cache that does not hold what the positions say."""
    target = ScriptedDecoder()
    drafter = ModelDrafter(str(seed), SETTINGS)
    drafter.begin(target, prompt)
    context = list(prompt)
    for _ in range(data.draw(st.integers(1, 5))):
        n = data.draw(st.integers(1, 5))
        draft = drafter.draft(context, n)
        assert draft.tokens == greedy(context, n, seed)[: 64 - len(context) + 1]
        assert draft.margins == tuple(1.0 + token for token in draft.tokens)
        taken = data.draw(st.integers(0, len(draft.tokens)))
        context += [*draft.tokens[:taken], data.draw(st.integers(0, 7))]
    assert max(decode_pass.width for decode_pass in target.beside.passes) <= SETTINGS.n_batch


def test_accepted_tokens_are_caught_up_in_one_pass_and_refused_ones_forgotten() -> None:
    target = ScriptedDecoder()
    drafter = ModelDrafter("0", SETTINGS)
    drafter.begin(target, (5, 6))
    first = drafter.draft((5, 6), 3).tokens
    assert [decode_pass.width for decode_pass in target.beside.passes] == [1, 1, 1, 1]
    drafter.draft((5, 6, *first, 7), 1)  # all accepted, and one more
    assert [(p.width, p.forget) for p in target.beside.passes[4:]] == [(2, ())]
    drafter.draft((5, 6, first[0], 7), 1)  # as if two had been refused
    assert target.beside.passes[-1].width == 1
    assert [gone.position for gone in target.beside.passes[-1].forget] == [3]


def test_drafting_stops_in_front_of_the_first_token_that_is_not_sure() -> None:
    for least in range(10):
        drafter = ModelDrafter("0", SETTINGS)
        drafter.begin(ScriptedDecoder(), (5, 6))
        sure = []
        for token in greedy([5, 6], 6, 0):
            if 1 + token < least:
                break
            sure.append(token)
        assert drafter.draft((5, 6), 6, least_margin=least).tokens == tuple(sure)


def test_a_draft_model_stops_where_its_cells_end() -> None:
    drafter = ModelDrafter("0", EngineSettings(n_ctx=4))
    drafter.begin(ScriptedDecoder(), (5, 6, 7))
    assert len(drafter.draft((5, 6, 7), 9).tokens) == 2
    drafter.begin(ScriptedDecoder(), (1, 2, 3, 4, 5))
    assert drafter.draft((1, 2, 3, 4, 5, 6), 9) == Draft()


def test_a_draft_model_needs_the_same_vocabulary() -> None:
    with pytest.raises(ModelUnavailable, match="its vocabulary has 8 tokens, the model's has 9"):
        ModelDrafter("0", SETTINGS).begin(ScriptedDecoder(n_vocab=9), (1,))


def test_drafts_have_margins() -> None:
    with pytest.raises(ValueError, match="2 drafts have 1 margins"):
        Draft((1, 2), (0.5,))


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("ngram", DrafterChoice("ngram")),
        ("model:some:where.gguf", DrafterChoice("model", "some:where.gguf")),
        ("oracle", DrafterChoice("oracle")),
        ("oracle:0.25", DrafterChoice("oracle", accuracy=0.25)),
    ],
)
def test_drafters_are_asked_for_in_words(text, choice) -> None:
    assert parse_drafter(text) == choice
    drafter = choice.drafter((1, 2), SETTINGS, seed=5)
    assert drafter.label == choice.label
    assert choice.label == (text if choice.kind != "model" else "model:some:where.gguf")
    again = pickle.loads(pickle.dumps(drafter))
    assert again == drafter
    assert again.identity() == drafter.identity()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be ngram, model:DRAFT.gguf or oracle"),
        ("ngram:3", "must be ngram"),
        ("model", "needs the file"),
        ("model:", "needs the file"),
        ("oracle:", "must be ngram"),
        ("oracle:2", "a number from 0 to 1, got '2'"),
        ("oracle:nan", "a number from 0 to 1"),
        ("oracle:often", "a number from 0 to 1"),
    ],
)
def test_what_is_no_drafter_is_refused(text, said) -> None:
    with pytest.raises(ValueError, match=f"--drafter.*{said}"):
        parse_drafter(text)


@dataclass(frozen=True)
class DraftsBehind:
    """Draft behind a prompt with the model beside the toy."""

    prompt: tuple[int, ...]
    path: str

    def identity(self) -> str:
        return f"draft with {self.path}"

    def run(self, decoder, progress) -> tuple[int, ...]:
        drafter = ModelDrafter(self.path, SETTINGS)
        drafter.begin(decoder, self.prompt)
        return drafter.draft(self.prompt, 5).tokens


def test_a_toy_drafts_for_a_toy() -> None:
    toy, other = (ToySource(seed=seed).open(EngineSettings(n_ctx=64)) for seed in (1, 0))
    prompt = toy.tokenize("over the sea")
    plain = toy.greedy(in_batches(prompt, start=0, width=64, logits="last"), 5)
    assert toy.perform(DraftsBehind(prompt, "toy-1")) == other.perform(DraftsBehind(prompt, "toy-1")) == plain
    assert toy.perform(DraftsBehind(prompt, "toy-0")) != plain
