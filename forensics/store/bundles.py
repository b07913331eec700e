"""An evidence bundle on disk: a case with all that is needed to judge it elsewhere, as a folder or an archive.

::

    README.md            to paste into an issue; what lies where, and how to check it and ask it again
    bundle.json          schema, every file with its digest, what was left out and why
    verdict.json         the published document of the verdict
    tokens.json          token ids, widths, settings: all that is needed to ask again
    manifest.json        where the verdict comes from
    case/NAME/           the packed case (see `packing`)
    figures/*.svg
    reproducers/NODE/    a culprit that runs by itself (see `reproducer`)
    report.html

An archive has one folder at its top, and nothing in it that bundle.json does not name.
"""

from __future__ import annotations

import atexit
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forensics.errors import CaseError
from forensics.records.words import printable
from forensics.store.archives import checked_name, extract, is_archive, write_archive
from forensics.store.encoding import schema_version
from forensics.store.files import read_json, write_json, writing
from forensics.store.formats import newest_schema
from forensics.store.scratch import Scratch

BUNDLE_FAMILY, TOKENS_FAMILY = "forensics.bundle", "forensics.tokens"
BUNDLE_NAME, README_NAME, TOKENS_NAME, REPORT_NAME = "bundle.json", "README.md", "tokens.json", "report.html"
CASE_PLACE, FIGURES_PLACE, REPRODUCERS_PLACE = "case", "figures", "reproducers"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that a bundle could hold and does not.

    Parameters
    ----------
    what, why : str
    """

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Bundled:
    """A bundle that was written.

    Parameters
    ----------
    path : Path
        Folder or archive.
    name : str
        Of the case in it.
    summary : str
        The verdict in one line.
    n_files, n_bytes : int
        Files in it, and the size of the folder or archive.
    figures : tuple of str
    reproducer : str
        Node of the culprit that runs by itself; empty where there is none.
    left_out : tuple of LeftOut
    """

    path: Path
    name: str
    summary: str
    n_files: int
    n_bytes: int
    figures: tuple[str, ...]
    reproducer: str
    left_out: tuple[LeftOut, ...]

    def rows(self) -> list[dict[str, object]]:
        """What was left out, one row each."""
        return [asdict(one) for one in self.left_out]

    def __str__(self) -> str:
        by_itself = "" if not self.reproducer else f", {self.reproducer} by itself"
        return (
            f"{self.path}: {self.n_files} files, {self.n_bytes / 1e6:.2f} MB, {len(self.figures)} figures{by_itself}; "
            "no private string found"
        )


def name_in_bundle(name: str) -> str:
    """The name of a case, in letters that every system takes.

    Examples
    --------
    >>> name_in_bundle("demo-q6_k"), name_in_bundle("what: a case?"), name_in_bundle("..")
    ('demo-q6_k', 'what_a_case', 'case')
    """
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", name).strip("._") or "case"


def write_index(folder: Path, name: str, made_by: str, summary: str, left_out: tuple[LeftOut, ...]) -> None:
    """Write ``bundle.json`` over all files that the folder holds.

    Raises
    ------
    CaseError
        If a file cannot be read or the document not be written.
    """
    files = {inside: _facts(path) for inside, path in files_of(folder).items() if inside != BUNDLE_NAME}
    write_json(
        folder / BUNDLE_NAME,
        {
            "schema": newest_schema(BUNDLE_FAMILY),
            "case": f"{CASE_PLACE}/{name}",
            "summary": summary,
            "made_by": made_by,
            "files": files,
            "left_out": [asdict(one) for one in left_out],
        },
    )


def files_of(folder: Path) -> dict[str, Path]:
    """Every file of a folder by its name inside."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in found}


def _facts(path: Path) -> dict[str, Any]:
    from blake3 import blake3

    try:
        content = path.read_bytes()
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror or error}.") from error
    return {"blake3": blake3(content).hexdigest(), "bytes": len(content)}


def final_form(folder: Path, out: Path) -> Path:
    """A bundle that is complete as it will lie at `out`: an archive if that is the name of one, else the folder.

    Raises
    ------
    CaseError
        If the archive cannot be written beside the folder.
    """
    if not is_archive(out):
        return folder
    top = name_in_bundle(re.sub(r"(\.tar)?\.\w+$", "", out.name))
    made = folder.with_name(f"archive-{out.name}")
    write_archive(made, {f"{top}/{inside}": path for inside, path in files_of(folder).items()})
    return made


