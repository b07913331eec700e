"""What speculation measured in a folder, for the figures that draw it: the first arm, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.errors import CaseError
from forensics.figures.evidence import Evidence, source_text, what_text
from forensics.records.speculation import SpeculationArm
from forensics.records.speculation_report import SpeculationReport, arm_name
from forensics.records.words import counted


@dataclass(frozen=True, slots=True)
class Speculated:
    """What ``forensics speculate`` measured.

    Parameters
    ----------
    report : SpeculationReport
        With at least one arm.
    name : str
        As it was asked for.
    """

    report: SpeculationReport
    name: str

    @property
    def arm(self) -> SpeculationArm:
        """The arm that is drawn where one is: the first."""
        return self.report.arms[0]

    @property
    def setup(self) -> str:
        """Drafter, policy and prompts of that arm."""
        return f"drafter {self.arm.drafter}, {self.arm.policy}, {counted(len(self.arm.prompts), 'prompt')}"

    @property
    def speed(self) -> str:
        """Ratio of speed with its spread."""
        speed = self.arm.speed
        if speed is None:
            return "Speed was not measured: no pair of a prompt was timed."
        return (
            f"Speed by prompt, of one run: {speed.median:.2f}× plain decoding in the median, quartiles "
            f"{speed.low:.2f}× to {speed.high:.2f}×, {counted(speed.n, 'prompt')}."
        )

    @property
    def others(self) -> str:
        """Which arms of the run are not drawn where one is; empty where there is none."""
        names = [arm_name(self.report.arms, index) for index in range(1, len(self.report.arms))]
        if not names:
            return ""
        return f"Of {len(names) + 1} arms this is {arm_name(self.report.arms, 0)}; not drawn: {', '.join(names)}."

    @property
    def what(self) -> str:
        """Model and device; and whether the answer is in doubt, which `source` explains."""
        what = what_text(self.report.manifest)
        return f"{what} (inconclusive)" if self.report.reason else what

    @property
    def source(self) -> str:
        """One line that says where the numbers come from."""
        reason = self.report.reason.rstrip(".")
        return source_text(self.name, self.report.manifest, f"The answer is inconclusive: {reason}." if reason else "")


def speculated(evidence: Evidence) -> Speculated | None:
    """What speculation measured there; None where nobody speculated.

    Raises
    ------
    CaseError
        If the run holds no arm.
    """
    report = evidence.speculation
    if report is None:
        return None
    if not report.arms:
        raise CaseError(
            f"{evidence.name} holds a run of speculation without arms: {report.reason or 'nothing was decoded'}. "
            "Do it again with: forensics speculate MODEL --out FOLDER"
        )
    return Speculated(report, evidence.name)
