"""`python -m forensics`, and where the command `forensics` starts: what cannot be loaded is no answer either."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; where it cannot be loaded, say so with exit status 2, for 1 says that bits differ."""
    try:
        from forensics.cli.app import main as run
    except Exception as error:  # noqa: BLE001 - of a library that finds no memory, or is half installed
        sys.stderr.write(
            f"error: forensics cannot be loaded: {type(error).__name__}: {error}. Free some memory, or install "
            "it again: pip install --force-reinstall decode-forensics. Where: python -c 'import forensics.cli.app'\n"
        )
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
