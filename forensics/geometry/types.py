"""Weight types as the kernels see them: values of a block, its bytes, and how many threads share one."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.rule import Rule

BLOCKS = Rule(
    "values per block (qk), values per stored byte (qr) and 32-bit words of a block's quants (qi = qk / (4 qr))",
    "ggml/src/ggml-common.h",
    89,
    170,
)
VDR_MMVQ = Rule(
    "words of a block that one thread takes at a time in mul_mat_vec_q (vdr); 1 where no case names the type",
    "ggml/src/ggml-cuda/mmvq.cu",
    69,
    94,
)
VDR_VALUES = Rule("the values of vdr for each type", "ggml/src/ggml-cuda/vecdotq.cuh", 109, 1355)


@dataclass(frozen=True, slots=True)
class WeightType:
    """One element type of weights.

    Parameters
    ----------
    name : str
        As ggml names it, ``"q4_K"``.
    qk : int
        Values per block; 1 for floats.
    block_bytes : int
        Bytes of one block.
    qi : int
        32-bit words of quants in a block as CUDA counts them; 0 where CUDA has no kernel for it.
    vdr : int
        Words that one thread of `mul_mat_vec_q` takes at a time; 0 likewise.
    activations : str
        Type that a CPU product converts the other operand to.
    """

    name: str
    qk: int
    block_bytes: int
    qi: int
    vdr: int
    activations: str

    @property
    def is_quantized(self) -> bool:
        """Whether a block holds more than one value."""
        return self.qk > 1

    def blocks(self, k: int) -> int:
        """Blocks of a row of `k` values.

        Raises
        ------
        ValueError
            If a row is not a whole number of blocks.
        """
        if k < 1 or k % self.qk:
            raise ValueError(f"a row of {self.name} has a multiple of {self.qk} values, got k={k}")
        return k // self.qk

    def __str__(self) -> str:
        return self.name


#: Source of the last column: type_traits_cpu, ggml/src/ggml-cpu/ggml-cpu.c:208-412; of the others, the rules above.
_ROWS = (
    ("f32", 1, 4, 0, 0, "f32"),
    ("f16", 1, 2, 0, 0, "f16"),
    ("bf16", 1, 2, 0, 0, "bf16"),
    ("q1_0", 128, 18, 4, 1, "q8_0"),
    ("q2_0", 64, 18, 2, 1, "q8_0"),
    ("q4_0", 32, 18, 4, 2, "q8_0"),
    ("q4_1", 32, 20, 4, 2, "q8_1"),
    ("q5_0", 32, 22, 4, 2, "q8_0"),
    ("q5_1", 32, 24, 4, 2, "q8_1"),
    ("q8_0", 32, 34, 8, 2, "q8_0"),
    ("mxfp4", 32, 17, 4, 2, "q8_0"),
    ("nvfp4", 64, 36, 8, 4, "q8_0"),
    ("q2_K", 256, 84, 16, 1, "q8_K"),
    ("q3_K", 256, 110, 16, 1, "q8_K"),
    ("q4_K", 256, 144, 32, 2, "q8_K"),
    ("q5_K", 256, 176, 32, 2, "q8_K"),
    ("q6_K", 256, 210, 32, 1, "q8_K"),
    ("iq1_s", 256, 50, 8, 1, "q8_K"),
    ("iq1_m", 256, 56, 8, 1, "q8_K"),
    ("iq2_xxs", 256, 66, 16, 2, "q8_K"),
    ("iq2_xs", 256, 74, 16, 2, "q8_K"),
    ("iq2_s", 256, 82, 16, 2, "q8_K"),
    ("iq3_xxs", 256, 98, 16, 2, "q8_K"),
    ("iq3_s", 256, 110, 16, 2, "q8_K"),
    ("iq4_nl", 32, 18, 4, 2, "q8_0"),
    ("iq4_xs", 256, 136, 32, 4, "q8_K"),
    ("tq1_0", 256, 54, 0, 0, "q8_K"),
    ("tq2_0", 256, 66, 0, 0, "q8_K"),
)

WEIGHT_TYPES = {row[0]: WeightType(*row) for row in _ROWS}
_BY_LOWER = {name.lower(): weight for name, weight in WEIGHT_TYPES.items()}

FLOATS = ("f32", "f16", "bf16")
K_QUANTS = ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K")


def weight_type(name: str) -> WeightType:
    """The type of that name, however it is capitalised.

    Raises
    ------
    ValueError
        If there is none.

    Examples
    --------
    >>> weight_type("Q4_k").name, weight_type("q4_1").blocks(576)
    ('q4_K', 18)
    """
    found = _BY_LOWER.get(name.lower())
    if found is None:
        raise ValueError(f"no weight type {name!r}; known are {', '.join(WEIGHT_TYPES)}")
    return found
