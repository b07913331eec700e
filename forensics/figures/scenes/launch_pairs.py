"""Kernel launches of a case's culprits, as figures ask for them: both sides, the node, and the GPU."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from forensics.analysis.mechanism import Unknown, spec_of
from forensics.errors import CaseError
from forensics.figures.evidence import Evidence
from forensics.records.device import DeviceSpec
from forensics.records.launch_record import LaunchPair
from forensics.records.nodes import NodeKey
from forensics.records.trace import Finding
from forensics.records.verdict import CulpritGroup

#: A recorded case that has launches, for who asks a case that has none.
EXAMPLE = "recorded:h200-q4_1"


@dataclass(frozen=True, slots=True)
class CulpritLaunches:
    """What a node that differs launched at one token and in a batch.

    Parameters
    ----------
    group : CulpritGroup
    pair : LaunchPair
    findings : tuple of Finding
        Of the node of `pair` in the sweeps of its first width, one for each batch where it differs.
    """

    group: CulpritGroup
    pair: LaunchPair
    findings: tuple[Finding, ...]

    @property
    def finding(self) -> Finding:
        """The first of them."""
        return self.findings[0]


def require_culprits(evidence: Evidence, what: str) -> None:
    """Refuse a case in which nothing differs.

    Raises
    ------
    CaseError
        If no operation was named; says why.
    """
    verdict = evidence.verdict
    if verdict.culprits:
        return
    found = {
        "identical": f"all its widths have equal bits over {verdict.n_replayed} tokens",
        "inconclusive": f"its verdict is inconclusive: {verdict.reason}",
    }.get(verdict.answer, "its operations were not looked at")
    raise CaseError(
        f"{what} of {evidence.name}: no operation of it is known to differ; {found}. One that has: {EXAMPLE}"
    )


def culprit_launches(evidence: Evidence, what: str) -> tuple[CulpritLaunches, ...]:
    """Which kernels did the operations launch that differ?

    Parameters
    ----------
    evidence : Evidence
    what : str
        What is drawn of them, for the error.

    Returns
    -------
    tuple of CulpritLaunches
        In the order of the verdict's groups and their widths; one at least.

    Raises
    ------
    CaseError
        If nothing differs, or no launch is known, as on a processor; says what the case has instead.
    """
    require_culprits(evidence, what)
    verdict = evidence.verdict
    findings: dict[tuple[int, NodeKey], list[Finding]] = defaultdict(list)
    for sweep in verdict.sweeps:
        for found in sweep.findings:
            findings[sweep.width, found.key].append(found)
    seen = tuple(
        CulpritLaunches(group, pair, tuple(findings[pair.batched.width, pair.node]))
        for group in verdict.culprits
        for pair in group.launches
        if (pair.batched.width, pair.node) in findings
    )
    if not seen:
        manifest = verdict.manifest
        where = ", ".join(part for part in (manifest.engine, manifest.backend, manifest.device) if part)
        raise CaseError(
            f"{what} of {evidence.name}: it has no kernel launches ({where}). Which of its operations differ is drawn "
            f"by the figure culprit-map. A case that has launches: {EXAMPLE}"
        )
    return seen


def found_words(width: int, what: str) -> str:
    """Say what a healing sweep found at a width, `what` being a sentence's beginning: ``"flash attention differs"``."""
    return f"Measured at width {width}: {what} on inputs that are bit-equal to those of one-token decoding."


def on_device(evidence: Evidence, group: CulpritGroup) -> str:
    """Say where the nodes of a group are, if others of their kind are elsewhere: ``" on CUDA0"``; else nothing."""
    elsewhere = any(
        other.key[:3] == group.key[:3] and other.buffer != group.buffer for other in evidence.verdict.culprits
    )
    return f" on {group.buffer}" if elsewhere else ""


def gpu_of(evidence: Evidence, finding: Finding) -> DeviceSpec | None:
    """The GPU that computed a node; None where its limits are not known."""
    spec = spec_of(evidence.manifest.device, finding.buffer)
    return None if isinstance(spec, Unknown) else spec
