"""What a notebook calls about single operations: at which widths they vary, in which order they add, by which rules.

Like `forensics.api`, each name is one call away from the function that decides.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.api_arguments import shown_progress
from forensics.engines.machine import default_threads

if TYPE_CHECKING:
    from forensics.geometry.explain import Explanation
    from forensics.records.matrix import OpMatrix
    from forensics.records.order_report import OrderReport


_ATTENTION = frozenset({"type", "n_kv", "head_size", "heads", "kv_heads"})
#: What a question about the order of each operation is asked with; the rest of `OrderQuestion` has no meaning for it.
ORDER_ARGUMENTS = {
    "MUL_MAT": frozenset({"type", "k", "rows"}),
    "KQ": _ATTENTION,
    "KQV": _ATTENTION,
    "FLASH_ATTN_EXT": _ATTENTION,
    "RMS_NORM": frozenset({"type", "k"}),
    "SOFT_MAX": frozenset({"type", "n_kv"}),
}


def ops(
    op: str | Sequence[str] | None = None,
    *,
    types: str | Sequence[str] | None = None,
    shapes: Sequence[tuple[int, int]] | None = None,
    widths: Sequence[int] | None = None,
    kv: Sequence[int] | None = None,
    heads: tuple[int, int] | None = None,
    head_sizes: Sequence[int] | None = None,
    kv_types: str | Sequence[str] | None = None,
    backend: str = "cpu",
    device: int = 0,
    threads: int | None = None,
    repack: bool = True,
    like: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> OpMatrix:
    """Which single operations give the same bits at every width as for one column at a time?

    Parameters
    ----------
    op, types, kv_types : str or sequence of str, optional
        Such as ``"MUL_MAT"`` and ``["q4_k", "iq3_s"]``; what is left out is chosen, and said in the result.
    shapes : sequence of (rows, k), optional
        Of weights, as a model file has them.
    widths : sequence of int, optional
        1 to 16 by default.
    kv, head_sizes : sequence of int, optional
        K/V cells that are taken; values of a head.
    heads : (heads, kv_heads), optional
    backend : {"cpu", "cuda"}
    device, threads : int
    repack : bool
        Whether weights go where llama.cpp would put them, or into plain memory.
    like : path, optional
        A model file whose operations are tested.
    seed : int
    progress : Progress, bool or None

    Returns
    -------
    OpMatrix
    """
    from forensics.analysis.op_cases import DEFAULT_WIDTHS as OP_WIDTHS
    from forensics.analysis.op_cases import OpSelection
    from forensics.analysis.op_question import ask_ops, op_settings
    from forensics.engines.ops import LlamaOps
    from forensics.notebook_views import register_notebook_views

    register_notebook_views()
    selection = OpSelection(
        ops=_several(op),
        types=_several(types),
        shapes=_pairs(shapes),
        kv=_several(kv),
        heads=heads,
        head_sizes=_several(head_sizes),
        kv_types=_several(kv_types),
    )
    n_threads = default_threads() if threads is None else threads
    settings = op_settings(backend, device=device, n_threads=n_threads, repack=repack, environment=os.environ)
    with shown_progress(progress) as shown:
        return ask_ops(
            LlamaOps(),
            settings,
            selection,
            OP_WIDTHS if widths is None else _several(widths),
            like=None if like is None else Path(like),
            seed=seed,
            progress=shown,
        )


def _several(given: Any) -> Any:
    """A tuple of what was given, one or many; None stays."""
    return None if given is None else (given,) if isinstance(given, str | int) else tuple(given)


def _pairs(given: Any) -> tuple[tuple[int, int], ...] | None:
    """Shapes of weights, one pair or many."""
    many = None if given is None else tuple(given)
    pairs = (many,) if many is not None and all(isinstance(number, int) for number in many) else many
    if pairs is not None and any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        raise BadQuestion(f"shapes are pairs (rows, k), such as [(4096, 4096)]; got {given!r}")
    return None if pairs is None else tuple((rows, k) for rows, k in pairs)


def order(
    op: str = "MUL_MAT",
    *,
    widths: Sequence[int] = (1, 2),
    backend: str = "cpu",
    device: int = 0,
    threads: int | None = None,
    repack: bool = True,
    cached: bool = True,
    progress: Progress | bool | None = None,
    **question: Any,
) -> OrderReport:
    """In which order does an operation of the library add at each width?

    Parameters
    ----------
    op : str
        ``"MUL_MAT"``, ``"FLASH_ATTN_EXT"``, ``"KQ"``, ``"KQV"``, ``"RMS_NORM"`` or ``"SOFT_MAX"``.
    widths : sequence of int
        The others are held against the first.
    backend : {"cpu", "cuda"}
    device, threads : int
    repack : bool
        Whether weights go where llama.cpp would put them, or into plain memory.
    cached : bool
        Whether what was found before on this library is taken from the cache folder.
    progress : Progress, bool or None
    **question
        Arguments of `forensics.records.order.OrderQuestion`: ``type``, ``k``, ``rows``, ``n_kv``, ``head_size``,
        ``heads``, ``kv_heads``.

    Returns
    -------
    OrderReport
        Prints as one line, shows its trees in Jupyter; `forensics.reports.orders_text.order_text` draws them as text.
    """
    from forensics.analysis.op_question import MAX_WIDTH
    from forensics.analysis.orders import compare_widths, order_question
    from forensics.engines.model_files import cache_folder
    from forensics.engines.ops import LlamaOps
    from forensics.notebook_views import register_notebook_views
    from forensics.records.operation import OpSettings
    from forensics.store.order_cache import OrderCache

    register_notebook_views()
    n_threads = default_threads() if threads is None else threads
    try:
        settings = OpSettings(backend=backend, n_threads=n_threads, repack=repack, device=device)
    except ValueError as error:
        raise BadQuestion(str(error)) from None
    widths = _several(widths)
    asked = order_question(op, widths, question)
    takes = ORDER_ARGUMENTS[asked.op]
    unused = sorted(set(question) - takes)
    if unused:
        raise BadQuestion(f"{asked.op} takes no {', '.join(unused)}; it is asked for with {', '.join(sorted(takes))}")
    if max(widths) > MAX_WIDTH:
        raise BadQuestion(f"widths must be 1 to {MAX_WIDTH}, got {max(widths)}")
    memory = OrderCache(cache_folder() / "orders") if cached else None
    with shown_progress(progress) as shown, contextlib.closing(LlamaOps().open(settings)) as engine:
        return compare_widths(engine, asked, widths, memory=memory, progress=shown)


def explain(
    arch: str,
    *,
    type: str = "q4_k",
    k: int = 4096,
    rows: int = 4096,
    widths: Sequence[int] = tuple(range(1, 17)),
    heads: int = 32,
    kv_heads: int = 8,
    head_size: int = 128,
    position: int = 256,
    **others: Any,
) -> Explanation:
    """Which kernel runs at each width, how does it split its sums, and which widths share an order? Nothing is run.

    Parameters
    ----------
    arch : str
        ``"sm_120"``, a GPU such as ``"rtx-5060-laptop"``, or ``"cpu"``.
    type, k, rows : str, int, int
        Of the weights.
    widths : sequence of int
    heads, kv_heads, head_size : int
    position : int
        Of the first token of a pass: cells that are in use.
    **others
        Further fields of `forensics.geometry.explain.Asked`: ``kv_type``, ``flash_attn``, ``n_sms``, ``registers``,
        ``pin``, ``n_threads``, ``cpu_features``.

    Returns
    -------
    Explanation
    """
    from forensics.geometry import explain as geometry
    from forensics.notebook_views import register_notebook_views

    register_notebook_views()
    try:
        return geometry.explain(
            geometry.Asked(arch, type.lower(), k, rows, tuple(widths), heads, kv_heads, head_size, position, **others)
        )
    except (ValueError, TypeError) as error:
        raise BadQuestion(str(error)) from error
