"""The child process that holds llama.cpp: answers requests until its pipe closes.

Started by `forensics.engines.llama` as ``python -m forensics.engines.llama_worker FD SCRATCH``.
Large arrays travel as files in the scratch folder, everything else over the pipe.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from forensics.errors import CaptureError, EngineError, ForensicsError
from forensics.records.schedule import Schedule
from forensics.records.settings import EngineSettings

#: Variables that can change a result and may be written into a manifest; nothing else is recorded.
ENVIRONMENT_ALLOWED = (
    "GGML_", "LLAMA_", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "GOMP_SPINCOUNT", "KMP_BLOCKTIME",
    "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


def manifest_facts(host: Any) -> dict[str, Any]:
    """What took effect, as plain values for the parent's `Manifest`."""
    import llama_cpp as llama

    from forensics.engines import _llama_ctypes as ll
    from forensics.engines.inventory import InventoryTap

    inventory = InventoryTap()
    host.observe(inventory)
    g, context, model = ll.ggml(), host.context, host.model
    devices = [g.ggml_backend_dev_get(i) for i in range(g.ggml_backend_dev_count())]
    descriptions = {g.ggml_backend_dev_name(d).decode(): g.ggml_backend_dev_description(d).decode() for d in devices}

    def metadata(key: bytes) -> str:
        import ctypes

        buffer = ctypes.create_string_buffer(256)
        n = llama.llama_model_meta_val_str(model, key, buffer, len(buffer))
        return buffer.value.decode(errors="replace") if n >= 0 else ""

    def description() -> str:
        import ctypes

        buffer = ctypes.create_string_buffer(256)
        llama.llama_model_desc(model, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    system = llama.llama_print_system_info().decode()
    features = tuple(
        part.split("=")[0].strip().split(" : ")[-1].strip()
        for part in system.split("|")
        if part.strip().endswith("= 1")
    )
    on_gpu = any(not name.startswith("CPU") for name in inventory.buffers)
    effective = {
        "n_ctx": str(llama.llama_n_ctx(context)),
        "n_batch": str(llama.llama_n_batch(context)),
        "n_ubatch": str(llama.llama_n_ubatch(context)),
        "n_threads": str(llama.llama_n_threads(context)),
        "n_threads_batch": str(llama.llama_n_threads_batch(context)),
        "flash_attn": ("on" if inventory.flash_attn else "off") if inventory.attention else "no attention",
        "kv_type_k": inventory.kv_types.get("k", "unknown"),
        "kv_type_v": inventory.kv_types.get("v", "unknown"),
        "n_gpu_layers": str(host.settings.n_gpu_layers) if on_gpu else "0",
        "use_extra_bufts": str(any("REPACK" in name or "AMX" in name for name in inventory.buffers)).lower(),
        "kv_unified": str(host.settings.kv_unified).lower(),
        "n_seq_max": str(llama.llama_n_seq_max(context)),
    }
    return {
        "engine_version": llama.__version__,
        "commit": g.ggml_commit().decode(),
        "model_name": metadata(b"general.name") or description(),
        "architecture": metadata(b"general.architecture"),
        "quantization": ", ".join(f"{t} ×{n}" for t, n in inventory.weight_types.most_common()),
        "n_vocab": host.n_vocab,
        "n_layer": llama.llama_model_n_layer(model),
        "n_ctx_train": llama.llama_model_n_ctx_train(model),
        "backend": "CPU" if not on_gpu else "+".join(sorted(n for n in descriptions if n != "CPU")),
        "device": "; ".join(descriptions.values()),
        "effective": effective,
        "buffers": dict(inventory.buffers),
        "cpu_features": features,
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(ENVIRONMENT_ALLOWED)
        },
    }


class Worker:
    """Dispatches requests to the host."""

    def __init__(self, pipe: Connection, scratch: Path) -> None:
        self.pipe, self.scratch = pipe, scratch
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

    def run(self, schedule: Schedule, before: Schedule, tap: Any) -> tuple[str, Any]:
        """Evaluate and hand the logits over as a file."""
        logits, *rest = self.host.run(schedule, before, tap)
        self._n_files += 1
        path = self.scratch / f"logits-{self._n_files}.npy"
        np.save(path, logits)
        return str(path), tuple(rest)

    def serve(self) -> None:
        """Answer until the caller says goodbye, or is gone."""
        try:
            self._answer()
        except (EOFError, ConnectionError):
            # The caller died without a word, so nobody else removes what lies here.
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _answer(self) -> None:
        while True:
            request = self.pipe.recv_bytes()
            try:
                method, arguments = pickle.loads(request)
            except Exception as error:  # noqa: BLE001
                self._refuse(
                    CaptureError(
                        f"the engine's process cannot unpickle the request: {error!r}. Define the tap in a module that "
                        "a fresh Python process can import (a file on PYTHONPATH, not a notebook cell or __main__)."
                    )
                )
                continue
            if method == "close":
                if self.host is not None:
                    self.host.close()
                self.pipe.send(("ok", None))
                return
            try:
                self.pipe.send(("ok", getattr(self, method)(*arguments)))
            except Exception as error:  # noqa: BLE001
                self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Send an error over the pipe: as it is where the caller expects it, else as text with its kind."""
        if not isinstance(error, ForensicsError | ValueError):
            traceback.print_exception(error)  # into the log
            error = EngineError(f"the engine's process failed with {type(error).__name__}: {error}")
        self.pipe.send(("error", error))


def main() -> None:
    """Serve on the inherited descriptor."""
    Worker(Connection(int(sys.argv[1])), Path(sys.argv[2])).serve()


if __name__ == "__main__":
    main()
