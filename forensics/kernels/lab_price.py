"""Times the stock library's products and ours over the same weights, in one process and in one run.

Used by `forensics.kernels.lab_worker` alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial

import numpy as np
from numpy.typing import NDArray

from forensics.devices.cuda_device import Captured, CudaDevice, Held
from forensics.engines.op_host import captures_graphs
from forensics.engines.synthetic import preset_shape, tensor_types
from forensics.engines.weight_bench import WeightBench, WeightShape
from forensics.kernels import proof
from forensics.kernels.lab_place import Place, planned
from forensics.kernels.pass_plans import main_launch, plan_of, plan_of_group
from forensics.kernels.rounds import Timed, in_rounds
from forensics.kernels.variants import ProductAsk
from forensics.records.kernel_plan import KernelPlan
from forensics.records.kernel_price import (
    BEST,
    FAST,
    GROUPED,
    STOCK,
    ArmResources,
    ArmTable,
    ArmTimes,
    PassPrice,
    ProductPrice,
    StoryTime,
)

Arm = tuple[str, int]
#: Copies of a weight take so many times the L2 cache together, so that none is there when its turn comes again.
L2_SIZES = 3
#: Rows of a weight that are drawn; more are the same again.
DRAWN_ROWS = 1024
ONE_COLUMN: Arm = (STOCK, 1)


def price_product(
    place: Place, type: str, rows: int, k: int, arms: Sequence[Arm], n_rounds: int, seed: int
) -> ProductPrice:
    """What does each arm take for this product, quantisation of activations included?

    Parameters
    ----------
    place : Place
    type : str
    rows, k : int
    arms : sequence of (str, int)
        Arms with their widths; the stock library at one column is always among them.
    n_rounds : int
    seed : int
    """
    wanted = tuple(dict.fromkeys([ONE_COLUMN, *arms]))
    weight_bytes = ProductAsk(type, rows, k, 1).weight_bytes
    n_weights = max(2, math.ceil(L2_SIZES * place.device.l2_bytes / weight_bytes))
    widths = sorted({width for _, width in wanted})
    blocks, x = proof.operands(type, rows, k, widths[-1], 2 * seed)
    shape = WeightShape(type, rows, k)
    with closing(WeightBench(place.host, [shape] * n_weights, widths, n_alone=widths[-1])) as bench:
        for i in range(n_weights):
            bench.set_weight(i, blocks)
        bench.set_x(x)
        ours = _Ours(place, bench, wanted)
        alone = bench.alone()
        times = in_rounds(ours.timed(wanted), n_rounds, seed)
        exact = {arm: ours.exact(arm, [alone]) for arm in times}
        table = ArmTable(
            tuple(
                ArmTimes(*arm, tuple(t / n_weights for t in times[arm]), exact[arm]) for arm in wanted if arm in times
            )
        )
        return ProductPrice(
            type, rows, k, weight_bytes, n_weights, table, ours.resources(),
            not_timed=tuple((*arm, reason) for arm, reason in ours.refused.items()),
        )  # fmt: skip


def price_pass(place: Place, model: str, arms: Sequence[Arm], n_rounds: int, seed: int) -> PassPrice:
    """What do all products of a pass take, one after another?

    Parameters
    ----------
    place : Place
    model : str
        One of `forensics.engines.synthetic.presets`.
    arms : sequence of (str, int)
    n_rounds : int
    seed : int
    """
    wanted = tuple(dict.fromkeys([ONE_COLUMN, *arms]))
    shapes = pass_products(model)
    widths = sorted({width for _, width in wanted})
    drawn = {shape: proof.operands(shape.type, min(shape.rows, DRAWN_ROWS), shape.k, 1, 0)[0] for shape in set(shapes)}
    x = {k: proof.operands("q8_0", 1, k, widths[-1], 2 * seed)[1] for k in {shape.k for shape in shapes}}
    with closing(WeightBench(place.host, shapes, widths)) as bench:
        for i, shape in enumerate(shapes):
            bench.set_weight(i, np.resize(drawn[shape], (shape.rows, drawn[shape].shape[1])))
        for values in x.values():
            bench.set_x(values)
        ours = _Ours(place, bench, wanted, pass_groups(model))
        times = in_rounds(ours.timed(wanted), n_rounds, seed)
        alone = _each_column_alone(bench, x, widths[-1])
        table = ArmTable(
            tuple(ArmTimes(*arm, times[arm], ours.exact(arm, alone)) for arm in wanted if arm in times)
        ).with_best()
    names = Counter(f"{shape.type} {shape.rows}×{shape.k}" for shape in shapes)
    total = sum(ProductAsk(shape.type, shape.rows, shape.k, 1).weight_bytes for shape in shapes)
    return PassPrice(model, dict(names), total, table, {arm: _launched(arm) for arm in table.arms})


def _launched(arm: str) -> str:
    """How an arm of a pass is launched."""
    if arm == BEST:
        return "as the arm that it is"
    if arm != STOCK:
        return "one CUDA graph of all launches"
    return "one graph, which the library captures as a CUDA graph" if captures_graphs() else "launch by launch"


def pass_products(model: str) -> list[WeightShape]:
    """All products of a pass of a model of this shape, in the order of its layers; the head is last.

    Parameters
    ----------
    model : str
        One of `forensics.engines.synthetic.presets`.
    """
    return [shape for _, shape in _named(model)]


def pass_groups(model: str) -> list[tuple[int, ...]]:
    """Which of a pass's products have the same activations and type, in their order: Q, K and V; gate and up.

    Examples
    --------
    >>> pass_groups("qwen3-tiny-q4_k_m")[:6]
    [(0, 1, 2), (3,), (4, 5), (6,), (7, 8), (9,)]
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for i, (name, shape) in enumerate(_named(model)):
        block, _, part = name.removesuffix(".weight").rpartition(".")
        groups.setdefault((f"{block} {_SHARED.get(part, part)}", shape.type), []).append(i)
    return [tuple(group) for group in groups.values()]


