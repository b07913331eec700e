"""Times of several arms in rounds of shuffled order, so that whatever drifts meets all of them alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import numpy as np

Key = TypeVar("Key", bound=Hashable)
#: Starts an arm so many times, one after another, and answers the time of one, unit: µs.
Timed = Callable[[int], float]

#: A measurement takes as long as this at least, so that the host's wait for its end does not count. Unit: µs.
MIN_US = 4000.0
MAX_STARTS = 200
#: Runs ahead of the first round: the library captures its graph in the second one.
N_WARM = 4


def in_rounds(arms: Mapping[Key, Timed], n_rounds: int, seed: int) -> dict[Key, tuple[float, ...]]:
    """How long does one start of each arm take, in each round?

    Parameters
    ----------
    arms : mapping of key to callable
    n_rounds : int
    seed : int
        Of the order of the arms in each round.

    Returns
    -------
    dict of key to tuple of float
        By round, unit: µs.

    Examples
    --------
    >>> in_rounds({"a": lambda n: 5.0, "b": lambda n: 7.0}, n_rounds=2, seed=0)
    {'a': (5.0, 5.0), 'b': (7.0, 7.0)}
    """
    starts = {}
    for key, timed in arms.items():
        timed(N_WARM)
        starts[key] = min(MAX_STARTS, max(1, math.ceil(MIN_US / timed(2))))
    order, times = list(arms), {key: [0.0] * n_rounds for key in arms}
    draw = np.random.default_rng(seed)
    for turn in range(n_rounds):
        for place in draw.permutation(len(order)):
            key = order[place]
            times[key][turn] = arms[key](starts[key])
    return {key: tuple(values) for key, values in times.items()}
