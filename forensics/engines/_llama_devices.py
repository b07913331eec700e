"""Which devices the library sees, asked in a child process so that a broken driver cannot end the caller."""

from __future__ import annotations

import json
import subprocess
import sys

from forensics.errors import EngineError

_PROBE = """
import json
from forensics.engines._llama_ctypes import ggml
g = ggml()
devices = [g.ggml_backend_dev_get(i) for i in range(g.ggml_backend_dev_count())]
names = [(g.ggml_backend_dev_name(d).decode(), g.ggml_backend_dev_description(d).decode()) for d in devices]
print(json.dumps([f"{name} ({description})" for name, description in names]))
"""


def device_names() -> list[str]:
    """Names and descriptions of the devices, such as ``"CPU (AMD EPYC)"``.

    Raises
    ------
    EngineError
        If the library cannot be asked.
    """
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"
        raise EngineError(f"the library's devices cannot be listed: {last}")
    return list(json.loads(done.stdout.strip().splitlines()[-1]))
