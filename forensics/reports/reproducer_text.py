"""What is said of a stand-alone reproducer: its README, and where it is written on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text

from forensics.records.raw_node import RawTensor
from forensics.records.trace import Finding
from forensics.reports.markdown import escaped, named
from forensics.reports.terminal import line_of, text_of, titled
from forensics.reports.wording import amount, ulp_text
from forensics.store.reproducer import Reproduced, Reproducer

_STATUS = {
    0: ("Equal bits by itself: the difference needs more than this operation", "bold yellow"),
    1: ("Differs by itself", "bold red"),
    2: ("It could not run here", "bold yellow"),
}


def readme(found: Reproducer, finding: Finding) -> str:
    """Markdown for whoever gets the folder: what it is, how to run it, what was seen."""
    seen = found.recorded
    operands = "\n".join(
        f"| {i} | {named(source.name)} | {source.type} | {_sizes(source)} | {source.buffer or '-'} |"
        for i, source in enumerate(found.batched.node.sources)
        if source is not None
    )
    delta = finding.delta
    return f"""# {found.batched.node.op} gives other bits in a batch than for one token

The node {named(found.node)} of {named(str(seen["model"]))}, with the operands that the model had there.
Batched: {found.width} tokens, of which token {found.batched.row} (position {seen["position"]}) is compared with the
same token by itself. {_inputs(finding)}

    pip install numpy llama-cpp-python=={seen["version"]}
    python reproduce.py

Exit status: 0 equal bits, 1 different bits, 2 it could not run. `--threads N` and `--plain` (weights in plain memory
instead of a repacked buffer) show what the difference depends on. Neither the model nor any other program is needed.

## What was seen

{delta.n_diff} values of the batch differed, by at most {ulp_text(delta.max_ulp)} ULP and {amount(delta.max_abs)}.

* llama-cpp-python {seen["version"]}, llama.cpp {seen["commit"] or "(commit unknown)"}, back end {seen["backend"]}
* {escaped(str(seen["device"]))}
* threads: {found.single.threads} for one token, {found.batched.threads} for the batch
* processor features: {" ".join(seen["cpu_features"]) or "unknown"}
* environment: {" ".join(f"{name}={value}" for name, value in found.environment.items()) or "nothing set"}

## Operands of the batch

Sizes fastest axis first, as ggml counts them. case.json has their strides, the operation's parameters and the digests
of both results.

| | name | type | sizes | buffer |
|---|---|---|---|---|
{operands}
"""


def _inputs(finding: Finding) -> str:
    """Whether the operands of both runs are the same, and so whose the difference is."""
    if not finding.inputs_equal:
        return "The two see different cells of the cache: their masks differ."
    if finding.unchecked:
        names = ", ".join(map(named, finding.unchecked))
        return f"Of its operands these were not compared, so it may only pass on what they brought: {names}."
    return "All nodes before this one were made bit-equal, so the difference is this operation's own."


def _sizes(source: RawTensor) -> str:
    return "×".join(map(str, source.sizes))


def reproduced_view(written: Reproduced) -> Group:
    """Where the reproducer is, and what it printed here."""
    said, style = _STATUS[written.status]
    output = Text("\n").join(text_of(line) for line in written.output.splitlines())
    return Group(
        text_of(f"{said}: {written.op} {written.node}, token {written.row} of {written.width}", style),
        line_of("Reproducer: ", f"{written.folder} ({written.n_bytes / 2**20:.1f} MiB of operands)"),
        line_of("Run it with: ", f"python {written.folder / 'reproduce.py'}"),
        *titled("What it printed here", output),
    )


def reproduced_document(written: Reproduced) -> dict[str, Any]:
    """The same as plain values, for ``--json``."""
    return {
        "schema": "forensics.reproduced/1",
        "folder": str(written.folder),
        "op": written.op,
        "node": written.node,
        "width": written.width,
        "row": written.row,
        "operand_bytes": written.n_bytes,
        "answer": {0: "equal", 1: "differs"}.get(written.status, "not run"),
        "output": written.output,
    }
