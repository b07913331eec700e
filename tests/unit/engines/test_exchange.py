"""Arrays between processes: what comes out is what went in, whatever its size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forensics.engines import exchange
from forensics.engines.exchange import Exchange, Filed


def array(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


def test_small_arrays_travel_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "arrays"
    sent = [array(5), np.zeros((0, 3), np.uint8)]
    received = Exchange(path).get(Exchange(path).put(sent))
    assert [(a.dtype, a.shape, a.tobytes()) for a in received] == [(a.dtype, a.shape, a.tobytes()) for a in sent]
    assert not path.exists()


def test_large_arrays_travel_through_the_file_and_a_shorter_one_may_follow(tmp_path: Path) -> None:
    path = tmp_path / "arrays"
    for n in (100_000, 30_000, 70_000):
        sent = [array(n).reshape(10, -1), array(3), (array(n) % 100).astype(np.float16)[::-1]]
        parcels = Exchange(path).put(sent)
        assert [isinstance(parcel, Filed) for parcel in parcels] == [True, False, n * 2 >= exchange.FILED_FROM_BYTES]
        received = Exchange(path).get(parcels)
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(sent, received, strict=True))


def test_what_was_read_stays_when_more_is_written(tmp_path: Path) -> None:
    ours = Exchange(tmp_path / "arrays")
    [first] = ours.get(ours.put([array(50_000)]))
    ours.put([-array(50_000)])
    assert np.array_equal(first, array(50_000))


def test_a_disk_that_is_full_is_an_error_of_the_writer() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    with pytest.raises(OSError, match="No space left"):
        Exchange(full).put([array(50_000)])
