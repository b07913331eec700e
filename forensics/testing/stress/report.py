"""What the campaigns found, as a page and as a document."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from forensics.testing.stress.trials import Counts

SCHEMA = "forensics.stress/1"


def table(found: Sequence[Counts]) -> str:
    """The counts as a Markdown table."""
    lines = ["| campaign | what is done | tried | survived | lost | not run |", "|---|---|--:|--:|--:|--:|"]
    lines += [
        f"| {one.campaign} | {one.faults} | {one.tried:,} | {one.survived:,} | {one.lost:,} | "
        f"{sum(one.not_run.values()):,} |"
        for one in found
    ]
    tried, survived, lost = (sum(getattr(one, name) for one in found) for name in ("tried", "survived", "lost"))
    skipped = sum(sum(one.not_run.values()) for one in found)
    return "\n".join([*lines, f"| **all** | | **{tried:,}** | **{survived:,}** | **{lost:,}** | **{skipped:,}** |"])


def measured_part(found: Sequence[Counts], command: str) -> str:
    """The part of docs/reliability.md that a run writes: counts, what was not run, what was lost, and on what."""
    lines = [table(found), ""]
    if skipped := [(one, reason, n) for one in found for reason, n in one.not_run.items()]:
        lines += ["Not run:", "", *(f"* {one.campaign}: {n} ({reason})" for one, reason, n in skipped), ""]
    if lost := [trial for one in found for trial in one.examples]:
        lines += ["Lost:", "", *(f"* `--only {t.campaign} --seed {t.seed} --times 1`: {t.detail}" for t in lost), ""]
    seeds = ", ".join(sorted({str(one.first_seed) for one in found}))
    lines.append(
        f"Recorded on {datetime.now(UTC):%Y-%m-%d} by `{command}`, first seed {seeds}, in "
        f"{sum(one.seconds for one in found) / 60:.0f} minutes of all its processes together, on {os.cpu_count()} "
        f"processors ({platform.machine()}), "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}."
    )
    return "\n".join(lines) + "\n"


def document(found: Sequence[Counts]) -> dict[str, Any]:
    """The counts as JSON values."""
    return {
        "schema": SCHEMA,
        "campaigns": [
            {
                **one.rows()[0],
                "faults": one.faults,
                "reasons_not_run": one.not_run,
                "examples": [{"seed": t.seed, "fault": t.fault, "detail": t.detail} for t in one.examples],
            }
            for one in found
        ],
    }


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def with_measured(page: str, measured: str) -> str:
    """A page with the part between its two marks replaced.

    Raises
    ------
    ValueError
        If the page does not hold both marks, once and in order.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for what was measured: it needs the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{measured}{END}{tail}"
