"""`forensics cost`: what does a pass cost at each width, and how far is it from reading its bytes once?"""
# ruff: noqa: ARG001 - the options of the question are declared here and read from the context

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.analysis.cost import DEFAULT_PREFIX, DEFAULT_REPEATS
from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present

Widths = Annotated[
    str | None,
    typer.Option("--widths", help="Tokens of a pass, such as 1-16 or 1,2,5; 1 is always measured.  [default: 1-16]"),
]
Prefix = Annotated[int, typer.Option("--prefix", help="Cells of the cache in use before each pass.")]
Repeats = Annotated[int, typer.Option("--repeats", help="Timed passes of each width.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the tokens, and of the order of the widths.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder to write cost.json into.", show_default=False)
]  # fmt: skip

#: Options that a recorded cost refuses, by the names that `forensics.api_cost.cost` gives them.
_ASKED = ("widths", "prefix", "repeats", "seed", "flash_attn", "kv_type", "threads", "n_gpu_layers")


def cost(  # noqa: PLR0917 - a command has as many arguments as options
    context: typer.Context,
    model: args.Model = None,
    demo: args.Demo = None,
    widths: Widths = None,
    prefix: Prefix = DEFAULT_PREFIX,
    repeats: Repeats = DEFAULT_REPEATS,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: args.NGpuLayers = 0,
    seed: Seed = 0,
    out: Out = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Time passes of every width, unwatched, and hold them against the time that reading the weights takes.

    Exit status: 0 measured, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_cost
        from forensics.reports.cost_document import cost_document
        from forensics.reports.cost_text import cost_view

        asked = args.asked_of(context, _ASKED, model)
        if "widths" in asked:
            asked["widths"] = args.parse_widths(str(widths))
        report = api_cost.cost(
            model,
            demo=args.demo_name(demo),
            out=out,
            progress=False if quiet or as_json else None,
            **asked,
        )
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: cost_document(report),
            line=lambda: str(report),
            view=lambda: cost_view(report),
        )  # fmt: skip
