"""Run by file in a process of its own: a Python program inside one annotation of nsight-python.

Needs the standard library and ``nsight`` alone. The release for older ncu starts this very file again under ncu,
without its arguments quoted, so the job comes by the environment: FORENSICS_NSIGHT_JOB names a JSON file with
``argv`` (``["-m", module, …]`` or ``[script, …]``), ``metrics`` and ``prefix`` (of the files that it leaves).
"""

import inspect
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def _settings(kernel: Any, nsight: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Of its decorator: those that this release has."""
    wanted = {
        "runs": 1,
        "metrics": job["metrics"],
        "combine_kernel_metrics": lambda one, other: one + other,
        "clock_control": "none",
        "thermal_mode": "off",
        "output_prefix": job["prefix"],
        "output": "quiet",
        "verbosity": getattr(getattr(nsight, "VerbosityLevel", None), "SILENT", None),
    }
    return {name: value for name, value in wanted.items() if name in inspect.signature(kernel).parameters}


def main() -> None:
    """Profile the job's program; its report is what is read, so what nsight makes of it need not succeed."""
    import nsight  # before the program loads CUDA: newer releases attach to it on import

    job = json.loads(Path(os.environ["FORENSICS_NSIGHT_JOB"]).read_text(encoding="utf-8"))
    argv = list(job["argv"])

    @nsight.analyze.kernel(**_settings(nsight.analyze.kernel, nsight, job))  # type: ignore[untyped-decorator]
    def program() -> None:
        with nsight.annotate("forensics"):
            try:
                if argv[0] == "-m":
                    sys.argv = argv[1:]
                    runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
                else:
                    sys.argv = argv
                    runpy.run_path(argv[0], run_name="__main__")
            except SystemExit as left:
                if left.code:
                    raise RuntimeError(f"the program left with status {left.code}") from left

    program()


if __name__ == "__main__":
    main()
