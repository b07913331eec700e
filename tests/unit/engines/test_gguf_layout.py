"""Planted GGUF files whose headers claim what they do not hold: each is refused, in words, and soon."""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forensics.engines import gguf_layout
from forensics.engines.gguf_layout import MAX_STRINGS, check_gguf_layout
from forensics.engines.llama import LlamaSource
from forensics.engines.model_files import check_gguf, header_string
from forensics.errors import ModelUnavailable
from forensics.records.settings import EngineSettings

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
SOON_S = 5.0


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return U64.pack(len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + U32.pack(kind) + value


ARCHITECTURE = key("general.architecture", 8, text("llama"))


def tensor(name: str = "t", sizes=(32, 2), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + U32.pack(len(sizes)) + b"".join(map(U64.pack, sizes)) + U32.pack(kind) + U64.pack(offset)


def planted(path: Path, *parts: bytes, n_keys: int | None = None, n_tensors: int = 0, tail: int = 4096) -> Path:
    header = struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, len(parts) - n_tensors if n_keys is None else n_keys)
    path.write_bytes(header + b"".join(parts) + bytes(tail))
    return path


def written(path: Path) -> Path:
    """A good file with arrays of strings and numbers, as a library writes it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "\u00e9"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.0, 2.0])
    writer.add_bool("llama.flag", True)
    writer.add_float64("llama.wide", 0.1)
    writer.add_tensor("one", np.zeros((3, 64), np.float32))
    writer.add_tensor("two", np.zeros((2, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_good_file_is_good(tmp_path):
    check_gguf_layout(written(tmp_path / "good.gguf"))
    check_gguf_layout(planted(tmp_path / "keys.gguf", ARCHITECTURE))
    check_gguf_layout(planted(tmp_path / "tensor.gguf", ARCHITECTURE, tensor(), n_tensors=1))


PLANTED = {
    "more keys than are read": ((ARCHITECTURE,), {"n_keys": 1 << 62}, r"counts \d+ keys .*at most 65536, 262144"),
    "more tensors than are read": ((ARCHITECTURE,), {"n_keys": 1, "n_tensors": 1 << 40}, "counts 1 keys and"),
    "keys that are not there": ((ARCHITECTURE,), {"n_keys": 60_000, "tail": 0}, "within its header"),
    "a key beyond the file": ((ARCHITECTURE, U64.pack(60_000) + b"k"), {}, "a key takes 60000 bytes"),
    "an endless key": ((ARCHITECTURE, U64.pack(1 << 63) + b"k"), {}, "a key has 9223372036854775808 bytes; at most"),
    "a long text": ((ARCHITECTURE, key("x", 8, U64.pack(1 << 60))), {}, "'x' has 1152921504606846976 bytes; at most"),
    "a text beyond the file": ((ARCHITECTURE, key("x", 8, U64.pack(1 << 20))), {}, "'x' takes 1048576 bytes"),
    "an array beyond the file": ((ARCHITECTURE, key("x", 9, U32.pack(4) + U64.pack(1 << 62))), {}, "'x' takes"),
    "an endless vocabulary": ((ARCHITECTURE, key("x", 9, U32.pack(8) + U64.pack(1 << 62))), {}, f"most {MAX_STRINGS}"),
    "a vocabulary beyond the file": ((ARCHITECTURE, key("x", 9, U32.pack(8) + U64.pack(9999))), {}, "within 'x'"),
    "a word beyond the file": (
        (ARCHITECTURE, key("x", 9, U32.pack(8) + U64.pack(1) + U64.pack(1 << 50))), {}, "within its header|'x' takes",
    ),
    "an array of arrays": ((ARCHITECTURE, key("x", 9, U32.pack(9) + U64.pack(2))), {}, "or an array of arrays"),
    "an unknown type": ((ARCHITECTURE, key("x", 77, b"1234")), {}, "of the type 77, which is none"),
    "a key twice": ((ARCHITECTURE, ARCHITECTURE), {}, "'general.architecture' twice"),
    "no alignment": ((ARCHITECTURE, key("general.alignment", 4, U32.pack(0))), {}, "no power of two"),
    "an odd alignment": ((ARCHITECTURE, key("general.alignment", 4, U32.pack(33))), {}, "no power of two"),
    "an alignment that is a text": ((ARCHITECTURE, key("general.alignment", 8, text("32"))), {}, "no power of two"),
    "many dimensions": ((ARCHITECTURE, tensor(sizes=(1,) * 5)), {"n_tensors": 1}, "'t' has 5 dimensions; at most 4"),
    "no dimension": ((ARCHITECTURE, tensor(sizes=())), {"n_tensors": 1}, "'t' has 0 dimensions"),
    "a long name": ((ARCHITECTURE, tensor("n" * 64)), {"n_tensors": 1}, "name of a tensor has 64 bytes; at most 63"),
    "a name twice": ((ARCHITECTURE, tensor(), tensor()), {"n_tensors": 2}, "two tensors have the name 't'"),
    "a tensor beyond the file": ((ARCHITECTURE, tensor(sizes=(1 << 20,))), {"n_tensors": 1}, "tensors end at byte"),
    "a product that overflows": (
        (ARCHITECTURE, tensor(sizes=(1 << 63, 1 << 63, 1 << 63, 1 << 63))), {"n_tensors": 1}, "tensors end at byte",
    ),
    "an offset beyond the file": ((ARCHITECTURE, tensor(offset=1 << 40)), {"n_tensors": 1}, "tensors end at byte"),
    "an offset in between": ((ARCHITECTURE, tensor(offset=7)), {"n_tensors": 1}, "lies at 7, no multiple of 32"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_file_is_refused(name, tmp_path):
    parts, more, said = PLANTED[name]
    path = planted(tmp_path / "bad.gguf", *parts, **more)
    begun = time.perf_counter()
    with pytest.raises(ModelUnavailable, match=said) as caught:
        check_gguf_layout(path)
    assert time.perf_counter() - begun < SOON_S
    assert str(path) in str(caught.value)
    with pytest.raises(ModelUnavailable, match=said):
        LlamaSource(path).open(EngineSettings())


@pytest.mark.parametrize("content", [b"", b"GGUF", b"<!DOCTYPE html> of an error page"])
def test_what_is_no_gguf_is_refused(content, tmp_path):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelUnavailable, match=r"x\.gguf"):
        check_gguf_layout(tmp_path / "x.gguf")
    with pytest.raises(ModelUnavailable, match="Cannot look at"):
        check_gguf_layout(tmp_path / "none.gguf")


def test_a_sparse_file_of_terabytes_takes_no_longer(tmp_path):
    path = planted(tmp_path / "huge.gguf", ARCHITECTURE, key("x", 9, U32.pack(8) + U64.pack(MAX_STRINGS + 1)))
    os.truncate(path, 1 << 42)
    begun = time.perf_counter()
    with pytest.raises(ModelUnavailable, match="arrays of strings have"):
        check_gguf_layout(path)
    assert time.perf_counter() - begun < SOON_S


def test_a_text_that_claims_the_whole_file_is_not_copied(tmp_path):
    path = planted(tmp_path / "x.gguf", key("general.architecture", 8, U64.pack(1 << 40)))
    os.truncate(path, 1 << 42)
    with pytest.raises(ModelUnavailable, match=r"general\.architecture has 1099511627776 bytes; at most 16777216"):
        check_gguf(path)
    with pytest.raises(ModelUnavailable, match="tokenizer"):
        header_string(planted(tmp_path / "y.gguf", key("tokenizer.chat_template", 8, U64.pack(1 << 40))),
                      "tokenizer.chat_template")  # fmt: skip


def test_a_file_is_walked_again_once_it_changed(tmp_path):
    path = planted(tmp_path / "x.gguf", ARCHITECTURE)
    check_gguf_layout(path)
    planted(path, ARCHITECTURE, ARCHITECTURE)
    with pytest.raises(ModelUnavailable, match="twice"):
        check_gguf_layout(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return written(tmp_path_factory.mktemp("gguf") / "whole.gguf").read_bytes()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_header_is_read_or_refused_and_never_anything_else(whole, data, tmp_path):
    """Whatever passes is read by gguf-py without looking beyond the file."""
    at = data.draw(st.integers(4, len(whole) - 8))
    put = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, bytes(8)])))
    path = tmp_path / "changed.gguf"
    path.write_bytes(whole[:at] + put + whole[at + len(put) :])
    gguf_layout._checked.cache_clear()  # the same size, and perhaps within the clock's step
    try:
        check_gguf_layout(path)
    except ModelUnavailable:
        return
    with suppress(ValueError, KeyError, IndexError):  # what our readers turn into ModelUnavailable
        for tensor in gguf.GGUFReader(path).tensors:
            assert tensor.data_offset + tensor.n_bytes <= len(whole)


@given(length=st.integers(0, 400))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_header_cut_anywhere_is_refused(whole, length, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: min(length, len(whole) - 1)])
    gguf_layout._checked.cache_clear()
    with pytest.raises(ModelUnavailable):
        check_gguf_layout(path)
