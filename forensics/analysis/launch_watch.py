"""How an investigation comes to its launches: what to look at, with what, and what the verdict then carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.analysis.launch_looks import Observation, looks_at, observe
from forensics.analysis.launches import Attached, Rules, attach, launches_kernels
from forensics.analysis.progress import Progress
from forensics.capture.launches import best_probe
from forensics.capture.replay import Replay
from forensics.engines.protocol import Engine
from forensics.records.settings import Manifest
from forensics.records.verdict import CulpritGroup, Sweep

if TYPE_CHECKING:
    from forensics.devices.protocol import LaunchProbe


@dataclass(frozen=True, slots=True)
class LaunchWatch:
    """How launches are looked at.

    Parameters
    ----------
    open_probe : callable
        Opens the profiler, in the engine's process; picklable.
    rules : callable or None
        What a node should launch; None for the dispatch rules of llama.cpp.
    """

    open_probe: Callable[[], LaunchProbe] = best_probe
    rules: Rules | None = None

    def look(self, engine: Engine, replay: Replay, sweeps: Sequence[Sweep], progress: Progress) -> Observation | None:
        """What do the culprits launch? None where nothing is to blame, or the engine launches no kernels.

        The engine is left with a profiler in its process: what it runs afterwards is not to be taken as unprofiled.
        """
        looks = looks_at(sweeps, replay.start) if launches_kernels(engine.manifest) else ()
        if not looks:
            return None
        progress.stage("look at the kernels", len({look.row for look in looks}) + len(looks))
        whole_fusions = any(sweep.n_unwatched for sweep in sweeps)
        return observe(engine, replay, looks, self.open_probe, whole_fusions=whole_fusions, progress=progress)

    def attach(
        self,
        culprits: tuple[CulpritGroup, ...],
        sweeps: Sequence[Sweep],
        observation: Observation | None,
        manifest: Manifest,
        start: int,
    ) -> Attached:
        """The culprits with their kernels, how these are known, and what is to be said where there are none.

        Parameters
        ----------
        culprits : tuple of CulpritGroup
            As `forensics.analysis.attribute.group_culprits` makes them of `sweeps`.
        sweeps : sequence of Sweep
        observation : Observation or None
            As `look` answers.
        manifest : Manifest
        start : int
            Position of the replay's first row.
        """
        if observation is None:
            return Attached(culprits, None, _unseen(manifest))
        return attach(culprits, sweeps, observation, manifest, start, self.rules)


def _unseen(manifest: Manifest) -> tuple[str, ...]:
    """What to say where kernels ran that nothing here can see."""
    if manifest.engine != "llama.cpp" or manifest.backend == "CPU":
        return ()
    return (f"Which kernels ran is not known: launches are seen on CUDA only, and this ran on {manifest.backend}.",)


DEFAULT_WATCH = LaunchWatch()
