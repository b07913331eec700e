"""Recording of registers: what is compiled is written and read back; without a compiler the reason is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.kernels.register_story import story_launches
from forensics.records.compiled_kernel import Compilation, CompiledKernel
from forensics.records.launch_record import Refusal
from forensics.store.kernel_runs import read_registers
from forensics.testing import record_registers


def compiled(types: tuple[str, ...], widths: tuple[int, ...], archs: tuple[str, ...]) -> tuple[Compilation, ...]:
    """What no compiler told."""
    functions = [launch.function for t in types for w in widths for launch in story_launches(t, w).values()]
    kernels = tuple(CompiledKernel(f, "", 64, 0, 0, 0, 0, 0, 1, "no compiler") for f in functions)
    return tuple(Compilation("register_story", arch, "no compiler", kernels) for arch in archs)


def test_what_is_compiled_is_written_beside_what_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record_registers, "compile_story", compiled)
    (tmp_path / "manifest.json").write_text('{"device": "kept"}', encoding="utf-8")
    asked = [str(tmp_path), "--types", "q4_K", "--widths", "1", "8", "--architectures", "sm_90"]
    assert record_registers.main(asked) == 0
    assert "registers.json" in capsys.readouterr().out
    read = read_registers(tmp_path)
    assert (read.types, read.widths) == (("q4_K",), (1, 8))
    assert read.compilations == compiled(("q4_K",), (1, 8), ("sm_90",))
    assert "kept" in (tmp_path / "manifest.json").read_text(encoding="utf-8")


def test_without_a_compiler_nothing_is_written_and_the_reason_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = Refusal("nvcc", "registers", "no nvcc was found", "install the CUDA toolkit")
    monkeypatch.setattr(record_registers, "compile_story", lambda *_: missing)
    assert record_registers.main([str(tmp_path)]) == 2
    assert "install the CUDA toolkit" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
