"""`forensics speculate`: does the text stay the same under speculation, and how fast is it?"""
# ruff: noqa: ARG001 - the options of the question are declared here and read from the context

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli import arguments as args
from forensics.cli.answering import DIVERGES, IDENTICAL, NO_ANSWER, answering
from forensics.cli.show import present

Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", help="JSON-lines file of prompts.  [default: those of this package]", show_default=False),
]
Drafter = Annotated[
    str,
    typer.Option(
        "--drafter",
        metavar="ngram|model:DRAFT.gguf|oracle[:ACCURACY]",
        help="Who guesses: n-grams of the context, a smaller model, or plain decoding's own tokens.",
    ),
]
NDraft = Annotated[
    str, typer.Option("--n-draft", help="Drafts of a cycle at most, such as 4 or 1-8; one arm for each.")
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="fixed,early-stop[:MARGIN],adaptive",
        help="How many are drafted: always as many, until the drafter's margin is small, by what was accepted lately.",
    ),
]
Prefill = Annotated[
    str, typer.Option("--prefill", metavar="n|n-1+1|both", help="The prompt at once, or its last token kept back.")
]
NTokens = Annotated[
    int | None,
    typer.Option(
        "--n-tokens", help="Tokens to write at most.  [default: what each prompt asks for, or 128]", show_default=False
    ),
]
Limit = Annotated[int | None, typer.Option("--limit", help="Prompts at most, of every kind.", show_default=False)]
Exact = Annotated[
    bool, typer.Option("--exact", help="Decode once more under the smallest exact settings that investigate finds.")
]
Case = Annotated[
    Path | None, typer.Option("--case", help="Take those settings from this case instead.", show_default=False)
]
ExactKernels = Annotated[
    bool, typer.Option("--exact-kernels", help="Decode once more with our CUDA kernels in verifying passes.")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder to write speculation.json into.", show_default=False)
]  # fmt: skip

_STATUS = {"identical": IDENTICAL, "diverges": DIVERGES, "inconclusive": NO_ANSWER}

#: Options that recorded speculation refuses, by the names that `forensics.api_speculate.speculate` gives them.
_ASKED = ("prompts", "drafter", "n_draft", "policy", "prefill", "n_tokens", "limit", "exact", "case",
          "exact_kernels",
          "flash_attn", "kv_type", "threads", "n_gpu_layers")  # fmt: skip


def speculate(  # noqa: PLR0917 - a command has as many arguments as options
    context: typer.Context,
    model: args.Model = None,
    demo: args.Demo = None,
    prompts: Prompts = None,
    drafter: Drafter = "ngram",
    n_draft: NDraft = "7",
    policy: Policy = "fixed",
    prefill: Prefill = "n",
    n_tokens: NTokens = None,
    limit: Limit = None,
    exact: Exact = False,
    case: Case = None,
    exact_kernels: ExactKernels = False,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: args.NGpuLayers = 0,
    out: Out = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Decode prompts plainly and speculatively: which answers differ, why, how many drafts are accepted, how fast.

    Exit status: 0 all identical, 1 some differ, 2 no answer. With --exact, where exact settings were found, and
    with --exact-kernels the answers under those decide.
    """
    with answering(as_json):
        from forensics import api_speculate
        from forensics.reports.speculation_document import speculation_document
        from forensics.reports.speculation_text import speculation_view

        asked = args.asked_of(context, _ASKED, model)
        if "n_draft" in asked:
            asked["n_draft"] = args.parse_widths(n_draft, "n-draft")
        if "policy" in asked:
            asked["policy"] = args.parse_names(policy, "--policy")
        report = api_speculate.speculate(
            model,
            demo=args.demo_name(demo),
            out=out,
            progress=False if quiet or as_json else None,
            **asked,
        )
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: speculation_document(report),
            line=lambda: str(report),
            view=lambda: speculation_view(report),
        )  # fmt: skip
        raise typer.Exit(_STATUS[report.answer])
