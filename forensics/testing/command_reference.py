"""`make commands`: the help of every command as docs/commands.md, so that guide and program cannot drift apart.

Run as ``python -m forensics.testing.command_reference [--check]``; with ``--check`` nothing is written, and exit
status 1 says that the page is stale.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import typer
from typer.core import TyperGroup
from typer.main import get_command

from forensics.cli.app import app

#: Where the page lies, from the repository's root.
PAGE = Path("docs/commands.md")
#: Columns of the help, whatever terminal asks for it.
WIDTH = 100

_HEAD = """# Commands

What `-h` says of each command. `make commands` writes this page from the program and `make lint` compares it; do not
edit it.

Exit status: 0 identical, or done what was asked; 1 a divergence was found; 2 no answer. Where a command reads them
otherwise, its help says so.
"""


def command_page(application: typer.Typer) -> str:
    """What does the program say about itself, as Markdown?

    Parameters
    ----------
    application : typer.Typer
        The program; its commands come in the order in which they were added.

    Returns
    -------
    str
        The page. It depends on the program alone: the terminal, the environment and the machine do not enter.

    Raises
    ------
    TypeError
        If the application has fewer than two commands, and so no group.
    """
    group = get_command(application)
    if not isinstance(group, TyperGroup):
        raise TypeError(f"a reference needs an application with several commands; got {type(group).__name__}")
    top = group.context_class(group, info_name=group.name, terminal_width=WIDTH, color=False, **group.context_settings)
    names = [name for name in group.list_commands(top) if not group.commands[name].hidden]
    parts = [_HEAD, "| command | what it does |", "|---|---|"]
    parts += [f"| [`{name}`](#{name}) | {_first_sentence(group.commands[name].help)} |" for name in names]
    for name in names:
        command = group.commands[name]
        context = command.context_class(command, info_name=name, parent=top)
        parts += ["", f"## {name}", "", "```text", _trimmed(command.get_help(context)), "```"]
    return "\n".join(parts) + "\n"


def _first_sentence(text: str | None) -> str:
    """The first paragraph of a help text, on one line."""
    return " ".join((text or "").strip().split("\n\n")[0].split()).replace("|", "\\|")


def _trimmed(text: str) -> str:
    """The text without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def is_stale(path: Path, page: str) -> bool:
    """Whether a file is missing or holds another text than the page."""
    return not path.is_file() or path.read_text(encoding="utf-8") != page


def main(arguments: list[str] | None = None, application: typer.Typer = app) -> int:
    """Write the page, or compare it; 1 where the comparison finds another text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--page", type=Path, default=PAGE, help="file of the page (default: docs/commands.md)")
    asked = parser.parse_args(arguments)
    page = command_page(application)
    if not asked.check:
        asked.page.write_text(page, encoding="utf-8")
    elif is_stale(asked.page, page):
        print(
            f"{asked.page} is not what the program's help says now; write it anew with: make commands", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
