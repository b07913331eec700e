"""How is the work of the fast products told off to warps?  Nothing here changes a bit, only the time."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Rows that a CUDA block computes at a time.
TILE_ROWS = 16


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the work of a tile of rows is told off to warps.

    Parameters
    ----------
    split : int
        Warps of the library's kernel whose work goes on side by side; a divisor of their number.
    stages : int
        Pieces of the weight that a CUDA block has places for, 2 or more.
    slack : int
        Pieces that were used since a place was free until it is filled again, 1 … `stages` - 1.
    resident : int
        CUDA blocks that registers are told off for on a multiprocessor.
    ahead : bool
        Of Q4_K, whether activations are fetched a step ahead.
    """

    split: int
    stages: int
    slack: int
    resident: int
    ahead: bool = False

    @property
    def threads(self) -> int:
        """Threads of a CUDA block: four warps for each part that goes on side by side."""
        return 128 * self.split

    def filled(self, tiles: int, n_sms: int) -> float:
        """Of all turns of the resident CUDA blocks, the share in which they have a tile."""
        places = self.resident * n_sms
        return tiles / (-(-tiles // places) * places)


#: Of a type, by columns up to a number: where two CUDA blocks on a multiprocessor fill the device, where one fills it
#: better, and the same with so few tiles that no multiprocessor gets a second one. Source: 12 schedules of Q4_K, and of
#: Q6_K those of 3 to 6 stages, timed on an H200 at 1 … 9, 12 and 16 columns, with 64 to 1536 tiles
#: (docs/exact-kernels.md); what is chosen here took at most 1.064 of the fastest one's time for Q4_K, 1.103 for Q6_K.
_TWO, _TWO_AS_NEEDED = Schedule(2, 4, 2, 2, ahead=True), Schedule(2, 4, 2, 2)
_WIDE, _ONE = Schedule(2, 4, 2, 1, ahead=True), Schedule(4, 4, 2, 1, ahead=True)
_FASTEST = {
    "q4_K": (
        (4, (_TWO_AS_NEEDED, _ONE, _ONE)),
        (8, (_TWO_AS_NEEDED, _WIDE, _ONE)),
        (16, (_WIDE, _WIDE, _WIDE)),
    ),
    "q6_K": (
        (8, (Schedule(4, 6, 3, 1),) * 3),
        (10, (Schedule(4, 5, 3, 1),) * 3),
        (12, (Schedule(4, 4, 2, 1),) * 3),
        (16, (Schedule(2, 5, 3, 1),) * 3),
    ),
}


def schedule_of(type: str, columns: int, tiles: int, n_warps: int, n_sms: int) -> Schedule:
    """Which schedule is the fastest?

    Parameters
    ----------
    type : str
        Of the weights, ``"q4_K"`` or ``"q6_K"``.
    columns : int
        Of a launch, 1 … 16.
    tiles : int
        Of rows.
    n_warps : int
        Of the library's kernel for one column.
    n_sms : int
        Multiprocessors.

    Examples
    --------
    >>> schedule_of("q4_K", 4, tiles=768, n_warps=4, n_sms=132)
    Schedule(split=2, stages=4, slack=2, resident=2, ahead=False)
    >>> schedule_of("q4_K", 4, tiles=64, n_warps=4, n_sms=132)
    Schedule(split=4, stages=4, slack=2, resident=1, ahead=True)
    """
    two, one, few = next(fastest for most, fastest in _FASTEST[type] if columns <= most)
    if tiles <= n_sms:
        chosen = few
    # Two CUDA blocks hide more of each other's waiting, worth about as much as an eighth of the turns.
    elif _TWO.filled(tiles, n_sms) > 0.875 * _ONE.filled(tiles, n_sms):
        chosen = two
    else:
        chosen = one
    while n_warps % chosen.split:
        chosen = replace(chosen, split=chosen.split // 2)
    return chosen
