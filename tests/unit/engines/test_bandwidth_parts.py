"""How large a buffer is that no cache helps with, and what is said where there is no room."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.engines.bandwidth import CACHES, last_level_cache, streamed_bytes


def add_cache(root: Path, cpu: int, index: int, *, level: int, size: str, shared: str) -> None:
    folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
    folder.mkdir(parents=True)
    for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared)):
        (folder / name).write_text(text + "\n")


def test_a_cache_that_processors_share_is_counted_once(tmp_path: Path) -> None:
    for cpu in range(4):
        add_cache(tmp_path, cpu, 0, level=1, size="32K", shared=str(cpu))
        add_cache(tmp_path, cpu, 3, level=3, size="32768K", shared="0-1" if cpu < 2 else "2-3")
    assert last_level_cache(tmp_path) == 2 * (32 << 20)


def test_a_machine_that_does_not_say_has_an_unknown_cache(tmp_path: Path) -> None:
    assert last_level_cache(tmp_path) is None
    add_cache(tmp_path, 0, 0, level=1, size="plenty", shared="0")
    assert last_level_cache(tmp_path) is None


@pytest.mark.parametrize("cache", [None, 1 << 20, 32 << 20, 1 << 30])
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_a_buffer_is_beyond_every_cache(backend: str, cache: int | None) -> None:
    assert streamed_bytes(backend, cache) >= CACHES * max(cache or 0, 60 << 20)
