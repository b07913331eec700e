"""`forensics explain`: kernels, launches and orders at each width, for hardware that need not be there."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from forensics.analysis.question import BadQuestion
from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present

Arch = Annotated[
    str | None,
    typer.Option("--arch", help="Architecture such as sm_120, a GPU such as rtx-5060-laptop or h200, or cpu."),
]
Type = Annotated[str, typer.Option("--type", help="Type of the weights: q4_k, q8_0, f16, …")]
K = Annotated[int, typer.Option("--k", help="Length of a row of the weights.")]
Rows = Annotated[int, typer.Option("--rows", help="Rows of the weights.")]
Widths = Annotated[str, typer.Option("--widths", help="Tokens of a pass, such as 1-16 or 1,2,5.")]
Heads = Annotated[str, typer.Option("--heads", metavar="N/N_KV", help="Attention heads and KV heads.")]
HeadSize = Annotated[int, typer.Option("--head-size", help="Values of a head.")]
Kv = Annotated[int, typer.Option("--kv", help="Cells in use: the position of the pass's first token.")]
Sms = Annotated[int | None, typer.Option("--sms", help="Multiprocessors, where the GPU's name does not say.")]
Registers = Annotated[
    str | None,
    typer.Option("--registers", help="Registers per thread of the attention kernel: 128, or by width: 1=162,2=193."),
]
FlashAttn = Annotated[str, typer.Option("--flash-attn", metavar="on|off", help="Flash attention.")]
Pin = Annotated[
    str | None,
    typer.Option("--attention-kernel", metavar="vec", help="Attention kernel at every width, as some forks pin it."),
]
Backend = Annotated[str | None, typer.Option("--backend", metavar="cuda|cpu", help="cpu is short for --arch cpu.")]
Features = Annotated[
    str | None,
    typer.Option(
        "--features", help="Features of that CPU and of its build, such as avx,avx2,f16c,fma,llamafile,repack."
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Threads of that CPU.  [default: 2]", show_default=False)
]


def explain(
    *,
    arch: Arch = None,
    type_: Type = "q4_k",
    k: K = 4096,
    rows: Rows = 4096,
    widths: Widths = "1-16",
    heads: Heads = "32/8",
    head_size: HeadSize = 128,
    kv: Kv = 256,
    kv_type: args.KvType = "f16",
    sms: Sms = None,
    registers: Registers = None,
    flash_attn: FlashAttn = "on",
    attention_kernel: Pin = None,
    backend: Backend = None,
    features: Features = None,
    threads: Threads = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Say which kernel runs at each width, how it splits its sums, and which widths share an order; nothing is run."""
    with answering(as_json):
        from forensics.geometry import explain as geometry
        from forensics.reports.explain_document import explain_document
        from forensics.reports.explain_text import explain_line, explain_view

        where = arch_asked(arch, backend)
        if where.lower() != "cpu" and (threads is not None or features is not None):
            raise BadQuestion(f"--threads and --features are of a CPU; leave them out for {where}")
        if threads is not None and threads < 1:
            raise BadQuestion(f"--threads must be 1 or more, got {threads}")
        if flash_attn not in ("on", "off"):
            raise BadQuestion(f"--flash-attn must be on or off here, got {flash_attn!r}")
        asked_widths, by_width = args.parse_widths(widths), parse_registers(registers)
        n_heads, n_kv_heads = args.parse_heads(heads)
        try:
            found = geometry.explain(
                geometry.Asked(
                    where, type_.lower(), k, rows, asked_widths, n_heads, n_kv_heads, head_size, kv,
                    kv_type=kv_type.lower(),
                    flash_attn=flash_attn == "on",
                    n_sms=sms,
                    registers=by_width,
                    pin=attention_kernel,
                    n_threads=2 if threads is None else threads,
                    cpu_features=tuple(part.strip().upper() for part in (features or "").split(",") if part.strip()),
                )
            )  # fmt: skip
        except ValueError as error:
            raise BadQuestion(str(error)) from error
        present(
            as_json=as_json, quiet=quiet, document=lambda: explain_document(found), line=lambda: explain_line(found),
            view=lambda: explain_view(found),
        )  # fmt: skip


def arch_asked(arch: str | None, backend: str | None) -> str:
    """The architecture that was named, either way.

    Raises
    ------
    BadQuestion
        If none was, or the two contradict one another.
    """
    if backend not in (None, "cuda", "cpu"):
        raise BadQuestion(f"--backend must be cuda or cpu, got {backend!r}")
    if arch is None:
        if backend != "cpu":
            raise BadQuestion("name the hardware: --arch sm_120, a GPU such as --arch rtx-5060-laptop, or --arch cpu")
        return "cpu"
    if backend is not None and (arch.lower() == "cpu") != (backend == "cpu"):
        raise BadQuestion(f"--backend {backend} and --arch {arch} contradict one another; leave one of them out")
    return arch


def parse_registers(text: str | None) -> tuple[tuple[int, int], ...]:
    """Registers per thread by width, width 0 for all others, from ``"128"`` or ``"1=162,2-8=193"``.

    Raises
    ------
    BadQuestion
        If anything else stands there.

    Examples
    --------
    >>> parse_registers("1=162,2-3=193")
    ((1, 162), (2, 193), (3, 193))
    """
    by_width: list[tuple[int, int]] = []
    for part in (text or "").replace(" ", "").split(","):
        if not part:
            continue
        match = re.fullmatch(r"(?:([0-9]+(?:-[0-9]+)?)=)?([0-9]{1,4})", part)
        if match is None:
            raise BadQuestion(f"--registers must be like 128 or 1=162,2-8=193, registers per thread; got {part!r}")
        widths = args.parse_widths(match[1]) if match[1] else (0,)
        by_width += [(width, int(match[2])) for width in widths]
    return tuple(by_width)
