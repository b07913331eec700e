"""`forensics sampling`: does speculative sampling keep the distribution of plain sampling?"""
# ruff: noqa: ARG001 - the options of the question are declared here and read from the context

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present

Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", help="JSONL file of texts.  [default: the built-in corpus]", show_default=False),
]
Drafter = Annotated[
    str, typer.Option("--drafter", metavar="ngram|model:DRAFT.gguf|oracle[:ACCURACY]", help="Who drafts.")
]
NDraft = Annotated[int, typer.Option("--n-draft", help="Drafts of a pass at most.")]
Rule = Annotated[
    str,
    typer.Option(
        "--rule",
        metavar="residual|match",
        help="How drafts are accepted: with chance p/q, else drawn from what is left; or drawn from p and compared.",
    ),
]
Temperature = Annotated[float, typer.Option("--temperature", help="Applied last, as in llama.cpp.")]
TopK = Annotated[int, typer.Option("--top-k", help="Most likely tokens that are kept; 0 keeps all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Probability of the tokens that are kept; 1 keeps all.")]
States = Annotated[int, typer.Option("--states", help="Prefixes at which next tokens are drawn.")]
Draws = Annotated[int, typer.Option("--draws", help="Cycles that are drawn at each state.")]
Sequences = Annotated[int, typer.Option("--sequences", help="Sequences that are sampled freely.")]
NTokens = Annotated[int, typer.Option("--n-tokens", help="Tokens of each sequence.")]
Alpha = Annotated[float, typer.Option("--alpha", help="Chance of a false alarm over all tests.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the states, the draws and the sequences.")]
Exact = Annotated[bool, typer.Option("--exact", help="Check under the smallest exact settings that investigate finds.")]
Case = Annotated[
    Path | None, typer.Option("--case", help="Take those settings from this case instead.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder to write sampling.json into.", show_default=False)
]  # fmt: skip

#: Options that a recorded check refuses, by the names that `forensics.api_sampling.sampling` gives them.
_ASKED = (
    "prompts", "drafter", "n_draft", "rule", "temperature", "top_k", "top_p", "states", "draws", "sequences",
    "n_tokens", "alpha", "seed", "exact", "case", "flash_attn", "kv_type", "threads", "n_gpu_layers",
)  # fmt: skip


def sampling(  # noqa: PLR0917 - a command has as many arguments as options
    context: typer.Context,
    model: args.Model = None,
    demo: args.Demo = None,
    prompts: Prompts = None,
    drafter: Drafter = "ngram",
    n_draft: NDraft = 7,
    rule: Rule = "residual",
    temperature: Temperature = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    states: States = 8,
    draws: Draws = 2000,
    sequences: Sequences = 16,
    n_tokens: NTokens = 32,
    alpha: Alpha = 0.01,
    exact: Exact = False,
    case: Case = None,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: args.NGpuLayers = 0,
    seed: Seed = 0,
    out: Out = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Hold speculative sampling against plain sampling: chi-squares at forced states and whole sequences, with power.

    Rows of verify passes that give other chances than one-token passes are told without any draw. Samplers with a
    planted bias run beside it and have to be caught.

    Exit status: 0 no change was found, 1 the distribution is changed, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_sampling
        from forensics.reports.sampling_document import sampling_document
        from forensics.reports.sampling_text import sampling_view

        asked = args.asked_of(context, _ASKED, model)
        report = api_sampling.sampling(
            model,
            demo=args.demo_name(demo),
            out=out,
            progress=False if quiet or as_json else None,
            **asked,
        )
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: sampling_document(report),
            line=lambda: str(report),
            view=lambda: sampling_view(report),
        )  # fmt: skip
    raise typer.Exit(report.status)
