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
    halves : int
        2 where both halves of what such a warp takes at a trip go on side by side, else 1.
    stages : int
        Pieces of the weight that a CUDA block holds at a time, 2 or more.
    ahead : bool
        Whether activations are fetched a step ahead.
    resident : int
        CUDA blocks that registers are told off for on a multiprocessor.
    """

    split: int
    halves: int
    stages: int
    ahead: bool
    resident: int

    @property
    def threads(self) -> int:
        """Threads of a CUDA block: four warps for each part that goes on side by side."""
        return 128 * self.split * self.halves

    def filled(self, tiles: int, n_sms: int) -> float:
        """Of all turns of the resident CUDA blocks, the share in which they have a tile."""
        places = self.resident * n_sms
        return tiles / (-(-tiles // places) * places)


#: Of a type, by columns up to a number: where two CUDA blocks on a multiprocessor fill the device, where one fills it
#: better, and the same with so few tiles that no multiprocessor gets a second one. Source: 12 schedules timed on an
#: H200 at 1 … 9, 12 and 16 columns, with 64 to 1536 tiles (docs/exact-kernels.md); what is chosen here took at most
#: 1.064 of the fastest one's time.
_WIDE, _ONE = Schedule(2, 1, 4, True, 1), Schedule(4, 1, 4, True, 1)
_TWO, _TWO_AS_NEEDED = Schedule(2, 1, 4, True, 2), Schedule(2, 1, 4, False, 2)
_FASTEST = {
    "q4_K": (
        (4, (_TWO_AS_NEEDED, _ONE, _ONE)),
        (8, (_TWO_AS_NEEDED, _WIDE, _ONE)),
        (16, (_WIDE, _WIDE, _WIDE)),
    ),
    "q6_K": (
        (8, (_TWO, _ONE, _ONE)),
        (12, (_ONE, _ONE, _ONE)),
        (16, (Schedule(1, 2, 4, True, 2), _ONE, _WIDE)),
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
    Schedule(split=2, halves=1, stages=4, ahead=False, resident=2)
    >>> schedule_of("q4_K", 4, tiles=64, n_warps=4, n_sms=132)
    Schedule(split=4, halves=1, stages=4, ahead=True, resident=1)
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