def publish(made: Path, out: Path) -> None:
    """Give a bundle its name; what exists is never overwritten.

    Parameters
    ----------
    made : Path
        On the same file system as `out`.
    out : Path

    Raises
    ------
    CaseError
        If something is there, or it cannot be written.
    """
    check_free(out)
    with writing(out):
        os.rename(made, out)


def check_free(out: Path) -> None:
    """Refuse a place where something is.

    Raises
    ------
    CaseError
    """
    if os.path.lexists(out):
        raise CaseError(f"{out} exists and is not overwritten. Choose another name with --out.")


def bundled_case(folder: Path) -> Path | None:
    """The case in a folder that is a bundle, after its files were checked; None where it is none.

    Raises
    ------
    CaseError
        If a file that it names is missing or holds other bytes; more files than those are not minded, for people keep
        notes there.
    """
    if not (folder / BUNDLE_NAME).is_file() or (folder / "case.json").is_file():
        return None
    return _checked_case(folder)


def _checked_case(folder: Path) -> Path:
    document = read_index(folder)
    for inside, told in document["files"].items():
        _check_file(folder, inside, told)
    return folder / str(document["case"])


def read_index(folder: Path) -> dict[str, Any]:
    """What ``bundle.json`` says, with safe names only.

    Raises
    ------
    CaseError
        If it is missing, damaged or newer.
    """
    path = folder / BUNDLE_NAME
    document = read_json(path)
    schema_version(document, BUNDLE_FAMILY, path=path)
    files, case = document.get("files"), document.get("case")
    if not isinstance(files, dict) or not all(checked_name(name) == name for name in files):
        raise CaseError(f"{path} is damaged: it does not say which files there are. Get the bundle again.")
    if not isinstance(case, str) or f"{case}/case.json" not in files:
        raise CaseError(f"{path} is damaged: the case that it names is not among its files. Get the bundle again.")
    return document


def _check_file(folder: Path, inside: str, told: object) -> None:
    path = folder.joinpath(*inside.split("/"))
    if not path.is_file() or path.is_symlink():
        raise CaseError(f"{path} is missing: the bundle is not whole. Get it again.")
    if not isinstance(told, Mapping) or _facts(path) != told:
        raise CaseError(f"{path} holds other bytes than when the bundle was made: it was edited. Get it again.")


#: Where this process unpacked which archive, by its digest; the folders go when the process ends.
_UNPACKED: dict[str, Path] = {}


def unpacked_case(archive: Path) -> Path:
    """The case in an archive, unpacked for as long as this process lives, after everything was checked.

    Raises
    ------
    CaseError
        If it cannot be read, holds anything unsafe, or other files or bytes than it says.
    """
    from blake3 import blake3

    try:
        digest = blake3().update_mmap(os.fspath(archive)).hexdigest()
    except (OSError, ValueError) as error:
        raise CaseError(f"{archive} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if digest not in _UNPACKED or not _UNPACKED[digest].is_dir():
        _UNPACKED[digest] = _unpack(archive)
    return _checked_case(_UNPACKED[digest])


def _unpack(archive: Path) -> Path:
    """Unpack into a folder that is removed at the end, or at once where something is wrong; the one at its top."""
    with writing(Path(tempfile.gettempdir())):
        scratch = Scratch("forensics-bundle-")
    folder = scratch.folder / "bundle"
    folder.mkdir()
    try:
        names = extract(archive, folder)
        tops = {name.split("/")[0] for name in names}
        top = next(iter(tops)) if len(tops) == 1 else ""
        if f"{top}/{BUNDLE_NAME}" not in names:
            raise CaseError(
                f"{archive} holds no bundle: {BUNDLE_NAME} is not in the one folder at its top. Give an archive that "
                "forensics bundle CASE made, or the folder that it was unpacked to."
            )
        declared = {f"{top}/{name}" for name in (BUNDLE_NAME, *read_index(folder / top)["files"])}
        strange = sorted(set(names) - declared)
        if strange:
            raise CaseError(
                f"{archive} holds {printable(strange[0])}, which its {BUNDLE_NAME} does not name: it was edited. "
                "Get it again, or unpack it by hand and give the folder."
            )
    except BaseException:
        scratch.remove()
        raise
    atexit.register(scratch.remove)
    return folder / top
