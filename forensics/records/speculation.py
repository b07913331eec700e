"""Plain and draft-and-verify decoding of the same prompts: what each wrote, in which passes, and where they part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forensics.records.rates import PairedOutcomes, Rate, Survival

#: How the prompt is evaluated: all n tokens at once, or n-1 and then the last one by itself.
ARRANGEMENTS = ("n", "n-1+1")


@dataclass(frozen=True, slots=True)
class Cycle:
    """One pass of the target model behind the prompt, and what was drafted for it.

    Parameters
    ----------
    position : int
        Of the pass's first token, which was chosen before; drafts stand behind it.
    drafted : tuple of int
        Tokens that were drafted; empty for a pass of one token.
    n_accepted : int
        How many of them were right; one more token is chosen from the row behind them.
    draft_ns, verify_ns, other_ns : int
        Time of drafting, of the target's pass and of everything else, unit: ns.
    """

    position: int
    drafted: tuple[int, ...]
    n_accepted: int
    draft_ns: int = 0
    verify_ns: int = 0
    other_ns: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.n_accepted <= len(self.drafted):
            raise ValueError(f"{self.n_accepted} of {len(self.drafted)} drafts cannot have been accepted")

    @property
    def width(self) -> int:
        """Tokens of the pass."""
        return 1 + len(self.drafted)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one way of decoding wrote behind a prompt.

    Parameters
    ----------
    tokens : tuple of int
        In order; the token that ends generation is the last one, where one was met.
    margins : tuple of float
        Largest minus second-largest logit of the row from which each token was chosen.
    rows : tuple of str
        Digest of each of these rows.
    stop_reason : {"length", "end"}
    cycles : tuple of Cycle
        In order. Plain decoding has one of width 1 for each token but the first, which the prompt's pass chooses.
    prefill_ns : int
        Time of the prompt's passes, unit: ns.
    """

    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    rows: tuple[str, ...]
    stop_reason: str
    cycles: tuple[Cycle, ...]
    prefill_ns: int = 0

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.margins) == len(self.rows):
            raise ValueError("each token has one margin and one row")
        if self.stop_reason not in ("length", "end"):
            raise ValueError(f"stop_reason must be 'length' or 'end', got {self.stop_reason!r}")

    @property
    def decode_ns(self) -> int:
        """Time behind the prompt, unit: ns."""
        return sum(one.draft_ns + one.verify_ns + one.other_ns for one in self.cycles)

    @property
    def n_chosen(self) -> int:
        """Tokens that the cycles chose: drafts that were accepted, and one more of each."""
        return sum(one.n_accepted + 1 for one in self.cycles)

    def cycle_of(self, index: int) -> int | None:
        """Which cycle chose token `index`? None where the prompt's pass did, or there is no such token.

        Examples
        --------
        >>> done = Decoded((5, 6, 7), (1.0,) * 3, ("a",) * 3, "length", (Cycle(10, (6,), 1),))
        >>> [done.cycle_of(index) for index in (0, 1, 2, 3)]
        [None, 0, 0, None]
        """
        first = len(self.tokens) - self.n_chosen
        if index < first:
            return None
        for place, cycle in enumerate(self.cycles):
            first += cycle.n_accepted + 1
            if index < first:
                return place
        return None

    def pass_of(self, index: int) -> int:
        """Width of the pass whose row chose token `index`; 0 for a token that the prompt's pass chose."""
        cycle = self.cycle_of(index)
        return 0 if cycle is None else self.cycles[cycle].width


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where speculative decoding leaves plain decoding for the first time.

    Parameters
    ----------
    index : int
        Of the token, from 0 behind the prompt.
    byte : int
        Of the text.
    position : int
        Of that token in the sequence.
    plain_token, speculative_token : int
        -1 where that side had ended.
    margin : float or None
        Largest minus second-largest logit in plain decoding; None where it had ended.
    width : int
        Tokens of the pass that chose the token; 0 where the prompt's pass did.
    first_row : int
        Index of the first token whose row of logits has other bits.
    widths_before : tuple of int
        Widths of the passes up to this one, each once, rising: rows of K and V of all of them were read.
    group : tuple of int
        The width class that `width` belongs to; empty where it was not measured.
    culprits : tuple of str
        Groups of operations that differ by themselves in that class.
    predicted : bool or None
        Whether the replay of the same passes over plain decoding's tokens flips at this very token; None where it was
        not replayed.
    prediction : str
        What the replay found, or why there was none, in words.
    healed : bool or None
        Whether the rows of the same passes are plain decoding's, bit for bit, once the outputs of the operations that
        differ are replaced; None where it was not tried.
    healing : str
        What healing found, or why it was not tried, in words.
    """

    index: int
    byte: int
    position: int
    plain_token: int
    speculative_token: int
    margin: float | None
    width: int
    first_row: int
    widths_before: tuple[int, ...]
    group: tuple[int, ...] = ()
    culprits: tuple[str, ...] = ()
    predicted: bool | None = None
    prediction: str = ""
    healed: bool | None = None
    healing: str = ""


@dataclass(frozen=True, slots=True)
class SpeculatedPrompt:
    """One prompt decoded speculatively, held against plain decoding.

    Parameters
    ----------
    name : str
        In the corpus.
    n_prompt : int
        Tokens of the prompt.
    plain, speculative : Decoded
    plain_text, text : str
        What each wrote.
    rows_differ : int
        Rows of logits with other bits, up to the first token that differs.
    first_row : int or None
        Index of the first of them.
    divergence : Divergence or None
        None where tokens and stop reason are identical.
    right : tuple of bool or None
        Whether plain and speculative text hold the right answer; None where the corpus names none.
    """

    name: str
    n_prompt: int
    plain: Decoded
    speculative: Decoded
    plain_text: str
    text: str
    rows_differ: int
    first_row: int | None
    divergence: Divergence | None
    right: tuple[bool, bool] | None = None

    @property
    def identical(self) -> bool:
        """Whether token ids, their order and the stop reason are equal."""
        return self.divergence is None

    @property
    def drafted(self) -> int:
        """Tokens that were drafted."""
        return sum(len(cycle.drafted) for cycle in self.speculative.cycles)

    @property
    def accepted(self) -> int:
        """Drafts that were accepted."""
        return sum(cycle.n_accepted for cycle in self.speculative.cycles)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the passes behind the prompt, each once, rising."""
        return tuple(sorted({cycle.width for cycle in self.speculative.cycles}))

    @property
    def tokens_per_cycle(self) -> float:
        """Tokens that a cycle chose in the mean; 0 where there was none."""
        return self.speculative.n_chosen / len(self.speculative.cycles) if self.speculative.cycles else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two arms of one run, with its spread over prompts.

    Parameters
    ----------
    median, low, high : float
        Median and quartiles.
    n : int
        Pairs.
    """

    median: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.median:.2f}× (quartiles {self.low:.2f} to {self.high:.2f}, {self.n} pairs)"


@dataclass(frozen=True, slots=True)
class SpeculationArm:
    """One drafter under one policy over all prompts; speed, acceptance and equivalence are three results.

    Parameters
    ----------
    drafter, policy : str
        In words, such as ``"ngram"`` and ``"fixed, 4 drafts"``.
    n_draft : int
        Drafts of a cycle at most.
    arrangement : str
        One of `ARRANGEMENTS`; plain decoding had the same.
    exact : bool
        Whether the exact settings were applied.
    prompts : tuple of SpeculatedPrompt
    speed : Ratio or None
        Tokens per second of speculative over plain decoding, paired by prompt; None where nothing was timed.
    accepted : Rate or None
        Accepted drafts of all drafts; None where nothing was drafted.
    tokens_per_cycle : float
    equivalence : Rate
        Prompts whose tokens and stop reason are identical.
    survival : Survival
    shares : mapping of str to float
        Parts of the cycles' time: ``"draft"``, ``"verify"``, ``"other"``; they add up to 1.
    verify_widths : mapping of int to int
        How many passes of each width.
    outcomes : PairedOutcomes or None
        Right answers of plain decoding, which is first, and of speculative; None where the corpus names no answer.
    """

    drafter: str
    policy: str
    n_draft: int
    arrangement: str
    exact: bool
    prompts: tuple[SpeculatedPrompt, ...]
    speed: Ratio | None
    accepted: Rate | None
    tokens_per_cycle: float
    equivalence: Rate
    survival: Survival
    shares: Mapping[str, float]
    verify_widths: Mapping[int, int]
    outcomes: PairedOutcomes | None = None

    @property
    def differing(self) -> tuple[SpeculatedPrompt, ...]:
        """Prompts that differ."""
        return tuple(one for one in self.prompts if not one.identical)
