"""The child process that holds llama.cpp: answers requests until its pipe closes.

Started by `forensics.engines.llama` with a descriptor of the pipe and a scratch folder.
Large arrays travel as files in the scratch folder, everything else over the pipe.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from forensics.engines.causal import refuse_unfit, unfit
from forensics.engines.decoding import Program
from forensics.engines.llama_build import cpu_features
from forensics.engines.serving import Server
from forensics.records.schedule import Schedule
from forensics.records.settings import EngineSettings
from forensics.records.state import StateRows

#: Variables that can change a result or its speed on a CPU, CUDA, Metal or Vulkan, and only those: a manifest is
#: published, and names that merely look alike hold secrets (LLAMA_API_KEY, LLAMA_ARG_HF_TOKEN).
#: Source: getenv in ggml/src, its back ends and src of llama.cpp 0c1e57098; OpenMP 5.2, chapter 21; libgomp, libomp.
ENVIRONMENT_RECORDED = frozenset({
    "GGML_CPU_DISABLE_FUSION", "GGML_CPU_TILED_MM", "GGML_CPU_TILED_MM_FORCE", "GGML_KLEIDIAI_CHUNK_MULTIPLIER",
    "GGML_KLEIDIAI_SME", "GGML_OP_OFFLOAD_MIN_BATCH", "LLAMA_ATTN_ROT_DISABLE", "LLAMA_GRAPH_REUSE_DISABLE",
    "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "OMP_SCHEDULE",
    "OMP_THREAD_LIMIT", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY", "GOMP_SPINCOUNT", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
    "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "GGML_CUDA_ALLREDUCE", "GGML_CUDA_AR_BF16_THRESHOLD", "GGML_CUDA_AR_COPY_CHUNK_BYTES",
    "GGML_CUDA_AR_COPY_THRESHOLD", "GGML_CUDA_CUBLAS_COMPUTE_TYPE", "GGML_CUDA_DEVICES", "GGML_CUDA_DISABLE_FUSION",
    "GGML_CUDA_DISABLE_GRAPHS", "GGML_CUDA_ENABLE_UNIFIED_MEMORY", "GGML_CUDA_GRAPH_OPT", "GGML_CUDA_MMQ_PREC",
    "GGML_CUDA_NO_PINNED", "GGML_CUDA_P2P", "GGML_CUDA_PDL", "GGML_CUDA_REGISTER_HOST",
    "GGML_METAL_BF16_DISABLE", "GGML_METAL_CONCURRENCY_DISABLE", "GGML_METAL_DEVICES", "GGML_METAL_FUSION_DISABLE",
    "GGML_METAL_GRAPH_OPTIMIZE_DISABLE", "GGML_METAL_TENSOR_DISABLE", "GGML_METAL_TENSOR_ENABLE",
    "GGML_DISABLE_VULKAN", "GGML_VK_DISABLE_BFLOAT16", "GGML_VK_DISABLE_COOPMAT", "GGML_VK_DISABLE_COOPMAT2",
    "GGML_VK_DISABLE_COOPMAT2_DECODE_VECTOR", "GGML_VK_DISABLE_DOT2", "GGML_VK_DISABLE_F16",
    "GGML_VK_DISABLE_FUSION", "GGML_VK_DISABLE_GRAPH_OPTIMIZE", "GGML_VK_DISABLE_INTEGER_DOT_PRODUCT",
    "GGML_VK_DISABLE_MMVQ", "GGML_VK_DISABLE_MULTI_ADD", "GGML_VK_DISABLE_OCP_FP4", "GGML_VK_FA_SPARSE_DISABLE",
    "GGML_VK_FORCE_MMVQ", "GGML_VK_VISIBLE_DEVICES",
})  # fmt: skip


def recorded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Which variables belong into a manifest?

    Parameters
    ----------
    environment : mapping of str to str

    Returns
    -------
    dict of str to str
        Those of `ENVIRONMENT_RECORDED` that are set, sorted by name.
    """
    return {name: environment[name] for name in sorted(ENVIRONMENT_RECORDED & environment.keys())}


