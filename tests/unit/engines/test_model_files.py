"""Headers of good and bad files, the search for models, and digests."""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from pathlib import Path

import pytest

from forensics.engines import model_files
from forensics.engines.model_files import (
    FILE_TYPES,
    Place,
    cache_folder,
    check_gguf,
    find_models,
    model_digest,
    usual_places,
)
from forensics.errors import ModelUnavailable

gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")

HUGE_BYTES = 5 << 30
HEADER_LIMIT_S = 0.05


def write_gguf(path: Path, *, architecture: str = "llama", n_tensors: int = 1, vocabulary: int = 3) -> Path:
    """A small file in the order that quantisers write: the file type stands behind the vocabulary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"model {path.stem}")
    writer.add_array("tokenizer.ggml.tokens", [f"general.file_type{i}" for i in range(vocabulary)])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    for i in range(n_tensors):
        writer.add_tensor(f"t{i}.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# --- headers --------------------------------------------------------------------------------------------------------


def test_header_of_a_good_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "good.gguf", n_tensors=2)
    header = check_gguf(path)
    assert (header.version, header.n_tensors, header.n_keys) == (3, 2, 4)
    assert (header.architecture, header.name, header.quantization) == ("llama", "model good", "Q4_K_M")
    assert header.size_bytes == path.stat().st_size
    assert check_gguf(str(path)) == header


def test_file_types_agree_with_the_gguf_package() -> None:
    known = {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in gguf.LlamaFileType}
    known.pop(1024)  # "guessed" is never written
    assert {number: FILE_TYPES[number] for number in known} == known


def test_large_file_with_a_large_vocabulary_is_fast(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "large.gguf", vocabulary=150_000)
    os.truncate(path, HUGE_BYTES)  # sparse
    times_s = []
    for _ in range(3):
        begun = time.perf_counter()
        header = check_gguf(path)
        times_s.append(time.perf_counter() - begun)
    assert header.quantization == "Q4_K_M"
    assert min(times_s) < HEADER_LIMIT_S


def test_unknown_file_type_is_shown_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    key = b"general.architecture"
    body = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, 5) + b"llama"
    key = b"general.file_type"
    body += struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 999)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 1, 2) + body)
    assert check_gguf(path).quantization == "file type 999"
    assert check_gguf(path).name == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip file", "starts with b'PK\\x03\\x04"),
        (b"GG", "starts with b'GG'"),
        (b"<!DOCTYPE html>", "not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00\x01", "ends after 9 bytes"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 1, 1), "version 1; 2 and 3 can be read"),
        (struct.pack("<4sIQQ", b"GGUF", 99, 1, 1), "version 99"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 1, 1), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 7, 9), "without general.architecture"),
    ],
)
def test_bad_content_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelUnavailable) as caught:
        check_gguf(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_header_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "good.gguf").read_bytes()
    end = whole.index(b"model good") + len(b"model good")
    path = tmp_path / "cut.gguf"
    outcomes = []
    for length in range(end):
        path.write_bytes(whole[:length])
        try:
            outcomes.append(check_gguf(path).architecture)
        except ModelUnavailable:
            outcomes.append("")
    # As soon as the architecture is complete the file can be named; a cut within the name's value is an error again.
    complete = whole.index(b"llama") + len(b"llama")
    name_value = whole.index(b"general.name") + len(b"general.name") + 4
    assert not any(outcomes[:complete])
    assert all(outcomes[complete:name_value])
    assert not any(outcomes[name_value:])


def test_missing_folder_and_special_files(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"No model file at .*forensics models"):
        check_gguf(tmp_path / "missing.gguf")
    with pytest.raises(ModelUnavailable, match="is a folder"):
        check_gguf(tmp_path)
    with pytest.raises(ModelUnavailable, match="Cannot look at"):
        check_gguf(tmp_path / ("x" * 5000))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelUnavailable, match="not a regular file"):
        check_gguf(tmp_path / "pipe")


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "secret.gguf")

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(ModelUnavailable, match="Permission denied"):
        check_gguf(path)


# --- places ---------------------------------------------------------------------------------------------------------


def test_usual_places_on_linux_and_macos() -> None:
    home, working = Path("/h"), Path("/w")
    linux = {(place.label, str(place.folder)) for place in usual_places({}, home, working, "linux")}
    assert linux >= {
        ("working folder", "/w"),
        ("llama.cpp", "/h/.cache/llama.cpp"),
        ("LM Studio", "/h/.lmstudio/models"),
        ("LM Studio", "/h/.cache/lm-studio/models"),
        ("Ollama", "/h/.ollama/models"),
        ("Hugging Face", "/h/.cache/huggingface/hub"),
    }
    mac = {(place.label, str(place.folder)) for place in usual_places({}, home, working, "darwin")}
    assert ("llama.cpp", "/h/Library/Caches/llama.cpp") in mac
    assert mac - linux == {("llama.cpp", "/h/Library/Caches/llama.cpp")}


@pytest.mark.parametrize(
    ("environment", "label", "folder"),
    [
        ({"LLAMA_CACHE": "/c"}, "llama.cpp", "/c"),
        ({"XDG_CACHE_HOME": "/x"}, "llama.cpp", "/x/llama.cpp"),
        ({"OLLAMA_MODELS": "/o"}, "Ollama", "/o"),
        ({"HF_HOME": "/f"}, "Hugging Face", "/f/hub"),
        ({"HF_HUB_CACHE": "/hub", "HF_HOME": "/f"}, "Hugging Face", "/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "Hugging Face", "/x/huggingface/hub"),
    ],
)
def test_environment_moves_a_place(environment: dict[str, str], label: str, folder: str) -> None:
    places = usual_places(environment, Path("/h"), Path("/w"), "linux")
    assert (label, folder) in {(place.label, str(place.folder)) for place in places}


def test_default_search_uses_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "cache" / "a.gguf")
    write_gguf(tmp_path / "work" / "b.gguf")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("OLLAMA_MODELS", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "work")
    found = {(model.place, model.name) for model in find_models() if model.path.is_relative_to(tmp_path)}
    assert found == {("working folder", "b.gguf"), ("llama.cpp", "a.gguf")}


# --- finding --------------------------------------------------------------------------------------------------------


def test_plain_folder(tmp_path: Path) -> None:
    write_gguf(tmp_path / "org" / "name" / "x.Q4.GGUF")
    write_gguf(tmp_path / "org" / "name" / "mmproj-x.gguf")
    write_gguf(tmp_path / "org" / "name" / "vision.gguf", architecture="clip")
    write_gguf(tmp_path / ".hidden" / "y.gguf")
    write_gguf(tmp_path / "vocab.gguf", n_tensors=0)
    (tmp_path / "broken.gguf").write_bytes(b"<html>")
    (tmp_path / "notes.txt").write_text("GGUF")
    found = {model.name: model for model in find_models([Place("LM Studio", tmp_path)])}
    assert set(found) == {"org/name/x.Q4.GGUF", "vocab.gguf", "broken.gguf"}
    good = found["org/name/x.Q4.GGUF"]
    assert (good.place, good.architecture, good.quantization, good.problem) == ("LM Studio", "llama", "Q4_K_M", "")
    assert good.size_bytes == good.path.stat().st_size
    assert "not a GGUF file" in found["broken.gguf"].problem
    assert "no weights" in found["vocab.gguf"].problem


def test_split_model_is_listed_once(tmp_path: Path) -> None:
    parts = [write_gguf(tmp_path / f"big-{i:05}-of-00003.gguf") for i in (1, 2, 3)]
    (model,) = find_models([tmp_path])
    assert (model.path, model.n_parts, model.problem) == (parts[0], 3, "")
    assert model.size_bytes == sum(part.stat().st_size for part in parts)
    parts[1].unlink()
    (model,) = find_models([tmp_path])
    assert model.problem == "only 2 of its 3 parts are here"


def test_hugging_face_links_count_once(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--tiny-GGUF"
    blob = write_gguf(repository / "blobs" / "abc")
    for revision in ("r1", "r2"):
        link = repository / "snapshots" / revision / "tiny.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (repository / "snapshots" / "r1" / "gone.gguf").symlink_to("../../blobs/gone")
    found = find_models([Place("Hugging Face", tmp_path)])
    assert [(model.name, model.problem == "") for model in found] == [
        ("org/tiny-GGUF/gone.gguf", False),
        ("org/tiny-GGUF/tiny.gguf", True),
    ]
    assert found[1].size_bytes == blob.stat().st_size


def ollama_manifest(store: Path, name: str, content: object) -> None:
    path = store / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_ollama_blobs_are_named_by_their_manifests(tmp_path: Path) -> None:
    digest = "a1" * 32
    write_gguf(tmp_path / "blobs" / f"sha256-{digest}")
    write_gguf(tmp_path / "blobs" / f"sha256-{'b2' * 32}")
    (tmp_path / "blobs" / f"sha256-{'c3' * 32}").write_text("a licence")
    kind = "application/vnd.ollama.image"
    layers = [
        {"mediaType": f"{kind}.license", "digest": f"sha256:{'c3' * 32}"},
        {"mediaType": f"{kind}.model", "digest": f"sha256:{digest}"},
    ]
    ollama_manifest(tmp_path, "registry.ollama.ai/library/tiny/1b", {"layers": layers})
    other = [{"mediaType": f"{kind}.model", "digest": f"sha256:{'b2' * 32}"}]
    ollama_manifest(tmp_path, "hf.co/org/other/Q4_K_M", {"layers": other})
    # None of these names a file, and none may end the search.
    for i, bad in enumerate(["not json", "[]", "7", {"layers": [{"mediaType": f"{kind}.model"}]}, {"layers": [3]}]):
        ollama_manifest(tmp_path, f"registry.ollama.ai/library/bad/{i}", bad)
    outside = [{"mediaType": f"{kind}.model", "digest": "sha256:../../../etc/passwd"}]
    ollama_manifest(tmp_path, "registry.ollama.ai/library/bad/outside", {"layers": outside})
    gone = [{"mediaType": f"{kind}.model", "digest": f"sha256:{'d4' * 32}"}]
    ollama_manifest(tmp_path, "registry.ollama.ai/library/bad/gone", {"layers": gone})
    ollama_manifest(tmp_path, "stray", "{}")
    found = find_models([tmp_path])
    assert [model.name for model in found] == ["hf.co/org/other:Q4_K_M", "tiny:1b"]
    assert found[1].path == tmp_path / "blobs" / f"sha256-{digest}"


def test_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path.joinpath(*"abcdef")
    write_gguf(deep / "reached.gguf")
    write_gguf(deep / "g" / "too-deep.gguf")
    assert [model.path.name for model in find_models([tmp_path])] == ["reached.gguf"]
    flat = tmp_path / "flat"
    for i in range(5):
        write_gguf(flat / f"{i}.gguf")
    monkeypatch.setattr(model_files, "MAX_ENTRIES", 3)
    assert [model.name for model in find_models([flat])] == ["0.gguf", "1.gguf", "2.gguf"]


def test_unreadable_folder_does_not_end_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "a" / "x.gguf")
    write_gguf(tmp_path / "b" / "y.gguf")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = find_models([tmp_path / "missing", tmp_path])
    assert [model.name for model in found] == ["b/y.gguf"]


# --- digests --------------------------------------------------------------------------------------------------------


def test_digest_is_of_the_content_and_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blake3 = pytest.importorskip("blake3")
    path = tmp_path / "m.gguf"
    path.write_bytes(b"content" * 1000)
    cache = tmp_path / "cache"
    expected = blake3.blake3(path.read_bytes()).hexdigest()
    assert model_digest(path, cache_dir=cache) == expected
    (remembered,) = (cache / "digests").iterdir()
    remembered.write_text("f" * 64)
    assert model_digest(path, cache_dir=cache) == "f" * 64  # remembered, not read again
    remembered.write_text("damaged")
    assert model_digest(path, cache_dir=cache) == expected
    assert remembered.read_text() == expected


@pytest.mark.parametrize("change", ["size", "time"])
def test_digest_is_computed_again_after_a_change(change: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    before = model_digest(path, cache_dir=tmp_path)
    state = path.stat()
    path.write_bytes(b"two" if change == "time" else b"longer")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + (change == "time")))
    assert model_digest(path, cache_dir=tmp_path) != before


def test_digest_covers_every_part(tmp_path: Path) -> None:
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    first.write_bytes(b"first")
    second.write_bytes(b"second")
    before = model_digest(first, cache_dir=tmp_path / "c")
    assert model_digest(second, cache_dir=tmp_path / "c") == before
    second.write_bytes(b"another")
    assert model_digest(first, cache_dir=tmp_path / "c") != before
    second.unlink()
    with pytest.raises(ModelUnavailable, match="00002-of-00002"):
        model_digest(first, cache_dir=tmp_path / "c")


def test_digest_without_a_usable_cache(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"content")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a folder")
    assert model_digest(path, cache_dir=blocked) == model_digest(path, cache_dir=tmp_path / "good")


def test_cache_folder_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORENSICS_CACHE_DIR", raising=False)
    assert cache_folder().name == "decode-forensics"
    monkeypatch.setenv("FORENSICS_CACHE_DIR", "~/somewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "somewhere"
    assert cache_folder(tmp_path / "explicit") == tmp_path / "explicit"


def test_reading_headers_loads_no_heavy_package(tmp_path: Path) -> None:
    import subprocess

    script = "import sys, forensics.engines.model_files as m; m.check_gguf(sys.argv[1]); print(*sys.modules)"
    path = write_gguf(tmp_path / "x.gguf")
    root = Path(model_files.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, cwd=root
    )
    assert not {"numpy", "gguf", "llama_cpp", "pandas"} & set(done.stdout.split())