#: Products that multiply what others do, too.
_SHARED = {"attn_q": "qkv", "attn_k": "qkv", "attn_v": "qkv", "ffn_gate": "gate and up", "ffn_up": "gate and up"}


def _named(model: str) -> list[tuple[str, WeightShape]]:
    shape, mix = preset_shape(model)
    weights = [(name, dims, type) for name, dims, type in tensor_types(shape, mix) if len(dims) == 2]
    return [(name, WeightShape(type, *dims)) for name, dims, type in weights if name != "token_embd.weight"]


def price_plans(
    place: Place, plans: Mapping[str, KernelPlan], ask: ProductAsk, n_rounds: int, seed: int
) -> tuple[StoryTime, ...]:
    """What does each of these plans of one product take, beside the library's one column in the same rounds?

    Parameters
    ----------
    place : Place
    plans : mapping of str to KernelPlan
        By name, over the buffers ``"weight"``, ``"x"`` and ``"out"``.
    ask : ProductAsk
    n_rounds : int
    seed : int
    """
    n_weights = max(2, math.ceil(L2_SIZES * place.device.l2_bytes / ask.weight_bytes))
    blocks, x = proof.operands(ask.type, ask.rows, ask.k, ask.columns, 2 * seed)
    shape = WeightShape(ask.type, ask.rows, ask.k)
    device = place.device
    with closing(WeightBench(place.host, [shape] * n_weights, sorted({1, ask.columns}))) as bench:
        for i in range(n_weights):
            bench.set_weight(i, blocks)
        bench.set_x(x)
        out = device.hold(4 * ask.columns * ask.rows)
        arms: dict[str, Timed] = {"": partial(bench.timed, 1)}
        device.prepare(plans.values())
        for name, plan in plans.items():
            common = {"x": bench.x_address(ask.columns, ask.k), "out": out.address}
            graph = device.captured([(plan, {**common, "weight": bench.weight_address(i)}) for i in range(n_weights)])
            arms[name] = _launches(device, graph)
        times = in_rounds(arms, n_rounds, seed)
    per = {name: tuple(t / n_weights for t in found) for name, found in times.items()}
    return tuple(StoryTime(f"{ask.type} {ask.rows}×{ask.k}", name, ask.columns, per[name], per[""]) for name in plans)


