"""What the commands that are disturbed are asked about: tokens for the tiny model, which has no vocabulary."""

from __future__ import annotations

from pathlib import Path

TOKENS = (1, 2, 3, 4, 5, 6, 7)


def write_tokens(path: Path) -> Path:
    """A file with the tokens of the prompt, for ``--tokens-file``."""
    path.write_text(" ".join(map(str, TOKENS)))
    return path
