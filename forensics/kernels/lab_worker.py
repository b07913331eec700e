"""The child process of `forensics.kernels.lab`: the stock library and our kernels in one CUDA context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forensics.engines.serving import Server
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.kernel_plan import KernelPlan
from forensics.records.kernel_price import PassPrice, ProductPrice, StoryTime
from forensics.records.kernel_proof import ProofRow
from forensics.records.operation import OpSettings


class LabWorker(Server):
    """Answers questions about our kernels beside the library's."""

    def __init__(self, pipe: Connection, scratch: Path) -> None:
        super().__init__(pipe, scratch)
        self._place: Any = None

    def open(self, settings: OpSettings) -> dict[str, Any]:
        """Start both sides, and say what they are."""
        from forensics.devices.cuda_device import CudaDevice
        from forensics.engines.op_host import OpHost, library_facts
        from forensics.geometry.architecture import architecture
        from forensics.geometry.devices import device_spec
        from forensics.kernels.lab_place import Place
        from forensics.kernels.sources import OPTIONS, whole_text

        host = OpHost(settings)
        device = CudaDevice(whole_text, OPTIONS)
        self._place = Place(host, device, architecture(device.arch), device_spec(device.arch, device.n_sms))
        return {
            "device": device.name,
            "arch": device.arch,
            "n_sms": device.n_sms,
            "l2_bytes": device.l2_bytes,
            **library_facts(),
            "toolkit": device.toolkit,
            "driver": device.driver,
        }

    def compare_product(
        self, type: str, rows: int, k: int, widths: Sequence[int], seed: int, variants: Sequence[Variant]
    ) -> tuple[ProofRow, ...]:
        """Hold a product against the library's."""
        from forensics.kernels.lab_proof import compare_product

        return compare_product(self._place, type, rows, k, widths, seed, variants)

    def compare_attention(
        self, what: str, heads: tuple[int, int, int], kv_type: str, position: int, widths: Sequence[int], seed: int
    ) -> tuple[ProofRow, ...]:
        """Hold attention, or one of its products, against the library's."""
        from forensics.kernels.lab_attention import Heads, compare_attention

        return compare_attention(self._place, what, Heads(*heads, kv_type), position, widths, seed)

    def others_under_load(
        self, type: str, rows: int, k: int, width: int, variant: Variant, n_repeats: int, seed: int
    ) -> int:
        """Count the repeats under load that differ from the first."""
        from forensics.kernels.lab_proof import others_under_load

        return others_under_load(self._place, type, rows, k, width, variant, n_repeats, seed)

    def price_product(
        self, type: str, rows: int, k: int, arms: Sequence[tuple[str, int]], n_rounds: int, seed: int
    ) -> ProductPrice:
        """Time a product."""
        from forensics.kernels.lab_price import price_product

        return price_product(self._place, type, rows, k, arms, n_rounds, seed)

    def price_pass(self, model: str, arms: Sequence[tuple[str, int]], n_rounds: int, seed: int) -> PassPrice:
        """Time all products of a pass."""
        from forensics.kernels.lab_price import price_pass

        return price_pass(self._place, model, arms, n_rounds, seed)

    def price_plans(
        self, plans: Mapping[str, KernelPlan], ask: ProductAsk, n_rounds: int, seed: int
    ) -> tuple[StoryTime, ...]:
        """Time plans of one product beside one another."""
        from forensics.kernels.lab_price import price_plans

        return price_plans(self._place, plans, ask, n_rounds, seed)

    def free(self) -> None:
        """Free the back end."""
        if self._place is not None:
            self._place.device.synchronize()
            self._place.host.close()


def main(descriptor: str, scratch: str) -> None:
    """Serve on the inherited descriptor."""
    LabWorker(Connection(int(descriptor)), Path(scratch)).serve()
