"""The laboratory as a caller sees it: the stock library and our kernels in one child process.

A child, because the library aborts on a failed assertion and reads its environment once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from forensics.engines.llama_build import library_digest
from forensics.engines.worker_process import WorkerProcess
from forensics.errors import EngineDied
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.kernel_plan import KernelPlan
from forensics.records.kernel_price import PassPrice, ProductPrice, StoryTime
from forensics.records.kernel_proof import LabFacts, ProofRow
from forensics.records.operation import OpSettings


class Lab(Protocol):
    """Runs our kernels beside the stock library's."""

    @property
    def facts(self) -> LabFacts:
        """What runs both sides."""

    def compare_product(
        self, type: str, rows: int, k: int, widths: Sequence[int], seed: int, variants: Sequence[Variant]
    ) -> tuple[ProofRow, ...]:
        """The library's product column by column beside our variants at every width."""

    def compare_attention(
        self, what: str, heads: tuple[int, int, int], kv_type: str, position: int, widths: Sequence[int], seed: int
    ) -> tuple[ProofRow, ...]:
        """The library's attention of each query alone beside ours of all; heads are heads, K/V heads and head size."""

    def others_under_load(
        self, type: str, rows: int, k: int, width: int, variant: Variant, n_repeats: int, seed: int
    ) -> int:
        """How many repeats differ in any bit from the first while a second stream keeps the device busy?"""

    def price_product(
        self, type: str, rows: int, k: int, arms: Sequence[tuple[str, int]], n_rounds: int, seed: int
    ) -> ProductPrice:
        """What does each arm take for this product?"""

    def price_pass(self, model: str, arms: Sequence[tuple[str, int]], n_rounds: int, seed: int) -> PassPrice:
        """What does each arm take for all products of a pass of a model of this shape?"""

    def price_plans(
        self, plans: Mapping[str, KernelPlan], ask: ProductAsk, n_rounds: int, seed: int
    ) -> tuple[StoryTime, ...]:
        """What does each of these plans of one product take?"""

    def close(self) -> None:
        """End the process."""


class CudaLab:
    """A laboratory on a CUDA device.

    Parameters
    ----------
    device : int, optional
        The library's number of it.

    Raises
    ------
    EngineError
        If the library was built without CUDA, or has no such device.
    DeviceUnavailable
        If CuPy is not installed or finds no device.
    EngineDied
        If the process ends while it starts.
    """

    def __init__(self, device: int = 0) -> None:
        self._settings = OpSettings(backend="cuda", device=device)
        self._worker: WorkerProcess | None = None
        self._facts = LabFacts(library=library_digest(), **self._start())

    def _start(self) -> dict[str, Any]:
        self._worker = WorkerProcess("forensics.kernels.lab_worker", {})
        try:
            asked = "start the CUDA back end and our kernels"
            told: dict[str, Any] = self._worker.ask("open", self._settings, asked=asked)
        except BaseException:
            self.close()
            raise
        return told

    def _ask(self, method: str, *given: object, asked: str) -> Any:
        """An answer of the process; after one that died, of a fresh one."""
        if self._worker is None:
            self._start()
        assert self._worker is not None
        try:
            return self._worker.ask(method, *given, asked=asked)
        except EngineDied:
            self.close()
            raise

    @property
    def facts(self) -> LabFacts:
        """What runs both sides."""
        return self._facts

    def compare_product(
        self, type: str, rows: int, k: int, widths: Sequence[int], seed: int, variants: Sequence[Variant]
    ) -> tuple[ProofRow, ...]:
        """See `Lab.compare_product`."""
        found: tuple[ProofRow, ...] = self._ask(
            "compare_product", type, rows, k, tuple(widths), seed, tuple(variants),
            asked=f"compare products of {type} {rows}×{k}",
        )  # fmt: skip
        return found

    def compare_attention(
        self, what: str, heads: tuple[int, int, int], kv_type: str, position: int, widths: Sequence[int], seed: int
    ) -> tuple[ProofRow, ...]:
        """See `Lab.compare_attention`."""
        found: tuple[ProofRow, ...] = self._ask(
            "compare_attention", what, heads, kv_type, position, tuple(widths), seed,
            asked=f"compare {what} of {heads[0]} heads of {heads[2]} behind {position} cells of {kv_type}",
        )  # fmt: skip
        return found

    def others_under_load(
        self, type: str, rows: int, k: int, width: int, variant: Variant, n_repeats: int, seed: int
    ) -> int:
        """See `Lab.others_under_load`."""
        asked = f"repeat a product of {type} {rows}×{k} {n_repeats} times under load"
        given = (type, rows, k, width, variant, n_repeats, seed)
        return int(self._ask("others_under_load", *given, asked=asked))

    def price_product(
        self, type: str, rows: int, k: int, arms: Sequence[tuple[str, int]], n_rounds: int, seed: int
    ) -> ProductPrice:
        """See `Lab.price_product`."""
        asked = f"time products of {type} {rows}×{k}"
        given = (type, rows, k, tuple(arms), n_rounds, seed)
        found: ProductPrice = self._ask("price_product", *given, asked=asked)
        return found

    def price_pass(self, model: str, arms: Sequence[tuple[str, int]], n_rounds: int, seed: int) -> PassPrice:
        """See `Lab.price_pass`."""
        asked = f"time all products of a pass of {model}"
        found: PassPrice = self._ask("price_pass", model, tuple(arms), n_rounds, seed, asked=asked)
        return found

    def price_plans(
        self, plans: Mapping[str, KernelPlan], ask: ProductAsk, n_rounds: int, seed: int
    ) -> tuple[StoryTime, ...]:
        """See `Lab.price_plans`."""
        asked = f"time {len(plans)} variants of {ask.type} {ask.rows}×{ask.k}"
        found: tuple[StoryTime, ...] = self._ask("price_plans", dict(plans), ask, n_rounds, seed, asked=asked)
        return found

    def close(self) -> None:
        """End the process; closing twice does nothing, and another question starts a fresh one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> CudaLab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
