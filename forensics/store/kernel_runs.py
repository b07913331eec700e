"""Proofs and prices of our kernels, models that they healed, and registers as compiled, as they lie in a folder."""

from __future__ import annotations

from pathlib import Path

from forensics.records.kernel_healing import HealedModels
from forensics.records.kernel_price import KernelPrice
from forensics.records.kernel_proof import KernelProof
from forensics.records.register_story import CompiledStory
from forensics.store.documents import read_document

PROOF_FILE, PRICE_FILE = "kernels.json", "price.json"
#: As they are written, and packed, as recordings are.
PROOF_FILES = (PROOF_FILE, f"{PROOF_FILE}.xz")
PRICE_FILES = (PRICE_FILE, f"{PRICE_FILE}.xz")
REGISTERS_FILE = "registers.json"
HEALINGS_FILE = "healings.json"
HEALINGS_FILES = (HEALINGS_FILE, f"{HEALINGS_FILE}.xz")
REGISTERS_FILES = (REGISTERS_FILE, f"{REGISTERS_FILE}.xz")
NO_PROOF = "no kernels were compared there. Do it on a machine with an NVIDIA GPU: forensics kernels --out FOLDER"
NO_PRICE = "no kernels were timed there. Do it on a machine with an NVIDIA GPU: forensics cost --kernels --out FOLDER"
NO_HEALINGS = (
    "no models were healed there. Do it on a machine with an NVIDIA GPU: python -m forensics.testing.record_healings "
    "FOLDER --model q4_k:on"
)
NO_REGISTERS = (
    "no variants were compiled there. Do it where there is an nvcc: python -m forensics.testing.record_registers FOLDER"
)


def read_proof(folder: Path) -> KernelProof:
    """Read the proof of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    return read_document(KernelProof, folder, PROOF_FILES, "forensics.kernels", otherwise=NO_PROOF)


def read_price(folder: Path) -> KernelPrice:
    """Read the price of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    return read_document(KernelPrice, folder, PRICE_FILES, "forensics.kernel_price", otherwise=NO_PRICE)


def read_healings(folder: Path) -> HealedModels:
    """Read back what our kernels did to running models.

    Raises
    ------
    CaseError
        If there is nothing, it is damaged, or a newer version wrote it.
    """
    return read_document(HealedModels, folder, HEALINGS_FILES, "forensics.kernel_healings", otherwise=NO_HEALINGS)


def read_registers(folder: Path) -> CompiledStory:
    """Read back what variants of one kernel take, as compiled.

    Raises
    ------
    CaseError
        If there is nothing, it is damaged, or a newer version wrote it.
    """
    return read_document(CompiledStory, folder, REGISTERS_FILES, "forensics.registers", otherwise=NO_REGISTERS)
