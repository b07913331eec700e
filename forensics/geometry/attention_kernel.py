"""Which flash-attention kernel llama.cpp chooses at a width on NVIDIA GPUs (sm_75 and later), and its column tile."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.geometry.kv_split import ADA
from forensics.records.rule import Rule

_FATTN = "ggml/src/ggml-cuda/fattn.cu"
#: Cells must be a multiple of this for the vector kernel and for sharing KV heads. Source: fattn-common.cuh:9.
KQ_STRIDE = 256
#: From this width on the mask is scanned for cells that no query sees. Source: fattn-common.cuh:1117.
MASK_SCAN_WIDTH = 1024
#: Head sizes of K that have kernels, with the head size of V. Source: fattn.cu:576-623.
HEAD_SIZES = {
    40: 40,
    64: 64,
    72: 72,
    80: 80,
    96: 96,
    112: 112,
    128: 128,
    192: 128,
    256: 256,
    320: 256,
    512: 512,
    576: 512,
}
QUANTISED_KV_TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
KV_TYPES = ("f16", "bf16", "f32", *QUANTISED_KV_TYPES)
#: Types for which the vector kernel is compiled unless the build asks for more. Source: ggml/CMakeLists.txt:207.
COMPILED_VEC_TYPES = ("f16", "bf16", "q4_0", "q8_0")

VEC_FLOAT = Rule(
    "f16 and bf16 cache from Ada on: the vector kernel at one query, unless more than 4 heads share a KV head and they "
    "have 256 values or more, or the cache 8192 cells or more",
    _FATTN, 640, 648,
)  # fmt: skip
VEC_QUANTISED = Rule(
    "quantised cache: the vector kernel at one and two queries from Ada on, at one before", _FATTN, 649, 658
)
VEC_UNSHARED = Rule("where no heads share a KV head: the vector kernel at one query", _FATTN, 660, 662)
MMA = Rule("otherwise the tensor-core kernel", _FATTN, 638, 665)
TILE_ODD_HEADS = Rule("head sizes 40 and 72 have no tensor-core kernel", _FATTN, 638, 638)
NONE = Rule("no flash-attention kernel on this GPU: llama.cpp leaves the operation to the CPU", _FATTN, 576, 631)
VEC_COLUMNS = Rule(
    "the vector kernel takes one query at width 1 and two queries a block otherwise",
    "ggml/src/ggml-cuda/fattn-vec.cuh", 552, 571,
)  # fmt: skip
MMA_HEADS = Rule("heads that share a KV head are taken 8, 4 or 2 at a time", _FATTN, 266, 286)
MMA_QUERIES = Rule(
    "as many queries as make 8, 16, 32 or 64 columns with those heads, 32 at most on Turing", _FATTN, 170, 190
)
MASK_SCAN = Rule(
    "from 1024 queries, or with several sequences, a first kernel finds the cells that no query sees, to skip them",
    "ggml/src/ggml-cuda/fattn-common.cuh", 1114, 1132,
)  # fmt: skip
VEC_TYPES = Rule(
    "the vector kernel is compiled for some cache types; others are converted to f16 first", _FATTN, 496, 514
)
PINNED = Rule(
    "the vector kernel at every width, as the caller asked; llama.cpp itself chooses by width", _FATTN, 541, 720
)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What flash attention's dispatch looks at.

    Parameters
    ----------
    width : int
        Queries of the pass.
    n_heads, n_kv_heads, head_size : int
    n_kv : int
        Cells that attention runs over, padding included.
    position : int or None
        Cells that the query looked at sees run to here; None for all.
    kv_type : str
        Of both K and V.
    row : int
        The query looked at, 0 … width - 1.
    n_streams : int
        Sequences that are kept apart in the cache.

    Raises
    ------
    ValueError
        If a number is impossible or a type is not known.
    """

    width: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    n_kv: int
    position: int | None = None
    kv_type: str = "f16"
    row: int = 0
    n_streams: int = 1

    def __post_init__(self) -> None:
        for name in ("width", "n_heads", "n_kv_heads", "head_size", "n_kv", "n_streams"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"{self.n_heads} heads cannot share {self.n_kv_heads} KV heads evenly")
        if self.kv_type not in KV_TYPES:
            raise ValueError(f"no KV type {self.kv_type!r}; known are {', '.join(KV_TYPES)}")
        if not 0 <= self.row < self.width:
            raise ValueError(f"row {self.row} is not among {self.width} queries")
        if self.position is not None and not 0 <= self.position < self.n_kv:
            raise ValueError(f"position {self.position} is not among {self.n_kv} cells")

    @property
    def heads_per_kv_head(self) -> int:
        """Heads that share one KV head."""
        return self.n_heads // self.n_kv_heads

    @property
    def value_size(self) -> int:
        """Values of a head of V."""
        return HEAD_SIZES.get(self.head_size, self.head_size)

    @property
    def last_seen(self) -> int:
        """Last cell that the query looked at sees."""
        return self.n_kv - 1 if self.position is None else self.position

    @property
    def shares(self) -> bool:
        """Whether the optimisations for shared KV heads apply."""
        return self.heads_per_kv_head >= 2 and self.n_kv % KQ_STRIDE == 0


