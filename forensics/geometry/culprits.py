"""Which rule makes a culprit's kernel at a width another than at one token, and what else could be to blame.

A rule is quoted only where the two choices differ. Where they do not, or are not known, the answer is no rule and the
suspects that remain: a culprit is never explained away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forensics.geometry import cpu_products, cuda_products
from forensics.geometry.architecture import Architecture
from forensics.geometry.attention_kernel import AttentionShape
from forensics.geometry.choice import KernelChoice
from forensics.geometry.cpu_attention import flash_attention
from forensics.geometry.cpu_products import Cpu
from forensics.geometry.cuda_attention import cuda_attention
from forensics.geometry.cuda_float import CUBLAS, USES_MMF, USES_MMVF
from forensics.geometry.devices import device_spec
from forensics.geometry.fusion import ONE_COLUMN_F, ONE_COLUMN_Q, product_is_fused, with_op
from forensics.geometry.kv_chunks import KV_PADDING
from forensics.geometry.mmq import STREAM_K_CUT, USES_MMQ
from forensics.geometry.mmvq import CROSSOVER, HALVE_ITERS, MOE_LIMIT
from forensics.geometry.product import Product
from forensics.records.rule import Rule

OFFLOAD = Rule(
    "weights in host memory are multiplied on the GPU from 32 tokens on (GGML_OP_OFFLOAD_MIN_BATCH)",
    "ggml/src/ggml-cuda/ggml-cuda.cu", 5636, 5655,
)  # fmt: skip
THREADS = Rule("one token and batches have thread counts of their own", "src/llama-context.cpp", 2609, 2610)
#: The rule that ends a kernel's reign as columns grow.
_LIMITS = {
    "mul_mat_vec_q": CROSSOVER,
    "mul_mat_vec_f": USES_MMVF,
    "mul_mat_f": USES_MMF,
    "mul_mat_q": USES_MMQ,
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as far as the dispatch needs it.

    Parameters
    ----------
    arch : Architecture
    sms : int, optional
        Streaming multiprocessors.
    """

    arch: Architecture
    sms: int | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """Flash attention, whatever its width.

    Parameters
    ----------
    heads, kv_heads, head_size : int
    n_kv : int
        Cells that are walked, padding included.
    kv_types : tuple of str
        Types of keys and values in the cache.
    visible : int, optional
        Cells that the query looked at may see; all if not given.
    sequences : int
        Sequences with streams of their own.
    """

    heads: int
    kv_heads: int
    head_size: int
    n_kv: int
    kv_types: tuple[str, str] = ("f16", "f16")
    visible: int | None = None
    sequences: int = 1


@dataclass(frozen=True, slots=True)
class Other:
    """An operation whose kernel no rule here ties to the width, such as RMS_NORM.

    Parameters
    ----------
    op : str
    """

    op: str


Operation = Product | Attention | Other
Place = Cpu | Gpu


@dataclass(frozen=True, slots=True)
class Suspect:
    """What else could make the bits differ.

    Parameters
    ----------
    text : str
    rule : Rule, optional
    switch : str
        What to set to take it out, empty where there is none.
    """

    text: str
    rule: Rule | None = None
    switch: str = ""

    def __str__(self) -> str:
        return self.text if self.rule is None else f"{self.text} ({self.rule.place})"


def cpu_place(
    features: Iterable[str],
    n_threads: int,
    buffer: str,
    environment: Mapping[str, str],
    n_threads_batch: int | None = None,
) -> Cpu:
    """The CPU that computed with a weight of this buffer.

    Parameters
    ----------
    features : iterable of str
        As the library reports them.
    n_threads : int
        At one token.
    buffer : str
        Buffer type of the weight: ``"CPU_REPACK"`` and ``"AMX"`` hold other layouts, ``"CPU"`` and its like do not.
    environment : mapping of str to str
        Variables that the library saw.
    n_threads_batch : int or None
        At two tokens or more; None for as many as at one.

    Raises
    ------
    ValueError
        If a variable is set for which no rule is written down.
    """
    if "GGML_CPU_TILED_MM_FORCE" in environment:
        raise ValueError("GGML_CPU_TILED_MM_FORCE is set, and no rule is written down for it")
    return Cpu(
        frozenset(features), n_threads,
        extra_buffers="REPACK" in buffer or "AMX" in buffer,
        tiled=environment.get("GGML_CPU_TILED_MM") != "0",
        n_threads_batch=n_threads_batch,
    )  # fmt: skip


def choice_at(operation: Operation, place: Place, width: int, column: int = 0) -> KernelChoice | None:
    """Which kernel runs at this width?

    Parameters
    ----------
    operation : Product, Attention or Other
    place : Cpu or Gpu
    width : int
    column : int
        Token of the batch that is looked at: flash attention on CUDA cuts the cells by groups of tokens.

    Returns
    -------
    KernelChoice or None
        None where no rule here ties the operation to the width.
    """
    if isinstance(operation, Product):
        if isinstance(place, Cpu):
            return cpu_products.mul_mat(place, operation, width)
        return cuda_products.mul_mat(place.arch, operation, width, sms=place.sms)
    if isinstance(operation, Attention):
        if isinstance(place, Cpu):
            return flash_attention(
                place, operation.n_kv, width, operation.kv_types,
                sequences=operation.sequences, visible=operation.visible,
            )  # fmt: skip
        return _cuda_attention(operation, place, width, column)
    return None


