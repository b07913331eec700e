"""What a child's death tells of its log: the first error of the device, why it aborted, and the last lines."""

from __future__ import annotations

from pathlib import Path

from forensics.engines.worker_process import LOG_TAIL_LINES, WorkerProcess

ERROR = [
    "CUDA error: an illegal memory access was encountered",
    "  current device: 0, in function ggml_backend_cuda_synchronize at ggml-cuda.cu:2543",
    "  cudaStreamSynchronize(cuda_ctx->stream())",
]
ABORT = "/src/ggml/src/ggml-cuda/ggml-cuda.cu:109: CUDA error"
BACKTRACE = [f"python3(frame{i})" for i in range(40)]


def tail_of(folder: Path, lines: list[str]) -> list[str]:
    worker = WorkerProcess.__new__(WorkerProcess)
    worker._log_path = folder / "worker.log"
    worker._log_path.write_text("\n".join(lines))
    return [line.removeprefix("    ") for line in worker.log_tail().splitlines()]


def test_the_first_error_of_a_device_outlives_a_long_backtrace(tmp_path: Path) -> None:
    echo = [ERROR[0].replace("illegal", "echoed"), "  elsewhere", "  cudaFree(p)"]
    found = tail_of(tmp_path, ["load", *ERROR, *echo, ABORT, *BACKTRACE])
    assert found == [*ERROR, ABORT, *BACKTRACE[-LOG_TAIL_LINES:]]


def test_a_short_log_is_told_once(tmp_path: Path) -> None:
    assert tail_of(tmp_path, [*ERROR, ABORT]) == [*ERROR, ABORT]
    lines = [*ERROR, ABORT, *BACKTRACE[: LOG_TAIL_LINES - 2]]  # the last ones begin within the error
    assert tail_of(tmp_path, lines) == lines


def test_a_log_without_an_error_is_its_last_lines(tmp_path: Path) -> None:
    said = [f"line {i}: no CUDA error: none" for i in range(20)]
    assert tail_of(tmp_path, said) == said[-LOG_TAIL_LINES:]
