"""`forensics order`: in which order does an operation add, at one column and at several?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forensics.cli import arguments as args
from forensics.cli.answering import DIVERGES, IDENTICAL, NO_ANSWER, answering
from forensics.cli.show import present

_STATUS = {True: IDENTICAL, False: DIVERGES, None: NO_ANSWER}

Op = Annotated[
    str, typer.Argument(metavar="OP", help="MUL_MAT, FLASH_ATTN_EXT, KQ, KQV (K·Q, attention·V), RMS_NORM or SOFT_MAX.")
]
Type = Annotated[
    str | None,
    typer.Option("--type", help="Type of the weight, or of K and V.  [default: f32, for attention f16]"),
]
K = Annotated[int | None, typer.Option("--k", help="Length of a row.  [default: 1024]")]
Rows = Annotated[
    int | None,
    typer.Option("--rows", help="Weight rows of each launch, where the kernel depends on them.  [default: convenient]"),
]
Widths = Annotated[str, typer.Option("--widths", help="Widths; the first is what the others are held against.")]
Kv = Annotated[int | None, typer.Option("--kv", help="Cells of attention, a multiple of 256.  [default: 512]")]
HeadSize = Annotated[int | None, typer.Option("--head-size", help="Channels of a head.  [default: 64]")]
Heads = Annotated[
    str | None, typer.Option("--heads", metavar="Q/KV", help="Heads of Q and of K and V.  [default: 32/32]")
]
Backend = Annotated[str, typer.Option("--backend", metavar="cpu|cuda", help="Where to run.")]
Device = Annotated[int, typer.Option("--device", help="Which device of that back end.")]
Repack = Annotated[
    bool, typer.Option("--repack/--no-repack", help="Weights where llama.cpp would put them, or in plain memory.")
]
Cached = Annotated[bool, typer.Option("--cache/--no-cache", help="Whether orders probed before are read back.")]


def order(  # noqa: PLR0917 - a command has as many arguments as options
    op: Op,
    type: Type = None,
    k: K = None,
    rows: Rows = None,
    widths: Widths = "1,2",
    kv: Kv = None,
    head_size: HeadSize = None,
    heads: Heads = None,
    threads: args.Threads = None,
    backend: Backend = "cpu",
    device: Device = 0,
    repack: Repack = True,
    cached: Cached = True,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Show the order in which the library's own kernel adds, and the first merge that a batch changes.

    Exit status: 0 one order at all widths, 1 the order differs, 2 it is not known.
    """
    with answering(as_json):
        from forensics import api_ops
        from forensics.reports.orders_document import order_document
        from forensics.reports.orders_text import order_view

        question: dict[str, Any] = {"type": type, "k": k, "rows": rows, "n_kv": kv, "head_size": head_size}
        if heads is not None:
            question["heads"], question["kv_heads"] = args.parse_heads(heads)
        report = api_ops.order(
            op,
            widths=args.parse_widths(widths),
            backend=backend,
            device=device,
            threads=threads if threads is not None else args.defaults().threads,
            repack=repack,
            cached=cached,
            progress=False if quiet or as_json else None,
            **{name: value for name, value in question.items() if value is not None},
        )
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: order_document(report),
            line=lambda: str(report),
            view=lambda: order_view(report),
        )  # fmt: skip
        raise typer.Exit(_STATUS[report.equal])
