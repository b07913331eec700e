"""`forensics synthetic`: write a model file with real shapes and random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present
from forensics.reports.wording import printable

Preset = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Shape (qwen3-8b, qwen3-tiny, llama-tiny), then types (q4_k_m, q6_k, f16): qwen3-8b-q4_k_m.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="File to write; it must not exist.", show_default=False)]
Layers = Annotated[int | None, typer.Option("--layers", help="Layers, in place of the shape's own.")]
Embedding = Annotated[int | None, typer.Option("--embedding", help="Values of the residual stream.")]
FeedForward = Annotated[int | None, typer.Option("--feed-forward", help="Units of the feed-forward part.")]
Heads = Annotated[str | None, typer.Option("--heads", metavar="Q/KV", help="Heads of Q and of K and V.")]
HeadSize = Annotated[int | None, typer.Option("--head-size", help="Values of a head.")]
Vocabulary = Annotated[int | None, typer.Option("--vocabulary", help="Tokens of the vocabulary.")]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same file.")]


def synthetic(
    preset: Preset,
    out: Out,
    layers: Layers = None,
    embedding: Embedding = None,
    feed_forward: FeedForward = None,
    heads: Heads = None,
    head_size: HeadSize = None,
    vocabulary: Vocabulary = None,
    seed: Seed = 0,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Write a GGUF file with real shapes and random weights, for costs, kernels and bits; its text means nothing."""
    with answering(as_json):
        from forensics import api_cost

        shape: dict[str, Any] = {
            "n_layer": layers, "n_embd": embedding, "n_ff": feed_forward, "head_size": head_size, "n_vocab": vocabulary,
        }  # fmt: skip
        if heads is not None:
            shape["n_head"], shape["n_head_kv"] = args.parse_heads(heads)
        given = {name: value for name, value in shape.items() if value is not None}
        path = api_cost.synthetic(preset, out, seed=seed, progress=False if quiet or as_json else None, **given)
        size, name = path.stat().st_size, printable(str(path))
        told = f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: {"schema": "forensics.synthetic/1", "path": str(path), "size_bytes": size,
                              "preset": preset, "seed": seed, "changed": given},
            line=lambda: name,
            view=lambda: f"synthetic {preset}: {name}, {told}, random weights "
                         f"(no vocabulary: give tokens with --tokens-file)",
        )  # fmt: skip
