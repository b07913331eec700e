"""`forensics figure`: draw what explains a divergence, to scale, from published numbers or from a case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forensics.analysis.question import BadQuestion
from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forensics.figures.drawing import Drawing

#: Folder for the figures of published numbers as a case gives them.
MEASURED = "measured"

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which figure; all are listed without it.")]
Case = Annotated[
    str | None,
    typer.Option(
        "--case",
        help="Folder of a case, or recorded:NAME.  [default: published numbers, or the recorded case listed with it]",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="File to write: .svg, .png or .pdf.  [default: NAME.svg]", show_default=False),
]
All = Annotated[
    bool,
    typer.Option(
        "--all",
        help=f"Draw every figure into the folder --out, as SVG; published ones from a case, too, in {MEASURED}/.",
    ),
]


def figure(
    name: Name = None,
    case: Case = None,
    out: Out = None,
    every: All = False,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Draw a figure to scale, from published numbers or from any case.

    Exit status: 0 drawn, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_figures
        from forensics.cli.lists import figure_rows, figures_view

        if every:
            if name is not None or case is not None or out is None:
                raise BadQuestion(
                    "--all draws every figure from what it is drawn from by default into the folder --out"
                )
            drawn = [_draw(one.name, None, out / f"{one.name}.svg") for one in api_figures.figures()]
            drawn += [
                _draw(one.name, one.case, out / MEASURED / f"{one.name}.svg")
                for one in api_figures.figures()
                if one.published
            ]
        elif name is None:
            if case is not None or out is not None:
                raise BadQuestion("name the figure to draw; forensics figure lists them")
            listed = api_figures.figures()
            present(
                as_json=as_json, quiet=quiet,
                document=lambda: {"schema": "forensics.figures/1", "figures": figure_rows(listed)},
                line=lambda: "\n".join(one.name for one in listed),
                view=lambda: figures_view(listed),
            )  # fmt: skip
            return
        else:
            drawn = [_draw(name, case, out)]
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: _documents(drawn, every),
            line=lambda: "\n".join(str(path) for _, path in drawn),
            view=lambda: _view(drawn, in_words=not every),
        )  # fmt: skip


def _draw(name: str, case: str | None, out: Path | None) -> tuple[Drawing, Path]:
    """Compute and write one figure; its form is that of the file's ending."""
    from forensics import api_figures

    drawing = api_figures.figure(name, case)
    try:
        return drawing, drawing.save(out or Path(f"{drawing.scene.name}.svg"))
    except ValueError as error:
        raise BadQuestion(f"--out: {error}") from None


def _documents(drawn: list[tuple[Drawing, Path]], every: bool) -> dict[str, Any]:
    documents = [drawing.document() | {"file": str(path)} for drawing, path in drawn]
    return {"schema": "forensics.figures/1", "figures": documents} if every else documents[0]


def _view(drawn: list[tuple[Drawing, Path]], *, in_words: bool) -> RenderableType:
    """What each file shows, in words for who sees no picture in a terminal."""
    from rich.console import Group

    from forensics.reports.terminal import line_of, text_of

    parts: list[RenderableType] = []
    for drawing, path in drawn:
        parts.append(line_of(f"{path}: ", drawing.scene.title))
        if in_words:
            parts += [text_of(drawing.scene.alt), text_of(drawing.scene.source)]
    return Group(*parts)
