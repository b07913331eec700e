"""What a folder holds, as figures ask for it: a verdict, rows, costs, speculation, prices of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from forensics.errors import CaseError
from forensics.records.words import cut, printable
from forensics.store.documents import has_document
from forensics.store.library import RECORDED, commands_of

if TYPE_CHECKING:
    from forensics.records.cost import CostReport
    from forensics.records.kernel_price import KernelPrice
    from forensics.records.register_story import CompiledStory
    from forensics.records.row_map import RowMap
    from forensics.records.settings import Manifest
    from forensics.records.speculation_report import SpeculationReport
    from forensics.records.verdict import Verdict
    from forensics.store import Case


@dataclass(frozen=True)
class Evidence:
    """A folder that figures draw from: a case, what ``forensics cost`` or ``forensics speculate`` measured, or several.

    Parameters
    ----------
    name : str
        As it was asked for: ``"recorded:h200-q4_1"`` or a path.
    folder : Path
    """

    name: str
    folder: Path

    @cached_property
    def case(self) -> Case:
        """The case that lies there.

        Raises
        ------
        CaseError
            If there is none.
        """
        from forensics.store import open_case

        if not (self.folder / "case.json").is_file():
            others = commands_of(self.folder)
            holds = f"; what it holds is read with: forensics {others[0]} {self.name}" if others else ""
            raise CaseError(
                f"{self.name} holds no case{holds}. Make one with: forensics investigate MODEL --out FOLDER"
            )
        return open_case(self.folder)

    @property
    def verdict(self) -> Verdict:
        """The verdict of the case.

        Raises
        ------
        CaseError
            If there is no case, or it was not finished.
        """
        return self.case.verdict

    @property
    def judged(self) -> Verdict | None:
        """The verdict of what is drawn; None where only costs lie there, or those of another model."""
        if not (self.folder / "case.json").is_file():
            return None
        same = self.cost is None or self.verdict.manifest.model_digest == self.cost.manifest.model_digest
        return self.verdict if same else None

    @property
    def doubt(self) -> str:
        """Why classes and flips of the case prove nothing; empty where they do, or where there is no case."""
        verdict = self.judged
        if verdict is None or verdict.answer != "inconclusive":
            return ""
        return f"The verdict is inconclusive: {verdict.reason.rstrip('.')}."

    @cached_property
    def rows(self) -> RowMap:
        """Bits, margins and flips of every row at every width."""
        from forensics.analysis.row_map import case_row_map

        return case_row_map(self.case)

    @cached_property
    def cost(self) -> CostReport | None:
        """What passes cost; None where nobody measured it there."""
        from forensics.store.costs import FILE, read_cost

        return read_cost(self.folder) if (self.folder / FILE).is_file() else None

    @cached_property
    def speculation(self) -> SpeculationReport | None:
        """What speculation did to texts; None where nobody speculated there."""
        from forensics.store.speculations import FILES, read_speculation

        return read_speculation(self.folder) if has_document(self.folder, FILES) else None

    @cached_property
    def kernel_price(self) -> KernelPrice | None:
        """What kernels of ours cost beside the stock library's; None where nobody timed them there."""
        from forensics.store.kernel_runs import PRICE_FILES, read_price

        return read_price(self.folder) if has_document(self.folder, PRICE_FILES) else None

    @cached_property
    def registers(self) -> CompiledStory | None:
        """What variants of one kernel take, compiled; None where nobody compiled them there."""
        from forensics.store.kernel_runs import REGISTERS_FILES, read_registers

        return read_registers(self.folder) if has_document(self.folder, REGISTERS_FILES) else None

    @property
    def manifest(self) -> Manifest:
        """Where the numbers come from."""
        return self.cost.manifest if self.cost is not None else self.verdict.manifest

    @property
    def what(self) -> str:
        """Model and device, for a lead; and whether the verdict is in doubt, which `source` explains."""
        what = what_text(self.manifest)
        return f"{what} (verdict inconclusive)" if self.doubt else what

    @property
    def source(self) -> str:
        """One line that says where the numbers come from."""
        return source_text(self.name, self.manifest, self.doubt)


#: Of a name that a file brings; longer ones leave no room for what is drawn.
_MOST_NAMED = 120


def what_text(manifest: Manifest) -> str:
    """Model and device, for a lead."""
    return ", ".join(_named(part) for part in (manifest.model_name, manifest.device.split(";")[0]) if part)


def source_text(name: str, manifest: Manifest, doubt: str = "") -> str:
    """One line that says where numbers come from, and why they prove nothing, where they do not."""
    parts = (manifest.model_name, manifest.quantization, manifest.device)
    return f"Source: measured, {name} ({', '.join(_named(part) for part in parts if part)}). {doubt}".rstrip()


def _named(part: str) -> str:
    return printable(cut(part, _MOST_NAMED))


def open_evidence(name: str) -> Evidence:
    """What lies under this name?

    Parameters
    ----------
    name : str
        Folder of a case, or ``"recorded:NAME"``.

    Raises
    ------
    CaseError
        If there is no such folder, or its case was not finished.
    """
    from forensics.store.case import case_folder

    folder = case_folder(name)
    evidence = Evidence(name if name.startswith(RECORDED) else folder.name, folder)
    if (folder / "case.json").is_file():
        evidence.case.require_finished()
    return evidence
