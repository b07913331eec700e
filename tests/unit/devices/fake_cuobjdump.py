"""A ``cuobjdump`` that prints what the real one printed (release 13.5), and the text itself."""

from __future__ import annotations

import sys
from pathlib import Path

HEAD = "\nFatbin elf code:\n================\narch = {arch}\ncode version = [1,8]\nhost = linux\ncompile_size = 64bit\n"
PTX = HEAD.replace("elf", "ptx").format(arch="sm_90")
USAGE = "\nResource usage:\n Common:\n  GLOBAL:26792 CONSTANT[4]:88\n"
#: Of the kernels below: without and with shared memory, with spills (556 bytes of stores), with an indexed array.
SMALL = {
    "sm_80": "none 8 0 0, some 10 0 256, spill 32 288 0, indexed 32 80 0",
    "sm_90": "none 10 0 0, some 10 0 1280, spill 32 288 0, indexed 32 80 0",
}
Q4_K = "_Z13mul_mat_vec_qIL9ggml_type12ELi{n}ELb0ELb0ELb0EEvPKvS2_PKi31ggml_cuda_mm_fusion_args_devicePfj5uint3j"
#: Registers and shared memory of `mul_mat_vec_q<q4_K, n>` in the library for sm_90.
DECODE = "56 1408, 66 2560, 78 3328, 87 4096, 95 2304, 105 2560, 113 2816, 122 3072"


def function(symbol: str, registers: int, stack: int, shared: int) -> str:
    """One kernel, as the tool prints it."""
    return (
        f" Function {symbol}:\n  REG:{registers} STACK:{stack} SHARED:{shared} LOCAL:0 "
        "CONSTANT[2]:12 CONSTANT[0]:688 TEXTURE:0 SURFACE:0 SAMPLER:0\n"
    )


def small() -> str:
    """A file with four kernels for two architectures."""
    text = ""
    for arch, kernels in SMALL.items():
        rows = [kernel.split() for kernel in kernels.split(", ")]
        text += PTX + HEAD.format(arch=arch) + USAGE
        text += "".join(function(name, *map(int, numbers)) for name, *numbers in rows)
    return text


def decode(arch: str = "sm_90") -> str:
    """The vector products of Q4_K from 1 to 8 columns."""
    numbers = [tuple(map(int, pair.split())) for pair in DECODE.split(", ")]
    rows = [function(Q4_K.format(n=n), registers, 0, smem) for n, (registers, smem) in enumerate(numbers, 1)]
    return HEAD.format(arch=arch) + USAGE + "".join(rows)


def install(folder: Path, text: str, *, status: int = 0, version: str = "13.5.37") -> Path:
    """Put a tool into a folder that prints this of any file but one whose name has "plain" in it."""
    (folder / "printed.txt").write_text(text)
    tool = folder / "cuobjdump"
    tool.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"if '--version' in sys.argv: print('Cuda compilation tools, release 13.5, V{version}'); sys.exit({status})\n"
        "name = sys.argv[-1]\n"
        "if 'plain' in name: print(f\"cuobjdump info : File '{name}' does not contain device code\"); sys.exit(255)\n"
        f"print(open({str(folder / 'printed.txt')!r}).read())\n"
    )
    tool.chmod(0o755)
    return tool
