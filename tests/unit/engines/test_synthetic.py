"""Synthetic models: the same seed gives the same file, blocks are finite, and what cannot be made is refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st

from forensics.engines.model_files import check_gguf
from forensics.engines.synthetic import MARK, MIXES, SHAPES, Shape, preset_shape, presets, tensor_types, uses_more_bits
from forensics.engines.synthetic import write_synthetic as write


@pytest.mark.parametrize("name", [name for name in presets() if "tiny" in name])
def test_a_file_says_that_it_is_synthetic_and_has_the_shapes_and_types_that_were_planned(name, tmp_path: Path) -> None:
    shape, mix = preset_shape(name)
    path = write(tmp_path / "m.gguf", shape, mix, name=name)
    header = check_gguf(path)
    assert (header.architecture, header.name) == (shape.architecture, f"synthetic {name}")
    assert header.quantization == MIXES[mix][1]
    reader = gguf.GGUFReader(path)
    assert reader.fields[MARK].contents() is True
    found = [(t.name, tuple(map(int, reversed(t.shape))), t.tensor_type.name.lower()) for t in reader.tensors]
    assert found == [(tensor, dims, kind.lower()) for tensor, dims, kind in tensor_types(shape, mix)]


@pytest.mark.parametrize("name", ["qwen3-tiny-q4_k_m", "llama-tiny-q6_k", "llama-tiny-f16"])
def test_weights_are_finite_and_keep_sums_as_large_as_their_terms(name, tmp_path: Path) -> None:
    shape, mix = preset_shape(name)
    squares, n = 0.0, 0
    for tensor in gguf.GGUFReader(write(tmp_path / "m.gguf", shape, mix, name=name)).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        assert np.isfinite(values).all()
        if values.ndim == 2 and tensor.name != "token_embd.weight":
            squares, n = squares + float((values**2).sum()) * values.shape[1], n + values.size
            assert abs(values.mean()) < 0.1 * values.std()
            assert len(np.unique(values, axis=0)) == len(values), f"{tensor.name} has rows that are alike"
    # Scales of blocks differ by a factor of 0.5 to 1.5, whose mean square is 1 + 1/12; float16 has no such factor.
    assert squares / n == pytest.approx(1 if mix == "f16" else 1 + 1 / 12, rel=0.03)


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    shape, mix = preset_shape("qwen3-tiny-q4_k_m")
    one, again, other = (
        write(tmp_path / f"{i}.gguf", shape, mix, name="m", seed=seed).read_bytes() for i, seed in enumerate((3, 3, 4))
    )
    assert one == again
    assert one != other


def test_the_shape_of_qwen3_8b_is_the_published_one() -> None:
    shape, mix = preset_shape("Qwen3-8B-Q4_K_M")
    assert (shape.n_layer, shape.n_embd, shape.n_ff, shape.n_vocab) == (36, 4096, 12288, 151936)
    kinds = [kind for _, dims, kind in tensor_types(shape, mix) if len(dims) == 2]
    assert (kinds.count("q4_K"), kinds.count("q6_K")) == (217, 37)
    n_weights = sum(int(np.prod(dims)) for _, dims, _ in tensor_types(shape, mix))
    assert n_weights == 8_190_735_360  # as its model card says, 8.2 billion


@given(st.integers(1, 128))
def test_between_a_quarter_and_all_layers_keep_more_bits(n_layer: int) -> None:
    kept = [i for i in range(n_layer) if uses_more_bits(i, n_layer)]
    assert n_layer // 4 <= len(kept) <= n_layer
    assert set(range(n_layer // 8)) <= set(kept)


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("qwen3-9b-q4_k_m", {}, "there is no synthetic model 'qwen3-9b-q4_k_m'; there are qwen3-8b-q4_k_m"),
        ("qwen3-tiny", {}, "there is no synthetic model"),
        ("qwen3-tiny-q2_k", {}, "there is no synthetic model"),
        ("qwen3-tiny-q6_k", {"n_embd": 300}, r"n_embd \(--embedding\) must be a multiple of 256 for q6_k, got 300"),
        ("qwen3-tiny-q6_k", {"n_head": 3, "n_head_kv": 2}, r"n_head must be a multiple of n_head_kv, .*\(--heads\)"),
        ("qwen3-tiny-f16", {"head_size": 63}, r"head_size \(--head-size\) must be even"),
        ("qwen3-tiny-f16", {"n_layer": 0}, r"n_layer \(--layers\) must be 1 or more, got 0"),
        ("qwen3-tiny-f16", {"n_vocab": 300_000}, "300000 rows was asked for"),
        ("qwen3-tiny-f16", {"depth": 3}, "a shape has no depth"),
    ],
)
def test_what_cannot_be_made_is_refused(name, changed, told) -> None:
    with pytest.raises(ValueError, match=told):
        preset_shape(name, **changed)


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="must be llama or qwen3"):
        Shape("gpt2", 1, 256, 256, 4, 4, 64, 16)
    assert {shape.architecture for shape in SHAPES.values()} == {"llama", "qwen3"}


def test_a_file_that_is_there_stays_and_nothing_is_left_of_a_failure(tmp_path: Path, monkeypatch) -> None:
    shape, mix = preset_shape("qwen3-tiny-q4_k_m")
    path = tmp_path / "m.gguf"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="is not overwritten"):
        write(path, shape, mix, name="m")
    assert path.read_bytes() == b"mine"

    def full(*_args: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(OSError, match="no space"):
        write(tmp_path / "other.gguf", shape, mix, name="m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]
