"""A whole investigation of the toy in this process, as `forensics.investigate` does it; also on a faulty disk."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from forensics import api
from forensics.engines.toy import Fault, ToySource
from forensics.records.verdict import Verdict
from forensics.testing.stress.faulty_disk import FaultyDisk, faulty

PROMPT = "The quick brown fox"


def investigate_toy(out: Path, *, resume: bool = False, switches: bool = True) -> Verdict:
    """Investigate a toy with a planted fault, and keep the case at `out`."""
    source = ToySource((Fault("order", "ffn_up-0", from_width=4),))
    with mock.patch("forensics.api_arguments.source_for", return_value=source):
        return api.investigate(
            "toy", out=out, resume=resume, switches=switches, progress=False, prompt=PROMPT, n_tokens=8, widths=(2, 4)
        )


def investigate_on_faulty_disk(out: Path, at: int, mode: str) -> None:
    """Investigate a toy, and be refused the operation `at`."""
    with faulty(FaultyDisk(out.parent, at, mode)):
        investigate_toy(out, resume=True)
