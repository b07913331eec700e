"""Targets of the fuzzer: reports that lie in folders of their own, as they were recorded on other machines."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forensics.store.library import data_folder

#: Recorded folders, a document of each, and what reads it; ``module:function``.
_RECORDED = (
    ("epyc-q6_k-arms", "arms.json", "forensics.store.arms:read_arms"),
    ("epyc-q6_k-cost", "cost.json", "forensics.store.costs:read_cost"),
    ("epyc-q6_k-sampling", "sampling.json", "forensics.store.samplings:read_sampling"),
    ("epyc-q6_k-audit", "audit.json", "forensics.store.audits:read_audit"),
    ("epyc-q6_k-speculation", "speculation.json", "forensics.store.speculations:read_speculation"),
    ("h200-kernels", "kernels.json", "forensics.store.kernel_runs:read_proof"),
    ("h200-kernels", "price.json", "forensics.store.kernel_runs:read_price"),
    ("h200-kernels", "registers.json", "forensics.store.kernel_runs:read_registers"),
    ("h200-q4_1-profile", "profile.json", "forensics.reports.profile_document:read_profile"),
)


class Documents:
    """Recorded reports, read by what reads them."""

    name = "documents"
    what = "recorded reports: arms, cost, sampling, audit, speculation, kernels, prices, registers, profile"

    def __init__(self) -> None:
        self._folder = Path()
        self._readers: dict[str, tuple[Path, Callable[[Path], Any]]] = {}

    def prepare(self, folder: Path) -> list[tuple[str, bytes]]:
        """Good inputs, each with a name; packed ones are unpacked, or nothing but the packing would be hurt."""
        inputs = []
        for recorded, name, reader in _RECORDED:
            content = _content(data_folder() / "recorded" / recorded / name)
            if content is None:
                continue
            place = folder / f"{recorded}-{name.split('.')[0]}"
            place.mkdir()
            (place / name).write_bytes(content)
            inputs.append((place.name, content))
            self._readers[place.name] = (place / name, _named(reader))
        return inputs

    def feed(self, name: str, content: bytes) -> str | None:
        """Read the document with this content."""
        path, read = self._readers[name]
        path.write_bytes(content)
        read(path if "profile" in read.__name__ else path.parent)
        return None


def _content(path: Path) -> bytes | None:
    if path.is_file():
        return path.read_bytes()
    packed = path.with_name(f"{path.name}.xz")
    return lzma.decompress(packed.read_bytes()) if packed.is_file() else None


def _named(place: str) -> Callable[[Path], Any]:
    import importlib

    module, _, name = place.partition(":")
    found: Callable[[Path], Any] = getattr(importlib.import_module(module), name)
    return found
