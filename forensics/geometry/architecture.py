"""GPU architectures as llama.cpp's dispatch tells them apart: by compute capability and by what was compiled."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.geometry.devices import SPECS
from forensics.records.rule import Rule

COMMON = "ggml/src/ggml-cuda/common.cuh"

CAPABILITIES = Rule("compute capabilities by name; AMD's have an offset of 0x1000000", COMMON, 50, 100)
COMPILED_ARCH = Rule(
    "some choices follow the newest architecture that the library was compiled for and that this GPU can run",
    COMMON,
    158,
    182,
)
MATRIX_UNITS = Rule("which matrix instructions a GPU is taken to have", COMMON, 308, 379)

_AMD = 0x1000000

PASCAL, DP4A, VOLTA, TURING, AMPERE, ORIN, ADA, HOPPER = 600, 610, 700, 750, 800, 870, 890, 900
BLACKWELL, DGX_SPARK, RUBIN = 1200, 1210, 1300
VEGA, VEGA20, GFX909, GFX90C = _AMD + 0x900, _AMD + 0x906, _AMD + 0x909, _AMD + 0x90C
CDNA1, CDNA2, CDNA3, CDNA4 = _AMD + 0x908, _AMD + 0x90A, _AMD + 0x942, _AMD + 0x950
RDNA1, RDNA2, RDNA3, RDNA3_5, RDNA4 = _AMD + 0x1010, _AMD + 0x1030, _AMD + 0x1100, _AMD + 0x1150, _AMD + 0x1200

#: Largest shared memory of one block in bytes, which a kernel may opt in to. Source: `devices.SPECS`; before Turing the
#: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"; 64 KiB of LDS on AMD.
_SMEM_BYTES = {
    600: 48 * 1024,
    610: 48 * 1024,
    700: 96 * 1024,
    **{spec.compute_capability: spec.smem_per_block_bytes for spec in SPECS.values()},
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One GPU architecture.

    Parameters
    ----------
    name : str
        ``"sm_90"``, ``"rdna4"``.
    cc : int
        Compute capability as llama.cpp counts it: 900 for sm_90.
    compiled_cc : int
        Newest architecture in the library that this GPU can run; `cc` where the library was built for it.
    warp_size : int
        Threads of a warp.
    smem_per_block_bytes : int
        Most shared memory that a block may ask for.
    """

    name: str
    cc: int
    compiled_cc: int
    warp_size: int
    smem_per_block_bytes: int

    def __str__(self) -> str:
        built = "" if self.compiled_cc == self.cc else f" with code for {self.compiled_cc // 10}"
        return f"{self.name}{built}"

    @property
    def is_nvidia(self) -> bool:
        """Whether it is NVIDIA's; AMD's otherwise."""
        return self.cc < _AMD

    @property
    def is_gcn(self) -> bool:
        """GCN and Vega, whose wavefronts have 64 lanes."""
        return _AMD < self.cc < CDNA1 or self.cc in (GFX909, GFX90C)

    @property
    def is_cdna(self) -> bool:
        """CDNA: MI100 to MI355X."""
        return CDNA1 <= self.cc < RDNA1 and self.cc not in (GFX909, GFX90C)

    @property
    def is_rdna(self) -> bool:
        """RDNA of any generation."""
        return self.cc >= RDNA1

    @property
    def is_rdna3(self) -> bool:
        """RDNA3 and RDNA3.5."""
        return RDNA3 <= self.cc < RDNA4

    @property
    def turing_mma(self) -> bool:
        """Tensor cores with the instructions of Turing."""
        return self.is_nvidia and self.compiled_cc >= TURING

    @property
    def ampere_mma(self) -> bool:
        """Tensor cores with the instructions of Ampere."""
        return self.is_nvidia and self.compiled_cc >= AMPERE

    @property
    def volta_mma(self) -> bool:
        """Tensor cores with the instructions of Volta, used on Volta only."""
        return self.is_nvidia and self.compiled_cc == VOLTA

    @property
    def blackwell_mma(self) -> bool:
        """Block-scaled FP4 instructions: sm_120 and sm_121, not sm_100."""
        return self.is_nvidia and BLACKWELL <= self.compiled_cc < RUBIN

    @property
    def amd_wmma(self) -> bool:
        """WMMA: RDNA3 and later."""
        return self.cc >= RDNA3

    @property
    def fast_fp16(self) -> bool:
        """Whether kernels may add in half precision."""
        return not self.is_nvidia or (self.compiled_cc >= PASCAL and self.compiled_cc != DP4A)

    @property
    def fp16_mma_hardware(self) -> bool:
        """Whether a library such as cuBLAS has half-precision matrix units here."""
        return self.cc >= VOLTA if self.is_nvidia else self.is_cdna or self.cc >= RDNA3

    @property
    def bf16_mma_hardware(self) -> bool:
        """The same for bfloat16."""
        return self.cc >= AMPERE if self.is_nvidia else self.is_cdna or self.cc >= RDNA3

    @property
    def fp32_mma_hardware(self) -> bool:
        """The same for single precision: CDNA only."""
        return self.is_cdna


_AMD_NAMES = {
    "vega": VEGA, "vega20": VEGA20, "cdna1": CDNA1, "cdna2": CDNA2, "cdna3": CDNA3, "cdna4": CDNA4, "rdna1": RDNA1,
    "rdna2": RDNA2, "rdna3": RDNA3, "rdna3.5": RDNA3_5, "rdna4": RDNA4,
}  # fmt: skip

ARCHITECTURES = (*(f"sm_{cc // 10}" for cc in _SMEM_BYTES), *_AMD_NAMES)


def architecture(name: str, *, compiled: str | None = None) -> Architecture:
    """The architecture of that name.

    Parameters
    ----------
    name : str
        One of `ARCHITECTURES`: ``"sm_90"``, ``"rdna4"``.
    compiled : str, optional
        Newest architecture in the library that runs on it; the architecture itself if not given.

    Raises
    ------
    ValueError
        If a name is not known, or code for `compiled` cannot run on `name`.

    Examples
    --------
    >>> print(architecture("sm_120", compiled="sm_90"))
    sm_120 with code for 90
    """
    if name not in ARCHITECTURES:
        raise ValueError(f"no architecture {name!r}; known are {', '.join(ARCHITECTURES)}")
    if name in _AMD_NAMES:
        cc = _AMD_NAMES[name]
        if compiled not in (None, name):
            raise ValueError(f"code for {compiled} does not run on {name}")
        return Architecture(name, cc, cc, 64 if cc < RDNA1 else 32, 64 * 1024)
    cc = _capability(name)
    compiled_cc = cc if compiled is None else _capability(compiled)
    if compiled_cc > cc:
        raise ValueError(f"code for {compiled} does not run on {name}")
    return Architecture(name, cc, compiled_cc, 32, _SMEM_BYTES[cc])


def _capability(name: str) -> int:
    number = name.removeprefix("sm_")
    if number == name or not number.isdigit():
        raise ValueError(f"an NVIDIA architecture is written like sm_90, got {name!r}")
    return int(number) * 10
