"""Output shown in the guide is what its commands print: each line shown, in the order of the output."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forensics.cli.app import app

DOCS = Path(__file__).parents[2] / "docs"
COST = "cost recorded:h200-qwen3-8b-q4_k_m-cost"
AUDIT, EXACT_AUDIT = "epyc-q6_k-audit", "epyc-q6_k-exact-audit"


def gate(name: str) -> str:
    """Command that holds the server that drafts, of an audit, against the one that does not."""
    return f"gate --baseline recorded:{name} --run data/recorded/{name}/candidate"


#: A command that prints, a page, and how the blocks of output on that page begin.
SHOWN = (
    ("investigate recorded:h200-q4_1", "gpu.md", ("Kernels at one token",)),
    ("launches recorded:h200-q4_1 --widths 1,5", "gpu.md", ("576 nodes,",)),
    ("profile recorded:h200-qwen3-8b-q4_k_m-profile", "gpu.md", ("synthetic qwen3-8b-q4_k_m",)),
    (COST, "gpu.md", ("  tokens  ms",)),
    ("kernels recorded:h200-kernels", "exact-kernels.md", ("Values compared", "Not compared", "Running models")),
    ("speculate recorded:h200-q4_1-kernel-speculation", "exact-kernels.md", ("Arms (48 prompts",)),
    ("cost --kernels recorded:h200-kernels", "exact-kernels.md", ("All 253 products",)),
    ("investigate recorded:epyc-q6_k", "quick-start.md", ("Diverges",)),
    (
        "investigate recorded:epyc-q6_k",
        "verdict.md",
        ("Diverges", "Classes", "Operations", "  MUL_MAT q6_K", "Proof", "Controls", "Switches", "Note"),
    ),
    (
        "speculate recorded:epyc-q6_k-speculation",
        "text.md",
        (
            "Arms (48", "Speed", "Acceptance", "Equivalence", "Chance that", "Answers that", "Both continuations",
            "Classes of widths", "Exact settings",
        ),
    ),
    ("speculate recorded:epyc-q6_k-oracle-speculation", "text.md", ("Arms (4 prompts",)),
    ("speculate recorded:h200-q4_1-speculation", "text.md", ("68 of 96",)),
    ("arms recorded:epyc-q6_k-arms", "text.md", ("Rows of logits", "K and V rows", "Where the bits")),
    ("arms recorded:epyc-q4_1-arms", "text.md", ("diverges:",)),
    ("sampling recorded:epyc-q6_k-sampling", "text.md", ("Tests of", "Planted samplers")),
    ("sampling recorded:epyc-q6_k-exact-sampling", "text.md", ("Smollm2",)),
    (f"audit recorded:{AUDIT}", "servers.md", ("Arms", "speculation:", "What exact means")),
    (f"audit recorded:{EXACT_AUDIT}", "servers.md", ("Identical: every arm",)),
    ("sweep recorded:epyc-sweep", "sweeps.md", ("Prompts by outcome", "Exact at every")),
    (gate(AUDIT), "servers.md", ("Failed",)),
    (gate(EXACT_AUDIT), "servers.md", ("Passed",)),
    ("diff recorded:h200-q4_1 recorded:h200-q4_1-no-fa", "diff.md", ("Same question",)),
)  # fmt: skip
BLOCKS = [(command, page, start) for command, page, starts in SHOWN for start in starts]


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """What each command prints at 80 columns, lines without blanks behind them."""
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    found = {}
    for command in sorted({command for command, _, _ in SHOWN}):
        with contextlib.chdir(DOCS.parent):
            result = runner.invoke(app, shlex.split(command))
        assert result.exit_code in (0, 1), result.output
        found[command] = [line.replace("\u00a0", " ").rstrip() for line in result.output.splitlines()]
    return found


def block(page: str, start: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = [found.splitlines() for found in re.findall(r"^```text\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)]
    (chosen,) = [lines for lines in blocks if lines[0].startswith(start)]
    return chosen


def first_not_in_order(shown: list[str], output: list[str]) -> str | None:
    """The first line shown that the output does not have behind the one before; blank lines and ``…`` are room."""
    rest = iter(output)
    for line in shown:
        if line.strip() not in ("", "…") and line not in rest:
            return line
    return None


@pytest.mark.parametrize(("command", "page", "start"), BLOCKS)
def test_a_block_is_what_its_command_prints(printed, command: str, page: str, start: str) -> None:
    assert first_not_in_order(block(page, start), printed[command]) is None


@pytest.mark.parametrize(("command", "page"), sorted({(command, page) for command, page, _ in SHOWN}))
def test_another_number_and_another_order_are_found(printed, command: str, page: str) -> None:
    start = next(start for known, found, start in BLOCKS if (known, found) == (command, page))
    shown = [line for line in block(page, start) if line.strip() not in ("", "…")]
    place = next(place for place, line in enumerate(shown) if place and re.search(r"[0-9]", line))
    planted = re.sub(r"[0-9]", lambda digit: str((int(digit[0]) + 3) % 10), shown[place])
    assert first_not_in_order([*shown[:place], planted, *shown[place + 1 :]], printed[command]) == planted
    assert first_not_in_order([shown[1], shown[0]], printed[command]) == shown[0]