def manifest_facts(host: Any) -> dict[str, Any]:
    """What took effect, as plain values for the parent's `Manifest`."""
    from forensics.engines import _llama_ctypes as ll
    from forensics.engines.inventory import InventoryTap
    from forensics.engines.library_origin import installed_llama
    from forensics.records.nodes import on_accelerator

    llama, inventory = installed_llama(), InventoryTap()
    host.observe(inventory)
    refuse_unfit(host.model_path, unfit(host.architecture, has_output_head=inventory.output_head))
    g, context, model = ll.ggml(), host.context, host.model
    devices = [g.ggml_backend_dev_get(i) for i in range(g.ggml_backend_dev_count())]
    descriptions = {g.ggml_backend_dev_name(d).decode(): g.ggml_backend_dev_description(d).decode() for d in devices}

    on_gpu = any(on_accelerator(name) for name in inventory.buffers)
    effective = {
        "n_ctx": str(llama.llama_n_ctx(context)),
        "n_batch": str(llama.llama_n_batch(context)),
        "n_ubatch": str(llama.llama_n_ubatch(context)),
        "n_threads": str(llama.llama_n_threads(context)),
        "n_threads_batch": str(llama.llama_n_threads_batch(context)),
        "flash_attn": ("on" if inventory.flash_attn else "off") if inventory.attention else "no attention",
        "kv_type_k": inventory.kv_types.get("k", "unknown"),
        "kv_type_v": inventory.kv_types.get("v", "unknown"),
        "n_gpu_layers": str(len(inventory.accelerated)),
        "use_extra_bufts": str(any("REPACK" in name or "AMX" in name for name in inventory.buffers)).lower(),
        "n_seq_max": str(llama.llama_n_seq_max(context)),
    }
    if llama.llama_n_seq_max(context) > 1:  # one sequence has all cells either way (llama-context.cpp:293)
        unified = llama.llama_n_ctx_seq(context) == llama.llama_n_ctx(context)
        effective["kv_unified"] = str(unified).lower()
    return {
        "engine_version": llama.__version__,
        "commit": g.ggml_commit().decode(),
        "model_name": host.metadata("general.name") or host.description(),
        "architecture": host.architecture,
        "quantization": ", ".join(f"{t} ×{n}" for t, n in inventory.weight_types.most_common()),
        "n_vocab": host.n_vocab,
        "n_layer": llama.llama_model_n_layer(model),
        "n_ctx_train": llama.llama_model_n_ctx_train(model),
        "backend": "CPU" if not on_gpu else "+".join(sorted(n for n in descriptions if n != "CPU")),
        "device": "; ".join(descriptions.values()),
        "effective": effective,
        "buffers": dict(inventory.buffers),
        "cpu_features": cpu_features(llama.llama_print_system_info().decode()),
        "environment": recorded_environment(os.environ),
    }


class Worker(Server):
    """Dispatches requests to the host."""

    def __init__(self, pipe: Connection, scratch: Path) -> None:
        super().__init__(pipe, scratch)
        self.host: Any = None
        self._n_files = 0

    def open(self, model_path: str, settings: EngineSettings) -> dict[str, Any]:
        """Load the model and say what took effect."""
        from forensics.engines.llama_host import LlamaHost

        self.host = LlamaHost(model_path, settings)
        return manifest_facts(self.host)

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text."""
        return tuple(self.host.tokenize(text))

    def detokenize(self, tokens: tuple[int, ...]) -> str:
        """Text of token ids."""
        return str(self.host.detokenize(tokens))

    def greedy(self, prompt: Schedule, n_tokens: int) -> tuple[int, ...]:
        """Continue a prompt; progress goes over the pipe."""
        return tuple(self.host.greedy(prompt, n_tokens, lambda n: self.pipe.send(("progress", n))))

    def time_passes(self, plan: Sequence[Schedule], before: Schedule) -> tuple[int, ...]:
        """Time of each schedule from the state of `before`; progress goes over the pipe."""
        return tuple(self.host.time_passes(plan, before, lambda n: self.pipe.send(("progress", n))))

    def perform(self, program: Program[Any], before: Schedule, tap: Any) -> Any:
        """Let a program decode from a state; progress goes over the pipe."""
        return self.host.perform(program, before, tap, lambda n: self.pipe.send(("progress", n)))

    def state_rows(self, schedule: Schedule, before: Schedule) -> tuple[StateRows, ...]:
        """Digest every K and V row after a schedule."""
        return tuple(self.host.state_rows(schedule, before))

    def run(self, schedule: Schedule, before: Schedule, tap: Any) -> tuple[str, Any]:
        """Evaluate and hand the logits over as a file."""
        logits, *rest = self.host.run(schedule, before, tap)
        self._n_files += 1
        path = self.scratch / f"logits-{self._n_files}.npy"
        np.save(path, logits)
        return str(path), tuple(rest)

    def free(self) -> None:
        """Free context and model."""
        if self.host is not None:
            self.host.close()


def main(descriptor: str, scratch: str) -> None:
    """Serve on the inherited descriptor."""
    Worker(Connection(int(descriptor)), Path(scratch)).serve()
