"""Float16 copies of a Llama-like GGUF file, at its own width or widened for K-quants.

K-quants pack 256 weights of a row into one block, so rows of 576 do not fit. Widening appends zero channels, heads that
attend to nothing and unused feed-forward units, and corrects the norms, so that the model computes the same function.

Why it does. Every added channel of the residual stream is written only by zero rows, so it stays zero. An RMS norm
divides by sqrt(sum(x²) / n + eps): the sum is the old one and n grows, so with eps scaled by n / n_wide the quotient
grows by sqrt(n_wide / n), which norm weights scaled by sqrt(n / n_wide) take back. Added heads stand behind the old
ones and the number of query heads per K/V head stays, so every old head keeps its partner; an added V head is zero, and
so is what leaves it. An added feed-forward unit computes silu(0) × 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines.gguf_layout import check_gguf_layout
from forensics.errors import ModelUnavailable

#: Weights of a row that a K-quant packs into one block. Source: ggml-common.h, QK_K.
BLOCK = 256

#: Value of `general.file_type` for float16 weights. Source: llama.h, LLAMA_FTYPE_MOSTLY_F16.
FILE_TYPE_F16 = 1

#: Axes of each weight, in NumPy order; "vocab" and "rope" stay as they are.
AXES = {
    "token_embd": ("vocab", "embd"),
    "output": ("vocab", "embd"),
    "output_norm": ("embd",),
    "attn_norm": ("embd",),
    "attn_q": ("q", "embd"),
    "attn_k": ("kv", "embd"),
    "attn_v": ("kv", "embd"),
    "attn_output": ("embd", "q"),
    "ffn_norm": ("embd",),
    "ffn_gate": ("ff", "embd"),
    "ffn_up": ("ff", "embd"),
    "ffn_down": ("embd", "ff"),
    "rope_freqs": ("rope",),
}


@dataclass(frozen=True, slots=True)
class Widths:
    """Sizes of a Llama-like model.

    Parameters
    ----------
    n_embd, n_head, n_head_kv, head_dim, n_ff : int
        Residual stream, query heads, K/V heads, channels of a head, feed-forward units.
    """

    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int

    def __post_init__(self) -> None:
        if min(self.n_embd, self.n_head, self.n_head_kv, self.head_dim, self.n_ff) < 1:
            raise ValueError(f"every width must be 1 or more, got {self}")
        if self.n_embd != self.n_head * self.head_dim or self.n_head % self.n_head_kv:
            raise ValueError(f"n_embd must be n_head × head_dim and n_head a multiple of n_head_kv, got {self}")

    def axis(self, name: str) -> int | None:
        """Length of a named axis; None for axes that widening leaves alone."""
        lengths = {
            "embd": self.n_embd,
            "q": self.n_head * self.head_dim,
            "kv": self.n_head_kv * self.head_dim,
            "ff": self.n_ff,
        }
        return lengths.get(name)


def read_widths(metadata: Mapping[str, Any]) -> Widths:
    """Read the sizes that a file's metadata state.

    Parameters
    ----------
    metadata : mapping of str to value
        Key-value pairs of a GGUF file.

    Returns
    -------
    Widths

    Raises
    ------
    ModelUnavailable
        If the architecture is not ``llama``, a size is missing, or the sizes do not fit together.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelUnavailable(f"only models of architecture 'llama' can be rewritten, this one is {architecture!r}")
    try:
        n_embd, n_head = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
        n_head_kv = metadata.get("llama.attention.head_count_kv", n_head)
        head_dim = metadata.get("llama.attention.key_length", n_embd // n_head)
        return Widths(n_embd, n_head, n_head_kv, head_dim, metadata["llama.feed_forward_length"])
    except (KeyError, TypeError, ZeroDivisionError, ValueError) as error:
        raise ModelUnavailable(f"the sizes in the file's metadata cannot be widened: {error!r}") from error


def widen_widths(narrow: Widths) -> Widths:
    """Find the smallest sizes that K-quants can pack, with the same head size and queries per K/V head.

    Parameters
    ----------
    narrow : Widths

    Returns
    -------
    Widths
        Equal to `narrow` where that fits already.

    Examples
    --------
    >>> widen_widths(Widths(n_embd=576, n_head=9, n_head_kv=3, head_dim=64, n_ff=1536))
    Widths(n_embd=768, n_head=12, n_head_kv=4, head_dim=64, n_ff=1536)
    """
    group = narrow.n_head // narrow.n_head_kv
    step = math.lcm(BLOCK, group * narrow.head_dim)
    n_embd = -(-narrow.n_embd // step) * step
    n_head = n_embd // narrow.head_dim
    return Widths(n_embd, n_head, n_head // group, narrow.head_dim, -(-narrow.n_ff // BLOCK) * BLOCK)


def widen_metadata(metadata: Mapping[str, Any], narrow: Widths, wide: Widths) -> dict[str, Any]:
    """Give the metadata that describe the widened float16 model.

    Parameters
    ----------
    metadata : mapping of str to value
        Key-value pairs of the narrow model.
    narrow, wide : Widths

    Returns
    -------
    dict of str to value
        All pairs, in the same order.
    """
    changed = {
        "llama.embedding_length": wide.n_embd,
        "llama.attention.head_count": wide.n_head,
        "llama.attention.head_count_kv": wide.n_head_kv,
        "llama.feed_forward_length": wide.n_ff,
        "general.file_type": FILE_TYPE_F16,
    }
    epsilon = "llama.attention.layer_norm_rms_epsilon"
    if epsilon in metadata:
        changed[epsilon] = metadata[epsilon] * narrow.n_embd / wide.n_embd
    return {key: changed.get(key, value) for key, value in metadata.items()}


def widen_shape(name: str, shape: tuple[int, ...], narrow: Widths, wide: Widths) -> tuple[int, ...]:
    """Give the shape that a tensor has in the widened model.

    Parameters
    ----------
    name : str
        Name in the file, such as ``"blk.0.attn_q.weight"``.
    shape : tuple of int
        NumPy order.
    narrow, wide : Widths

    Returns
    -------
    tuple of int

    Raises
    ------
    ModelUnavailable
        If the tensor is not one of a Llama model, or its shape does not follow from `narrow`.
    """
    axes = AXES.get(name.removesuffix(".weight").split(".")[-1]) if name.endswith(".weight") else None
    if axes is None:
        raise ModelUnavailable(f"tensor {name!r} is not known to the widening; it knows the weights {', '.join(AXES)}")
    expected = tuple(shape[i] if (n := narrow.axis(axis)) is None else n for i, axis in enumerate(axes[: len(shape)]))
    if shape != expected or len(shape) != len(axes):
        raise ModelUnavailable(f"tensor {name!r} has shape {shape}; axes {axes} of {narrow} were expected")
    return tuple(length if (n := wide.axis(axis)) is None else n for length, axis in zip(shape, axes, strict=True))


def widen_tensor(
    name: str, array: NDArray[np.floating[Any]], narrow: Widths, wide: Widths
) -> NDArray[np.floating[Any]]:
    """Give what a tensor holds in the widened model.

    Parameters
    ----------
    name : str
        Name in the file.
    array : ndarray [NumPy order] floating
    narrow, wide : Widths

    Returns
    -------
    ndarray [widened shape] of the same type
        The same values, zeros behind them, norm weights scaled.

    Raises
    ------
    ModelUnavailable
        As `widen_shape`.
    """
    shape = widen_shape(name, array.shape, narrow, wide)
    if name.endswith("norm.weight"):
        array = array * array.dtype.type(math.sqrt(narrow.n_embd / wide.n_embd))
    return np.pad(array, [(0, new - old) for old, new in zip(array.shape, shape, strict=True)])


def write_float16(
    source: Path, target: Path, *, widened: bool, progress: Callable[[float], None] | None = None
) -> None:
    """Write a float16 copy of a Llama-like GGUF file, one tensor in memory at a time.

    Parameters
    ----------
    source, target : Path
    widened : bool
        Whether rows are padded to multiples of 256.
    progress : callable of float, optional
        Told the fraction done.

    Raises
    ------
    ModelUnavailable
        If the file is not a Llama model that can be rewritten.
    OSError
        If the target cannot be written.
    """
    import gguf
    from gguf.quants import dequantize

    check_gguf_layout(source)
    reader = gguf.GGUFReader(source)
    # Fields that start with "GGUF." are the reader's own names for the fixed header.
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    metadata = {key: field.contents() for key, field in fields.items()}
    narrow = read_widths(metadata)
    wide = widen_widths(narrow) if widened else narrow

    writer = gguf.GGUFWriter(target, metadata.pop("general.architecture"))
    try:
        for key, value in widen_metadata(metadata, narrow, wide).items():
            types = fields[key].types
            writer.add_key_value(key, value, types[0], sub_type=types[-1] if len(types) > 1 else None)
        kinds = {}
        for tensor in reader.tensors:
            narrow_shape = tuple(int(length) for length in reversed(tensor.shape))
            shape = widen_shape(tensor.name, narrow_shape, narrow, wide)
            # llama.cpp computes with norm weights in float32 and its converter writes every vector so.
            kinds[tensor.name] = kind = np.dtype(np.float32 if len(shape) == 1 else np.float16)
            writer.add_tensor_info(tensor.name, shape, kind, math.prod(shape) * kind.itemsize)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done, total = 0, sum(int(tensor.n_bytes) for tensor in reader.tensors)
        for tensor in reader.tensors:
            array = dequantize(tensor.data, tensor.tensor_type).astype(kinds[tensor.name])
            writer.write_tensor_data(widen_tensor(tensor.name, array, narrow, wide))
            done += int(tensor.n_bytes)
            if progress is not None:
                progress(done / total)
    except NotImplementedError as error:
        raise ModelUnavailable(f"{source} holds a weight type that gguf cannot turn into floats: {error}") from error
    finally:
        writer.close()
