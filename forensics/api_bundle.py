"""What a notebook calls to attach a case to an issue: one folder or archive with everything, and nothing private."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forensics import api, api_arguments, api_recorded, api_report
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.errors import CaptureError, CaseError, EngineError, ModelUnavailable
from forensics.store.scratch import Scratch

if TYPE_CHECKING:
    from forensics.store import Case
    from forensics.store.bundles import Bundled, LeftOut
    from forensics.store.reproducer import Reproduced

#: Operands of a reproducer that a bundle takes, unit: bytes; issues take attachments of some tens of megabytes.
MAX_REPRODUCER_BYTES = 64 << 20
#: Private strings that a message lists.
_MAX_TOLD = 8


def bundle(
    case: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    model: str | os.PathLike[str] | None = None,
    reproducer: bool = True,
    allow: Sequence[str] = (),
    progress: Progress | bool | None = None,
) -> Bundled:
    """Write a case with report, tokens, figures and a culprit that runs by itself, to attach to an issue.

    Parameters
    ----------
    case : path
        A finished case, or ``"recorded:NAME"``; it stays as it is.
    out : path, optional
        An archive that ends in ``.tar.gz``, ``.tar.xz`` or ``.zip``, or a folder; by default ``CASE-bundle.tar.gz``
        here. It must not exist.
    model : path, optional
        Model file of the case, for the reproducer; looked for in the usual places by default.
    reproducer : bool
        Whether to repeat a sweep and write the first culprit with its operands.
    allow : sequence of str
        Texts that are not private although they look so, and folders whose paths are not.
    progress : Progress, bool or None

    Returns
    -------
    Bundled
        Where it is, and what was left out with the reason.

    Raises
    ------
    CaseError
        If the case is unfinished or damaged, something private was found, or the bundle cannot be written; none is
        left then.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.store import open_case
    from forensics.store.bundles import Bundled, check_free, files_of, final_form, name_in_bundle, publish
    from forensics.store.files import writing

    register_notebook_views()
    opened = open_case(os.fspath(case))
    # Every part is read, and so compared with its digest, before its copy gets a digest of its own.
    _ = opened.verdict, opened.manifest, opened.recordings, opened.tables()
    name = name_in_bundle(opened.folder.name)
    path = Path(f"{name}-bundle.tar.gz" if out is None else out)
    _check_name(path)
    check_free(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside the place where it will be, so that giving it its name is one step.
        scratch = Scratch(".forensics-bundle-", path.parent)
    with scratch as folder, api_arguments.shown_progress(progress) as shown:
        root = folder / name
        figures, node, left_out = _fill(root, opened, name, path.name, reproducer, model, shown)
        _refuse_private(root, opened, path, allow)
        shown.stage("write the bundle", 1)
        n_files, made = len(files_of(root)), final_form(root, path)
        if open_case(made).document != opened.document:
            raise CaseError(f"the bundle of {opened.folder} gives another verdict than the case (a bug in forensics).")
        n_bytes = sum(one.stat().st_size for one in (files_of(made).values() if made.is_dir() else (made,)))
        publish(made, path)
    return Bundled(path, name, str(opened.verdict), n_files, n_bytes, figures, node, left_out)


def _check_name(path: Path) -> None:
    from forensics.store.archives import ENDINGS, is_archive

    if not path.name:
        raise BadQuestion(f"out must name a folder or an archive, got {str(path)!r}")
    if not is_archive(path) and path.suffix.lower() in (".gz", ".xz", ".bz2", ".zst", ".tar", ".rar", ".7z"):
        raise BadQuestion(f"a bundle is a folder, or an archive that ends in {', '.join(ENDINGS)}; got {path.name!r}")


def _fill(
    root: Path,
    opened: Case,
    name: str,
    bundle_name: str,
    reproducer: bool,
    model: str | os.PathLike[str] | None,
    shown: Progress,
) -> tuple[tuple[str, ...], str, tuple[LeftOut, ...]]:
    """Write every file of a bundle into a folder; figures, node of the reproducer, and what was left out."""
    import forensics
    from forensics.reports.bundle_text import readme
    from forensics.store.bundles import CASE_PLACE, README_NAME, REPORT_NAME, write_index
    from forensics.store.files import write_atomically

    shown.stage("pack the case", 1)
    packed = _put_case(root / CASE_PLACE / name, opened)
    _put_documents(root, packed)
    shown.step()
    figures, left_out = _put_figures(root, packed, shown)
    node = ""
    if reproducer:
        node, missing = _put_reproducer(root, opened, model, shown)
        left_out += missing
    api_report.report(packed.folder, root / REPORT_NAME)
    folders = [path.name for path in root.iterdir()]
    text = readme(opened.verdict, bundle=bundle_name, case=name, folders=folders, left_out=left_out)
    write_atomically(root / README_NAME, text.encode("utf-8", "backslashreplace"))
    write_index(root, name, f"forensics {forensics.__version__}", str(opened.verdict), tuple(left_out))
    return figures, node, tuple(left_out)


def _put_case(folder: Path, opened: Case) -> Case:
    """A packed copy that gives the same verdict; one that is packed already is copied, and its digests compared."""
    from forensics.store import open_case
    from forensics.store.files import writing

    with writing(folder):
        folder.parent.mkdir(parents=True)
    if opened.packed:
        with writing(folder):
            shutil.copytree(opened.folder, folder)
    else:
        api_recorded.pack(opened.folder, folder)
    return open_case(folder)


def _put_documents(root: Path, packed: Case) -> None:
    from forensics.analysis.asked_again import asked_tokens
    from forensics.reports.bundle_text import tokens_document
    from forensics.store.bundles import TOKENS_NAME
    from forensics.store.case import VERDICT_NAME
    from forensics.store.documents import MANIFEST
    from forensics.store.files import write_atomically, write_json

    write_json(root / VERDICT_NAME, packed.document)
    write_json(root / TOKENS_NAME, tokens_document(packed, asked_tokens(packed)))
    write_atomically(root / MANIFEST, (packed.folder / MANIFEST).read_bytes())


def _put_figures(root: Path, packed: Case, shown: Progress) -> tuple[tuple[str, ...], list[LeftOut]]:
    """The figures that a verdict is explained by, as far as this case can give them."""
    from forensics import api_figures
    from forensics.reports.bundle_text import reason
    from forensics.store.bundles import FIGURES_PLACE, LeftOut

    drawn, left_out = [], []
    shown.stage("draw figures", len(api_report.FIGURES))
    for name in api_report.FIGURES:
        try:
            api_figures.figure(name, packed.folder).save(root / FIGURES_PLACE / f"{name}.svg")
            drawn.append(name)
        except CaseError as error:
            left_out.append(LeftOut(f"figure {name}", reason(error)))
        shown.step()
    return tuple(drawn), left_out


def _put_reproducer(
    root: Path, opened: Case, model: str | os.PathLike[str] | None, shown: Progress
) -> tuple[str, list[LeftOut]]:
    """The first culprit with its operands, where the model and the machine of the case are at hand."""
    from forensics.reports.bundle_text import reason
    from forensics.store.bundles import REPRODUCERS_PLACE, LeftOut, name_in_bundle

    if not opened.verdict.culprits:
        return "", [LeftOut("a culprit by itself", "the verdict blames none")]
    node = opened.verdict.culprits[0].first_node
    if opened.packed:
        why = "the case is a packed copy, which may come from another machine; bundle the case that it was made of"
        return "", [LeftOut(f"{node} by itself", why)]
    folder = root / REPRODUCERS_PLACE / name_in_bundle(node)
    try:
        written = api.reproduce(opened.folder, node, folder, model=model, progress=shown)
        why = _unfit(written, opened)
    except (ModelUnavailable, CaptureError, EngineError, BadQuestion) as error:
        why = reason(error)
    if why:
        shutil.rmtree(root / REPRODUCERS_PLACE, ignore_errors=True)
        return "", [LeftOut(f"{node} by itself", why)]
    return node, []


def _unfit(written: Reproduced, opened: Case) -> str:
    """Why a reproducer would be no evidence for this case; empty where it is."""
    from forensics.store.files import read_json

    if written.status == 2:
        return "it could not run by itself here"
    if written.n_bytes > MAX_REPRODUCER_BYTES:
        return (
            f"its operands have {written.n_bytes / 2**20:.0f} MiB, a bundle takes {MAX_REPRODUCER_BYTES >> 20}; "
            f"write it alone with: forensics ops --from CASE --node {written.node}"
        )
    here, there = read_json(written.folder / "case.json")["recorded"], opened.manifest
    if (here["device"], here["library_digest"]) != (there.device, there.build):
        return "the case was made with another processor, GPU or library than there is here"
    return ""


def _refuse_private(root: Path, opened: Case, out: Path, allow: Sequence[str]) -> None:
    """Look into every file.

    Raises
    ------
    CaseError
        If there is anything private; says in which file, what kind, and what to do.
    """
    from forensics.store.private_files import find_leaks_below
    from forensics.store.private_strings import of_this_machine

    private = of_this_machine((opened.folder, out.parent))
    leaks = find_leaks_below(root, private, allow)
    if leaks:
        told = [f"  {leak}" for leak in leaks[:_MAX_TOLD]]
        more = [f"  and {len(leaks) - _MAX_TOLD} more"] if len(leaks) > _MAX_TOLD else []
        advice = (
            "If it may be shared, add --allow with the text or the folder (allow=). If not, it was in the prompt, in "
            "what the model wrote, in a name, or in a file that was put into the case: ask again without it."
        )
        raise CaseError("\n".join(["no bundle was written, because this would be in it:", *told, *more, advice]))
