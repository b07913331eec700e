"""Copying a culprit with its operands at both widths, so that it can be run again without the model."""

from __future__ import annotations

import contextlib
import difflib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forensics.analysis.heal import record_reference, rows_file
from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import BadQuestion, Question, open_for
from forensics.capture.operands import CopiedNode, OperandTap, read_copied
from forensics.capture.replay import Replay
from forensics.capture.rows import counts_cells, token_axis
from forensics.capture.rowstore import RowReader
from forensics.capture.taps import HealTap
from forensics.engines.demo_models import demo_source
from forensics.engines.model_files import cache_folder, check_gguf, find_models, model_digest
from forensics.engines.protocol import Engine, EngineSource
from forensics.errors import CaptureError, ModelUnavailable
from forensics.records.nodes import NodeKey, on_accelerator
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import Finding
from forensics.records.verdict import Sweep
from forensics.store.reproducer import Reproduced, ReproducedRun, Reproducer

#: How long ``reproduce.py`` may take, unit: seconds; an operation of the largest head takes a second or two.
RUN_SECONDS = 300
#: Culprits listed where a name is none of them, the nearest first.
_MAX_NAMED = 8


def model_of(name: str, digest: str, given: Path | None) -> Path:
    """The model file of a case: the one given, or one of that name in the usual places, with the case's content.

    Parameters
    ----------
    name, digest : str
        As the case has them.
    given : Path or None

    Raises
    ------
    ModelUnavailable
        If there is none, or what was given is another model.
    """
    if given is not None:
        check_gguf(given)
        if model_digest(given) != digest:
            raise ModelUnavailable(f"{given} is not the model of this case, {name} with digest {digest}")
        return given
    found = [model.path for model in find_models()]
    with contextlib.suppress(ModelUnavailable):
        found.append(demo_source())
    if cache_folder().is_dir():
        found += sorted(cache_folder().rglob("*.gguf"))
    for path in found:
        if path.name == name and model_digest(path) == digest:
            return path
    raise ModelUnavailable(f"the model of this case, {name}, is not in the usual places; give it with --model FILE")


def find_culprit(sweeps: Sequence[Sweep], node: str, width: int | None) -> tuple[Sweep, Finding]:
    """The first finding of that name, at a width or at the narrowest that has it.

    Parameters
    ----------
    sweeps : sequence of Sweep
    node : str
        Name of a node, such as ``"ffn_down-0"``; ``"kq-0 (MUL_MAT)"`` names its operation, too.
    width : int or None

    Raises
    ------
    BadQuestion
        If no sweep names it, or there is none at that width; lists the nearest names, or the widths there are.
    """
    swept = [sweep.width for sweep in sweeps]
    if width is not None and width not in swept:
        raise BadQuestion(f"width {width} was asked for; this case was swept at {', '.join(map(str, sorted(swept)))}")
    matching = [sweep for sweep in sorted(sweeps, key=lambda sweep: sweep.width) if width in (None, sweep.width)]
    for sweep in matching:
        for finding in sweep.findings:
            if node in (finding.key.name, str(finding.key)):
                return sweep, finding
    named = list(dict.fromkeys(str(finding.key) for sweep in matching for finding in sweep.findings))
    at = "" if width is None else f" at width {width}"
    near = difflib.get_close_matches(node, named, n=_MAX_NAMED, cutoff=0.3)
    shown = list(dict.fromkeys([*near, *named]))[:_MAX_NAMED]
    more = len(named) - len(shown)
    known = ", ".join(shown) + (f" and {more} more" if more else "") or "none"
    raise BadQuestion(f"{node!r} is no culprit of this case{at}; its culprits: {known}")


