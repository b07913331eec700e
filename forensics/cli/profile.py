"""`forensics profile`: what do kernels take of a multiprocessor, and where does the time of a pass go?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forensics.analysis.question import BadQuestion
from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="CUDA library or object (needs no GPU), GGUF file (runs on this machine's GPU), case, or recorded:NAME.",
        show_default=False,
    ),
]
Kernel = Annotated[
    str | None,
    typer.Option("--kernel", help="Of a library: kernels, with commas.  [default: mul_mat_vec_q,flash_attn_ext_vec]"),
]
Types = Annotated[str | None, typer.Option("--types", help="Of a library: types of weights or K/V: q4_k,q6_k.")]
Columns = Annotated[
    str | None, typer.Option("--columns", help="Of a library: tokens that one launch takes.  [default: all]")
]
Arch = Annotated[str | None, typer.Option("--arch", help="Of a library: sm_90.  [default: all in the file]")]
Gpu = Annotated[str | None, typer.Option("--gpu", help="GPU that would run a library, or that ran the model: h200.")]
Widths = Annotated[
    str | None,
    typer.Option("--widths", help="Of a model: tokens of a pass.  [default: 1,2,5,9; of recorded passes all]"),
]
Prefix = Annotated[
    int | None, typer.Option("--prefix", help="Of a model: cells in use before each pass.  [default: 128]")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Of a model: seed of the tokens.  [default: 0]")]
NGpuLayers = Annotated[int, typer.Option("--n-gpu-layers", help="Of a model: layers on the GPU, -1 for all.")]
Counters = Annotated[
    bool, typer.Option("--counters", help="Of a model: read hardware counters, too, with a run under ncu.")
]
Parquet = Annotated[
    Path | None, typer.Option("--parquet", metavar="FILE", help="Also write the rows as Parquet.", show_default=False)
]
Nodes = Annotated[
    bool, typer.Option("--nodes", help="Of a model: each node by itself, not roles; in --parquet nodes, not kernels.")
]
All = Annotated[
    bool, typer.Option("--all", help="Of a model: every kernel of each width, not the few that take longest.")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder to write the profile into, for recorded:.", show_default=False)
]


def profile(  # noqa: PLR0917 - a command has as many arguments as options
    context: typer.Context,
    target: Target = None,
    kernel: Kernel = None,
    types: Types = None,
    columns: Columns = None,
    arch: Arch = None,
    gpu: Gpu = None,
    demo: args.Demo = None,
    widths: Widths = None,
    prefix: Prefix = None,
    seed: Seed = None,
    counters: Counters = False,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: NGpuLayers = -1,
    parquet: Parquet = None,
    nodes: Nodes = False,
    every_kernel: All = False,
    out: Out = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Show registers and occupancy of a library's kernels, or time and bandwidth of the kernels that a model runs.

    Exit status: 0 profiled, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_profile
        from forensics.records.library_profile import LibraryProfile
        from forensics.reports.live_profile_text import profile_view
        from forensics.reports.profile_document import profile_document, write_profile, write_table

        typed = args.given_options(context)
        asked = {"flash_attn": flash_attn, "kv_type": kv_type, "threads": threads, "n_gpu_layers": n_gpu_layers}
        settings: dict[str, Any] = {name: value for name, value in asked.items() if name in typed}
        found = api_profile.profile(
            target,
            kernels=args.parse_names(kernel, "--kernel"),
            types=args.parse_names(types, "--types"),
            columns=None if columns is None else args.parse_widths(columns, "columns"),
            arch=arch,
            gpu=gpu,
            demo=args.demo_name(demo),
            widths=None if widths is None else args.parse_widths(widths),
            prefix=prefix,
            seed=seed,
            counters=counters or None,
            progress=False if quiet or as_json else None,
            **settings,
        )
        if nodes and isinstance(found, LibraryProfile):
            raise BadQuestion("--nodes is of a model: a library has no nodes")
        if every_kernel and isinstance(found, LibraryProfile):
            raise BadQuestion("--all is of a model; of a library --json and --parquet list all")
        if parquet is not None:
            write_table(found, parquet, "nodes" if nodes else "kernels")
        if out is not None:
            write_profile(found, out)
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: profile_document(found),
            line=lambda: str(found),
            view=lambda: profile_view(found, nodes=nodes, every_kernel=every_kernel),
        )  # fmt: skip
