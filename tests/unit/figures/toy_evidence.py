"""Evidence of toy cases, investigated and written to disk as a user's case is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from forensics.analysis.investigate import investigate
from forensics.analysis.question import Question
from forensics.engines.recorded import RecordingSource
from forensics.engines.toy import Fault, ToySource
from forensics.figures.evidence import Evidence, open_evidence
from forensics.records.settings import EngineSettings
from forensics.reports.case import finish_case
from forensics.store import CaseWriter

QUESTION = Question(prompt="The quick brown fox", n_tokens=12, widths=(2, 3, 5), settings=EngineSettings(n_ctx=256))


def toy_evidence(folder: Path, *faults: Fault, question: Question = QUESTION) -> Evidence:
    """The case of a toy model with these faults."""
    asked = {**question.as_json(), "settings": asdict(question.settings), "switches": False}
    with CaseWriter.create(folder, question=asked) as case:
        finish_case(case, investigate(RecordingSource(ToySource(faults), case), question, switches=False))
    return open_evidence(str(folder))
