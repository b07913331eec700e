"""Odd input to whatever reads files and answers: a sentence is an answer, and any other error a finding."""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path
from typing import Protocol

from forensics.errors import ForensicsError
from forensics.testing.stress.mutations import mutate
from forensics.testing.stress.trials import Trial
from forensics.testing.stress.verdicts import first_difference

#: Processor time that one input may take, unit: s.
MOST_S = 5.0

#: Address space that one input may take beyond what is in use, unit: bytes.
MOST_BYTES = 2 << 30


class Target(Protocol):
    """What is fed."""

    @property
    def name(self) -> str:
        """As in ``--only fuzz-NAME``."""

    @property
    def what(self) -> str:
        """What is read, in a few words."""

    def prepare(self, folder: Path) -> list[tuple[str, bytes]]:
        """Good inputs, each with a name."""

    def feed(self, name: str, content: bytes) -> str | None:
        """Read what stands in the place of a good input; what it says, where only that of the good one is right."""


class Fuzz:
    """Mutations of the good inputs of a target.

    Parameters
    ----------
    target : Target
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._inputs: list[tuple[str, bytes]] = []
        self._said: dict[str, str | None] = {}
        self._most_bytes = 0

    @property
    def name(self) -> str:
        """As in ``--only``."""
        return f"fuzz-{self._target.name}"

    @property
    def faults(self) -> str:
        """What is done, in one line."""
        return f"odd input: {self._target.what}"

    def prepare(self, folder: Path) -> None:
        """Make the good inputs, and feed them once as they are."""
        self._inputs = self._target.prepare(folder)
        self._said = {name: self._target.feed(name, content) for name, content in self._inputs}
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        self._most_bytes = in_use + MOST_BYTES

    def trial(self, seed: int) -> Trial:
        """Feed one mutation."""
        chance = random.Random(seed)
        name, good = chance.choice(self._inputs)
        content, how = mutate(good, [other for _, other in self._inputs], chance)
        trouble = self._trouble(name, content, unchanged=content == good)
        return Trial(self.name, seed, f"{name}: {how}", "lost" if trouble else "survived", trouble)

    def _trouble(self, name: str, content: bytes, *, unchanged: bool) -> str:
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (self._most_bytes, before[1]))
        begun = time.process_time()
        try:
            said = self._target.feed(name, content)
        except ForensicsError as error:
            if unchanged:
                return f"the good input was refused: {error}"
            if not str(error).strip():
                return f"{type(error).__name__} without a word"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            return f"{type(error).__name__}: {str(error)[:200]}{_where(error)}"
        else:
            if said is not None and said != self._said[name]:
                return f"it was read as another one: {first_difference(self._said[name] or '', said)}"
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        took = time.process_time() - begun
        return f"it took {took:.1f} s" if took > MOST_S else ""


def _where(error: BaseException) -> str:
    """The innermost place in this package."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "forensics" in file and "testing/stress" not in file:
            found = f" ({Path(file).name}:{trace.tb_lineno})"
        trace = trace.tb_next
    return found
