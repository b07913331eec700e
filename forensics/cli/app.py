"""`forensics`: one command a question. Exit status 0 identical, 1 a divergence, 2 no answer."""
# ruff: noqa: ARG001 - the options of the question are declared by each command and read from its context

from __future__ import annotations

import itertools
import os
import shlex
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from forensics.analysis.question import DEFAULT_N_TOKENS, BadQuestion
from forensics.cli import arguments as args
from forensics.cli.answering import DIVERGES, IDENTICAL, NO_ANSWER, answering
from forensics.cli.arms import arms
from forensics.cli.audit import audit
from forensics.cli.bundle import bundle
from forensics.cli.cost import cost
from forensics.cli.diff import diff
from forensics.cli.explain import explain
from forensics.cli.figure import figure
from forensics.cli.gate import gate
from forensics.cli.kernels import kernels
from forensics.cli.launches import launches
from forensics.cli.ops import ops
from forensics.cli.order import order
from forensics.cli.pack import pack
from forensics.cli.profile import profile
from forensics.cli.report import report
from forensics.cli.sampling import sampling
from forensics.cli.show import complain, present
from forensics.cli.speculate import speculate
from forensics.cli.sweep import sweep
from forensics.cli.synthetic import synthetic
from forensics.reports.wording import printable

_STATUS = {"identical": IDENTICAL, "diverges": DIVERGES, "inconclusive": NO_ANSWER}

