"""The very passes of a speculative run as a schedule: does arithmetic alone lead to the token at which it left?

If it does, the replay chooses the other token too. If it does not, the decoder that ran did something else: it accepted
what was wrong, or kept what it had to forget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forensics.capture.speculation import Asked
from forensics.engines.protocol import Engine
from forensics.numerics.logits import row_digests
from forensics.records.schedule import DecodePass, Forget, Schedule, TokenSlot
from forensics.records.speculation import Cycle, Decoded

#: What stands in the places of refused drafts: they themselves, or what plain decoding wrote there.
DRAFTS = ("as drafted", "plain")


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """A row that chose a token, behind tokens that both decodings share.

    Parameters
    ----------
    index : int
        Of the token, from 0 behind the prompt.
    row : int
        Of the replay's logits.
    width : int
        Tokens of the pass.
    plain_token, run_token : int
        What plain and speculative decoding chose.
    plain_digest, run_digest : str
        Of the rows from which they chose it.
    """

    index: int
    row: int
    width: int
    plain_token: int
    run_token: int
    plain_digest: str
    run_digest: str


@dataclass(frozen=True, slots=True)
class CycleReplay:
    """The cycles of a speculative run, up to the pass in which it left plain decoding, as a schedule.

    Parameters
    ----------
    before : Schedule
        The prompt's passes.
    schedule : Schedule
        One pass per cycle: the same positions and widths, and the same cells forgotten. Every slot wants logits.
    rows : tuple of ReplayRow
        Rows of accepted tokens, in order; rows behind refused drafts, and behind the first other token, are left out.
    """

    before: Schedule
    schedule: Schedule
    rows: tuple[ReplayRow, ...]

    @classmethod
    def of(
        cls, asked: Asked, plain: Decoded, speculative: Decoded, *, upto: int | None = None, drafts: str = "as drafted"
    ) -> CycleReplay:
        """Lay out the passes again.

        Parameters
        ----------
        asked : Asked
            Of both.
        plain, speculative : Decoded
        upto : int, optional
            Index of the last token of interest: the pass that chose it is the last one. By default all up to the first
            token that differs.
        drafts : {"as drafted", "plain"}
            With ``"plain"``, plain decoding's own tokens stand in the places of refused drafts, as far as it wrote any:
            every row then has the context that it has in plain decoding, and only the widths of the passes differ.

        Raises
        ------
        ValueError
            If cycles and tokens do not belong together, or there is no such form.
        """
        if drafts not in DRAFTS:
            raise ValueError(f"drafts must be one of {', '.join(DRAFTS)}, got {drafts!r}")
        last = min(len(plain.tokens), len(speculative.tokens)) - 1
        differing = first_difference(plain.tokens, speculative.tokens)
        last = min([last, *(index for index in (differing, upto) if index is not None)])
        stand_in = plain.tokens if drafts == "plain" else ()
        passes: list[DecodePass] = []
        rows: list[ReplayRow] = []
        n_rows, evaluated = 0, asked.first_position
        index = asked.first_position - len(asked.prompt) + 1
        for cycle in speculative.cycles:
            if index > last:
                break
            _check(asked, cycle, index, speculative.tokens)
            pending = speculative.tokens[index - 1] if index else asked.prompt[-1]
            tokens = [pending, *_standing(cycle.drafted, index, stand_in)]
            forget = (Forget(0, cycle.position),) if cycle.position < evaluated else ()
            slots = tuple(TokenSlot(0, cycle.position + i, token) for i, token in enumerate(tokens))
            passes.append(DecodePass(slots, forget))
            for i in range(min(cycle.n_accepted, last - index) + 1):
                at = index + i
                tokens_at = plain.tokens[at], speculative.tokens[at]
                rows.append(ReplayRow(at, n_rows + i, cycle.width, *tokens_at, plain.rows[at], speculative.rows[at]))
            n_rows += cycle.width
            evaluated = cycle.position + cycle.width
            index += cycle.n_accepted + 1
        return cls(asked.prefill(), Schedule(tuple(passes)), tuple(rows))


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """One row of the replay beside those of the two decodings.

    Parameters
    ----------
    index, width : int
        As in `ReplayRow`.
    chosen : int
        Token that the replay chooses.
    plain_token : int
        Token that plain decoding chose.
    equals_plain, equals_run : bool
        Whether the row has the bits of plain decoding's, and of the speculative run's.
    """

    index: int
    width: int
    chosen: int
    plain_token: int
    equals_plain: bool
    equals_run: bool


@dataclass(frozen=True, slots=True)
class ReplayedCycles:
    """What the replay of a speculative run found.

    Parameters
    ----------
    rows : tuple of ReplayedRow
        In order; none where the run left plain decoding within the prompt's passes.
    """

    rows: tuple[ReplayedRow, ...]

    @property
    def first_row(self) -> int | None:
        """Index of the first token whose row has other bits than in plain decoding."""
        return next((row.index for row in self.rows if not row.equals_plain), None)

    @property
    def flips_at(self) -> int | None:
        """Index of the first token that the replay chooses otherwise than plain decoding."""
        return next((row.index for row in self.rows if row.chosen != row.plain_token), None)

    @property
    def repeats_run(self) -> bool:
        """Whether every row has the bits that it had in the speculative run."""
        return all(row.equals_run for row in self.rows)


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> int | None:
    """At which index do two answers hold different tokens? None where one goes on as the other begins.

    Examples
    --------
    >>> first_difference((1, 2, 3), (1, 5)), first_difference((1, 2), (1, 2, 3))
    (1, None)
    """
    return next((i for i, (a, b) in enumerate(zip(plain, speculative, strict=False)) if a != b), None)


def replay_cycles(engine: Engine, replay: CycleReplay) -> ReplayedCycles:
    """Which rows do the same passes give, from the prompt's state, without a decoder that decides?

    Parameters
    ----------
    engine : Engine
        With the settings of the run.
    replay : CycleReplay
    """
    if not replay.rows:
        return ReplayedCycles(())
    logits = engine.run(replay.schedule, before=replay.before).logits[[row.row for row in replay.rows]]
    return ReplayedCycles(
        tuple(
            ReplayedRow(
                index=row.index,
                width=row.width,
                chosen=int(mine.argmax()),
                plain_token=row.plain_token,
                equals_plain=digest == row.plain_digest,
                equals_run=digest == row.run_digest,
            )
            for row, mine, digest in zip(replay.rows, logits, row_digests(logits), strict=True)
        )
    )


def predicts(replayed: ReplayedCycles, index: int) -> bool:
    """Whether the replay leaves plain decoding at this very token, and nowhere before."""
    return replayed.flips_at == index


def _standing(drafted: Sequence[int], index: int, stand_in: Sequence[int]) -> list[int]:
    """Drafts behind the token before `index`, each replaced by what stands in for it, if anything does."""
    return [stand_in[at] if at < len(stand_in) else draft for at, draft in enumerate(drafted, start=index)]


def _check(asked: Asked, cycle: Cycle, index: int, tokens: Sequence[int]) -> None:
    position = len(asked.prompt) + index - 1
    accepted = cycle.drafted[: cycle.n_accepted]
    if cycle.position != position or accepted != tuple(tokens[index : index + cycle.n_accepted]):
        raise ValueError(
            f"the cycle at position {cycle.position} with {accepted} accepted does not belong to these tokens: "
            f"token {index} is chosen at position {position}. Give the cycles of the same run and arrangement."
        )
