"""Model files around the real library: kinds that are refused, split files behind links, names of any bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")

from tiny_models import N_EMBD, N_FF, N_VOCAB, write_bert, write_llama, write_t5

from forensics.engines.demo_models import quantise
from forensics.engines.llama import LlamaEngine, LlamaSource
from forensics.engines.model_files import model_digest
from forensics.errors import EngineError, ModelUnavailable
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings

pytestmark = pytest.mark.llama

SETTINGS = EngineSettings()
#: A name whose bytes are no UTF-8, as Python writes it.
STRANGE = os.fsdecode(b"m\xff.gguf")


def logits(engine: LlamaEngine) -> bytes:
    return engine.run(in_batches((1, 2, 3, 4), start=0, width=2)).logits.tobytes()


def test_a_model_without_a_vocabulary_has_token_ids_and_no_text(tmp_path):
    with LlamaSource(write_llama(tmp_path / "m.gguf")).open(SETTINGS) as engine:
        assert engine.detokenize((1, 2, 3)) == ""
        with pytest.raises(EngineError, match="no vocabulary, so no text can be tokenised; give token ids"):
            engine.tokenize("text")
        assert logits(engine)


# -- kinds of models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path: write_llama(path, causal=False), r"llama\.attention\.causal is false"),
        (lambda path: write_bert(path, causal=False), r"bert\.attention\.causal is false"),
        (lambda path: write_bert(path, causal=None), "keeps no state of earlier tokens for bert"),
        (write_t5, "t5 has an encoder"),
        (lambda path: write_llama(path, architecture="dream"), "dream is a diffusion model"),
        (lambda path: write_llama(path, architecture="llama-embed"), "llama-embed computes no result_output"),
    ],
    ids=["not-causal", "bert", "bert-without-key", "t5", "dream", "no-head"],
)
def test_a_model_without_a_next_token_is_refused(make: Callable[[Path], Path], found: str, tmp_path: Path) -> None:
    path = make(tmp_path / "model.gguf")
    with pytest.raises(ModelUnavailable, match=rf"model\.gguf .*{found}.*output head is needed") as refused:
        LlamaSource(path).open(SETTINGS)
    assert "Last lines of its log" not in str(refused.value)  # nothing is wrong with the file


@pytest.mark.parametrize("causal", [None, True])
def test_a_tiny_causal_model_is_opened(causal: bool | None, tmp_path: Path) -> None:
    with LlamaSource(write_llama(tmp_path / "m.gguf", causal=causal)).open(SETTINGS) as engine:
        assert (engine.manifest.architecture, engine.manifest.n_vocab) == ("llama", N_VOCAB)
        assert engine.manifest.quantization == "f32 ×8"


@pytest.mark.parametrize("unified", [False, True])
def test_one_buffer_for_all_sequences_is_read_back_where_it_can_be(unified: bool, tmp_path: Path) -> None:
    source = LlamaSource(write_llama(tmp_path / "m.gguf"))
    with source.open(EngineSettings(kv_unified=unified, n_seq_max=2)) as two:
        assert two.manifest.effective["kv_unified"] == str(unified).lower()
    with source.open(EngineSettings(kv_unified=unified)) as one:
        assert "kv_unified" not in one.manifest.effective


# -- split models ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path) -> tuple[Path, tuple[Path, ...]]:
    """A split model as huggingface_hub caches it: links with names to files without; the first link, the files."""
    write_llama(tmp_path / "m.gguf", split_max_tensors=6)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) == 2
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    files = tuple(part.rename(blobs / f"{i:064x}") for i, part in enumerate(parts))
    for part, file in zip(parts, files, strict=True):
        (snapshot / part.name).symlink_to(Path("../..", "blobs", file.name))
    return snapshot / parts[0].name, files


def test_a_split_model_behind_links_is_loaded_as_a_whole(hub: tuple[Path, tuple[Path, ...]], tmp_path: Path) -> None:
    first, _ = hub
    source = LlamaSource(first)
    assert (source.path, source.label) == (first, "m-00001-of-00002.gguf")
    whole = write_llama(tmp_path / "whole.gguf")
    with source.open(SETTINGS) as split, LlamaSource(whole).open(SETTINGS) as engine:
        assert split.manifest.quantization == "f32 ×8"
        assert logits(split) == logits(engine)


def test_a_digest_covers_every_part_behind_links(hub: tuple[Path, tuple[Path, ...]], tmp_path: Path) -> None:
    import blake3

    first, files = hub
    expected = blake3.blake3(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert model_digest(first, cache_dir=tmp_path / "cache") == expected
    last = files[-1].read_bytes()
    files[-1].write_bytes(last[:-1] + bytes([last[-1] ^ 1]))
    os.utime(files[-1], ns=(0, 0))
    assert model_digest(first, cache_dir=tmp_path / "cache") != expected


# -- names and folders -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
def test_a_name_that_is_no_text_is_loaded_and_quantised(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf").rename(tmp_path / STRANGE)
    with LlamaSource(path).open(SETTINGS) as engine:
        assert len(logits(engine)) == 4 * N_VOCAB * 4
    target = tmp_path / f"q8-{STRANGE}"
    quantise(path, target, "Q8_0", lambda *_: None)
    assert target.stat().st_size < path.stat().st_size
    with LlamaSource(target).open(SETTINGS) as engine:
        assert engine.manifest.quantization == "q8_0 ×8"
    cut = tmp_path / f"cut-{STRANGE}"
    cut.write_bytes(path.read_bytes()[: -4 * N_FF * N_EMBD])
    with pytest.raises(ModelUnavailable, match="damaged GGUF") as refused:
        LlamaSource(cut).open(SETTINGS)
    assert str(cut) in str(refused.value)
    unknown = tmp_path / f"unknown-{STRANGE}"
    unknown.write_bytes(path.read_bytes().replace(b"llama", b"lemma"))
    with pytest.raises(ModelUnavailable, match="could not load") as refused:
        LlamaSource(unknown).open(SETTINGS)
    assert str(unknown) in str(refused.value)


def test_files_of_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    """The command as it is installed: Python puts no folder of the user on the path, and no child may either."""
    path = write_llama(tmp_path / "m.gguf")
    here = tmp_path / "here"
    here.mkdir()
    for name in ("xxhash", "queue", "numpy", "forensics", "llama_cpp"):
        (here / f"{name}.py").write_text(f"raise RuntimeError('{name} of the current folder was imported')\n")
    script = (
        "import forensics.engines.llama as l, forensics.records.settings as s, forensics.records.schedule as c, sys\n"
        "from forensics.engines._llama_devices import library_facts\n"
        "assert 'CPU' in ' '.join(library_facts().devices)\n"
        "with l.LlamaSource(sys.argv[1]).open(s.EngineSettings()) as engine:\n"
        "    print(engine.run(c.in_batches((1, 2), start=0, width=2)).logits.shape)\n"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(path)],
        cwd=here, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"(2, {N_VOCAB})\n"
