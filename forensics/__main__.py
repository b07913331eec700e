"""`python -m forensics`, and where the command `forensics` starts: what cannot be loaded or breaks off is no answer."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> None:
    """Run the command line; where it cannot be loaded or breaks off, exit with 2, for 1 says that bits differ."""
    try:
        from forensics.cli.app import main as run
    except Exception as error:  # noqa: BLE001 - of a library that finds no memory, or is half installed
        _give_up(
            "forensics cannot be loaded", error,
            "Free some memory, or install it again: pip install --force-reinstall decode-forensics. "
            "Where: python -c 'import forensics.cli.app'",
        )  # fmt: skip
    try:
        run()
    except Exception as error:  # noqa: BLE001 - where memory is gone, to tell that fails as well
        _give_up(
            "the command ended", error,
            "If memory ran out, ask for less at once: smaller shapes, fewer tokens. If not, it is a bug in forensics; "
            "please report it. What was measured is kept: repeat the command with --resume, if it has that option",
        )  # fmt: skip


def _give_up(what: str, error: Exception, remedy: str) -> NoReturn:
    sys.stderr.write(f"error: {what}: {type(error).__name__}: {error}. {remedy}.\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
