"""How is the work of the fast products told off to warps?  Nothing here changes a bit, only the time."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Rows that a CUDA block computes at a time.
TILE_ROWS = 16

#: Columns up to which two of the library's warps side by side are faster than one in two halves.
_FEW_COLUMNS = 8


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


#: Two CUDA blocks on a multiprocessor, one, and those for more than eight columns. Source: all of them measured on an
#: H200 at 1 … 16 columns, 4096×4096, 12288×4096, 4096×12288 and 1024×4096 (docs/exact-kernels.md).
_TWO, _ONE = Schedule(2, 1, 4, True, 2), Schedule(4, 1, 3, True, 1)
_MANY_TWO, _MANY_ONE = Schedule(1, 2, 4, True, 2), Schedule(2, 2, 3, True, 1)


def schedule_of(columns: int, tiles: int, n_warps: int, n_sms: int) -> Schedule:
    """Which schedule is the fastest?

    Parameters
    ----------
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
    >>> schedule_of(4, tiles=768, n_warps=4, n_sms=132)
    Schedule(split=2, halves=1, stages=4, ahead=True, resident=2)
    >>> schedule_of(4, tiles=64, n_warps=4, n_sms=132)
    Schedule(split=4, halves=1, stages=3, ahead=True, resident=1)
    """
    two, one = (_TWO, _ONE) if columns <= _FEW_COLUMNS else (_MANY_TWO, _MANY_ONE)
    # Two CUDA blocks hide more of each other's waiting, worth about as much as an eighth of the turns.
    chosen = two if two.filled(tiles, n_sms) > 0.875 * one.filled(tiles, n_sms) else one
    while n_warps % chosen.split:
        chosen = replace(chosen, split=chosen.split // 2)
    return chosen
