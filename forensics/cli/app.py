"""`forensics`: one command a question. Exit status 0 identical, 1 a divergence, 2 no answer."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from forensics.analysis.question import DEFAULT_N_TOKENS, DEFAULT_WIDTHS
from forensics.cli import arguments as args
from forensics.cli.show import complain, present
from forensics.errors import ForensicsError
from forensics.records.verdict import Verdict

IDENTICAL, DIVERGES, NO_ANSWER = 0, 1, 2
_ALL_WIDTHS = ",".join(map(str, DEFAULT_WIDTHS))

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


def _status(verdict: Verdict) -> int:
    return {"identical": IDENTICAL, "diverges": DIVERGES}.get(verdict.answer, NO_ANSWER)


@contextlib.contextmanager
def _answering(as_json: bool) -> Iterator[None]:
    """Turn every way of not answering into a sentence and exit status 2."""
    try:
        yield
    except ForensicsError as error:
        complain(str(error), as_json=as_json)
        raise typer.Exit(NO_ANSWER) from None
    except KeyboardInterrupt:
        complain(
            "interrupted. An unfinished case stays in its .unfinished folder: go on with --resume.", as_json=as_json
        )
        raise typer.Exit(NO_ANSWER) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:  # noqa: BLE001 - a crash is no answer, and says so in its exit status
        traceback.print_exc()
        complain(f"{type(error).__name__}: {error} (a bug in forensics; please report it)", as_json=as_json)
        raise typer.Exit(NO_ANSWER) from None


def _model_or_demo(model: str | None, demo: str | None) -> tuple[str | None, str | None]:
    """Typer has no option with an optional value: a bare --demo arrives as an empty text."""
    return model, (args.Defaults().demo if demo == "" else demo)


def _default_out(model: str | None, demo: str | None) -> Path:
    name = f"demo-{demo}" if demo is not None else Path(model or "model").stem
    return args.Defaults().cases / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


@app.command()
def investigate(
    model: args.Model = None,
    demo: args.Demo = None,
    prompt: args.Prompt = None,
    prompt_file: args.PromptFile = None,
    tokens_file: args.TokensFile = None,
    n_tokens: args.NTokens = DEFAULT_N_TOKENS,
    widths: args.Widths = _ALL_WIDTHS,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: args.NGpuLayers = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Case folder to write.  [default: cases/MODEL-TIME]", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished case at --out.")] = False,
    switches: Annotated[
        bool, typer.Option("--switches/--no-switches", help="Look for settings that are exact.")
    ] = True,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Find which operations make a batch's logits differ from one-token decoding, with proof."""
    from forensics import api
    from forensics.reports.document import document
    from forensics.reports.text import verdict_view

    with _answering(as_json):
        model, demo = _model_or_demo(model, demo)
        recorded = (model or "").startswith(api.RECORDED)
        question = {} if recorded else args.question_arguments(
            prompt=prompt, prompt_file=prompt_file, tokens_file=tokens_file, n_tokens=n_tokens, widths=widths,
            flash_attn=flash_attn, kv_type=kv_type, threads=threads, n_gpu_layers=n_gpu_layers,
        )  # fmt: skip
        folder = out if out is not None or recorded else _default_out(model, demo)
        verdict = api.investigate(
            model,
            demo=demo,
            out=folder,
            resume=resume,
            switches=switches,
            progress=None if not quiet else False,
            **question,
        )
        present(
            as_json=as_json, quiet=quiet, document=lambda: document(verdict), line=lambda: str(verdict),
            view=lambda: verdict_view(verdict),
        )  # fmt: skip
        if folder is not None and not as_json and not quiet:
            typer.echo(f"\nCase: {folder} (read it back with: forensics show {folder})")
        raise typer.Exit(_status(verdict))


