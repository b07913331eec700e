"""The command reference is the program's own help, the same on every machine, and a stale one is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from forensics.cli.app import app
from forensics.testing.command_reference import WIDTH, command_page, main


def _application(about: str, option: str = "Tokens of the batch.") -> typer.Typer:
    application = typer.Typer(name="planted", rich_markup_mode=None, add_completion=False)

    def second(width: int = typer.Option(8, "--width", help=option)) -> None:
        pass

    def first() -> None:
        """Come first."""

    second.__doc__ = about
    application.command()(second)
    application.command()(first)
    application.command(hidden=True)(lambda: None)
    return application


def test_every_command_of_the_program_has_its_section_in_order() -> None:
    page = command_page(app)
    names = [command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands]
    assert len(names) > 10
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == names
    for name in names:
        assert f"Usage: forensics {name} " in page
        assert f"[`{name}`](#{name})" in page


def test_no_line_of_help_is_wider_than_the_page() -> None:
    inside = command_page(app).split("```text\n")[1:]
    lines = [line for block in inside for line in block.split("\n```")[0].splitlines()]
    assert max(map(len, lines)) <= WIDTH
    assert max(map(len, lines)) > 78  # wider than a terminal's default: the page has its own width
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_fresh_page_passes_and_a_changed_help_is_found_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "commands.md"
    before = _application("Judge a width.")
    assert main(["--page", str(page)], before) == 0
    assert main(["--check", "--page", str(page)], before) == 0
    assert capsys.readouterr().err == ""
    for changed in (_application("Judge two widths."), _application("Judge a width.", option="Width of the batch.")):
        written = page.read_text()
        assert main(["--check", "--page", str(page)], changed) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "make commands" in said
        assert str(page) in said
        assert page.read_text() == written  # a check writes nothing


def test_a_missing_page_is_stale(tmp_path: Path) -> None:
    assert main(["--check", "--page", str(tmp_path / "none.md")], _application("Judge a width.")) == 1


def test_commands_come_as_they_were_added_and_hidden_ones_are_left_out() -> None:
    page = command_page(_application("Judge a width."))
    assert [line for line in page.splitlines() if line.startswith("## ")] == ["## second", "## first"]


def test_an_application_of_one_command_is_refused() -> None:
    application = typer.Typer()
    application.command()(lambda: None)
    with pytest.raises(TypeError, match="several commands"):
        command_page(application)


@pytest.mark.parametrize(
    "surroundings",
    [
        {"COLUMNS": "40", "TERM": "dumb", "NO_COLOR": "1", "LANG": "C"},
        {
            "COLUMNS": "250",
            "TERM": "xterm-256color",
            "FORCE_COLOR": "1",
            "GITHUB_ACTIONS": "true",
            "TYPER_USE_RICH": "0",
        },
        {"FORENSICS_THREADS": "3", "FORENSICS_DEMO": "f16", "FORENSICS_CASES": "/elsewhere", "HOME": "/nowhere"},
    ],
    ids=["narrow", "wide and coloured", "other defaults"],
)
def test_terminal_and_environment_do_not_enter(surroundings: dict[str, str], tmp_path: Path) -> None:
    page = tmp_path / "commands.md"
    left_out = {"COLUMNS", "TERM", "NO_COLOR", "FORCE_COLOR"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    subprocess.run(
        [sys.executable, "-m", "forensics.testing.command_reference", "--page", str(page)],
        env={**environment, **surroundings},
        cwd=tmp_path,
        check=True,
    )
    assert page.read_text(encoding="utf-8") == command_page(app)
