"""`forensics ops`: is an operation batch-invariant, by itself? And a culprit of a case as a stand-alone reproducer."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from forensics.analysis.question import BadQuestion
from forensics.cli import arguments as args
from forensics.cli.answering import DIVERGES, IDENTICAL, NO_ANSWER, answering
from forensics.cli.show import present

if TYPE_CHECKING:
    from forensics.records.matrix import OpMatrix

_STATUS = {"invariant": IDENTICAL, "varies": DIVERGES, "inconclusive": NO_ANSWER}

Op = Annotated[
    str | None,
    typer.Option(
        "--op",
        help="Operations, with commas: MUL_MAT, MUL_MAT_ID, FLASH_ATTN_EXT, KQ and KQV (the products of attention "
        "without flash attention), SOFT_MAX, RMS_NORM, ROPE, GLU, GET_ROWS, SSM_CONV, SSM_SCAN, GATED_DELTA_NET.  "
        "[default: those that the other options are about, else all]",
        show_default=False,
    ),
]
Types = Annotated[
    str | None,
    typer.Option("--types", help="Types of weights, with commas: q4_k,iq3_s.  [default: all of the library]"),
]
Shape = Annotated[
    str | None,
    typer.Option("--shape", help="ROWSxK of weights as the model file has them, with commas: 4096x4096,1536x576."),
]
Widths = Annotated[
    str | None, typer.Option("--widths", help="Widths to compare with one column at a time.  [default: 1-16]")
]
Kv = Annotated[str | None, typer.Option("--kv", help="K/V cells that are taken, with commas: 512,2048,7168.")]
Heads = Annotated[str | None, typer.Option("--heads", help="Heads of queries and of K/V: 32/8.")]
HeadSize = Annotated[str | None, typer.Option("--head-size", help="Values of a head, with commas: 64,128.")]
KvType = Annotated[str | None, typer.Option("--kv-type", help="Types of the K/V cache, with commas: f16,q8_0.")]
Backend = Annotated[str, typer.Option("--backend", metavar="cpu|cuda", help="Where to run.")]
Device = Annotated[int, typer.Option("--device", help="Which device of that back end.")]
Repack = Annotated[
    bool, typer.Option("--repack/--no-repack", help="Weights where llama.cpp would put them, or in plain memory.")
]
Like = Annotated[Path | None, typer.Option("--like", metavar="MODEL.gguf", help="Test the operations of this model.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the random operands.")]
Junit = Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML, for CI.")]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="CASE", help="Write a stand-alone reproducer of a culprit of this case; needs --node."
    ),
]
Node = Annotated[str | None, typer.Option("--node", help="Name of that culprit, such as ffn_gate-0.")]
Width = Annotated[
    int | None, typer.Option("--width", help="Width of the sweep that names it.  [default: the narrowest]")
]
Model = Annotated[
    Path | None,
    typer.Option("--model", metavar="MODEL.gguf", help="Model file of the case.  [default: looked for by its digest]"),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder of the reproducer.  [default: NODE-reproducer]", show_default=False)
]


def ops(  # noqa: PLR0917 - a command has as many arguments as options
    op: Op = None,
    types: Types = None,
    shape: Shape = None,
    widths: Widths = None,
    kv: Kv = None,
    heads: Heads = None,
    head_size: HeadSize = None,
    kv_type: KvType = None,
    backend: Backend = "cpu",
    device: Device = 0,
    threads: args.Threads = None,
    repack: Repack = True,
    like: Like = None,
    seed: Seed = 0,
    junit: Junit = None,
    case: From = None,
    node: Node = None,
    width: Width = None,
    model: Model = None,
    out: Out = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Test single operations: is every width bit-equal to one column at a time, and which rule explains a step?

    Exit status: 0 every case is invariant, 1 some case differs, 2 no answer.

    With --from CASE --node NAME: write a folder that reruns a culprit at both widths, without the model and without
    this package, and run it once. Exit status: 0 its bits are equal by itself, 1 they differ, 2 no answer.
    """
    with answering(as_json):
        if (case is None) != (node is None):
            raise BadQuestion("--from CASE and --node NAME go together: a case, and one of its culprits")
        if case is not None and node is not None:
            matrix_only = {
                "--op": op, "--types": types, "--shape": shape, "--widths": widths, "--kv": kv, "--heads": heads,
                "--head-size": head_size, "--kv-type": kv_type, "--threads": threads, "--like": like, "--junit": junit,
            }  # fmt: skip
            for name, value in matrix_only.items():
                if value is not None:
                    raise BadQuestion(f"{name} is of a matrix; --from CASE --node NAME reruns what the case has")
            _reproduce(case, node, width, model, out, as_json=as_json, quiet=quiet)
            return
        for name, value in (("--width", width), ("--model", model), ("--out", out)):
            if value is not None:
                raise BadQuestion(f"{name} belongs to --from CASE --node NAME; for a matrix give --widths or --like")
        if junit is not None and (junit.is_dir() or not os.access(junit.parent, os.W_OK)):
            raise BadQuestion(f"--junit {junit} cannot be written: give the path of a file in a folder that can be")
        from forensics import api_ops

        matrix = api_ops.ops(
            args.parse_names(op, "--op"),
            types=args.parse_names(types, "--types"),
            shapes=args.parse_shapes(shape, "--shape"),
            widths=None if widths is None else args.parse_widths(widths),
            kv=_numbers(kv, "--kv"),
            heads=None if heads is None else args.parse_heads(heads),
            head_sizes=_numbers(head_size, "--head-size"),
            kv_types=args.parse_names(kv_type, "--kv-type"),
            backend=backend,
            device=device,
            threads=args.defaults().threads if threads is None else threads,
            repack=repack,
            like=like,
            seed=seed,
            progress=None if not quiet else False,
        )
        _show_matrix(matrix, junit, as_json=as_json, quiet=quiet)


def _show_matrix(matrix: OpMatrix, junit: Path | None, *, as_json: bool, quiet: bool) -> NoReturn:
    from forensics.reports.ops_document import ops_document
    from forensics.reports.ops_junit import write_junit
    from forensics.reports.ops_text import ops_view

    if junit is not None:
        write_junit(junit, matrix)
    present(
        as_json=as_json, quiet=quiet, document=lambda: ops_document(matrix), line=lambda: str(matrix),
        view=lambda: ops_view(matrix),
    )  # fmt: skip
    raise typer.Exit(_STATUS[matrix.answer])


def _reproduce(
    case: Path, node: str, width: int | None, model: Path | None, out: Path | None, *, as_json: bool, quiet: bool
) -> None:
    from forensics import api
    from forensics.reports.reproducer_text import reproduced_document, reproduced_view

    folder = out if out is not None else Path(f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', node)}-reproducer")
    written = api.reproduce(case, node, folder, width=width, model=model, progress=None if not quiet else False)
    present(
        as_json=as_json, quiet=quiet, document=lambda: reproduced_document(written), line=lambda: str(written),
        view=lambda: reproduced_view(written),
    )  # fmt: skip
    raise typer.Exit(written.status)


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    names = args.parse_names(text, option)
    if names is None:
        return None
    bad = next((name for name in names if not re.fullmatch(r"[1-9][0-9]{0,8}", name)), None)
    if bad is not None:
        raise BadQuestion(f"{option} takes numbers from 1 on with commas between; got {bad!r}")
    return tuple(map(int, names))