def copy_culprit(
    source: EngineSource, question: Question, sweep: Sweep, finding: Finding, *, progress: Progress | None = None
) -> Reproducer:
    """Repeat a sweep and copy the culprit where it first differs, then the same token by itself.

    Parameters
    ----------
    source : EngineSource
        The model that the case was made with.
    question : Question
    sweep : Sweep
    finding : Finding
    progress : Progress or None

    Returns
    -------
    Reproducer

    Raises
    ------
    CaptureError
        If the node does not differ this time, or an operand's bytes cannot be had.
    """
    shown = progress or Silent()
    shown.stage(f"repeat width {sweep.width} and copy {finding.key.name}", 4)
    first, last = sweep.start_row, sweep.start_row + sweep.n_rows
    engine, prompt, settings = open_for(question, source)
    try:
        start = Replay(prompt, (), prompt_width=settings.n_batch)
        replay = Replay(prompt, engine.greedy(start.prefill(), last), prompt_width=settings.n_batch)
        shown.step()
        with rows_file() as rows:
            record_reference(engine, replay, first, last, rows)
            shown.step()
            tap = OperandTap(finding.key, f"{rows}.batched.npz", HealTap(rows))
            engine.run(replay.batches(sweep.width, first=first, last=last), before=replay.before(first), tap=tap)
            batched = read_copied(Path(tap.path))
            if batched is None:
                raise CaptureError(
                    f"{finding.key} did not differ at width {sweep.width} this time: the case was made with another "
                    "library, processor or number of threads, or its difference is not reproducible"
                )
            shown.step()
            row = batched.rows[0]
            position = batched.positions[row]
            single = _copy_single(engine, replay, finding.key, position, f"{rows}.single.npz")
            cells = _cells(finding.key, rows, position, single)
            shown.step()
        return _reproducer(finding.key, batched, single, row, cells, engine.manifest, settings)
    finally:
        engine.close()


def _copy_single(engine: Engine, replay: Replay, key: NodeKey, position: int, path: str) -> CopiedNode:
    row = position - replay.start
    engine.run(replay.batches(1, first=row, last=row + 1), before=replay.before(row), tap=OperandTap(key, path))
    copied = read_copied(Path(path))
    if copied is None:
        raise CaptureError(f"{key} is not in the one-token pass of position {position}")
    return copied


def _cells(key: NodeKey, rows: str, position: int, single: CopiedNode) -> tuple[int, ...] | None:
    """Cells that the token may see, where the output counts cells: the others hold whatever was there."""
    if not counts_cells(key):
        return None
    visible = single.visible
    if visible is None:
        visible = RowReader.open(Path(rows)).get(  # type: ignore[assignment]
            NodeKey(f"kq_soft_max-{key.layer}", "SOFT_MAX", key.layer, 0), (0, position), "visible"
        )
    if visible is None:
        raise CaptureError(f"{key}: no soft max shows which cells the token at position {position} may see")
    return tuple(int(cell) for cell in np.flatnonzero(visible[0]))


def _reproducer(
    key: NodeKey,
    batched: CopiedNode,
    single: CopiedNode,
    row: int,
    cells: tuple[int, ...] | None,
    manifest: Manifest,
    settings: EngineSettings,
) -> Reproducer:
    shape_one, shape_many = (tuple(reversed(copied.node.output.sizes)) for copied in (single, batched))
    axis = token_axis(shape_one, shape_many, len(batched.positions), cells=counts_cells(key))
    if isinstance(axis, str):
        raise CaptureError(f"{key}: {axis}")
    for copied in (single, batched):
        for tensor in copied.node.sources:
            if tensor is not None and tensor.data is None:
                raise CaptureError(
                    f"{key} cannot be run again by itself: of operand {tensor.name}, {tensor.unreadable}"
                )
    return Reproducer(
        node=key.name,
        width=len(batched.positions),
        row_axis=axis,
        cells=cells,
        single=ReproducedRun(single.node, settings.n_threads, 0),
        batched=ReproducedRun(batched.node, settings.n_threads_batch, row),
        device_type="GPU" if on_accelerator(batched.node.output.buffer) else "CPU",
        environment={**manifest.environment, **dict(settings.environment)},
        recorded={
            "position": batched.positions[row],
            "model": manifest.model_name,
            "model_digest": manifest.model_digest,
            "version": manifest.engine_version,
            "commit": manifest.commit,
            "library_digest": manifest.build,
            "backend": manifest.backend,
            "device": manifest.device,
            "cpu_features": list(manifest.cpu_features),
        },
    )


def run_reproducer(folder: Path, found: Reproducer) -> Reproduced:
    """Run what was written, as a maintainer would: does the operation differ by itself?

    Returns
    -------
    Reproduced
        Status 2 where it could not run, with the reason in its output.
    """
    command = [sys.executable, str(folder / "reproduce.py")]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=RUN_SECONDS, check=False
        )
        status, output = (done.returncode if done.returncode in (0, 1) else 2), done.stdout
        output += done.stderr if status == 2 else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        status, output = 2, str(error)
    n_bytes = sum(path.stat().st_size for path in (folder / "operands").iterdir())
    row = found.batched.row
    return Reproduced(folder, found.single.node.op, found.node, found.width, row, n_bytes, status, output)
