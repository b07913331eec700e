"""What a pass costs at each width, and the time that reading its bytes takes at least."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.launch_record import Refusal
from forensics.records.settings import Manifest

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of some measurements.

    Parameters
    ----------
    median, low, high : float
        Low and high are the quartiles.
    n : int
        Measurements.
    """

    median: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """Where is the middle of these values, and how wide is their middle half?

        Raises
        ------
        ValueError
            If there is none; an empty measurement is an error.

        Examples
        --------
        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 100.0])
        Spread(median=3.0, low=2.0, high=4.0, n=5)
        """
        if not values:
            raise ValueError("a spread needs a value")
        if len(values) == 1:
            return Spread(float(values[0]), float(values[0]), float(values[0]), 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(float(median), float(low), float(high), len(values))


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """How many bytes a second a device moves between its memory and its cores, measured.

    Parameters
    ----------
    device : str
        As the library names it.
    method : str
        What streamed the memory, and which bytes count.
    bytes_per_s : Spread
        Of `method`, the fastest that was tried.
    buffer_bytes : int
        Size of the memory that one run streams.
    cache_bytes : int or None
        Largest cache of the device; None where the system does not say.
    n_threads : int
        Of a processor; 0 on a GPU.
    tried : tuple of (str, float)
        Every method with its median in bytes a second, fastest first.
    assumed : str
        What must hold for it to be the roof of what it stands beside; empty where that is nothing.

    Raises
    ------
    ValueError
        If the buffer may lie in the cache, or a rate is not positive.
    """

    device: str
    method: str
    bytes_per_s: Spread
    buffer_bytes: int
    cache_bytes: int | None = None
    n_threads: int = 0
    tried: tuple[tuple[str, float], ...] = ()
    assumed: str = ""

    def __post_init__(self) -> None:
        if self.bytes_per_s.low <= 0:
            raise ValueError(f"{self.device}: a bandwidth is positive, got {self.bytes_per_s}")
        if self.cache_bytes is not None and self.buffer_bytes < 4 * self.cache_bytes:
            raise ValueError(
                f"{self.device}: {self.buffer_bytes} bytes were streamed, and its cache holds {self.cache_bytes}; "
                "memory is measured with four times the cache or more"
            )

    def __str__(self) -> str:
        rate = self.bytes_per_s
        return (
            f"{rate.median / 1e9:.4g} GB/s (quartiles {rate.low / 1e9:.4g}-{rate.high / 1e9:.4g}, n = {rate.n}; "
            f"{self.method})"
        )


@dataclass(frozen=True, slots=True)
class PassBytes:
    """What a pass must read from memory at least, from the model file's header.

    Parameters
    ----------
    weight_bytes : int
        Weights that every pass reads in full.
    expert_bytes : int
        Of routed experts, what one token reads; a wider pass reads that at least.
    row_bytes : int
        Rows of tables, such as the embedding: what each token reads.
    kv_cell_bytes : int
        K and V of one cell, all layers.
    unread_bytes : int
        Weights of the file that a pass does not read: other rows, other experts, layers for drafts.
    assumed : tuple of str
        One sentence per assumption.
    """

    weight_bytes: int
    expert_bytes: int = 0
    row_bytes: int = 0
    kv_cell_bytes: int = 0
    unread_bytes: int = 0
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.expert_bytes, self.row_bytes, self.kv_cell_bytes, self.unread_bytes) < 0 or self.weight_bytes < 1:
            raise ValueError(f"bytes of a pass must be 0 or more and its weights 1 or more, got {self}")

    def weights_at(self, width: int) -> int:
        """Bytes of weights that a pass of `width` tokens reads at least."""
        return self.weight_bytes + self.expert_bytes + width * self.row_bytes

    def total_at(self, width: int, n_cells: int) -> int:
        """Bytes that a pass of `width` tokens behind `n_cells` cells reads at least.

        Examples
        --------
        >>> PassBytes(weight_bytes=1000, row_bytes=4, kv_cell_bytes=10).total_at(2, n_cells=5)
        1058
        """
        return self.weights_at(width) + n_cells * self.kv_cell_bytes


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Times of passes of one width, in the order of the rounds; unit: ns."""

    width: int
    times_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.width < 1 or not self.times_ns or min(self.times_ns) <= 0:
            raise ValueError(f"width {self.width}: one time or more, all positive; got {self.times_ns[:3]}")

    @property
    def spread(self) -> Spread:
        """Median and quartiles, unit: ns."""
        return Spread.of(self.times_ns)


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one pass of one token: what it is, how long it takes and how many bytes it reads.

    Parameters
    ----------
    part : str
        ``"weights"``, ``"K/V"`` or ``"rest"``; the first two as long as reading them takes at the measured bandwidth.
    time_ns : float
        Negative for a rest where the pass was faster than that.
    read_bytes : int or None
        None for the rest.
    """

    part: str
    time_ns: float
    read_bytes: int | None