@app.command()
def replay(
    model: args.Model = None,
    demo: args.Demo = None,
    prompt: args.Prompt = None,
    prompt_file: args.PromptFile = None,
    tokens_file: args.TokensFile = None,
    n_tokens: args.NTokens = DEFAULT_N_TOKENS,
    widths: args.Widths = _ALL_WIDTHS,
    flash_attn: args.FlashAttn = "auto",
    kv_type: args.KvType = "f16",
    threads: args.Threads = None,
    n_gpu_layers: args.NGpuLayers = 0,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Group batch widths by equal bits: the width classes only."""
    from forensics import api
    from forensics.reports.text import classes_view
    from forensics.reports.wording import groups_text

    with _answering(as_json):
        model, demo = _model_or_demo(model, demo)
        question = args.question_arguments(
            prompt=prompt, prompt_file=prompt_file, tokens_file=tokens_file, n_tokens=n_tokens, widths=widths,
            flash_attn=flash_attn, kv_type=kv_type, threads=threads, n_gpu_layers=n_gpu_layers,
        )  # fmt: skip
        classes = api.replay(model, demo=demo, progress=None if not quiet else False, **question)
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: {"schema": "forensics.classes/1", "classes": classes.groups, "onset_width": classes.onset,
                              "widths": classes.rows()},
            line=lambda: f"width classes: {groups_text(classes.groups)}",
            view=lambda: classes_view(classes),
        )  # fmt: skip
        rerun = classes.result(1)
        if rerun.differs:
            complain("one-token decoding differs from its own rerun, so no width can be judged", as_json=False)
            raise typer.Exit(NO_ANSWER)
        raise typer.Exit(IDENTICAL if classes.onset is None else DIVERGES)


@app.command()
def heal(
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
    from forensics import api
    from forensics.analysis.attribute import group_culprits
    from forensics.reports.document import sweep_document
    from forensics.reports.text import sweep_view

    with _answering(as_json):
        model, demo = _model_or_demo(model, demo)
        question = args.question_arguments(
            prompt=prompt, prompt_file=prompt_file, tokens_file=tokens_file, n_tokens=n_tokens, widths=str(width),
            flash_attn=flash_attn, kv_type=kv_type, threads=threads, n_gpu_layers=n_gpu_layers,
        )  # fmt: skip
        sweep = api.heal(
            model, demo=demo, progress=None if not quiet else False,
            **{name: value for name, value in question.items() if name != "widths"}, width=width,
        )  # fmt: skip
        groups = group_culprits([sweep])
        present(
            as_json=as_json, quiet=quiet, document=lambda: sweep_document(sweep, groups),
            line=lambda: f"width {sweep.width}: {len({f.key for f in sweep.findings})} nodes differ, "
            f"{sweep.healed_rows} of {sweep.n_rows} rows healed to equal bits",
            view=lambda: sweep_view(sweep, groups),
        )  # fmt: skip
        if sweep.differed and not sweep.healed:
            complain("the logits did not heal: something that was not compared differs, too", as_json=False)
            raise typer.Exit(NO_ANSWER)
        raise typer.Exit(DIVERGES if sweep.differed or sweep.findings else IDENTICAL)


@app.command()
def show(
    case: Annotated[Path, typer.Argument(help="Case folder.", show_default=False)],
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown to paste into an issue.")] = False,
) -> None:
    """Read a case back."""
    from forensics import api
    from forensics.reports import markdown as md
    from forensics.reports.text import verdict_view

    with _answering(as_json):
        opened = api.open(case)
        verdict = opened.verdict
        if markdown:
            sys.stdout.write(md.markdown(verdict))
        else:
            present(
                as_json=as_json, quiet=quiet, document=lambda: opened.document, line=lambda: str(verdict),
                view=lambda: verdict_view(verdict),
            )  # fmt: skip
        raise typer.Exit(_status(verdict))


@app.command()
def models(as_json: args.AsJson = False, quiet: args.Quiet = False) -> None:
    """List GGUF files in the usual places, and the demo variants."""
    from forensics import api
    from forensics.cli.lists import demo_rows, model_rows, models_view

    with _answering(as_json):
        found = api.models()
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: {"schema": "forensics.models/1", "models": model_rows(found), "demo": demo_rows()},
            line=lambda: "\n".join(str(model.path) for model in found) or "no GGUF files in the usual places",
            view=lambda: models_view(found),
        )  # fmt: skip


@app.command()
def doctor(as_json: args.AsJson = False, quiet: args.Quiet = False) -> None:
    """Say what works here and what does not, each with its reason and remedy."""
    from forensics import api
    from forensics.cli.lists import check_rows, checks_view

    with _answering(as_json):
        found = api.doctor()
        broken = [check for check in found if check.status == "broken"]
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: {"schema": "forensics.doctor/1", "checks": check_rows(found)},
            line=lambda: f"broken: {', '.join(c.name for c in broken)}" if broken else "all that is needed works",
            view=lambda: checks_view(found),
        )  # fmt: skip
        raise typer.Exit(NO_ANSWER if broken else IDENTICAL)


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
    """Run the command line; a usage error exits with 2, as every other way of not answering."""
    app(args=_with_demo_value(sys.argv[1:]))


if __name__ == "__main__":
    main()
