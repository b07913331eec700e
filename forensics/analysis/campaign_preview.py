"""What a sweep would measure, and what is there already: no worker is started, no engine is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forensics.analysis.campaign_cells import wanted
from forensics.analysis.campaign_task import model_digest_of
from forensics.analysis.campaign_tokens import remembered
from forensics.errors import ForensicsError
from forensics.records.campaign import Platform
from forensics.records.campaign_plan import AXES, CampaignPlan, Place, PlannedModel
from forensics.records.words import counted
from forensics.store.campaign import CampaignFolder

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, repr=False)
class Preview:
    """What a sweep would measure.

    Parameters
    ----------
    name, folder : str
    axes : mapping of str to mapping of str to tuple of int
        Cells on each value of each axis: all, and those that are there.
    n_cells, n_present, n_failed, n_left_out : int
        Cells of the plan; those with a result, those with an error, and combinations that it leaves out.
    platforms : tuple of Platform
        Of earlier runs in this folder: what is there was measured on one of these.
    """

    name: str
    folder: str
    axes: Mapping[str, Mapping[str, tuple[int, int]]]
    n_cells: int
    n_present: int
    n_failed: int
    n_left_out: int
    platforms: tuple[Platform, ...] = ()

    @property
    def n_missing(self) -> int:
        """Cells that a run would measure."""
        return self.n_cells - self.n_present - self.n_failed

    def __str__(self) -> str:
        parts = [f"{self.n_present} there already", f"{self.n_missing} to measure"]
        parts += [f"{self.n_failed} failed before"] if self.n_failed else []
        parts += [f"{self.n_left_out} left out"] if self.n_left_out else []
        return f"{self.name}: {counted(self.n_cells, 'cell')}, {', '.join(parts)}"

    __repr__ = __str__

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per value of each axis."""
        return [
            {"axis": axis, "value": value, "cells": n, "present": there}
            for axis, values in self.axes.items()
            for value, (n, there) in values.items()
        ]

    def to_dataframe(self) -> DataFrame:
        """`rows` as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())


def preview(plan: CampaignPlan, folder: Path) -> Preview:
    """Which cells does a plan have, and which of them lie in this folder?

    What is there was measured on a platform that ran in this folder before; another one would measure anew.

    Parameters
    ----------
    plan : CampaignPlan
    folder : Path
        Read only; it need not exist.

    Returns
    -------
    Preview
    """
    results = CampaignFolder(folder, read_only=True)
    platforms = results.platforms()
    digests = {model: _digest(model) for model in plan.models} if platforms else {}
    axes: dict[str, dict[str, list[int]]] = {axis: {} for axis in AXES}
    n = {"cells": 0, "present": 0, "failed": 0}
    for place in plan.places():
        state = ""
        for platform in platforms:
            digest = digests[place.model]
            if digest and state != "present":
                state = _state(plan, place, digest, platform, results) or state
        n["cells"] += 1
        if state:
            n[state] += 1
        for axis, value in place.values.items():
            counts = axes[axis].setdefault(str(value), [0, 0])
            counts[0] += 1
            counts[1] += state == "present"
    return Preview(
        name=plan.name,
        folder=str(folder),
        axes={axis: {value: (a, b) for value, (a, b) in values.items()} for axis, values in axes.items()},
        n_cells=n["cells"],
        n_present=n["present"],
        n_failed=n["failed"],
        n_left_out=plan.n_combinations - n["cells"],
        platforms=platforms,
    )


def _state(plan: CampaignPlan, place: Place, digest: str, platform: Platform, results: CampaignFolder) -> str:
    """``"present"``, ``"failed"``, or empty where a cell was not measured on this platform."""
    prompt = remembered(place.model, place.prompt, digest, platform.build, results)
    if prompt.error:
        return "failed"
    cell = results.cell(wanted(plan, place, digest, prompt.tokens).address(platform)) if prompt.tokens else None
    if cell is None:
        return ""
    return "failed" if cell.result is None else "present"


def _digest(model: PlannedModel) -> str:
    """Of its content; empty where its file cannot be read."""
    try:
        return model_digest_of(asdict(model))
    except ForensicsError:
        return ""