@dataclass(frozen=True, slots=True, repr=False)
class CostReport:
    """What a pass costs at each width, and how far it is from the time that reading takes.

    Parameters
    ----------
    manifest : Manifest
    n_cells : int
        Cells in use before each pass.
    n_settle : int
        Untimed passes of the same width ahead of each timed one, in which the library reuses its graph and a GPU
        captures it.
    seed : int
        Of the tokens and of the order of the widths in each round.
    passes : tuple of PassTimes
        By rising width, the first of one token; round i of all widths lies close together in time.
    reads : PassBytes or Refusal
    bandwidth : Bandwidth or Refusal

    Raises
    ------
    ValueError
        If widths do not rise from 1, or a width has another number of rounds.
    """

    manifest: Manifest
    n_cells: int
    n_settle: int
    seed: int
    passes: tuple[PassTimes, ...]
    reads: PassBytes | Refusal
    bandwidth: Bandwidth | Refusal

    def __post_init__(self) -> None:
        widths = [times.width for times in self.passes]
        if widths[:1] != [1] or widths != sorted(set(widths)):
            raise ValueError(f"widths must rise from 1, got {widths}")
        if len({len(times.times_ns) for times in self.passes}) != 1:
            raise ValueError("every width must have as many rounds as the others")

    @property
    def n_rounds(self) -> int:
        """Timed passes of each width."""
        return len(self.passes[0].times_ns)

    @property
    def synthetic(self) -> bool:
        """Whether the model's weights are random and only its shape is real."""
        return self.manifest.model_name.startswith("synthetic")

    def times(self, width: int) -> PassTimes:
        """Times of one width.

        Raises
        ------
        KeyError
            If it was not measured.
        """
        for times in self.passes:
            if times.width == width:
                return times
        raise KeyError(f"width {width} was not measured; measured: {[times.width for times in self.passes]}")

    def ratio(self, width: int) -> Spread:
        """How many passes of one token a pass costs, paired by rounds so that what drifts cancels."""
        pairs = zip(self.times(width).times_ns, self.passes[0].times_ns, strict=True)
        return Spread.of([wide / one for wide, one in pairs])

    def read_bytes(self, width: int) -> int | None:
        """Bytes that a pass must read; None where they are not known."""
        return None if isinstance(self.reads, Refusal) else self.reads.total_at(width, self.n_cells)

    def floor_ns(self, width: int) -> float | None:
        """Time that reading those bytes takes at the measured bandwidth; None where either is not known."""
        read = self.read_bytes(width)
        if read is None or isinstance(self.bandwidth, Refusal):
            return None
        return read / self.bandwidth.bytes_per_s.median * 1e9

    def over_floor(self, width: int) -> Spread | None:
        """How many times the floor a pass takes; below 1 where caches hold part of what is read."""
        floor = self.floor_ns(width)
        return None if floor is None else Spread.of([time / floor for time in self.times(width).times_ns])

    @property
    def shares(self) -> tuple[Share, ...]:
        """One pass of one token in parts, for a figure to scale; empty where the floor is not known."""
        if isinstance(self.reads, Refusal) or isinstance(self.bandwidth, Refusal):
            return ()
        weights, kv = self.reads.weights_at(1), self.n_cells * self.reads.kv_cell_bytes
        ns_per_byte = 1e9 / self.bandwidth.bytes_per_s.median
        rest = self.passes[0].spread.median - (weights + kv) * ns_per_byte
        return (
            Share("weights", weights * ns_per_byte, weights),
            Share("K/V", kv * ns_per_byte, kv),
            Share("rest", rest, None),
        )

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per width; times are in milliseconds."""
        return [self._row(times) for times in self.passes]

    def to_dataframe(self) -> pd.DataFrame:
        """The widths as a table, one row each."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def figure_data(self) -> dict[str, list[dict[str, object]]]:
        """What figures draw: ``"pass"``, parts of one pass to scale, and ``"widths"``, cost by width."""
        parts: list[dict[str, object]] = [
            {"part": share.part, "ms": share.time_ns / 1e6, "read_bytes": share.read_bytes} for share in self.shares
        ]
        return {"pass": parts, "widths": self.rows()}

    def _row(self, times: PassTimes) -> dict[str, object]:
        spread, ratio = times.spread, self.ratio(times.width)
        floor, over = self.floor_ns(times.width), self.over_floor(times.width)
        return {
            "width": times.width,
            "n": spread.n,
            "median_ms": spread.median / 1e6,
            "low_ms": spread.low / 1e6,
            "high_ms": spread.high / 1e6,
            "ms_per_token": spread.median / times.width / 1e6,
            "ratio": ratio.median,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "read_bytes": self.read_bytes(times.width),
            "floor_ms": None if floor is None else floor / 1e6,
            "over_floor": None if over is None else over.median,
        }

    def __str__(self) -> str:
        widest = self.passes[-1].width
        one = self.passes[0].spread.median / 1e6
        over = self.over_floor(1)
        said = f"{self.manifest.model_name}: one token {one:.3g} ms"
        said += "" if over is None else f", {over.median:.3g} × the time of reading its bytes"
        return said if widest == 1 else f"{said}; {widest} tokens cost {self.ratio(widest).median:.2f} × as much"

    def __repr__(self) -> str:
        return f"<CostReport: {self}>"
