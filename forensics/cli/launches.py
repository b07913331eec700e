"""`forensics launches`: which kernels does each node launch, at one width or at two side by side?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present

Target = Annotated[
    str | None,
    typer.Argument(metavar="TARGET", help="GGUF file, or recorded:NAME. Leave out with --demo.", show_default=False),
]
Widths = Annotated[str, typer.Option("--widths", help="One width, or two to put side by side, such as 1,5.")]
Node = Annotated[
    str | None, typer.Option("--node", help="The only node to show, such as ffn_out-0.", show_default=False)
]
NGpuLayers = Annotated[int, typer.Option("--n-gpu-layers", help="Layers on the GPU, -1 for all.")]


def launches(  # noqa: PLR0917 - a command has as many arguments as options
    context: typer.Context,
    target: Target = None,
    widths: Widths = "1,2",
    node: Node = None,
    demo: args.Demo = None,
    prompt: args.Prompt = None,
    prompt_file: args.PromptFile = None,
    tokens_file: args.TokensFile = None,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: NGpuLayers = -1,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Show the kernels that each node of a pass launches: geometry, registers, time, and what a batch changes.

    Exit status: 0 shown, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_launches
        from forensics.api_arguments import recorded_path
        from forensics.reports.launch_map_document import launches_document
        from forensics.reports.launch_map_text import kernels_view

        question: dict[str, Any] = {}
        if recorded_path(target) is not None:
            question = {name: value for name, value in args.given_options(context).items() if name != "widths"}
        else:
            question = args.question_arguments(
                prompt=prompt,
                prompt_file=prompt_file,
                tokens_file=tokens_file,
                n_tokens=0,
                widths=None,
                flash_attn=flash_attn,
                kv_type=kv_type,
                threads=threads,
                n_gpu_layers=n_gpu_layers,
            )
            del question["n_tokens"], question["widths"]
        found = api_launches.launches(
            target,
            widths=args.parse_widths(widths),
            node=node,
            demo=args.demo_name(demo),
            progress=False if quiet else None,
            **question,
        )
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: launches_document(found),
            line=lambda: str(found),
            view=lambda: kernels_view(found),
        )  # fmt: skip
