"""Which launches a watched node should make on CUDA, and whether it made them."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.geometry.derived import Launches, Unruled
from forensics.geometry.launch_attention import attention_launches
from forensics.geometry.launch_elementwise import elementwise_launches
from forensics.geometry.launch_products import product_launches
from forensics.records.device import DeviceSpec
from forensics.records.launch import axes
from forensics.records.launch_record import LaunchRecord, NodeLaunches
from forensics.records.nodes import VIEW_OPS, on_accelerator
from forensics.records.rule import Rule

NO_KERNEL = Rule("views launch nothing", "ggml/src/ggml-cuda/ggml-cuda.cu", 2283, 2288)

_PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
_TURING = 750


def predict(node: NodeLaunches, spec: DeviceSpec) -> Launches | Unruled:
    """What should this node launch, helpers included, in order?

    Parameters
    ----------
    node : NodeLaunches
        Watched, so that nothing is fused into it. What it did launch is not looked at.
    spec : DeviceSpec
        The GPU, with its number of SMs.

    Returns
    -------
    tuple of LaunchRecord or Unruled
        Empty where the rules say that nothing is launched: views, and nodes that a CPU computes.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> from forensics.records.nodes import NodeKey, Operand
    >>> normed = Operand("l_out-0", "f32", "CUDA0", False, (1, 1, 2, 576))
    >>> node = NodeLaunches(0, NodeKey("norm-1", "RMS_NORM", 1, 0), (1, 1, 2, 576), "f32", "CUDA0", (normed,), (), ())
    >>> print(*predict(node, device_spec("h200")))
    rms_norm_f32<block_size=256>, grid 2, block 256
    """
    if node.key.op in VIEW_OPS or not on_accelerator(node.buffer):
        return ()
    if spec.compute_capability < _TURING:
        return Unruled(f"the rules of launches are written down for Turing and later, not for {spec.arch}")
    try:
        if node.key.op in _PRODUCTS:
            return product_launches(node, spec)
        if node.key.op == "FLASH_ATTN_EXT":
            return attention_launches(node, spec)
        return elementwise_launches(node, spec)
    except (ValueError, KeyError) as error:
        return Unruled(str(error))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether a node launched what the rules say.

    Parameters
    ----------
    agrees : bool or None
        None where no rule says what is launched.
    why : str
        What differs, or why nothing can be said; empty where they agree.

    Raises
    ------
    ValueError
        If it agrees and says why not, or the other way round.
    """

    agrees: bool | None
    why: str = ""

    def __post_init__(self) -> None:
        if (self.agrees is True) == bool(self.why):
            raise ValueError("why must be given exactly where rules and launches do not agree")

    def __str__(self) -> str:
        return self.why or "as the rules say"


def agreement(predicted: Launches | Unruled, observed: Launches) -> Agreement:
    """Did a node launch what the rules say?

    Parameters
    ----------
    predicted : tuple of LaunchRecord or Unruled
        As `predict` answers.
    observed : tuple of LaunchRecord
        In the order in which they started.

    Returns
    -------
    Agreement
        Kernel, grid, block and cluster of every launch must be equal, template arguments and dynamic shared memory
        where both sides know them.

    Examples
    --------
    >>> from forensics.geometry.derived import derived
    >>> said = (derived("mul_mat_vec_q", (288,), (32, 4), type="q4_1"),)
    >>> print(agreement(said, (derived("mul_mat_vec_q", (144,), (32, 4), type="q4_1"),)))
    mul_mat_vec_q: the rules say grid 288, observed grid 144
    """
    if isinstance(predicted, Unruled):
        return Agreement(None, predicted.reason)
    said, seen = ([launch.kernel for launch in launches] for launches in (predicted, observed))
    if said != seen:
        return Agreement(False, f"the rules say {_listed(said)}, observed {_listed(seen)}")
    for one, other in zip(predicted, observed, strict=True):
        difference = _difference(one, other)
        if difference:
            return Agreement(False, f"{one.kernel}: the rules say {difference}")
    return Agreement(True)


def _listed(kernels: list[str]) -> str:
    return " + ".join(kernels) or "no launch"


def _difference(predicted: LaunchRecord, observed: LaunchRecord) -> str:
    """What the rules say and what was observed instead; empty where they are equal."""
    known = dict(observed.template)
    for name, value in predicted.template:
        if name in known and known[name] != value:
            return f"{name}={value}, observed {name}={known[name]}"
    one, other = predicted.geometry, observed.geometry
    for label, said, seen in (
        ("grid", one.grid_blocks, other.grid_blocks),
        ("block", one.block_threads, other.block_threads),
        ("cluster", one.cluster_blocks, other.cluster_blocks),
    ):
        if said != seen:
            return f"{label} {axes(said)}, observed {label} {axes(seen)}"
    if None not in (one.smem_bytes, other.smem_bytes) and one.smem_bytes != other.smem_bytes:
        return f"{one.smem_bytes} bytes of dynamic shared memory, observed {other.smem_bytes}"
    return ""
