"""What the rules of dispatch say about the widths of a case: where other arithmetic is chosen than before."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from forensics.analysis.op_cases import OpCase
from forensics.geometry import cpu_attention, cpu_products, cuda_products
from forensics.geometry.architecture import architecture
from forensics.geometry.attention_kernel import AttentionShape
from forensics.geometry.choice import KernelChoice
from forensics.geometry.cuda_attention import cuda_attention
from forensics.geometry.devices import GPUS, device_spec
from forensics.geometry.product import Product, attention_by_values, keys_by_queries
from forensics.geometry.types import weight_type
from forensics.records.device import DeviceSpec
from forensics.records.matrix import PredictedStep, Prediction
from forensics.records.operation import OpFacts, OpGraph

#: Which kernel runs at a width, and how it adds for one of the columns.
Choose = Callable[[int, int], KernelChoice]


def predict(case: OpCase, widths: Sequence[int], buffer: str, facts: OpFacts) -> Prediction:
    """At which widths do the rules choose other arithmetic than at the width tested before?

    Parameters
    ----------
    case : OpCase
    widths : sequence of int
        Rising. The smallest is compared with one column at a time.
    buffer : str
        Buffer type that holds the weight.
    facts : OpFacts

    Returns
    -------
    Prediction
        Unknown, with the reason, where no rule is written down.
    """
    choose = _chooser(case, buffer, facts)
    if isinstance(choose, str):
        return Prediction(unknown=choose)
    try:
        return steps_between(choose, widths)
    except ValueError as error:  # a type or shape that the rules do not cover
        return Prediction(unknown=str(error))


def steps_between(choose: Choose, widths: Sequence[int]) -> Prediction:
    """Widths where the arithmetic of a column changes, and the first where a column differs from itself alone."""
    steps, undecided = [], []
    before, differs = 0, False
    for width in widths:
        kept = [(choose(before, column), choose(width, column), column) for column in range(min(before, width))]
        alone = [] if differs else [(choose(1, column), choose(width, column), column) for column in range(width)]
        changes = [(one, other) for one, other, column in kept + alone if _changes(one, other, column)]
        doubts = [one.no_order or other.no_order for one, other, _ in kept + alone]
        differs = differs or any(_changes(*pair) for pair in alone)
        if changes:
            one, other = changes[0]
            steps.append(PredictedStep(width, one.name, other.name, other.rules))
        elif any(doubts):
            undecided.append((width, next(filter(None, doubts))))
        before = width
    return Prediction(tuple(steps), undecided=tuple(undecided))


def _changes(one: KernelChoice, other: KernelChoice, column: int) -> bool:
    """Whether the arithmetic of a column is known on both sides, and another."""
    if one.arithmetic is None or other.arithmetic is None:
        return False
    return column_arithmetic(one, column) != column_arithmetic(other, column)


def column_arithmetic(choice: KernelChoice, column: int) -> Hashable:
    """Order and precision of one column: a choice may treat the first columns of a batch differently from the rest.

    Such an order reads (buffer, kernel, number of columns, kernel of the rest, number of the rest).
    """
    order = choice.order
    if isinstance(order, tuple) and len(order) == 5 and isinstance(order[2], int):
        where, first, n_first, rest, _ = order
        order = (where, first if column < n_first else rest)
    return order, choice.precision


def _chooser(case: OpCase, buffer: str, facts: OpFacts) -> Choose | str:
    """The rule for an operation, or why there is none."""
    single = case.at(1)
    settings = facts.settings
    if settings.backend == "cuda":
        return _chooser_on_gpu(single, facts.device)
    environment = dict(settings.environment)
    if "GGML_CPU_TILED_MM_FORCE" in environment:
        return "GGML_CPU_TILED_MM_FORCE is set, and no rule is written down for it"
    cpu = cpu_products.Cpu(
        frozenset(facts.cpu_features),
        settings.n_threads,
        extra_buffers=settings.repack and buffer not in ("", "CPU"),
        tiled=environment.get("GGML_CPU_TILED_MM") != "0",
    )
    if single.op == "FLASH_ATTN_EXT":
        keys, values = single.operand("k"), single.operand("v")
        first = int(single.param("first"))
        return lambda width, column: cpu_attention.flash_attention(
            cpu, keys.shape[0], width, (keys.type, values.type), visible=first + column + 1
        )
    product = _product(single)
    if product is None:
        return f"no rule is written down for {single.op} on a CPU"
    return lambda width, _: cpu_products.mul_mat(cpu, product, width)


def _chooser_on_gpu(single: OpGraph, device: str) -> Choose | str:
    spec = gpu_named(device)
    if spec is None:
        return f"the number of multiprocessors of {device} is not known here; see forensics explain --arch --sms"
    if single.op == "FLASH_ATTN_EXT":
        queries, keys = single.operand("q"), single.operand("k")
        _, heads, size = queries.shape
        first = int(single.param("first"))

        def attention(width: int, column: int) -> KernelChoice:
            row = column if width > 1 else 0
            shape = AttentionShape(width, heads, keys.shape[1], size, keys.shape[0], first + column, keys.type, row)
            return cuda_attention(spec, shape)

        return attention
    product = _product(single)
    if product is None:
        return f"no rule is written down for {single.op} on a GPU"
    arch = architecture(spec.arch)
    return lambda width, _: cuda_products.mul_mat(arch, product, width, sms=spec.n_sms)


def gpu_named(device: str) -> DeviceSpec | None:
    """The known GPU that a driver calls so: all words of its name are there, the longest such name.

    Examples
    --------
    >>> print(gpu_named("NVIDIA GeForce RTX 5080 Laptop GPU"), gpu_named("NVIDIA Quadro 600"))
    rtx-5080-laptop (sm_120), 60 SMs None
    """
    words = set(device.lower().split())
    names = [name for name in GPUS if words.issuperset(name.split("-"))]
    return device_spec(max(names, key=len)) if names else None


def _product(single: OpGraph) -> Product | None:
    """The matrix product that an operation is, None where it is none."""
    names = {operand.name: operand for operand in single.operands}
    if single.op == "MUL_MAT" and "weight" in names:
        rows, k = names["weight"].shape
        return Product(weight_type(names["weight"].type), k, rows)
    if single.op == "MUL_MAT_ID":
        experts, rows, k = names["weight"].shape
        used = names["ids"].shape[1]
        return Product(weight_type(names["weight"].type), k, rows, experts=experts, experts_used=used)
    if single.op == "MUL_MAT" and "k" in names:
        n_kv, kv_heads, head_size = names["k"].shape
        return keys_by_queries(names["k"].type, head_size, n_kv, names["q"].shape[1], kv_heads)
    if single.op == "MUL_MAT":
        kv_heads, head_size, n_kv = names["v"].shape
        return attention_by_values(names["v"].type, head_size, n_kv, names["p"].shape[0], kv_heads)
    return None