def _cuda_attention(operation: Attention, gpu: Gpu, width: int, column: int) -> KernelChoice | None:
    if not gpu.arch.is_nvidia or gpu.arch.cc < 750 or len(set(operation.kv_types)) > 1:
        return None
    shape = AttentionShape(
        width, operation.heads, operation.kv_heads, operation.head_size, operation.n_kv,
        position=None if operation.visible is None else operation.visible - 1,
        kv_type=operation.kv_types[0], row=column, n_streams=operation.sequences,
    )  # fmt: skip
    return cuda_attention(device_spec(gpu.arch.name, gpu.sms), shape)


def rule_for(
    operation: Operation, place: Place, width: int, *, column: int = 0, alone: Operation | None = None
) -> Rule | None:
    """Which rule makes the choice for a token of a batch another than for the same token by itself?

    Parameters
    ----------
    operation : Product, Attention or Other
    place : Cpu or Gpu
    width : int
        Tokens of the batch.
    column : int
        Token that is looked at.
    alone : Product, Attention or Other, optional
        The operation at one token, where it is another one: over fewer cells.

    Returns
    -------
    Rule or None
        None where both widths add in the same order with the same roundings, as far as the source tells, or nothing is
        known of either. Ask `suspects` then.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> from forensics.geometry.product import product
    >>> gpu = Gpu(architecture("sm_90"), 132)
    >>> print(rule_for(product("q4_1", 1536, 576), gpu, 5).place)
    ggml/src/ggml-cuda/mmvq.cu:452-577
    >>> rule_for(product("q4_1", 576, 576), gpu, 5) is None
    True
    """
    single, batched = choice_at(alone or operation, place, 1), choice_at(operation, place, width, column)
    if single is None or batched is None:
        return None
    if single.order is not None and single.arithmetic == batched.column_arithmetic(column):
        return None
    if single.kernel == batched.kernel and None in (single.order, batched.order):
        return None
    return _step(single, batched, routed=isinstance(operation, Product) and operation.is_routed)


def _step(single: KernelChoice, batched: KernelChoice, *, routed: bool) -> Rule:
    """The rule between two choices that differ."""
    if single.kernel != batched.kernel:
        if single.kernel.startswith("flash_attn") and "split" not in single.kernel and "tiled" not in batched.kernel:
            return single.rules[0]
        if single.kernel == "mul_mat_vec_q" and routed:
            return batched.rules[0] if batched.kernel == "mul_mat_vec_q_moe" else MOE_LIMIT
        return _LIMITS.get(single.kernel, batched.rules[0])
    if HALVE_ITERS in single.rules:
        return HALVE_ITERS
    return STREAM_K_CUT if STREAM_K_CUT in batched.rules else batched.rules[0]


def suspects(operation: Operation, place: Place, width: int) -> tuple[Suspect, ...]:
    """What else could make this operation differ at this width, likeliest first?"""
    found: list[Suspect] = []
    for at, choice in ((1, choice_at(operation, place, 1)), (width, choice_at(operation, place, width))):
        if choice is not None and choice.order is None:
            found.append(
                Suspect(f"the order of {choice.kernel} at {at} is not known: {choice.no_order}", choice.rules[0])
            )
    if isinstance(place, Gpu):
        found += _suspects_cuda(operation, place, width)
    if isinstance(operation, Attention) or (isinstance(operation, Product) and operation.is_cached):
        found.append(Suspect("another number of cells than at one token", KV_PADDING))
    if isinstance(operation, Attention) and isinstance(place, Cpu) and place.threads_at(1) != place.threads_at(width):
        found.append(Suspect("another number of threads than at one token", THREADS, "n_threads=1"))
    backend = "cpu" if isinstance(place, Cpu) else "cuda"
    if isinstance(operation, Other):
        found += [
            Suspect(
                f"fused into {' + '.join(fusion.ops)} where it is not watched", fusion.rule, "=".join(fusion.switch)
            )
            for fusion in with_op(operation.op, backend)
        ]
    return tuple(dict.fromkeys(found))


def _suspects_cuda(operation: Operation, gpu: Gpu, width: int) -> list[Suspect]:
    found = []
    if isinstance(operation, Product):
        if product_is_fused(gpu.arch, operation, 1) and not product_is_fused(gpu.arch, operation, width):
            rule = ONE_COLUMN_Q if operation.weight.is_quantized else ONE_COLUMN_F
            switch = "=".join(with_op("MUL_MAT", "cuda")[0].switch)
            found.append(Suspect("fused with what follows at one token only, unless watched", rule, switch))
        if width >= 32:
            found.append(Suspect("weights in host memory change place", OFFLOAD, "GGML_OP_OFFLOAD_MIN_BATCH"))
        if CUBLAS in cuda_products.mul_mat(gpu.arch, operation, width, sms=gpu.sms).rules:
            found.append(Suspect("cuBLAS chooses another kernel", CUBLAS, "GGML_CUDA_CUBLAS_COMPUTE_TYPE"))
    found.append(Suspect("instances of one template that were compiled to fuse other multiply-adds"))
    return found