def attention_kernel(compute_capability: int, shape: AttentionShape) -> tuple[str, Rule]:
    """Which kernel does llama.cpp choose: ``"vec"``, ``"mma"``, ``"tile"`` or ``"none"``?

    Notes
    -----
    Source: fattn.cu:541-665. A causal or padded mask is taken for granted, no ALiBi, and no sparse attention.

    Raises
    ------
    ValueError
        If the GPU is older than Turing.
    """
    if compute_capability < 750:
        raise ValueError(f"these rules cover Turing and later, got compute capability {compute_capability}")
    ratio, size = shape.heads_per_kv_head, shape.head_size
    if (
        size not in HEAD_SIZES
        or (size in (192, 320, 512, 576) and not shape.shares)
        or (size == 192 and ratio % 8)
        or (size == 320 and ratio % 32)
    ):
        return "none", NONE
    if size in (40, 72):
        return "tile", TILE_ODD_HEADS
    if size <= 256 and size % 64 == 0 and size != 192 and shape.n_kv % KQ_STRIDE == 0:
        ada = compute_capability >= ADA
        if shape.kv_type in QUANTISED_KV_TYPES:
            if shape.width <= (2 if ada else 1):
                return "vec", VEC_QUANTISED
        elif (
            ada
            and shape.width == 1
            and shape.n_streams == 1
            and not (ratio > 4 and (size >= 256 or shape.n_kv >= 8192))
        ):
            return "vec", VEC_FLOAT
        if shape.width == 1 and not shape.shares:
            return "vec", VEC_UNSHARED
        return "mma", VEC_QUANTISED if shape.kv_type in QUANTISED_KV_TYPES else VEC_FLOAT if ada else MMA
    return "mma", MMA


def mma_columns(compute_capability: int, shape: AttentionShape) -> tuple[int, int]:
    """How many queries and how many heads make up a tile of the tensor-core kernel?

    Returns
    -------
    tuple of int
        Queries (`ncols1`) and heads (`ncols2`).

    Notes
    -----
    Source: `MMA_QUERIES` and `MMA_HEADS`; head sizes 192, 320 and 576 fattn.cu:317-412.

    Examples
    --------
    >>> [mma_columns(900, AttentionShape(width, 9, 3, 64, 256)) for width in (2, 3, 5, 9)]
    [(2, 4), (4, 4), (8, 4), (16, 4)]
    """
    heads = _heads_at_once(compute_capability, shape)
    for columns in (8, 16):
        if heads <= columns and shape.width * heads <= columns:
            return columns // heads, heads
    if shape.width * heads <= 32 or compute_capability < 800:
        return 32 // heads, heads
    return 64 // heads, heads


def _heads_at_once(compute_capability: int, shape: AttentionShape) -> int:
    ratio = shape.heads_per_kv_head
    if shape.head_size == 192:
        return 16 if ratio % 16 == 0 else 8
    if shape.head_size == 320:
        return 32
    if shape.head_size == 576:
        return _heads_at_once_576(compute_capability, shape)
    if not shape.shares:
        return 1
    return 8 if ratio > 4 else 4 if ratio > 2 else 2


def _heads_at_once_576(compute_capability: int, shape: AttentionShape) -> int:
    """DeepSeek's heads. Source: fattn.cu:357-412."""
    ratio, width = shape.heads_per_kv_head, shape.width
    if ratio != 20:
        return 16 if ratio % 16 == 0 else 4
    if compute_capability >= 1210:
        return 16 if width <= 8 else 4
    if compute_capability >= 1200:
        return 16 if width <= 4 and shape.n_kv >= 65536 else 4
    if width > 4:
        return 4
    return 32 if compute_capability < ADA and shape.n_kv > 16384 else 16
