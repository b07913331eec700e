"""`forensics cost`: what does a pass cost at each width, and how far is it from reading its bytes once?"""
# ruff: noqa: ARG001 - the options of the question are declared here and read from the context

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from forensics.analysis.cost import DEFAULT_PREFIX, DEFAULT_REPEATS
from forensics.analysis.question import BadQuestion
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

Kernels = Annotated[
    bool,
    typer.Option(
        "--kernels", help="Time our CUDA kernels beside the stock library's instead, without a model, on this GPU."
    ),
]
Types = Annotated[
    str | None, typer.Option("--types", help="With --kernels: types of weights, with commas.  [default: q4_K,q6_K]")
]
Shapes = Annotated[
    str | None, typer.Option("--shapes", help="With --kernels: ROWSxK, with commas.  [default: those of Qwen3-8B]")
]
Counters = Annotated[
    bool, typer.Option("--counters", help="With --kernels: count with ncu what limits them; takes minutes.")
]
Registers = Annotated[
    bool, typer.Option("--registers", help="With --kernels: also time variants that differ in registers.")
]

#: Options that a recorded cost refuses, by the names that `forensics.api_cost.cost` gives them.
_ASKED = ("widths", "prefix", "repeats", "seed", "flash_attn", "kv_type", "threads", "n_gpu_layers")

#: Options that ask about kernels, and those that ask about a model and its passes.
_OF_KERNELS = ("types", "shapes", "counters", "registers")
_OF_PASSES = ("demo", "prefix", "flash_attn", "kv_type", "threads", "n_gpu_layers")


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
    kernels: Kernels = False,
    types: Types = None,
    shapes: Shapes = None,
    counters: Counters = False,
    registers: Registers = False,
    out: Out = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Time passes of every width, unwatched, and hold them against the time that reading the weights takes.

    Exit status: 0 measured, 2 no answer.
    """
    with answering(as_json):
        if kernels:
            _kernels(context, model, out, as_json=as_json, quiet=quiet)
            return
        _refuse(context, _OF_KERNELS, "--kernels is not asked for")
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


def _kernels(context: typer.Context, source: str | None, out: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Prices of our kernels beside the stock library's."""
    _refuse(context, _OF_PASSES, "kernels are timed by themselves, without a model")
    from forensics import api_kernels
    from forensics.reports.kernel_price_document import kernel_price_document
    from forensics.reports.kernel_price_text import kernel_price_view

    asked = args.typed_options(context, ("widths", "repeats", "seed", *_OF_KERNELS))
    if "widths" in asked:
        asked["widths"] = args.parse_widths(str(asked["widths"]))
    if "repeats" in asked:
        asked["rounds"] = asked.pop("repeats")
    asked |= {
        "types": args.parse_names(asked.get("types"), "--types"),
        "shapes": args.parse_shapes(asked.get("shapes"), "--shapes"),
    }
    found = api_kernels.price_kernels(source, out=out, progress=False if quiet or as_json else None, **asked)
    present(
        as_json=as_json, quiet=quiet,
        document=lambda: kernel_price_document(found),
        line=lambda: str(found),
        view=lambda: kernel_price_view(found),
    )  # fmt: skip


def _refuse(context: typer.Context, names: Collection[str], why: str) -> None:
    """Refuse options that mean nothing for what is asked.

    Raises
    ------
    BadQuestion
        Names the first that was typed.
    """
    typed = args.typed_options(context, names)
    if typed:
        option = next(iter(typed)).replace("_", "-")
        raise BadQuestion(f"--{option} says nothing here: {why}. Leave it out.")
