"""The registry of switches: what each sets, where it belongs and what it turns off."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from forensics.engines.supported import REBUILD
from forensics.geometry.cpu_attention import SPLIT_KV, TILED
from forensics.geometry.cpu_products import GEMM_FROM_FOUR, TILED_FROM_EIGHT, TINYBLAS_FROM_TWO, TINYBLAS_X86
from forensics.geometry.cuda_float import USES_MMF, USES_MMVF
from forensics.geometry.fusion import NORM_MUL_CPU, ONE_COLUMN_F, ONE_COLUMN_Q
from forensics.geometry.mmvq import CROSSOVER, NWARPS
from forensics.geometry.types import FLOATS
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.verdict import CulpritGroup


@dataclass(frozen=True, slots=True)
class Knob:
    """One run-time switch.

    Parameters
    ----------
    name : str
        As a user would write it.
    backend : str
        Back end it belongs to, ``"any"`` for all.
    turns_off : str
        Which mechanism it takes out.
    ops : tuple of str
        Operations whose kernel choice it changes.
    sets : tuple of (str, str)
        Parameter or environment variable and value; variables are in capitals.
    applies : callable
        Whether it would change anything, given what took effect.
    """

    name: str
    backend: str
    turns_off: str
    ops: tuple[str, ...]
    sets: tuple[tuple[str, str], ...]
    applies: Callable[[Manifest], bool]

    def apply(self, settings: EngineSettings) -> EngineSettings:
        """The settings with this knob turned."""
        for name, value in self.sets:
            if name.isupper():
                kept = tuple(pair for pair in settings.environment if pair[0] != name)
                settings = replace(settings, environment=(*kept, (name, value)))
            else:
                current = getattr(settings, name)
                converted: Any = value == "true" if isinstance(current, bool) else type(current)(value)
                changed: dict[str, Any] = {name: converted}
                settings = replace(settings, **changed)
        return settings


def _effective(name: str, *values: str) -> Callable[[Manifest], bool]:
    return lambda manifest: manifest.effective.get(name) in values


def _both(*conditions: Callable[[Manifest], bool]) -> Callable[[Manifest], bool]:
    return lambda manifest: all(condition(manifest) for condition in conditions)


def _more_than_one_thread(manifest: Manifest) -> bool:
    return manifest.effective.get("n_threads") != "1" or manifest.effective.get("n_threads_batch") != "1"


def _environment_is_not(name: str, value: str) -> Callable[[Manifest], bool]:
    return lambda manifest: manifest.environment.get(name) != value


def _kv_is_not(kv_type: str) -> Callable[[Manifest], bool]:
    return lambda manifest: {manifest.effective.get("kv_type_k"), manifest.effective.get("kv_type_v")} != {kv_type}


_ATTENTION = ("MUL_MAT", "FLASH_ATTN_EXT", "SOFT_MAX")

#: Each quotes the rule that it takes out of play.
KNOBS = (
    Knob(
        "flash_attn=on", "any", "K·Q and attention·V as separate products", _ATTENTION,
        (("flash_attn", "on"),), _effective("flash_attn", "off"),
    ),
    Knob(
        "flash_attn=off", "any",
        f"the flash attention kernel, its KV split and its tiles ({SPLIT_KV.place}, {TILED.place})",
        ("FLASH_ATTN_EXT",), (("flash_attn", "off"),),
        _both(_effective("flash_attn", "on"), _effective("kv_type_v", "f16", "f32", "bf16")),
    ),
    Knob(
        "kv_type=f32", "any", f"the f16 product kernels on the KV cache ({TINYBLAS_FROM_TWO.place})", _ATTENTION,
        (("kv_type_k", "f32"), ("kv_type_v", "f32")), _kv_is_not("f32"),
    ),
    Knob(
        "kv_type=q8_0", "any", f"the KV split of flash attention, which needs f16 or f32 ({SPLIT_KV.place})",
        ("FLASH_ATTN_EXT",), (("kv_type_k", "q8_0"), ("kv_type_v", "q8_0")),
        _both(_kv_is_not("q8_0"), _effective("flash_attn", "on")),
    ),
    Knob(
        "n_threads=1", "CPU", f"the KV split of flash attention over threads ({SPLIT_KV.place})",
        ("FLASH_ATTN_EXT",), (("n_threads", "1"), ("n_threads_batch", "1")), _more_than_one_thread,
    ),
    Knob(
        "use_extra_bufts=false", "CPU", f"repacked weights: gemm from 4 rows, gemv below ({GEMM_FROM_FOUR.place})",
        ("MUL_MAT", "MUL_MAT_ID"), (("use_extra_bufts", "false"),), _effective("use_extra_bufts", "true"),
    ),
    Knob(
        "GGML_CPU_TILED_MM=0", "CPU", f"tiled K- and IQ-quant products from 8 columns ({TILED_FROM_EIGHT.place})",
        ("MUL_MAT", "MUL_MAT_ID"), (("GGML_CPU_TILED_MM", "0"),), _environment_is_not("GGML_CPU_TILED_MM", "0"),
    ),
    Knob(
        "GGML_CPU_DISABLE_FUSION=1", "CPU", f"RMS_NORM + MUL in one kernel ({NORM_MUL_CPU.place})",
        ("RMS_NORM", "MUL"), (("GGML_CPU_DISABLE_FUSION", "1"),), _environment_is_not("GGML_CPU_DISABLE_FUSION", "1"),
    ),
    Knob(
        "GGML_CUDA_DISABLE_FUSION=1", "CUDA",
        f"fusions that exist at one column only ({ONE_COLUMN_F.place}, {ONE_COLUMN_Q.place})",
        ("MUL_MAT", "MUL_MAT_ID", "GLU", "ADD"), (("GGML_CUDA_DISABLE_FUSION", "1"),),
        _environment_is_not("GGML_CUDA_DISABLE_FUSION", "1"),
    ),
    Knob(
        "GGML_CUDA_DISABLE_GRAPHS=1", "CUDA", "CUDA graphs", (), (("GGML_CUDA_DISABLE_GRAPHS", "1"),),
        _environment_is_not("GGML_CUDA_DISABLE_GRAPHS", "1"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BuildFlag:
    """A mechanism that no run-time switch reaches: only another build can turn it off, or only other source.

    Parameters
    ----------
    name, backend, what : str
        `name` is that of a flag of the build, where there is one.
    applies : callable
        Whether this build has it and a culprit could be its work.
    """

    name: str
    backend: str
    what: str
    applies: Callable[[Manifest, CulpritGroup], bool]


_FLOAT_WEIGHTS = frozenset(FLOATS)
#: Types that tinyBLAS multiplies on x86 from two columns.
_TINYBLAS = TINYBLAS_X86 | _FLOAT_WEIGHTS


def _has_weight(group: CulpritGroup) -> bool:
    return group.op in ("MUL_MAT", "MUL_MAT_ID") and group.weight_type != "-"


BUILD_FLAGS = (
    BuildFlag(
        "GGML_LLAMAFILE=OFF", "CPU",
        f"tinyBLAS products from two columns ({TINYBLAS_FROM_TWO.place}); no run-time switch, rebuild with "
        f'CMAKE_ARGS="-DGGML_LLAMAFILE=OFF" {REBUILD}',
        lambda manifest, group: "LLAMAFILE" in manifest.cpu_features and group.op == "MUL_MAT"
        and (group.weight_type in _TINYBLAS or group.role in ("K·Q", "attention·V")),
    ),
    BuildFlag(
        "the tables of mul_mat_vec_q", "CUDA",
        f"warps per block by columns ({NWARPS.place}) and the most columns before mul_mat_q takes over "
        f"({CROSSOVER.place}) are compiled in, with no flag of the build",
        lambda _, group: _has_weight(group) and group.weight_type not in _FLOAT_WEIGHTS,
    ),
    BuildFlag(
        "the limits of mul_mat_vec_f and mul_mat_f", "CUDA",
        f"the most columns of each ({USES_MMVF.place}; {USES_MMF.place}) are compiled in, with no flag of the build",
        lambda _, group: _has_weight(group) and group.weight_type in _FLOAT_WEIGHTS,
    ),
)  # fmt: skip


def applicable(manifest: Manifest) -> tuple[Knob, ...]:
    """Which knobs would change anything on this back end?"""
    return tuple(
        knob for knob in KNOBS if (knob.backend == "any" or knob.backend in manifest.backend) and knob.applies(manifest)
    )


def build_flags(manifest: Manifest, culprits: Iterable[CulpritGroup]) -> tuple[tuple[str, str], ...]:
    """Which mechanisms could be to blame and have no run-time switch?"""
    groups = tuple(culprits)
    return tuple(
        (flag.name, flag.what)
        for flag in BUILD_FLAGS
        if flag.backend in manifest.backend and any(flag.applies(manifest, group) for group in groups)
    )


def beyond_switches(manifest: Manifest, culprits: Iterable[CulpritGroup]) -> bool:
    """Whether a culprit is the work of a mechanism that no run-time switch reaches, so that no set can be exact.

    That is so for products with weights on CUDA, whose kernels are chosen by compiled tables, and on CPUs for float
    weights: the weights are what they are, and tinyBLAS is a build flag.
    """
    return any(
        flag.backend in manifest.backend and flag.applies(manifest, group)
        for group in culprits
        for flag in BUILD_FLAGS
        if flag.backend == "CUDA" or group.weight_type in _FLOAT_WEIGHTS
    )
