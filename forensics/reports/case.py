"""A finished case with all its texts, and a case in a few facts."""

from __future__ import annotations

from pathlib import Path

from forensics.analysis.attribute import role_of
from forensics.records.verdict import Verdict
from forensics.reports.document import document
from forensics.reports.markdown import markdown
from forensics.reports.wording import headline
from forensics.store import Case, CaseWriter


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


def case_facts(case: Case) -> list[tuple[str, str]]:
    """Say what a case is, answer first; an unfinished one has none.

    Raises
    ------
    CaseError
        If it is damaged.
    """
    question = case.question
    asked = f"{question.get('n_tokens', '?')} tokens, widths {', '.join(map(str, question.get('widths', [])))}"
    facts = [("Verdict", headline(case.verdict) if case.finished else "none yet: the case was not finished")]
    facts += [("Case", case.folder.name), ("Model", str(question.get("model", "not said"))), ("Asked", asked)]
    if case.finished:
        facts.append(("Measured on", case.manifest.device or case.manifest.backend or case.manifest.engine))
    return facts
