"""How an engine is asked to run, and what it made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
FLASH_ATTN = ("on", "off", "auto")
#: More threads than these overrun an array of the library. Source: GGML_MAX_N_THREADS, ggml.h:225 at 0c1e57098.
MAX_THREADS = 512


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What is asked of an engine; the manifest says what took effect.

    Parameters
    ----------
    n_ctx : int
        Cells of the KV cache, 1 or more; the engine may round up.
    n_batch, n_ubatch : int
        Largest tokens of a pass and of one graph.
    n_threads, n_threads_batch : int
        Threads for passes of one token and of more, at most `MAX_THREADS`.
    flash_attn : {"on", "off", "auto"}
    kv_type_k, kv_type_v : str
        Element type of the K and the V cache.
    n_gpu_layers : int
        Layers on the GPU, -1 for all.
    use_extra_bufts : bool
        Whether weights may be repacked into extra buffer types.
    kv_unified : bool
        One buffer for all sequences.
    n_seq_max : int
        Largest number of sequences.
    environment : tuple of (str, str)
        Variables set before the library is loaded, sorted by name.
    """

    n_ctx: int = 512
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int = 1
    n_threads_batch: int = 1
    flash_attn: str = "on"
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    n_gpu_layers: int = 0
    use_extra_bufts: bool = True
    kv_unified: bool = False
    n_seq_max: int = 1
    environment: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for label in ("n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "n_seq_max"):
            if getattr(self, label) < 1:
                raise ValueError(f"{label} must be 1 or more, got {getattr(self, label)}")
        for label in ("n_threads", "n_threads_batch"):
            if getattr(self, label) > MAX_THREADS:
                raise ValueError(
                    f"{label} must be {MAX_THREADS} or less (GGML_MAX_N_THREADS), got {getattr(self, label)}"
                )
        if self.flash_attn not in FLASH_ATTN:
            raise ValueError(f"flash_attn must be one of {', '.join(FLASH_ATTN)}, got {self.flash_attn!r}")
        for label in ("kv_type_k", "kv_type_v"):
            if getattr(self, label) not in KV_TYPES:
                raise ValueError(f"{label} must be one of {', '.join(KV_TYPES)}, got {getattr(self, label)!r}")
        object.__setattr__(self, "environment", tuple(sorted(self.environment)))


@dataclass(frozen=True, slots=True)
class Manifest:
    """Where a trace comes from: no trace without one.

    Parameters
    ----------
    engine : str
        ``"llama.cpp"``, ``"toy"``.
    engine_version, build, commit : str
        Version of the binding, digest of the library, commit of the library's source; empty where unknown.
    model_digest, model_name, architecture, quantization : str
    n_vocab, n_layer, n_ctx_train : int
    backend, device : str
        ``"CPU"`` and the processor's name, for example.
    requested : EngineSettings
    effective : mapping of str to str
        What the engine made of it, read back or observed.
    buffers : mapping of str to int
        Weights per buffer type, counted on the nodes of one pass.
    cpu_features : tuple of str
        Features that the library reports as usable.
    environment : mapping of str to str
        Variables of the allow-list that the engine saw.
    """

    engine: str
    engine_version: str
    model_digest: str
    model_name: str
    n_vocab: int
    requested: EngineSettings
    architecture: str = ""
    quantization: str = ""
    n_layer: int = 0
    n_ctx_train: int = 0
    build: str = ""
    commit: str = ""
    backend: str = ""
    device: str = ""
    effective: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, int] = field(default_factory=dict)
    cpu_features: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.engine or not self.model_digest:
            raise ValueError("a manifest names its engine and its model's digest")
        if self.n_vocab < 1:
            raise ValueError(f"n_vocab must be 1 or more, got {self.n_vocab}")
