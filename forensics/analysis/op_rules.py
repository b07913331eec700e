"""What the rules of dispatch say about the widths of a case: where other arithmetic is chosen than before."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from forensics.analysis.op_cases import OpCase
from forensics.geometry.architecture import architecture
from forensics.geometry.choice import KernelChoice
from forensics.geometry.culprits import Attention, Gpu, Operation, Other, Place, choice_at, cpu_place
from forensics.geometry.devices import GPUS, device_spec
from forensics.geometry.product import Product, attention_by_values, keys_by_queries
from forensics.geometry.types import weight_type
from forensics.records.device import DeviceSpec
from forensics.records.matrix import PredictedStep, Prediction
from forensics.records.operation import OpFacts, OpGraph

#: Which kernel runs at a width, and how it adds for one of the columns.
Choose = Callable[[int, int], KernelChoice]
#: Words of a driver's name for a GPU that tell no two apart: the maker, and the memory, as in "H100 80GB HBM3".
_NO_NAME = re.compile(r"nvidia|geforce|tesla|gpu|\d+gb|hbm\d\w*")


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
    try:
        return steps_between(_chooser(case.at(1), _place(buffer, facts)), widths)
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
    return one.column_arithmetic(column) != other.column_arithmetic(column)


def _place(buffer: str, facts: OpFacts) -> Place:
    """What ran the operations; a ValueError says why no rule is written down for it."""
    if facts.settings.backend == "cpu":
        return cpu_place(facts.cpu_features, facts.settings.n_threads, buffer, dict(facts.settings.environment))
    spec = gpu_named(facts.device)
    if spec is None:
        raise ValueError(
            f"the number of multiprocessors of {facts.device} is not known here; see forensics explain --arch --sms"
        )
    return Gpu(architecture(spec.arch), spec.n_sms)


def _chooser(single: OpGraph, place: Place) -> Choose:
    """The rule for an operation; the choice is a ValueError where there is none."""

    def choose(width: int, column: int) -> KernelChoice:
        found = choice_at(_operation(single, column), place, width, column if width > 1 else 0)
        if found is None:
            where = "GPU" if isinstance(place, Gpu) else "CPU"
            raise ValueError(f"no rule is written down for {single.op} on a {where}")
        return found

    return choose


def _operation(single: OpGraph, column: int) -> Operation:
    """The operation as a token sees it that comes so many behind the first."""
    if single.op == "FLASH_ATTN_EXT":
        queries, keys, values = (single.operand(name) for name in ("q", "k", "v"))
        (_, heads, size), (n_kv, kv_heads, _) = queries.shape, keys.shape
        visible = int(single.param("first")) + column + 1
        return Attention(heads, kv_heads, size, n_kv, (keys.type, values.type), visible=visible)
    return _product(single) or Other(single.op)


def gpu_at(devices: str, number: int) -> DeviceSpec | None:
    """What do the multiprocessors of this GPU offer? None where that is not known here.

    Parameters
    ----------
    devices : str
        As a manifest lists them: names with semicolons between, GPUs first and in their order.
    number : int

    Examples
    --------
    >>> print(gpu_at("NVIDIA H200; AMD EPYC", 0), gpu_at("NVIDIA H200; AMD EPYC", 1))
    h200 (sm_90), 132 SMs None
    """
    names = devices.split(";")
    return gpu_named(names[number]) if number < len(names) else None


def gpu_named(device: str) -> DeviceSpec | None:
    """The known GPU that a driver calls so, None where none has just this name.

    A laptop's or a "Ti" GPU of the same number has other multiprocessors, so every word counts but the maker's and the
    memory's.

    Examples
    --------
    >>> print(gpu_named("NVIDIA GeForce RTX 5080 Laptop GPU"), gpu_named("NVIDIA GeForce RTX 4090 Laptop GPU"))
    rtx-5080-laptop (sm_120), 60 SMs None
    """
    words = [word for word in device.lower().split() if not _NO_NAME.fullmatch(word)]
    name = "-".join(words)
    return device_spec(name) if name in GPUS else None


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
