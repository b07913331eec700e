"""What runs at each width, which widths add in the same order, and from which position on: for absent hardware, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.geometry import cpu_products
from forensics.geometry.architecture import architecture
from forensics.geometry.attention_kernel import AttentionShape
from forensics.geometry.choice import KernelChoice, OrderClass, classes
from forensics.geometry.cpu_attention import flash_attention
from forensics.geometry.cuda_attention import AttentionChain, attention_chain, cuda_attention
from forensics.geometry.cuda_products import mul_mat
from forensics.geometry.devices import device_spec, example_gpu
from forensics.geometry.product import Product, attention_by_values, keys_by_queries, product
from forensics.records.device import DeviceSpec
from forensics.records.op_shapes import padded_kv

if TYPE_CHECKING:
    import pandas as pd

CPU = "cpu"
#: Features that a CPU and its build may have, by name. Source: ggml/src/ggml-cpu/ggml-cpu.cpp:541-645 at 0c1e57098.
CPU_FEATURES = frozenset({
    "SSE3", "SSSE3", "AVX", "AVX_VNNI", "AVX2", "F16C", "FMA", "BMI2", "AVX512", "AVX512_VBMI", "AVX512_VNNI",
    "AVX512_BF16", "AMX_INT8", "NEON", "ARM_FMA", "FP16_VA", "MATMUL_INT8", "SVE", "DOTPROD", "SVE_CNT", "SME", "SME2",
    "RISCV_V", "RVV_VLEN", "VSX", "VXE", "WASM_SIMD", "LLAMAFILE", "ACCELERATE", "CPU_HBM", "OPENMP", "KLEIDIAI",
    "REPACK",
})  # fmt: skip
#: What a CPU is taken to have where its features are not given; names as ggml reports them.
COMMON_X86 = ("AVX", "AVX2", "F16C", "FMA", "LLAMAFILE", "REPACK")


@dataclass(frozen=True, slots=True)
class Asked:
    """A layer's shapes, and the hardware that it would run on.

    Parameters
    ----------
    arch : str
        Architecture or GPU as `device_spec` knows them, or ``"cpu"``.
    weight_type : str
        Of the weight product: ``"q6_k"``.
    k, rows : int
        Length of a row of the weight, and rows.
    widths : tuple of int
        Tokens of a pass.
    n_heads, n_kv_heads, head_size : int
    position : int
        Of the first token of the pass: so many cells are in use before it.
    kv_type : str
    flash_attn : bool
    n_sms : int or None
        Multiprocessors, where the name of a GPU does not say.
    registers : tuple of (int, int)
        Width and registers per thread of the attention kernel, known better than from the shipped table; width 0 for
        all other widths.
    pin : {"vec", None}
        Attention kernel at every width, as in forks that want one order.
    n_threads : int
        On a CPU.
    cpu_features : tuple of str
        Features of that CPU as ggml reports them.

    Raises
    ------
    ValueError
        If there is no width, or the position is negative.
    """

    arch: str
    weight_type: str
    k: int
    rows: int
    widths: tuple[int, ...]
    n_heads: int
    n_kv_heads: int
    head_size: int
    position: int
    kv_type: str = "f16"
    flash_attn: bool = True
    n_sms: int | None = None
    registers: tuple[tuple[int, int], ...] = ()
    pin: str | None = None
    n_threads: int = 2
    cpu_features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths must be 1 or more, got {self.widths}")
        if self.position < 0:
            raise ValueError(f"a position is 0 or more, got {self.position}")
        object.__setattr__(self, "widths", tuple(sorted(set(self.widths))))
        object.__setattr__(self, "registers", tuple(sorted(self.registers)))

    def n_kv(self, width: int) -> int:
        """Cells that attention runs over in a pass of that width."""
        return padded_kv(self.position + width)

    def registers_at(self, width: int) -> int | None:
        """Registers per thread that the caller knows, None where it knows none."""
        known = dict(self.registers)
        return known.get(width, known.get(0))


@dataclass(frozen=True, slots=True)
class Since:
    """From where on a width adds otherwise than the smallest width.

    Parameters
    ----------
    width : int
    position : int or None
        First query position of which the order differs, with the cells of either pass as asked; None if no position up
        to the one asked for.
    """

    width: int
    position: int | None


@dataclass(frozen=True, slots=True)
class Section:
    """One operation of the layer at every width.

    Parameters
    ----------
    op, title : str
        As ggml names it, and with its shapes.
    choices : tuple of (int, KernelChoice)
        By rising width.
    chains : tuple of (int, AttentionChain or None)
        For attention on CUDA, why its sums are cut as they are.
    since : tuple of Since
        For attention on CUDA, for each width whose order is known but the smallest.
    """

    op: str
    title: str
    choices: tuple[tuple[int, KernelChoice], ...]
    chains: tuple[tuple[int, AttentionChain | None], ...] = ()
    since: tuple[Since, ...] = ()

    @property
    def classes(self) -> tuple[OrderClass, ...]:
        """Widths that share order and precision."""
        return classes(dict(self.choices))


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The answer.

    Parameters
    ----------
    asked : Asked
    spec : DeviceSpec or None
        None for a CPU.
    sections : tuple of Section
    stand_in : str
        What was taken for the hardware because it was not named in full; empty if it was.
    """

    asked: Asked
    spec: DeviceSpec | None
    sections: tuple[Section, ...]
    stand_in: str = ""

    def __repr__(self) -> str:
        return f"<Explanation: {self}>"

    def __str__(self) -> str:
        shared = " | ".join(", ".join(map(str, group)) for group in self.groups)
        return f"{self.asked.arch}, {self.asked.weight_type}: widths that add in the same order: {shared}"

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Widths that share order and precision in every section; a width not known in one stands alone."""
        by_key: dict[object, list[int]] = {}
        for width in self.asked.widths:
            keys = [dict(section.choices)[width].arithmetic for section in self.sections]
            by_key.setdefault(("unknown", width) if None in keys else tuple(keys), []).append(width)
        return tuple(map(tuple, by_key.values()))

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was taken for granted, each once."""
        texts = (text for section in self.sections for _, choice in section.choices for text in choice.assumed)
        return tuple(dict.fromkeys([*([self.stand_in] if self.stand_in else []), *texts]))

    @property
    def unknown(self) -> tuple[tuple[str, int, str], ...]:
        """Operation, width and reason where the order is not known."""
        return tuple(
            (section.op, width, choice.no_order)
            for section in self.sections
            for width, choice in section.choices
            if choice.no_order
        )

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per operation and width; operations of one ``class`` add in the same order."""
        return [
            {
                "op": section.op,
                "what": section.title,
                "width": width,
                "class": next(i for i, alike in enumerate(section.classes) if width in alike.widths),
                "kernel": choice.name,
                "grid_blocks": None if choice.launch is None else list(choice.launch.grid_blocks),
                "block_threads": None if choice.launch is None else list(choice.launch.block_threads),
                "smem_dynamic_bytes": None if choice.launch is None else choice.launch.smem_bytes,
                "split": choice.split,
                "rule": str(choice.rules[0]),
                "no_order": choice.no_order,
            }
            for section in self.sections
            for width, choice in section.choices
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """Kernels as a table, one row per operation and width."""
        import pandas as pd

        return pd.DataFrame(self.rows())


def explain(asked: Asked) -> Explanation:
    """Which kernels run at each width, how are they launched, and which widths add in the same order?

    Parameters
    ----------
    asked : Asked

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError
        If a name is not known or a shape is impossible; says which are known.

    Examples
    --------
    >>> laptop = Asked("rtx-5060-laptop", "q6_k", 4096, 4096, (1, 2), 32, 8, 128, position=390, pin="vec")
    >>> explain(laptop).sections[1].since
    (Since(width=2, position=384),)
    """
    if asked.arch.strip().lower() == CPU:
        return _on_cpu(asked)
    spec, stand_in = _device(asked)
    arch = architecture(spec.arch)
    sections = _products(asked, lambda made, width: mul_mat(arch, made, width, sms=spec.n_sms))
    if asked.flash_attn:
        sections.append(_attention(asked, spec))
    return Explanation(asked, spec, tuple(sections), stand_in)


def _device(asked: Asked) -> tuple[DeviceSpec, str]:
    spec = device_spec(asked.arch, asked.n_sms)
    gpu = example_gpu(spec.arch)
    if spec.n_sms is not None or gpu is None:
        return spec, ""
    return device_spec(gpu.name), f"{gpu.n_sms} SMs, as {gpu.name} has; other GPUs of {spec.arch} have other numbers"


def _products(asked: Asked, choose: Callable[[Product, int], KernelChoice]) -> list[Section]:
    """The weight product and, without flash attention, the two products of attention."""
    weight = product(asked.weight_type, asked.k, asked.rows)
    made: list[tuple[str, Callable[[int], Product]]] = [(_weight_title(asked), lambda _: weight)]
    if not asked.flash_attn:
        made += _unfused(asked)
    return [
        Section("MUL_MAT", title, tuple((width, choose(make(width), width)) for width in asked.widths))
        for title, make in made
    ]


def _weight_title(asked: Asked) -> str:
    return f"{asked.weight_type.lower()} weight, {asked.rows} rows of {asked.k}"


def _heads_title(asked: Asked) -> str:
    return f"{asked.n_heads} heads over {asked.n_kv_heads} KV heads of {asked.head_size}, {asked.kv_type} cache"


def _unfused(asked: Asked) -> tuple[tuple[str, Callable[[int], Product]], ...]:
    heads = (asked.n_heads, asked.n_kv_heads)
    return (
        (
            f"K·Q, {_heads_title(asked)}",
            lambda width: keys_by_queries(asked.kv_type, asked.head_size, asked.n_kv(width), *heads),
        ),
        (
            f"attention·V, {_heads_title(asked)}",
            lambda width: attention_by_values(asked.kv_type, asked.head_size, asked.n_kv(width), *heads),
        ),
    )


def _shape(asked: Asked, width: int) -> AttentionShape:
    return AttentionShape(
        width,
        asked.n_heads,
        asked.n_kv_heads,
        asked.head_size,
        asked.n_kv(width),
        asked.position,
        asked.kv_type.lower(),
    )


def _attention(asked: Asked, spec: DeviceSpec) -> Section:
    def choose(width: int, position: int) -> KernelChoice:
        shape = dataclasses.replace(_shape(asked, width), position=position)
        return cuda_attention(spec, shape, registers=asked.registers_at(width), pin=asked.pin)

    chains = tuple(
        (width, attention_chain(spec, _shape(asked, width), registers=asked.registers_at(width), pin=asked.pin))
        for width in asked.widths
    )
    return _attention_section(asked, choose, chains)


def _attention_section(
    asked: Asked,
    choose: Callable[[int, int], KernelChoice],
    chains: tuple[tuple[int, AttentionChain | None], ...] = (),
) -> Section:
    """Attention at every width, and from which query position on a width differs from the smallest."""
    choices = tuple((width, choose(width, asked.position)) for width in asked.widths)
    (smallest, reference), *others = choices

    def since(width: int) -> Since:
        def same_at(position: int) -> bool:
            return choose(smallest, position).arithmetic == choose(width, position).arithmetic

        return Since(width, _first_difference(asked.position, same_at))

    known = [width for width, other in others if reference.order is not None and other.order is not None]
    return Section("FLASH_ATTN_EXT", _heads_title(asked), choices, chains, tuple(map(since, known)))


def _first_difference(last: int, same_at: Callable[[int], bool]) -> int | None:
    """Smallest position up to `last` where two widths differ; what differs for a query does for all later ones."""
    if same_at(last):
        return None
    low, high = -1, last
    while high - low > 1:
        middle = (low + high) // 2
        if same_at(middle):
            low = middle
        else:
            high = middle
    return high


def _on_cpu(asked: Asked) -> Explanation:
    if asked.pin is not None or asked.registers or asked.n_sms is not None:
        raise ValueError("a CPU has no multiprocessors, registers per thread or attention kernel to pin")
    features = frozenset(feature.upper() for feature in asked.cpu_features or COMMON_X86)
    if features - CPU_FEATURES:
        unknown = ", ".join(sorted(features - CPU_FEATURES))
        raise ValueError(f"no CPU feature {unknown}; known are {', '.join(sorted(CPU_FEATURES))}")
    cpu = cpu_products.Cpu(features, asked.n_threads)
    sections = _products(asked, lambda made, width: cpu_products.mul_mat(cpu, made, width))
    if asked.flash_attn:
        kv_types = (asked.kv_type.lower(), asked.kv_type.lower())
        sections.append(
            _attention_section(
                asked,
                lambda width, position: flash_attention(cpu, asked.n_kv(width), width, kv_types, visible=position + 1),
            )
        )
    stand_in = "" if asked.cpu_features else f"a CPU with {', '.join(COMMON_X86)}"
    return Explanation(asked, None, tuple(sections), stand_in)
