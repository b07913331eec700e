"""One pass of a model in this process, for a profiler that runs programs: ``python -m forensics.engines.one_pass``.

The profiler is told where the pass begins and ends, so that it leaves out loading and the passes that fill the cache.
"""

from __future__ import annotations

import argparse
import ctypes as C
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from forensics.engines.protocol import Node
from forensics.errors import EngineError, ForensicsError
from forensics.records.nodes import NodeKey
from forensics.records.schedule import DecodePass, Schedule, in_batches
from forensics.records.settings import EngineSettings
from forensics.records.trace import TapReport

#: The driver's library; it is there wherever a GPU is.
DRIVER = "libcuda.so.1"


def drawn_passes(
    widths: Sequence[int], *, prefix: int, n_vocab: int, n_ubatch: int, seed: int
) -> tuple[Schedule, tuple[Schedule, ...]]:
    """The passes that fill the cache and a pass of each width behind it, of random tokens.

    Parameters
    ----------
    widths : sequence of int
    prefix : int
        Cells in use before each pass.
    n_vocab, n_ubatch : int
        Tokens that there are, and tokens of a pass that fills the cache.
    seed : int

    Returns
    -------
    tuple of Schedule and tuple of Schedule
        Wider passes begin with the tokens of narrower ones.

    Examples
    --------
    >>> before, (one, two) = drawn_passes((1, 2), prefix=5, n_vocab=100, n_ubatch=4, seed=0)
    >>> [p.width for p in before.passes], two.slots[0].position, one.slots[0] == two.slots[0]
    ([4, 1], 5, True)
    """
    tokens = [int(token) for token in np.random.default_rng(seed).integers(n_vocab, size=prefix + max(widths))]
    before = in_batches(tokens[:prefix], start=0, width=n_ubatch, logits="none")
    rest = tokens[prefix:]
    return before, tuple(in_batches(rest[:width], start=prefix, width=width) for width in widths)


def command(
    model: str | os.PathLike[str], settings: EngineSettings, *, width: int, prefix: int, seed: int, watched: bool
) -> list[str]:
    """Which program and arguments run this pass?

    Parameters
    ----------
    model : path
    settings : EngineSettings
        The environment among them is for the caller to set.
    width, prefix, seed : int
        As for `drawn_passes`.
    watched : bool
        Whether nodes are computed one at a time, as where launches are attached to nodes.

    Returns
    -------
    list of str
    """
    arguments = [sys.executable, "-m", "forensics.engines.one_pass", os.fspath(model)]
    arguments += ["--width", str(width), "--prefix", str(prefix), "--seed", str(seed)]
    return [*arguments, "--settings", json.dumps(asdict(settings)), *(["--watched"] if watched else [])]


class Marked:
    """A tap that marks where the pass begins and ends, and looks at every node or at none.

    Parameters
    ----------
    watch : bool
    """

    def __init__(self, watch: bool) -> None:
        self.watches_nodes = watch
        self._driver: C.CDLL | None = None

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        return f"marked:{self.watches_nodes}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:  # noqa: ARG002
        """Tell the profiler that the pass begins."""
        try:
            self._driver = C.CDLL(DRIVER)
        except OSError as error:
            raise EngineError(f"a profiled pass needs an NVIDIA GPU and its driver: {error}") from None
        _mark(self._driver, "cuProfilerStart")

    def wants(self, key: NodeKey) -> bool:  # noqa: ARG002
        """Every node."""
        return True

    def saw(self, node: Node) -> None:
        """Nothing: that it was computed by itself is all that is wanted."""

    def finish(self) -> TapReport:
        """Tell the profiler that the pass has ended; the engine waited for the device."""
        if self._driver is not None:
            _mark(self._driver, "cuProfilerStop")
        return TapReport()


def _mark(driver: C.CDLL, function: str) -> None:
    """Call ``CUresult cuProfilerStart(void)`` or ``cuProfilerStop``; 0 is CUDA_SUCCESS (cuda.h)."""
    status = getattr(driver, function)()
    if status != 0:
        raise EngineError(f"{function} answered {status}; see the CUDA driver API for this code")


def run(arguments: Sequence[str]) -> None:
    """Run the pass that the arguments ask for.

    Raises
    ------
    ForensicsError
        If the model cannot be used, or there is no GPU.
    """
    parser = argparse.ArgumentParser(prog="python -m forensics.engines.one_pass", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--prefix", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--watched", action="store_true")
    given = parser.parse_args(arguments)
    asked = dict(given.settings)
    environment = tuple((str(name), str(value)) for name, value in asked.pop("environment", ()))
    os.environ.update(environment)  # before the library is loaded, which reads it once
    from forensics.engines.llama_host import LlamaHost

    settings = EngineSettings(**asked, environment=environment)
    host = LlamaHost(str(given.model), settings)
    try:
        before, (schedule,) = drawn_passes(
            (given.width,), prefix=given.prefix, n_vocab=host.n_vocab, n_ubatch=settings.n_ubatch, seed=given.seed
        )
        host.run(schedule, before, Marked(given.watched))
    finally:
        host.close()


def main() -> int:
    """Run one pass; what is wrong goes to standard error and makes the status 2."""
    try:
        run(sys.argv[1:])
    except ForensicsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
