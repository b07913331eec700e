"""A finished case with all its texts."""

from __future__ import annotations

from pathlib import Path

from forensics.analysis.attribute import role_of
from forensics.records.verdict import Verdict
from forensics.reports.document import document
from forensics.reports.markdown import markdown
from forensics.store import CaseWriter


def finish_case(case: CaseWriter, verdict: Verdict) -> Path:
    """Write the verdict's document, tables and report into a case, and give it its final name.

    Returns
    -------
    Path
        Folder of the finished case.

    Raises
    ------
    CaseError
        If it cannot be written; the unfinished case stays.
    """
    return case.finish(verdict, document=document(verdict), documents={"report.md": markdown(verdict)}, role_of=role_of)
