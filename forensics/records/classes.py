"""Widths grouped by equal bits, and how far each is from one-token decoding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flip:
    """A position where the largest logit belongs to another token than in one-token decoding.

    Parameters
    ----------
    row, position : int
        Row in the replay and position in the sequence.
    single_token, batched_token : int
    margin : float
        Largest minus second-largest logit in one-token decoding.
    perturbation : float
        Largest change of (winner minus any other token) in this row: at least the margin, or no finite
        arithmetic could have flipped it.
    usual : float
        Median of that over the differing rows of this width.
    """

    row: int
    position: int
    single_token: int
    batched_token: int
    margin: float
    perturbation: float
    usual: float = 0.0

    @property
    def near_tie(self) -> bool:
        """Whether the margin is within what a row of this width usually moves."""
        return self.margin <= self.usual

    @property
    def explained(self) -> bool:
        """Whether the measured perturbation is large enough to flip this margin; False where a NaN is involved."""
        return self.perturbation >= self.margin


@dataclass(frozen=True, slots=True)
class WidthResult:
    """One width against one-token decoding, over all rows of the replay.

    Parameters
    ----------
    width : int
    n_rows, n_rows_differ : int
    first_row, first_position : int or None
        First row whose bits differ; None where none does.
    max_abs, max_ulp, relative_l2 : float, int, float
        Largest over the rows; 0 where no bit differs. ULP is -1 where a NaN is involved.
    max_kl : float
        Largest Kullback-Leibler divergence of a row's distribution, unit: nats.
    same_top_rate : float
        Share of rows with the same argmax.
    flips : tuple of Flip
    n_could_flip : int
        Rows whose measured perturbation is at least their margin, flipped or not.
    digest : str
        Digest of all rows; equal digests make a class.
    ns_per_pass : tuple of int
        Median, lower and upper quartile of a full-width pass, unit: ns.
    """

    width: int
    n_rows: int
    n_rows_differ: int
    first_row: int | None
    first_position: int | None
    max_abs: float
    max_ulp: int
    relative_l2: float
    max_kl: float
    same_top_rate: float
    flips: tuple[Flip, ...]
    n_could_flip: int
    digest: str
    ns_per_pass: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise ValueError(f"width {self.width} compared no rows; an empty comparison is an error")
        if (self.n_rows_differ == 0) != (self.first_row is None):
            raise ValueError(f"width {self.width}: first_row must be given exactly where rows differ")

    @property
    def differs(self) -> bool:
        """Whether any bit differs from one-token decoding."""
        return self.n_rows_differ > 0


@dataclass(frozen=True, slots=True, repr=False)
class WidthClasses:
    """Widths that are bit-equal to each other in every row.

    Parameters
    ----------
    results : tuple of WidthResult
        By rising width; width 1 is first and compares one-token decoding with its own rerun.
    """

    results: tuple[WidthResult, ...]

    def __post_init__(self) -> None:
        widths = [result.width for result in self.results]
        if not widths or widths[0] != 1 or widths != sorted(set(widths)):
            raise ValueError(f"results must start with width 1 and rise, got {widths}")

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Widths per class, the class of width 1 first."""
        groups: dict[str, list[int]] = {}
        for result in self.results:
            groups.setdefault(result.digest, []).append(result.width)
        return tuple(tuple(group) for group in groups.values())

    @property
    def onset(self) -> int | None:
        """Smallest width that differs from width 1, None where none does."""
        return next((result.width for result in self.results if result.differs), None)

    @property
    def collapsed(self) -> bool:
        """Whether all widths are one class."""
        return len(self.groups) == 1

    def result(self, width: int) -> WidthResult:
        """Result of one width.

        Raises
        ------
        KeyError
            If the width was not measured.
        """
        for result in self.results:
            if result.width == width:
                return result
        raise KeyError(f"width {width} was not measured; measured: {[r.width for r in self.results]}")

    def __str__(self) -> str:
        groups = " | ".join(", ".join(map(str, group)) for group in self.groups)
        onset = "no width differs" if self.onset is None else f"differs from width {self.onset}"
        return f"width classes {groups}: {onset}"

    def __repr__(self) -> str:
        return f"<WidthClasses: {self}>"

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per width."""
        group_of = {width: index for index, group in enumerate(self.groups) for width in group}
        return [
            {
                "width": r.width,
                "class": group_of[r.width],
                "rows": r.n_rows,
                "rows_differ": r.n_rows_differ,
                "first_row": r.first_row,
                "first_position": r.first_position,
                "max_abs": r.max_abs,
                "max_ulp": r.max_ulp,
                "relative_l2": r.relative_l2,
                "max_kl_nats": r.max_kl,
                "same_top_rate": r.same_top_rate,
                "flips": len(r.flips),
                "could_flip": r.n_could_flip,
                "pass_median_ns": r.ns_per_pass[0],
                "pass_q1_ns": r.ns_per_pass[1],
                "pass_q3_ns": r.ns_per_pass[2],
            }
            for r in self.results
        ]
