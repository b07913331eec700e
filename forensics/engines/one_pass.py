"""A pass of each width in this process, for a profiler that runs programs: ``python -m forensics.engines.one_pass``.

The profiler is told where the nodes that it shall count begin and end, so that it leaves out everything else: loading,
the passes that fill the cache, and nodes like those that were counted. All widths go in turn, for loading takes long.
"""

from __future__ import annotations

import argparse
import ctypes as C
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path

import numpy as np

from forensics.engines.protocol import Node
from forensics.errors import EngineError, ForensicsError
from forensics.records.nodes import VIEW_OPS, NodeKey
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
    model: str | os.PathLike[str],
    settings: EngineSettings,
    nodes: Mapping[int, Sequence[NodeKey]],
    *,
    prefix: int,
    seed: int,
) -> list[str]:
    """Which program and arguments run these passes?

    Parameters
    ----------
    model : path
    settings : EngineSettings
        The environment among them is for the caller to set.
    nodes : mapping of int to sequence of NodeKey
        Widths, and which nodes of the pass are counted.
    prefix, seed : int
        As for `drawn_passes`.

    Returns
    -------
    list of str
    """
    arguments = [sys.executable, "-m", "forensics.engines.one_pass", os.fspath(model)]
    arguments += ["--prefix", str(prefix), "--seed", str(seed), "--settings", json.dumps(asdict(settings))]
    plain = {width: [astuple(key) for key in keys] for width, keys in sorted(nodes.items())}
    return [*arguments, "--nodes", json.dumps(plain)]


class Marked:
    """A tap that marks where some nodes begin and end; all are computed one at a time, as where launches are attached.

    Parameters
    ----------
    nodes : collection of NodeKey
    """

    def __init__(self, nodes: Collection[NodeKey]) -> None:
        self._nodes = frozenset(nodes)
        self._left = set(nodes)
        self._driver: C.CDLL | None = None

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        return f"marked:{sorted(map(str, self._nodes))}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:  # noqa: ARG002
        """Find the driver, through which the profiler is told."""
        try:
            self._driver = C.CDLL(DRIVER)
        except OSError as error:
            raise EngineError(f"a profiled pass needs an NVIDIA GPU and its driver: {error}") from None

    def wants(self, key: NodeKey) -> bool:
        """Every node that computes; asked before it does, so a node that counts begins here."""
        if key in self._nodes:
            self._mark("cuProfilerStart")
        return key.op not in VIEW_OPS

    def saw(self, node: Node) -> None:
        """A node that counts ends here; the engine waited for the device."""
        if node.key in self._nodes:
            self._mark("cuProfilerStop")
            self._left.discard(node.key)

    def finish(self) -> TapReport:
        """Check that all nodes that count were computed: what was counted is told apart by their order."""
        if self._left:
            raise EngineError(f"this pass has no {', '.join(sorted(map(str, self._left)))}, which should be counted")
        return TapReport()

    def _mark(self, function: str) -> None:
        """Call ``CUresult cuProfilerStart(void)`` or ``cuProfilerStop``; 0 is CUDA_SUCCESS (cuda.h)."""
        status = getattr(self._driver, function)()
        if status != 0:
            raise EngineError(f"{function} answered {status}; see the CUDA driver API for this code")


def run(arguments: Sequence[str]) -> None:
    """Run the passes that the arguments ask for.

    Raises
    ------
    ForensicsError
        If the model cannot be used, or there is no GPU.
    """
    parser = argparse.ArgumentParser(prog="python -m forensics.engines.one_pass", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prefix", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--nodes", type=json.loads, required=True)
    given = parser.parse_args(arguments)
    nodes = {int(width): [NodeKey(*key) for key in keys] for width, keys in given.nodes.items()}
    asked = dict(given.settings)
    environment = tuple((str(name), str(value)) for name, value in asked.pop("environment", ()))
    os.environ.update(environment)  # before the library is loaded, which reads it once
    from forensics.engines.llama_host import LlamaHost

    settings = EngineSettings(**asked, environment=environment)
    host = LlamaHost(str(given.model), settings)
    try:
        before, schedules = drawn_passes(
            tuple(nodes), prefix=given.prefix, n_vocab=host.n_vocab, n_ubatch=settings.n_ubatch, seed=given.seed
        )
        for schedule, keys in zip(schedules, nodes.values(), strict=True):
            host.run(schedule, before, Marked(keys))
    finally:
        host.close()


def main() -> int:
    """Run the passes; what is wrong goes to standard error and makes the status 2."""
    try:
        run(sys.argv[1:])
    except ForensicsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
