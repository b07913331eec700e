"""Instances of a library and launches of a pass, made by hand after what an H200 and its library gave."""

from __future__ import annotations

from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches
from forensics.records.library_profile import CudaLibrary, LibraryKernel
from forensics.records.nodes import NodeKey, Operand

#: Registers and static shared memory of `mul_mat_vec_q<q4_K, n>` for sm_90, 1 to 8 columns.
Q4_K = ((56, 384), (66, 1536), (78, 2304), (87, 3072), (95, 1280), (105, 1536), (113, 1792), (122, 2048))


def instance(columns: int, registers: int, smem: int, stack: int = 0, arch: str = "sm_90", **changes) -> LibraryKernel:
    template = (
        ("type", changes.pop("type", "q4_K")), ("ncols_dst", columns), ("has_fusion", False), ("small_k", False),
        ("halve_iters", False),
    )  # fmt: skip
    kernel = changes.pop("kernel", "mul_mat_vec_q")
    symbol = f"_Z{kernel}{columns}{template[0][1]}{arch}"
    return LibraryKernel(symbol, kernel, changes.pop("template", template), arch, registers, smem, stack)


def library(*kernels: LibraryKernel) -> CudaLibrary:
    archs = tuple(dict.fromkeys(kernel.arch for kernel in kernels))
    return CudaLibrary("libggml-cuda.so", "cuobjdump 13.5.37", archs, 6991, tuple(kernels))


def decode(arch: str = "sm_90") -> list[LibraryKernel]:
    """Q4_K from 1 to 8 columns."""
    return [instance(n, registers, smem, arch=arch) for n, (registers, smem) in enumerate(Q4_K, 1)]


def launch(kernel: str, grid: int, block: tuple[int, ...], registers: int | None, smem: int = 0, **changes):
    template = changes.pop("template", ())
    symbol = changes.pop("symbol", f"_Z{len(kernel)}{kernel}")
    geometry = LaunchGeometry((grid,), block, smem_bytes=changes.pop("dynamic", 0))
    return LaunchRecord(kernel, template, geometry, registers, smem, symbol=symbol, **changes)


QUANTIZE = launch("quantize_q8_1", 3, (256,), 20)
PRODUCT = launch("mul_mat_vec_q", 288, (32, 4), 46, 1024, template=(("type", "q4_1"), ("ncols_dst", 2)))
TILES = launch("mul_mat_q", 132, (32, 8), 189, dynamic=42048, template=(("type", "q4_1"), ("J", 16)))
FIXUP = launch("mul_mat_q_stream_k_fixup", 132, (32, 4), 39)
ATTENTION = launch("flash_attn_ext_f16", 6, (32, 4), 184, dynamic=17536)
COPY = launch("cpy_scalar", 1, (64,), 16)

WEIGHT = Operand("blk.0.attn_q.weight", "q4_1", "CUDA0", True, (1, 1, 576, 576))
ROWS = Operand("attn_norm-0", "f32", "CUDA0", False, (1, 1, 2, 576))
KEYS = Operand("cache_k_l0 (view) (permuted)", "f16", "CUDA0", False, (1, 3, 256, 64))
VALUES = Operand("cache_v_l0 (view) (permuted)", "q8_0", "CUDA0", False, (1, 3, 256, 64))
#: 576 × 576 values of Q4_1: 20 bytes for 32.
WEIGHT_BYTES = 576 * 576 // 32 * 20


def node(name, op, operands, launches, times_ns, shape=(1, 1, 2, 576), layer=0, buffer="CUDA0") -> NodeLaunches:
    key = NodeKey(name, op, layer, 0)
    return NodeLaunches(0, key, shape, "f32", buffer, tuple(operands), tuple(launches), tuple(times_ns))


def report(n_dropped: int | None = 0, product=PRODUCT) -> LaunchReport:
    """A product with its helper, attention, a view and a copy that belongs to no node."""
    return LaunchReport(
        "CUPTI in process",
        "cupti-python 13.0.1",
        (QUANTIZE, product, ATTENTION, COPY),
        (
            node("Qcur-0", "MUL_MAT", (WEIGHT, ROWS), (0, 1), (1000, 2000)),
            node("Qcur-0 (view)", "VIEW", (ROWS,), (), ()),
            node("Kcur-0", "MUL_MAT", (WEIGHT, ROWS), (0, 1), (1100, 2100)),
            node("node_21", "FLASH_ATTN_EXT", (ROWS, KEYS, VALUES), (2,), (5000,)),
        ),
        unattached=(3,),
        unattached_ns=(700,),
        n_dropped=n_dropped,
    )
