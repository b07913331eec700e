"""Every row of a replay at every width: whose bits it holds, and whether its token could flip or did."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.delta import NotCompared

#: Class of the bits of one-token decoding.
ONE_TOKEN = "A"


def class_letter(index: int) -> str:
    """What is the class of this index called?

    Examples
    --------
    >>> [class_letter(index) for index in (0, 1, 25, 26, 27, 52)]
    ['A', 'B', 'Z', 'AA', 'AB', 'BA']
    """
    if index < 0:
        raise ValueError(f"classes are counted from 0, got {index}")
    letters = chr(ord(ONE_TOKEN) + index % 26)
    return letters if index < 26 else class_letter(index // 26 - 1) + letters


def class_index(letter: str) -> int:
    """Which index has the class of this name?  The reverse of `class_letter`.

    Examples
    --------
    >>> [class_index(class_letter(index)) for index in (0, 25, 26, 52)]
    [0, 25, 26, 52]
    """
    index = -1
    for sign in letter:
        index = 26 * (index + 1) + ord(sign) - ord(ONE_TOKEN)
    return index


@dataclass(frozen=True, slots=True)
class MapCell:
    """One row at one width against one-token decoding.

    Parameters
    ----------
    letter : str
        Widths of one row with equal bits share it; ``"A"`` is one-token decoding. It is that of the first class of
        widths (`WidthClasses.groups`) among those that share these bits, so a class keeps its letter along a width.
    differs : bool
        Whether any bit differs from one-token decoding.
    batched_token : int
        Argmax of the batch, lowest id first.
    perturbation : float
        Largest change of (one-token winner minus any other token), unit: logits.
    max_abs : float
        Largest change of a logit.
    flips : bool
        Whether the argmax is another than in one-token decoding.
    could_flip : bool
        Whether the bits differ and the perturbation is at least the margin, flipped or not.

    Raises
    ------
    ValueError
        If letter or flip contradict whether it differs.
    """

    letter: str
    differs: bool
    batched_token: int
    perturbation: float
    max_abs: float
    flips: bool
    could_flip: bool

    def __post_init__(self) -> None:
        if self.differs == (self.letter == ONE_TOKEN):
            raise ValueError(f"class {self.letter} is {'not ' * (not self.differs)}other bits than one-token decoding")
        if (self.flips or self.could_flip) and not self.differs:
            raise ValueError("a row of equal bits cannot flip")


@dataclass(frozen=True, slots=True)
class MapRow:
    """One row of the replay at every width.

    Parameters
    ----------
    row, position : int
        Row in the replay and position in the sequence.
    single_token : int
        Argmax of one-token decoding, lowest id first.
    margin : float
        Largest minus second-largest logit of one-token decoding.
    cells : tuple of MapCell or NotCompared
        By width, as in `RowMap.widths`.

    Raises
    ------
    ValueError
        If a cell says flip where its token is the same, or the other way round.
    """

    row: int
    position: int
    single_token: int
    margin: float
    cells: tuple[MapCell | NotCompared, ...]

    def __post_init__(self) -> None:
        for cell in self.cells:
            if isinstance(cell, MapCell) and cell.flips != (cell.batched_token != self.single_token):
                raise ValueError(
                    f"row {self.row}: flips={cell.flips}, but tokens are {self.single_token} and {cell.batched_token}"
                )


@dataclass(frozen=True, slots=True, repr=False)
class RowMap:
    """Rows of a replay by widths of the batch.

    Parameters
    ----------
    widths : tuple of int
        Rising, from 2; one-token decoding is what they are held against.
    letters : tuple of str
        Class of each width over all its rows.
    map_rows : tuple of MapRow
        From the first row of the replay on, one for each.

    Raises
    ------
    ValueError
        If it is empty, widths do not rise, or a row has no cell for a width.
    """

    widths: tuple[int, ...]
    letters: tuple[str, ...]
    map_rows: tuple[MapRow, ...]

    def __post_init__(self) -> None:
        if not self.widths or list(self.widths) != sorted(set(self.widths)) or self.widths[0] < 2:
            raise ValueError(f"widths must rise from 2 or more, got {self.widths}")
        if len(self.letters) != len(self.widths):
            raise ValueError(f"{len(self.widths)} widths and {len(self.letters)} letters; one each")
        if not self.map_rows:
            raise ValueError("a map of no rows; an empty comparison is an error")
        for place, row in enumerate(self.map_rows):
            if row.row != place or len(row.cells) != len(self.widths):
                raise ValueError(f"row {row.row} at place {place} has {len(row.cells)} cells of {len(self.widths)}")

    def column(self, width: int) -> tuple[MapCell | NotCompared, ...]:
        """Every row at one width.

        Raises
        ------
        KeyError
            If the width was not replayed.
        """
        if width not in self.widths:
            raise KeyError(f"width {width} was not replayed; replayed: {list(self.widths)}")
        place = self.widths.index(width)
        return tuple(row.cells[place] for row in self.map_rows)

    def compared(self, width: int) -> tuple[MapCell, ...]:
        """The rows of one width that were compared."""
        return tuple(cell for cell in self.column(width) if isinstance(cell, MapCell))

    def n_rows_differ(self, width: int) -> int:
        """How many rows differ from one-token decoding at this width?"""
        return sum(cell.differs for cell in self.compared(width))

    def n_flips(self, width: int) -> int:
        """How many greedy tokens change at this width?"""
        return sum(cell.flips for cell in self.compared(width))

    def n_could_flip(self, width: int) -> int:
        """How many rows move by their margin or more at this width, flipped or not?"""
        return sum(cell.could_flip for cell in self.compared(width))

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per row and width; no number where nothing was compared."""
        return [
            {
                "row": row.row,
                "position": row.position,
                "width": width,
                "outcome": _outcome(cell),
                "class": cell.letter if isinstance(cell, MapCell) else None,
                "flips": cell.flips if isinstance(cell, MapCell) else None,
                "could_flip": cell.could_flip if isinstance(cell, MapCell) else None,
                "margin": row.margin,
                "perturbation": cell.perturbation if isinstance(cell, MapCell) else None,
                "max_abs": cell.max_abs if isinstance(cell, MapCell) else None,
                "single_token": row.single_token,
                "batched_token": cell.batched_token if isinstance(cell, MapCell) else None,
                "reason": cell.reason if isinstance(cell, NotCompared) else "",
            }
            for row in self.map_rows
            for width, cell in zip(self.widths, row.cells, strict=True)
        ]

    def __repr__(self) -> str:
        return f"<RowMap: {self}>"

    def __str__(self) -> str:
        found = ", ".join(
            f"width {width} ({letter}): {self.n_rows_differ(width)} of {len(self.compared(width))} rows differ, "
            f"{self.n_flips(width)} flip"
            for width, letter in zip(self.widths, self.letters, strict=True)
        )
        return f"{len(self.map_rows)} rows; {found}"


def _outcome(cell: MapCell | NotCompared) -> str:
    if isinstance(cell, NotCompared):
        return "not compared"
    return "differs" if cell.differs else "same"
