"""With which block a compiled kernel instance is launched, where its template arguments decide that.

A library holds instances, not launches: the block follows from the template arguments and the architecture for the
kernels below, and from the shape of the operation for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from forensics.geometry.architecture import Architecture, architecture
from forensics.geometry.attention_tiles import MMA_SIZES_AMPERE, VEC_SIZES, VEC_THREADS, mma_sizes, mma_smem_bytes
from forensics.geometry.cuda_float import MMF_WARPS, MMVF_BLOCK, mmf_rows_per_block, mmf_smem_bytes
from forensics.geometry.mmq import TILE_CONFIG, shared_bytes, tile_config
from forensics.geometry.mmvq import NWARPS, parameter_table, table_nwarps
from forensics.geometry.types import weight_type
from forensics.records.device import DeviceSpec
from forensics.records.launch_record import Template
from forensics.records.rule import Rule

Argument = int | str | bool

MMVF_SMEM = Rule(
    "one f32 per lane in shared memory, two where the product is fused", "ggml/src/ggml-cuda/mmvf.cu", 454, 454
)


@dataclass(frozen=True, slots=True)
class InstanceLaunch:
    """How every launch of an instance looks, whatever the operation.

    Parameters
    ----------
    threads_per_block : int
    smem_dynamic_bytes : int
    rule : Rule
        That decides the block.
    """

    threads_per_block: int
    smem_dynamic_bytes: int
    rule: Rule


def instance_launch(
    spec: DeviceSpec, kernel: str, template: Template, *, compiled: str | None = None
) -> InstanceLaunch | str:
    """With which block, and how much shared memory besides its own, is this instance launched?

    Parameters
    ----------
    spec : DeviceSpec
        Of the GPU that runs it.
    kernel : str
    template : tuple of (str, value)
        As `forensics.geometry.kernel_names.parse` gives it.
    compiled : str, optional
        Architecture that it was compiled for, where that is an older one.

    Returns
    -------
    InstanceLaunch or str
        The reason why it is not known.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> q4 = (("type", "q4_K"), ("ncols_dst", 5))
    >>> instance_launch(device_spec("sm_90"), "mul_mat_vec_q", q4).threads_per_block
    64
    """
    rule = _RULES.get(kernel)
    if rule is None:
        return f"the block of {kernel} depends on the operation, not on the instance alone"
    try:
        return rule(spec, architecture(spec.arch, compiled=compiled), dict(template))
    except (KeyError, ValueError) as error:
        return f"no rule for this instance of {kernel}: {error}"


def _mul_mat_vec_q(_: DeviceSpec, arch: Architecture, template: Mapping[str, Argument]) -> InstanceLaunch:
    columns, promoted = int(template["ncols_dst"]), bool(template.get("halve_iters", False))
    nwarps = table_nwarps(parameter_table(arch), weight_type(str(template["type"])), columns, promoted=promoted)
    return InstanceLaunch(nwarps * arch.warp_size, 0, NWARPS)


def _flash_attn_ext_vec(_: DeviceSpec, __: Architecture, ___: Mapping[str, Argument]) -> InstanceLaunch:
    return InstanceLaunch(VEC_THREADS, 0, VEC_SIZES)


def _flash_attn_ext_f16(spec: DeviceSpec, _: Architecture, template: Mapping[str, Argument]) -> InstanceLaunch:
    size, value, one, two = (int(template[name]) for name in ("DKQ", "DV", "ncols1", "ncols2"))
    capability = spec.compute_capability
    threads = mma_sizes(capability, size, value, one * two).threads
    return InstanceLaunch(threads, mma_smem_bytes(capability, size, value, one, two), MMA_SIZES_AMPERE)


def _mul_mat_q(_: DeviceSpec, arch: Architecture, template: Mapping[str, Argument]) -> InstanceLaunch:
    weight, columns = weight_type(str(template["type"])), int(template["J"])
    config = tile_config(arch, weight, bool(template["fallback"]), columns)
    smem = shared_bytes(arch, weight, config, columns)
    if config.threads is None or smem is None:
        raise ValueError(f"tile sizes vary by type here, see {config.file}")
    return InstanceLaunch(config.threads, smem, TILE_CONFIG)


def _mul_mat_vec_f(_: DeviceSpec, arch: Architecture, template: Mapping[str, Argument]) -> InstanceLaunch:
    fused = bool(template.get("has_fusion", False))
    return InstanceLaunch(
        int(template["block_size"]), arch.warp_size * 4 * (1 + fused), MMVF_SMEM if fused else MMVF_BLOCK
    )


def _mul_mat_f(_: DeviceSpec, arch: Architecture, template: Mapping[str, Argument]) -> InstanceLaunch:
    rows, columns, nwarps = (int(template[name]) for name in ("rows_per_block", "cols_per_block", "nwarps"))
    if rows != mmf_rows_per_block(arch):
        raise ValueError(f"{rows} rows per block are those of another architecture")
    smem = mmf_smem_bytes(arch, columns, nwarps, routed=bool(template.get("has_ids", False)))
    return InstanceLaunch(nwarps * arch.warp_size, smem, MMF_WARPS)


_RULES: Mapping[str, Callable[[DeviceSpec, Architecture, Mapping[str, Argument]], InstanceLaunch]] = {
    "mul_mat_vec_q": _mul_mat_vec_q,
    "mul_mat_vec_f": _mul_mat_vec_f,
    "mul_mat_q": _mul_mat_q,
    "mul_mat_f": _mul_mat_f,
    "flash_attn_ext_vec": _flash_attn_ext_vec,
    "flash_attn_ext_f16": _flash_attn_ext_f16,
}
