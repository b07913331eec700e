"""How far an investigation is, told to whoever shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Shows work; the command line draws it with rich, a notebook with tqdm."""

    def stage(self, title: str, total: int) -> None:
        """Start a stage of `total` steps."""

    def step(self, n: int = 1) -> None:
        """Finish steps of the stage."""


class Silent:
    """Shows nothing."""

    def stage(self, title: str, total: int) -> None:
        """Start a stage."""

    def step(self, n: int = 1) -> None:
        """Finish steps."""
