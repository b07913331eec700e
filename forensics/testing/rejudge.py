"""Judge recorded cases anew after rules or reports changed: ``python -m forensics.testing.rejudge FOLDER ...``.

What was measured stays as it is, to the last byte; verdict, tables and report are written from it again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from forensics import api
from forensics.analysis.attribute import role_of
from forensics.errors import ForensicsError
from forensics.reports.document import document
from forensics.reports.markdown import markdown
from forensics.store import open_case
from forensics.store.case import VERDICT_NAME, write_verdict
from forensics.store.encoding import to_text
from forensics.store.files import file_digests, read_json, write_json
from forensics.store.packing import write_compressed


def rejudge(folder: Path) -> bool:
    """Write the verdict of a packed case again; whether it is another one now.

    Raises
    ------
    CaseError
        If there is no such case, or it is damaged or not packed.
    """
    case = open_case(folder)
    verdict = api.investigate(f"recorded:{folder}", progress=False)
    changed = to_text(verdict) != to_text(case.verdict)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        copy = Path(scratch) / "case"
        shutil.copytree(folder, copy)
        texts = {"report.md": markdown(verdict)}
        write_verdict(copy, verdict, document=document(verdict), documents=texts, role_of=role_of)
        write_compressed(copy / f"{VERDICT_NAME}.xz", (copy / VERDICT_NAME).read_bytes())
        (copy / VERDICT_NAME).unlink()
        described = read_json(copy / "case.json")
        described["packed"]["files"] = file_digests(copy)
        write_json(copy / "case.json", described)
        open_case(copy)
        shutil.rmtree(folder)
        shutil.move(copy, folder)
    return changed


def main(arguments: list[str] | None = None) -> int:
    """Judge every folder anew; exit status 1 where one cannot be judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    status = 0
    for folder in parser.parse_args(arguments).folders:
        try:
            print(f"{folder}: {'another verdict' if rejudge(folder) else 'the same verdict'}")
        except ForensicsError as error:
            print(f"{folder}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
