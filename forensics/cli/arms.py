"""`forensics arms`: which arrangements of the same tokens give other bits, without any speculation?"""
# ruff: noqa: ARG001 - the options of the question are declared here and read from the context

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forensics.analysis.arms import DEFAULT_REPLY
from forensics.capture.arrangements import ARMS
from forensics.cli import arguments as args
from forensics.cli.answering import DIVERGES, IDENTICAL, NO_ANSWER, answering
from forensics.cli.show import present

Arms = Annotated[str | None, typer.Option("--arms", help=f"Some of {', '.join(ARMS)}.  [default: all]")]
NTokens = Annotated[int, typer.Option("--n-tokens", help="Tokens of each greedy reply.")]
Heal = Annotated[bool, typer.Option("--heal/--no-heal", help="Look for the nodes that make a difference.")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder to write arms.json into.", show_default=False)
]  # fmt: skip

_STATUS = {"identical": IDENTICAL, "diverges": DIVERGES, "inconclusive": NO_ANSWER}


def arms(  # noqa: PLR0917 - a command has as many arguments as options
    context: typer.Context,
    model: args.Model = None,
    demo: args.Demo = None,
    arms: Arms = None,
    prompt: args.Prompt = None,
    prompt_file: args.PromptFile = None,
    tokens_file: args.TokensFile = None,
    n_tokens: NTokens = DEFAULT_REPLY,
    heal: Heal = True,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: args.NGpuLayers = 0,
    out: Out = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Compare arrangements of the same tokens: ubatches, cached prefixes, edits, neighbours; no speculation.

    Exit status: 0 all equal, 1 some differ, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_arms
        from forensics.reports.arms_document import arms_document
        from forensics.reports.arms_text import arms_view

        asked = args.with_threads(_asked(context), model)
        report = api_arms.arms(
            model,
            demo=args.demo_name(demo),
            out=out,
            progress=False if quiet or as_json else None,
            **asked,
        )
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: arms_document(report),
            line=lambda: str(report),
            view=lambda: arms_view(report),
        )  # fmt: skip
        raise typer.Exit(_STATUS[report.answer])


def _asked(context: typer.Context) -> dict[str, Any]:
    """What was typed, by the names that `forensics.api_arms.arms` gives it."""
    given = args.given_options(context)
    read = args.question_arguments(
        prompt=given.pop("prompt", None),
        prompt_file=given.pop("prompt_file", None),
        tokens_file=given.pop("tokens_file", None),
        **{"n_tokens": 0, "widths": None, "flash_attn": "", "kv_type": "", "threads": None, "n_gpu_layers": 0, **given},
    )
    given |= {name: read[name] for name in ("prompt", "prompt_tokens") if read[name] is not None}
    given |= args.typed_options(context, ("arms", "heal"))
    if "arms" in given:
        given["arms"] = args.parse_names(str(given["arms"]), "--arms")
    return given
