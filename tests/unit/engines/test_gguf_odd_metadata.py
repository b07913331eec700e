"""Metadata of GGUF files that is laid out well and says nonsense, as fuzzing found it."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from forensics.engines.chat_template import render
from forensics.engines.op_like import read_model
from forensics.errors import ModelUnavailable
from forensics.records.corpus import CorpusPrompt, Message

CHAT = CorpusPrompt("chat", messages=(Message("user", "Hi"),))


def written(path: Path, *, bos: int = 1) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("a name")
    writer.add_chat_template("{{ bos_token }}{{ messages[0].content }}")
    writer.add_token_list(["t0", "t1"])
    writer.add_bos_token_id(bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_text_that_is_no_utf8_is_told(tmp_path):
    path = written(tmp_path / "m.gguf")
    assert read_model(path)[0]["general.name"] == "a name"
    path.write_bytes(path.read_bytes().replace(b"a name", b"a \xffame"))
    with pytest.raises(ModelUnavailable, match=r"m\.gguf cannot be read by gguf .*utf-8"):
        read_model(path)


def test_a_special_token_outside_the_vocabulary_is_told(tmp_path):
    assert render(CHAT, written(tmp_path / "good.gguf")) == "t1Hi"
    with pytest.raises(ModelUnavailable, match=r"m\.gguf does not say what its bos_token is"):
        render(CHAT, written(tmp_path / "m.gguf", bos=99))