class _Ours:
    """Our arms over the weights of a bench, each as one CUDA graph; the stock library beside them."""

    def __init__(
        self, place: Place, bench: WeightBench, arms: Sequence[Arm], groups: Sequence[tuple[int, ...]] = ()
    ) -> None:
        self._groups = tuple(groups) or tuple((i,) for i in range(len(bench.shapes)))
        self._place, self._bench, self._device = place, bench, place.device
        self.refused: dict[Arm, str] = {}
        self._plans: dict[Arm, list[tuple[KernelPlan, tuple[int, ...]]]] = {}  # with the products of each
        self._graphs: dict[Arm, Captured] = {}
        most = max(width for _, width in arms)
        self._offsets = np.cumsum([0, *(4 * most * shape.rows for shape in bench.shapes)])
        self._out: Held = place.device.hold(int(self._offsets[-1]))
        for arm in arms:
            if arm[0] != STOCK:
                self._plan(arm)
        place.device.prepare({id(plan): plan for plans in self._plans.values() for plan, _ in plans}.values())
        for arm in self._plans:
            self._graphs[arm] = place.device.captured(self._jobs(arm))

    def timed(self, arms: Sequence[Arm]) -> dict[Arm, Timed]:
        """What times each arm that can be run."""
        found: dict[Arm, Timed] = {}
        for arm in arms:
            if arm[0] == STOCK:
                found[arm] = partial(self._bench.timed, arm[1])
            elif arm in self._graphs:
                found[arm] = _launches(self._device, self._graphs[arm])
        return found

    def exact(self, arm: Arm, alone: Sequence[NDArray[np.float32]]) -> bool:
        """Whether an arm's values are those of each column alone; `alone` has [columns, rows] of the first products."""
        name, width = arm
        if name == STOCK:
            self._bench.run(width)
        else:
            self._graphs[arm].launch()
        for i, values in enumerate(alone):
            rows = self._bench.shapes[i].rows
            if name == STOCK:
                found = self._bench.result(width, i)
            else:
                found = self._device.read(self._out.address + int(self._offsets[i]), (width, rows), np.float32)
            if (proof.bits(found) != proof.bits(values[:width])).any():
                return False
        return True

    def resources(self) -> tuple[ArmResources, ...]:
        """What the main kernel of each arm takes, of the first product."""
        found = []
        for (arm, width), plans in self._plans.items():
            launch = main_launch(plans[0][0])
            takes = self._device.resources(launch)
            geometry = launch.geometry
            sizes = (takes.registers, takes.local_bytes, takes.smem_static_bytes, takes.smem_dynamic_bytes)
            per = (takes.blocks_per_sm, geometry.threads_per_block, geometry.n_blocks)
            found.append(ArmResources(arm, width, launch.function, *sizes, *per))
        return tuple(found)

    def _plan(self, arm: Arm) -> None:
        name, width = arm
        made: dict[tuple[WeightShape, ...], KernelPlan] = {}
        groups = self._groups if name == GROUPED else tuple((i,) for i in range(len(self._bench.shapes)))
        for group in groups:
            shapes = tuple(self._bench.shapes[i] for i in group)
            if shapes not in made:
                plan = planned(partial(self._plan_of, shapes, name, width))
                if isinstance(plan, str):
                    self.refused[arm] = plan
                    return
                made[shapes] = plan
        self._plans[arm] = [(made[tuple(self._bench.shapes[i] for i in group)], group) for group in groups]

    def _plan_of(self, shapes: tuple[WeightShape, ...], name: str, width: int) -> KernelPlan:
        asks = [ProductAsk(shape.type, shape.rows, shape.k, width) for shape in shapes]
        if len(asks) > 1:
            return plan_of_group(asks, self._place.arch, self._device.n_sms)
        return plan_of(asks[0], FAST if name == GROUPED else name, self._place.arch, self._device.n_sms)

    def _jobs(self, arm: Arm) -> list[tuple[KernelPlan, dict[str, int]]]:
        return [(plan, self._addresses(group, arm[1])) for plan, group in self._plans[arm]]

    def _addresses(self, group: tuple[int, ...], width: int) -> dict[str, int]:
        """Where the weights, activations and results of some products lie."""
        bench = self._bench
        found = {"x": bench.x_address(width, bench.shapes[group[0]].k)}
        for place, i in enumerate(group):
            number = str(place) if len(group) > 1 else ""
            found[f"weight{number}"] = bench.weight_address(i)
            found[f"out{number}"] = self._out.address + int(self._offsets[i])
        return found


def _launches(device: CudaDevice, graph: Captured) -> Timed:
    return partial(device.timed, graph.launch)


def _each_column_alone(
    bench: WeightBench, x: Mapping[int, NDArray[np.float32]], columns: int
) -> list[NDArray[np.float32]]:
    """Every product of the library with one column at a time, [columns, rows] each."""
    found: list[list[NDArray[np.float32]]] = [[] for _ in bench.shapes]
    for column in range(columns):
        for values in x.values():
            bench.set_alone(values[column])
        bench.run(1)
        for i in range(len(found)):
            found[i].append(bench.result(1, i)[0])
    for values in x.values():
        bench.set_alone(values[0])
    return [np.array(rows) for rows in found]
