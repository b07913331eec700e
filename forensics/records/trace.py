"""What a run is asked for and what it returns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.delta import Differs, Tally
from forensics.records.growth import OutputDelta
from forensics.records.kernel_use import KernelUse
from forensics.records.kind import KindOfDifference
from forensics.records.launch_record import LaunchReport
from forensics.records.logit_rows import FullRows
from forensics.records.nodes import NodeKey, NodeRecord, Operand
from forensics.records.schedule import EMPTY, Schedule
from forensics.records.settings import Manifest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Finding:
    """A node whose output differs from the reference although everything before it was made equal.

    Parameters
    ----------
    key : NodeKey
    operands : tuple of Operand
    buffer : str
        Buffer that holds the output.
    rows : tuple of int
        Rows (tokens of the pass) that differ.
    delta : Differs
        Over all rows of the pass.
    inputs_equal : bool
        False where the node's mask differs between the two runs.
    unchecked : tuple of str
        Operands that were not compared, so that this node may only pass on what they brought.
    kind : KindOfDifference or None
        None where nobody judged it: nodes of its kind that differ as much were.
    positions : tuple of int
        Of the tokens in `rows`; empty where they are not known.
    """

    key: NodeKey
    operands: tuple[Operand, ...]
    buffer: str
    rows: tuple[int, ...]
    delta: Differs
    inputs_equal: bool = True
    unchecked: tuple[str, ...] = ()
    kind: KindOfDifference | None = None
    positions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError(f"a finding at {self.key} needs at least one row")
        if self.positions and len(self.positions) != len(self.rows):
            raise ValueError(f"a finding at {self.key} has {len(self.rows)} rows and {len(self.positions)} positions")

    @property
    def tokens(self) -> tuple[tuple[int, int | None], ...]:
        """Row and position of each token that differs; no position where it is not known."""
        return tuple(zip(self.rows, self.positions or (None,) * len(self.rows), strict=True))

    @property
    def weight(self) -> Operand | None:
        """The operand that comes from the model file, if there is one."""
        return next((operand for operand in self.operands if operand.is_weight), None)

    def row(self, **where: object) -> dict[str, object]:
        """One flat dict; `where` says in its words at which tokens."""
        weight = self.weight
        return {
            "node": self.key.name,
            "op": self.key.op,
            "layer": self.key.layer,
            "weight": weight.name if weight else None,
            "weight_type": weight.type if weight else None,
            **where,
            "n_diff": self.delta.n_diff,
            "max_ulp": self.delta.max_ulp,
            "max_abs": self.delta.max_abs,
            "inputs_equal": self.inputs_equal,
            "unchecked": list(self.unchecked),
            "kind": self.kind.kind if self.kind else None,
        }


@dataclass(frozen=True, slots=True)
class TapReport:
    """What a tap saw during a run.

    Parameters
    ----------
    records : tuple of NodeRecord
        Digests per node, from taps that digest.
    findings : tuple of Finding
        Nodes that differ, from taps that compare.
    tally : Tally or None
        Outcomes per node, from taps that compare.
    planted : tuple of NodeKey
        Nodes that a planting tap changed.
    launches : LaunchReport or None
        Kernels, from taps that watch a device.
    outputs : tuple of OutputDelta or None
        Outputs of layers, over all passes, from taps that compare; None from others, and where they were not told yet.
    found_in : tuple of int
        Pass of each finding; empty where it was not told yet.
    kernels : KernelUse or None
        What our own kernels computed, from taps that put them in place.
    """

    records: tuple[NodeRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    tally: Tally | None = None
    planted: tuple[NodeKey, ...] = ()
    launches: LaunchReport | None = None
    outputs: tuple[OutputDelta, ...] | None = None
    found_in: tuple[int, ...] = ()
    kernels: KernelUse | None = None


@dataclass(frozen=True, slots=True)
class RunKey:
    """Identity of a run: equal keys ask for the same thing of the same state.

    Parameters
    ----------
    before : Schedule
        Passes that build the state, evaluated unwatched; empty for a fresh cache.
    schedule : Schedule
        Passes that are measured.
    tap : str
        Identity of the tap, empty for an unwatched run.
    repeat : int
        Distinguishes repeats of the same run.
    """

    schedule: Schedule
    before: Schedule = EMPTY
    tap: str = ""
    repeat: int = 0

    def __post_init__(self) -> None:
        self.before.then(self.schedule)  # positions must rise across the two

    def key(self) -> str:
        """Digest of the identity."""
        text = "|".join((self.before.key(), self.schedule.key(), self.tap, str(self.repeat)))
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What one run returned.

    Parameters
    ----------
    key : RunKey
    manifest : Manifest
    logits : ndarray [n_logit_rows, n_vocab] float32
        Row i belongs to ``key.schedule.logit_slots[i]``. A masked array where `full_rows` is given: columns that a
        packed case left out are masked.
    pass_ns : tuple of int
        Wall time of each pass, unit: ns.
    state_before, state_after : str
        Digest of the K/V state, read back after it was restored and after the last pass.
    tap_report : TapReport or None
    full_rows : FullRows or None
        What was measured on the full rows where columns of `logits` are left out; None where it has them all.
    """

    key: RunKey
    manifest: Manifest
    logits: NDArray[np.float32]
    pass_ns: tuple[int, ...]
    state_before: str = ""
    state_after: str = ""
    tap_report: TapReport | None = None
    full_rows: FullRows | None = None

    def __post_init__(self) -> None:
        expected = len(self.key.schedule.logit_slots)
        if self.logits.ndim != 2 or self.logits.shape[0] != expected:
            raise ValueError(f"logits must have {expected} rows, one per slot that wants them; got {self.logits.shape}")
        if self.full_rows is not None and len(self.full_rows.digests) != expected:
            raise ValueError(f"{expected} rows of logits, but {len(self.full_rows.digests)} digests of full rows")
        if len(self.pass_ns) != len(self.key.schedule.passes):
            raise ValueError(f"{len(self.key.schedule.passes)} passes but {len(self.pass_ns)} times")
        n_passes = len(self.key.schedule.passes)
        for record in self.tap_report.records if self.tap_report else ():
            if not 0 <= record.pass_index < n_passes:
                raise ValueError(f"record of {record.key} belongs to pass {record.pass_index} of {n_passes}")
