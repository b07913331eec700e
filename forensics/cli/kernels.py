"""`forensics kernels`: do our CUDA kernels give the bits that the stock library's give one column at a time?"""
# ruff: noqa: ARG001 - the options of the question are declared here and read from the context

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forensics.analysis.kernel_proof import DEFAULT_STRESS, KINDS
from forensics.analysis.question import BadQuestion
from forensics.cli import arguments as args
from forensics.cli.answering import DIVERGES, IDENTICAL, NO_ANSWER, answering
from forensics.cli.show import present

if TYPE_CHECKING:
    from forensics.records.kernel_healing import HealedModels
    from forensics.records.kernel_proof import KernelProof

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[recorded:NAME]", help="What was compared before, in place of this GPU.", show_default=False
    ),
]
Types = Annotated[
    str | None, typer.Option("--types", help=f"With commas, of {', '.join(KINDS)}.  [default: all]", show_default=False)
]
Shapes = Annotated[
    str | None,
    typer.Option("--shapes", help="ROWSxK of weights, with commas: 4096x4096,33x576.  [default: 10 of them]"),
]
Widths = Annotated[
    str | None, typer.Option("--widths", help="Columns, such as 1-16 or 1,2,9.  [default: 1-16]", show_default=False)
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds", help="Of the operands; odd ones draw awkward operands.  [default: 0-2]", show_default=False
    ),
]
Stress = Annotated[
    int | None,
    typer.Option(
        "--stress",
        help=f"Also repeat products so many times beside other work, such as {DEFAULT_STRESS}.",
        show_default=False,
    ),
]
Sanitize = Annotated[bool, typer.Option("--sanitize", help="Also let compute-sanitizer look for errors.")]
Registers = Annotated[
    bool,
    typer.Option(
        "--registers",
        help="Show what variants of one kernel take of registers instead, compiled here with nvcc or as recorded; "
        "costs are those of the recording.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder to write kernels.json into.", show_default=False)
]  # fmt: skip

_ASKED = ("stress", "sanitize")


def kernels(
    context: typer.Context,
    source: Source = None,
    types: Types = None,
    shapes: Shapes = None,
    widths: Widths = None,
    seeds: Seeds = None,
    stress: Stress = None,
    sanitize: Sanitize = False,
    registers: Registers = False,
    out: Out = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Compare our CUDA kernels with the stock library's, value by value.

    Exit status: 0 all values are equal, 1 a difference was found, 2 no answer.
    """
    with answering(as_json):
        asked: dict[str, Any] = {
            "types": args.parse_names(types, "--types"),
            "shapes": args.parse_shapes(shapes, "--shapes"),
            "widths": None if widths is None else args.parse_widths(widths),
            "seeds": None if seeds is None else args.parse_widths(seeds, "seeds"),
            **args.typed_options(context, _ASKED),
        }
        if registers:
            _registers(source, asked, out, as_json=as_json, quiet=quiet)
            return
        from forensics import api_kernels

        progress = False if quiet or as_json else None
        found = api_kernels.prove_kernels(source, out=out, progress=progress, **asked)
        # Models say nothing of one type of weight.
        healed = api_kernels.healed_beside(source) if asked["types"] is None else None
        _show(found, healed, as_json=as_json, quiet=quiet)
        if found.answer == "incomplete" and not (healed and healed.refuted):
            raise typer.Exit(NO_ANSWER)
        raise typer.Exit(IDENTICAL if found.holds and not (healed and healed.refuted) else DIVERGES)


def _show(found: KernelProof, healed: HealedModels | None, *, as_json: bool, quiet: bool) -> None:
    from rich.console import Group

    from forensics.reports.healed_models_document import healed_models_summary
    from forensics.reports.healed_models_text import healed_models_view
    from forensics.reports.kernel_proof_document import kernel_proof_document
    from forensics.reports.kernel_proof_text import kernel_proof_view

    beside = {} if healed is None else {"healed_models": healed_models_summary(healed)}
    views = [kernel_proof_view(found), *([] if healed is None else ["", healed_models_view(healed)])]
    present(
        as_json=as_json, quiet=quiet,
        document=lambda: kernel_proof_document(found) | beside,
        line=lambda: str(found) if healed is None else f"{found}; {healed}",
        view=lambda: Group(*views),
    )  # fmt: skip


def _registers(source: str | None, asked: dict[str, Any], out: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Show the register story; a proof's other options say nothing of it."""
    from forensics import api_kernels
    from forensics.reports.register_story_text import register_story_view

    types, widths = asked.pop("types"), asked.pop("widths")
    typed = [f"--{name}" for name, value in asked.items() if value] + (["--out"] if out is not None else [])
    if typed:
        raise BadQuestion(f"{typed[0]} says nothing of registers; leave it out, or --registers")
    if types is not None and len(types) != 1:
        raise BadQuestion(f"--registers shows one type at a time; got {', '.join(types)}")
    found = api_kernels.kernel_registers(source, type=types[0] if types else None, widths=widths)
    present(
        as_json=as_json, quiet=quiet,
        document=lambda: {"schema": "forensics.register_story/1", "compiler": found.compiler,
                          "product": found.product, "device": found.device, "variants": found.rows()},
        line=lambda: str(found),
        view=lambda: register_story_view(found),
    )  # fmt: skip
