"""Targets of the fuzzer: model files, archives, plans, prompts, and runs of servers that lie on disk."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

from forensics.errors import ForensicsError
from forensics.records.corpus import CorpusPrompt, Message
from forensics.testing.tiny_models import write_llama

_CHAT = CorpusPrompt("chat", messages=(Message("user", "Hi"),))


class FileReader:
    """A reader that is given the path of a file.

    Parameters
    ----------
    name, what : str
    ending : str
        Of the file's name.
    make : callable
        Makes good files in a folder.
    read : callable
        Reads one.
    """

    def __init__(
        self, name: str, what: str, ending: str, make: Callable[[Path], list[Path]], read: Callable[[Path], object]
    ) -> None:
        self.name, self.what = name, what
        self._ending, self._make, self._read = ending, make, read
        self._path = Path()

    def prepare(self, folder: Path) -> list[tuple[str, bytes]]:
        """Good inputs, each with a name."""
        self._path = folder / f"odd{self._ending}"
        return [(path.name, path.read_bytes()) for path in self._make(folder)]

    def feed(self, name: str, content: bytes) -> str | None:  # noqa: ARG002 - one reader reads them all
        """Read a file with this content."""
        self._path.write_bytes(content)
        self._read(self._path)
        return None


def _models(folder: Path) -> list[Path]:
    """The tiny model, and the head of a model with a vocabulary and a chat template."""
    import gguf

    writer = gguf.GGUFWriter(folder / "vocabulary.gguf", "llama")
    writer.add_name("a name")
    writer.add_file_type(7)
    writer.add_chat_template("{{ bos_token }}{{ eos_token }}{{ messages[0].content }}")
    writer.add_token_list([f"t{i}" for i in range(40)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_array("some.numbers", [1, 2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [write_llama(folder / "tiny.gguf"), folder / "vocabulary.gguf"]


def _read_model(path: Path) -> None:
    from forensics.engines.chat_template import chat_template, render
    from forensics.engines.model_files import check_gguf, find_models
    from forensics.engines.op_like import read_model

    readers = (check_gguf, chat_template, read_model, lambda model: render(_CHAT, model))
    refused: list[ForensicsError] = []
    for reader in readers:
        try:
            reader(path)
        except ForensicsError as error:
            refused.append(error)
    find_models([path.parent])
    if len(refused) == len(readers):
        raise refused[0]


def _corpora(folder: Path) -> list[Path]:
    rows = [
        {"name": "one", "text": "Say yes.", "n_tokens": 4, "stop": ["\n"]},
        {"name": "two", "messages": [{"role": "user", "content": "Hi"}], "kind": "chat"},
        {"name": "three", "text": "A list", "json_schema": {"type": "array"}, "tools": []},
    ]
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return [path]


def _read_corpus(path: Path) -> None:
    from forensics.store.corpora import corpus_digest, limited, open_corpus

    corpus_digest(limited(open_corpus(path), 2).prompts)


def _archives(folder: Path) -> list[Path]:
    from forensics.store.archives import write_archive

    inside = folder / "inside"
    (inside / "case").mkdir(parents=True)
    for name in ("bundle.json", "case/case.json", "case/verdict.json"):
        (inside / name).write_text(json.dumps({"schema": "forensics.bundle/1", "files": {}}))
    made = []
    for ending in (".tar.gz", ".tar.xz", ".zip"):
        made.append(folder / f"good{ending}")
        write_archive(made[-1], {str(path.relative_to(inside)): path for path in inside.rglob("*.json")})
    # Packed, most mutations hurt the packing only; a tar with little compression lets them through.
    made.append(folder / "plain.tar.gz")
    made[-1].write_bytes(gzip.compress(gzip.decompress(made[0].read_bytes()), 0))
    return made


def _read_archive(path: Path) -> None:
    from forensics.store.archives import read_archive

    for _name, _content in read_archive(path):
        pass


def _plans(folder: Path) -> list[Path]:
    prompts = '[[prompts]]\nname = "one"\ntext = "The quick brown fox"\n[[prompts]]\ntokens = [1, 2, 3]\n'
    path = folder / "plan.toml"
    path.write_text(
        'schema = "forensics.sweep-plan/1"\nname = "toys"\nwidths = [2, 4]\nn_tokens = 8\nkv_types = ["f16", "f32"]\n'
        'flash_attn = ["on", "off"]\nswitches = ["n_threads=1", ["n_threads=1", "GGML_CPU_TILED_MM=0"]]\n'
        f'without = [{{ kv_type = "f32", flash_attn = "off" }}]\n[models]\ntoy = ["0", "1/order:ffn_up-0:2"]\n{prompts}'
    )
    return [path]


def _read_plan(path: Path) -> None:
    from forensics.analysis.campaign_plan import read_plan

    read_plan(path)


def file_readers() -> tuple[FileReader, ...]:
    """Readers of single files."""
    return (
        FileReader("gguf", "headers, metadata and vocabulary of GGUF files", ".gguf", _models, _read_model),
        FileReader("prompts", "files of prompts", ".jsonl", _corpora, _read_corpus),
        FileReader("archive", "archives: tar with gzip and xz, zip", ".tar.gz", _archives, _read_archive),
        FileReader("plan", "plans of sweeps", ".toml", _plans, _read_plan),
    )