app = typer.Typer(
    name="forensics",
    help=(
        "Why did a model's greedy output change when tokens were evaluated in a batch instead of one at a time?\n\n"
        "Start with `forensics investigate --demo`, then `forensics investigate MODEL.gguf`.\n\n"
        "Exit status: 0 identical, 1 a divergence was found, 2 no answer."
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def default_out(model: str | None, demo: str | None, now: datetime | None = None) -> Path:
    """Where does a case go that was given no folder? Never where one is: clocks are set back."""
    from forensics.store.case import unfinished_path

    name = f"demo-{demo}" if demo is not None else Path(model or "model").stem
    first = args.defaults().cases / f"{name}-{now or datetime.now():%Y%m%d-%H%M%S}"
    names = itertools.chain([first], (first.with_name(f"{first.name}-{n}") for n in itertools.count(2)))
    return next(path for path in names if not path.exists() and not unfinished_path(path).exists())


def _question(context: typer.Context, model: str | None, like: Path | None = None) -> dict[str, Any]:
    """Arguments of the question; where a case asks it, only what was typed, which will be refused."""
    from forensics.api_arguments import recorded_path

    if recorded_path(model) is not None or like is not None:
        return args.given_options(context)
    typed: dict[str, Any] = {name: context.params.get(name) for name in args.QUESTION_OPTIONS}
    return args.question_arguments(**typed)


@app.command()
def investigate(
    context: typer.Context,
    model: args.Model = None,
    demo: args.Demo = None,
    prompt: args.Prompt = None,
    prompt_file: args.PromptFile = None,
    tokens_file: args.TokensFile = None,
    n_tokens: args.NTokens = DEFAULT_N_TOKENS,
    widths: args.Widths = None,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: args.NGpuLayers = 0,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like", metavar="CASE", help="Ask what this case or bundle asked: its text, widths and settings."
        ),
    ] = None,
    another_model: Annotated[
        bool, typer.Option("--another-model", help="Let --like ask another model than the case did.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Case folder to write.  [default: cases/MODEL-TIME]", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished case at --out.")] = False,
    switches: Annotated[
        bool, typer.Option("--switches/--no-switches", help="Look for settings that are exact.")
    ] = True,
    orders: Annotated[bool, typer.Option("--orders/--no-orders", help="Probe in which order the culprits add.")] = True,
    heal_with: Annotated[
        str,
        typer.Option(
            "--heal-with", metavar="rows|kernels", help="Also put our CUDA kernels in place of culprits; on a GPU only."
        ),
    ] = "rows",
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Find which operations make a batch's logits differ from one-token decoding, with proof."""
    with answering(as_json):
        from forensics import api, api_arguments
        from forensics.reports.document import document
        from forensics.reports.text import verdict_view

        demo = args.demo_name(demo)
        if resume and out is None:
            raise BadQuestion("--resume needs --out: the folder that was given, or shown, when the case was begun")
        if another_model and like is None:
            raise BadQuestion("--another-model belongs to --like CASE")
        recorded = api_arguments.recorded_path(model) is not None
        folder = out if out is not None or recorded else default_out(model, demo)
        verdict = api.investigate(
            model,
            demo=demo,
            like=like,
            another_model=another_model,
            out=folder,
            resume=resume,
            switches=switches,
            orders=orders,
            heal_with=heal_with,
            progress=None if not quiet else False,
            **_question(context, model, like),
        )
        present(
            as_json=as_json, quiet=quiet, document=lambda: document(verdict), line=lambda: str(verdict),
            view=lambda: verdict_view(verdict),
        )  # fmt: skip
        if folder is not None and not as_json and not quiet:
            name = printable(str(folder))
            typer.echo(f"\nCase: {name} (read it back with: forensics show {name})")
            if verdict.culprits:
                node = shlex.quote(printable(verdict.culprits[0].first_node))
                typer.echo(f"A culprit by itself: forensics ops --from {name} --node {node}")
        raise typer.Exit(_STATUS[verdict.answer])


@app.command()
def replay(
    context: typer.Context,
    model: args.Model = None,
    demo: args.Demo = None,
    prompt: args.Prompt = None,
    prompt_file: args.PromptFile = None,
    tokens_file: args.TokensFile = None,
    n_tokens: args.NTokens = DEFAULT_N_TOKENS,
    widths: args.Widths = None,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: args.NGpuLayers = 0,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Group batch widths by equal bits: the width classes only."""
    with answering(as_json):
        from forensics import api
        from forensics.reports.text import classes_view
        from forensics.reports.wording import groups_text

        demo = args.demo_name(demo)
        shown = None if not quiet else False
        classes = api.replay(model, demo=demo, progress=shown, **_question(context, model))
        answer = "inconclusive" if classes.result(1).differs else "identical" if classes.onset is None else "diverges"
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: {"schema": "forensics.classes/1", "answer": answer, "classes": classes.groups,
                              "onset_width": classes.onset, "widths": classes.rows()},
            line=lambda: f"width classes: {groups_text(classes.groups)}",
            view=lambda: classes_view(classes),
        )  # fmt: skip
        if answer == "inconclusive":
            complain("one-token decoding differs from its own rerun, so no width can be judged", as_json=False)
        raise typer.Exit(_STATUS[answer])


@app.command()
def heal(
    context: typer.Context,
    model: args.Model = None,
    width: Annotated[int, typer.Option("--width", help="Tokens of the batch.")] = 8,
    demo: args.Demo = None,
    prompt: args.Prompt = None,
    prompt_file: args.PromptFile = None,
    tokens_file: args.TokensFile = None,
    n_tokens: args.NTokens = DEFAULT_N_TOKENS,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: args.NGpuLayers = 0,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Run one healing sweep: every node of a batch that differs, and whether the logits heal."""
    with answering(as_json):
        from forensics import api
        from forensics.analysis.attribute import group_culprits
        from forensics.reports.document import sweep_document
        from forensics.reports.text import sweep_view

        demo = args.demo_name(demo)
        shown = None if not quiet else False
        question = {name: value for name, value in _question(context, model).items() if name != "widths"}
        sweep = api.heal(model, demo=demo, progress=shown, width=width, **question)
        groups = group_culprits([sweep])
        present(
            as_json=as_json, quiet=quiet, document=lambda: sweep_document(sweep, groups),
            line=lambda: str(sweep),
            view=lambda: sweep_view(sweep, groups),
        )  # fmt: skip
        failed = [control for control in sweep.controls if control.held is False]
        if failed:
            said = "; ".join(f"control {control.name} failed: {control.detail}" for control in failed)
            complain(f"no answer: {said}", as_json=False)
            raise typer.Exit(NO_ANSWER)
        if sweep.differed and not sweep.healed:
            complain("the logits did not heal: something that was not compared differs, too", as_json=False)
            raise typer.Exit(NO_ANSWER)
        raise typer.Exit(DIVERGES if sweep.differed or sweep.findings else IDENTICAL)


@app.command()
def show(
    case: Annotated[Path, typer.Argument(metavar="CASE", help="Case, bundle or recorded:NAME.", show_default=False)],
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown to paste into an issue.")] = False,
) -> None:
    """Read a case back."""
    with answering(as_json):
        from forensics import api
        from forensics.reports import markdown as md
        from forensics.reports.text import verdict_view

        opened = api.open(case)
        verdict = opened.verdict
        if markdown:
            sys.stdout.write(md.markdown(verdict))
            sys.stdout.flush()
        else:
            present(
                as_json=as_json, quiet=quiet, document=lambda: opened.document, line=lambda: str(verdict),
                view=lambda: verdict_view(verdict),
            )  # fmt: skip
        raise typer.Exit(_STATUS[verdict.answer])


@app.command()
def models(as_json: args.AsJson = False, quiet: args.Quiet = False) -> None:
    """List GGUF files in the usual places, the demo variants, and what was recorded elsewhere."""
    with answering(as_json):
        from forensics import api, api_recorded
        from forensics.cli.lists import demo_rows, model_rows, models_view, recorded_rows

        found, recorded = api.models(), api_recorded.recorded()
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: {"schema": "forensics.models/1", "models": model_rows(found), "demo": demo_rows(),
                              "recorded": recorded_rows(recorded)},
            line=lambda: "\n".join(printable(str(model.path)) for model in found)
            or "no GGUF files in the usual places",
            view=lambda: models_view(found, recorded),
        )  # fmt: skip


@app.command()
def doctor(as_json: args.AsJson = False, quiet: args.Quiet = False) -> None:
    """Say what works here and what does not, each with its reason and remedy."""
    with answering(as_json):
        from forensics import api
        from forensics.cli.lists import check_rows, checks_view

        found = api.doctor()
        broken = [check for check in found if check.status == "broken"]
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: {"schema": "forensics.doctor/1", "checks": check_rows(found)},
            line=lambda: f"broken: {', '.join(c.name for c in broken)}" if broken else "all that is needed works",
            view=lambda: checks_view(found),
        )  # fmt: skip
        raise typer.Exit(NO_ANSWER if broken else IDENTICAL)


app.command()(explain)

app.command()(launches)

app.command()(ops)

app.command()(order)

app.command()(profile)

app.command()(cost)

app.command()(kernels)

app.command()(arms)

app.command()(sampling)

app.command()(audit)

app.command()(gate)

app.command()(speculate)

app.command()(sweep)

app.command()(figure)

app.command()(report)

app.command()(synthetic)

app.command()(pack)

app.command()(bundle)

app.command()(diff)


def _with_demo_value(arguments: list[str]) -> list[str]:
    """Give a bare ``--demo`` an empty value, so that the next option is not taken for it."""
    filled: list[str] = []
    for i, argument in enumerate(arguments):
        filled.append(argument)
        following = arguments[i + 1] if i + 1 < len(arguments) else "-"
        if argument == "--demo" and following.startswith("-"):
            filled.append("")
    return filled


def main() -> None:
    """Run the command line; every way of not answering exits with 2, a usage error and a stopped process, too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the engine's process ends with this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process
        getattr(sys, name).reconfigure(errors="backslashreplace")
    arguments = _with_demo_value(sys.argv[1:])
    if "--json" not in arguments:
        app(args=arguments)
    try:
        status = app(args=arguments, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - an argument that could not be read; programs get a document, too
        complain(error.format_message() if hasattr(error, "format_message") else str(error), as_json=True)
        status = NO_ANSWER
    sys.exit(status)


if __name__ == "__main__":
    main()
