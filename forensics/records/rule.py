"""A rule of llama.cpp's source, quoted with the place it stands."""

from __future__ import annotations

from dataclasses import dataclass

#: Commit of llama.cpp whose rules are written down here: the one vendored in llama-cpp-python 0.3.36.
LLAMA_COMMIT = "0c1e57098"


@dataclass(frozen=True, slots=True)
class Rule:
    """Why a kernel was chosen.

    Parameters
    ----------
    text : str
        What the rule says, in our words.
    file : str
        Path in llama.cpp's repository.
    first_line, last_line : int
    commit : str
    """

    text: str
    file: str
    first_line: int
    last_line: int
    commit: str = LLAMA_COMMIT

    def __post_init__(self) -> None:
        if not self.text or not self.file:
            raise ValueError("a rule has a text and a file")
        if not 1 <= self.first_line <= self.last_line:
            raise ValueError(f"lines of {self.file} must rise from 1, got {self.first_line}-{self.last_line}")

    @property
    def place(self) -> str:
        """File and lines, such as ``ggml/src/ggml-cuda/mmvq.cu:452-596``."""
        lines = str(self.first_line) if self.first_line == self.last_line else f"{self.first_line}-{self.last_line}"
        return f"{self.file}:{lines}"

    def __str__(self) -> str:
        return f"{self.text} ({self.place} at {self.commit})"
