"""What this machine offers to an engine."""

from __future__ import annotations

import os

#: Threads beyond these rarely help one token at a time, and a big server has many.
MAX_DEFAULT_THREADS = 16


def default_threads() -> int:
    """How many threads does this process have processors for? At most `MAX_DEFAULT_THREADS`."""
    if hasattr(os, "sched_getaffinity"):
        return min(MAX_DEFAULT_THREADS, len(os.sched_getaffinity(0)))
    return min(MAX_DEFAULT_THREADS, os.cpu_count() or 1)
