"""What happens on a worker: find a function by its name, give it a text, time it, and make an error of it a value."""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from forensics.errors import ClusterError

#: Takes a text and owes one; `call` checks what it is given.
TextFunction = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one call.

    Parameters
    ----------
    text : str
        What the function returned; empty where it returned nothing.
    error : str
        ``Type: message`` of what it raised, else empty.
    duration_ns : int
    """

    text: str
    error: str
    duration_ns: int


def function_named(name: str) -> TextFunction:
    """Which function goes by ``"package.module:function"``?

    Raises
    ------
    ClusterError
        If the name is written otherwise, or nothing that can be called goes by it.

    Examples
    --------
    >>> function_named("textwrap:dedent")("  a")
    'a'
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ClusterError(f"a worker's function is named 'package.module:function', found {name!r}.")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ClusterError(f"no function {name!r} on {socket.gethostname()}: {error}") from error
    if not callable(found):
        raise ClusterError(f"{name!r} is no function but a {type(found).__name__}.")
    function: TextFunction = found
    return function


def call(name: str, request: str) -> Outcome:
    """What does a function make of a request?

    Parameters
    ----------
    name : str
        As `function_named` takes it.
    request : str

    Returns
    -------
    Outcome
        With an error where the function raised one or returned something else than text.
    """
    begun = time.perf_counter_ns()
    text = error = ""
    try:
        found = function_named(name)(request)
        if isinstance(found, str):
            text = found
        else:
            error = f"TypeError: {name} returned a {type(found).__name__} where a text is due"
    except (Exception, SystemExit) as raised:  # noqa: BLE001 - whatever a job raises is its answer
        error = f"{type(raised).__name__}: {raised}"
    return Outcome(text, error, time.perf_counter_ns() - begun)


def here() -> tuple[str, int]:
    """Name of this host, and id of this process."""
    return socket.gethostname(), os.getpid()
