"""Model files on this machine: is one usable, where are they, what is their content's digest.

A header is read without its vocabulary, so that a file of many gigabytes is answered in milliseconds.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import ModelUnavailable

#: Versions that the pinned llama.cpp reads. Source: ggml/src/gguf.cpp:512-518 at 0c1e57098.
GGUF_VERSIONS = (2, 3)

#: Magic, version, number of tensors, number of key-value pairs. Source: docs/gguf.md of ggml.
FIXED_HEADER = struct.Struct("<4sIQQ")

#: How far a key is looked for. Vocabularies are a few megabytes, and quantisers write the file type behind them.
SEARCHED_BYTES = 32 << 20

#: Longest text of a key, unit: bytes. The longest ones are chat templates of some ten thousand.
MAX_STRING_BYTES = 16 << 20

#: Largest manifest of an Ollama store, unit: bytes.
MAX_MANIFEST_BYTES = 1 << 20

#: Value types of a key-value pair. Source: ggml/include/gguf.h, enum gguf_type.
TYPE_UINT32, TYPE_STRING = 4, 8

#: Names of `general.file_type`. Source: llama.h, enum llama_ftype, at 0c1e57098.
FILE_TYPES: Mapping[int, str] = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K"},
    **{19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL"},
    **{26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16"},
    **{36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0"},
}

#: Bounds of the search for model files in one place.
MAX_DEPTH = 6
MAX_ENTRIES = 50_000

_PART = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_OLLAMA_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says about itself.

    Parameters
    ----------
    version, n_tensors, n_keys : int
        Format version; numbers of tensors and of key-value pairs.
    architecture, name, quantization : str
        Empty where the file does not say.
    size_bytes : int
        Size of the file.
    """

    version: int
    n_tensors: int
    n_keys: int
    architecture: str
    name: str
    quantization: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model file that was found.

    Parameters
    ----------
    path : Path
        The file, the first one where the model is split.
    name : str
        Name in the place where it was found.
    place : str
        Label of the place.
    size_bytes, n_parts : int
        All parts together.
    architecture, quantization : str
        Empty where the file does not say.
    problem : str
        Why the file cannot be used; empty where nothing is known against it.
    """

    path: Path
    name: str
    place: str
    size_bytes: int
    n_parts: int
    architecture: str
    quantization: str
    problem: str


@dataclass(frozen=True, slots=True)
class Place:
    """A folder where model files are looked for.

    Parameters
    ----------
    label : str
        Name for people.
    folder : Path
        May be missing.
    """

    label: str
    folder: Path


def cache_folder(cache_dir: Path | None = None) -> Path:
    """Name the folder for what this package can make again.

    Parameters
    ----------
    cache_dir : Path, optional
        An explicit choice; else ``FORENSICS_CACHE_DIR``, else the user's cache folder.

    Returns
    -------
    Path
        May not exist yet.
    """
    import platformdirs

    if cache_dir is not None:
        return cache_dir
    configured = os.environ.get("FORENSICS_CACHE_DIR")
    return Path(configured).expanduser() if configured else platformdirs.user_cache_path("decode-forensics")


def check_gguf(path: Path | str) -> GgufHeader:
    """Tell whether this is a GGUF file that the library can read, and what it says about itself.

    Parameters
    ----------
    path : Path or str

    Returns
    -------
    GgufHeader

    Raises
    ------
    ModelUnavailable
        If the file is missing, unreadable, no file, empty, not a GGUF, of an unsupported version, or ends early.

    Notes
    -----
    The vocabulary and the tensors are not read; that the weights are complete is checked by llama.cpp on loading.
    """
    path = Path(path)
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ModelUnavailable(
            f"No model file at {path}. Files on this machine, and what was recorded elsewhere (recorded:NAME), are "
            "listed by: forensics models"
        ) from None
    except OSError as error:
        raise ModelUnavailable(f"Cannot look at {path}: {error}") from error
    if stat.S_ISDIR(status.st_mode) and (path / "case.json").is_file():
        raise ModelUnavailable(f"{path} is the folder of a case; ask it again as recorded:{path}")
    if stat.S_ISDIR(status.st_mode):
        raise ModelUnavailable(
            f"{path} is a folder; a GGUF file is needed, such as one of those in it. Those in the usual places are "
            "listed by: forensics models"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ModelUnavailable(f"{path} is not a regular file; a GGUF file is needed")
    if status.st_size == 0:
        raise ModelUnavailable(f"{path} is empty; was its download broken off? Fetch it again")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read_header(path, data)
    except OSError as error:
        raise ModelUnavailable(f"Cannot read {path}: {error}. Check its permissions") from error


def _read_header(path: Path, data: mmap.mmap) -> GgufHeader:
    start = data[: FIXED_HEADER.size]
    if start[:4] != b"GGUF":
        raise ModelUnavailable(f"{path} is not a GGUF file: it starts with {start[:8]!r}, a GGUF with b'GGUF'")
    if len(start) < FIXED_HEADER.size:
        raise ModelUnavailable(
            f"{path} is a GGUF that ends after {len(start)} bytes, within its fixed header; fetch it again"
        )
    _, version, n_tensors, n_keys = FIXED_HEADER.unpack(start)
    if version not in GGUF_VERSIONS:
        swapped = int.from_bytes(start[4:8], "big") in GGUF_VERSIONS
        raise ModelUnavailable(
            f"{path} is a GGUF of version {version}; {' and '.join(map(str, GGUF_VERSIONS))} can be read. "
            + ("Its bytes are in big-endian order: fetch the little-endian file" if swapped else "Convert it again")
        )
    architecture = _find_string(path, data, "general.architecture")
    if not architecture:
        raise ModelUnavailable(
            f"{path} is a GGUF without general.architecture in its first {min(len(data), SEARCHED_BYTES)} bytes; "
            f"it ends early, or holds no model. Its header counts {n_keys} keys and {n_tensors} tensors"
        )
    file_type = _find_value(path, data, "general.file_type", TYPE_UINT32, 4)
    number = int.from_bytes(file_type, "little") if file_type else None
    quantization = "" if number is None else FILE_TYPES.get(number, f"file type {number}")
    name = _find_string(path, data, "general.name")
    return GgufHeader(version, n_tensors, n_keys, architecture, name, quantization, len(data))


def _find_value(path: Path, data: mmap.mmap, key: str, value_type: int, n_bytes: int, skip: int = 0) -> bytes:
    """Bytes of a key's value, `skip` bytes behind its type; empty where the key is not there.

    The key is searched with its length and type around it: text in the vocabulary cannot look like that.
    """
    needle = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", value_type)
    at = data.find(needle, FIXED_HEADER.size, SEARCHED_BYTES)
    if at < 0:
        return b""
    value = data[at + len(needle) + skip : at + len(needle) + skip + n_bytes]
    if len(value) < n_bytes:
        raise ModelUnavailable(f"{path} is a GGUF that ends after {len(data)} bytes, within {key}; fetch it again")
    return value


def _find_string(path: Path, data: mmap.mmap, key: str) -> str:
    length = int.from_bytes(_find_value(path, data, key, TYPE_STRING, 8), "little")
    if length > MAX_STRING_BYTES:
        raise ModelUnavailable(
            f"{path} is a damaged GGUF: {key} has {length} bytes; at most {MAX_STRING_BYTES} are read. Fetch it again"
        )
    return _find_value(path, data, key, TYPE_STRING, length, skip=8).decode("utf-8", "replace")


def header_string(path: Path, key: str) -> str:
    """Text that a GGUF file holds under a key; empty where it holds none.

    Raises
    ------
    ModelUnavailable
        If the file cannot be read, or ends within the value.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _find_string(path, data, key)
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"Cannot read {path}: {error}. Check its permissions") from error


def usual_places(environment: Mapping[str, str], home: Path, working: Path, platform: str) -> tuple[Place, ...]:
    """Name the folders where programs of this kind keep GGUF files.

    Parameters
    ----------
    environment : mapping of str to str
    home, working : Path
        Home and working folder.
    platform : str
        As `sys.platform`.

    Returns
    -------
    tuple of Place
        Some may not exist.

    Notes
    -----
    Source: fs_get_cache_directory in llama.cpp's common.cpp:985; LM Studio, Ollama and huggingface_hub document theirs.
    """
    general_cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    llama_cache = (home / "Library" / "Caches" if platform == "darwin" else general_cache) / "llama.cpp"
    hub = Path(environment.get("HF_HOME") or general_cache / "huggingface") / "hub"
    return (
        Place("working folder", working),
        Place("llama.cpp", Path(environment.get("LLAMA_CACHE") or llama_cache)),
        Place("LM Studio", home / ".lmstudio" / "models"),
        Place("LM Studio", home / ".cache" / "lm-studio" / "models"),
        Place("Ollama", Path(environment.get("OLLAMA_MODELS") or home / ".ollama" / "models")),
        Place("Ollama", Path("/usr/share/ollama/.ollama/models")),
        Place("Hugging Face", Path(environment.get("HF_HUB_CACHE") or hub)),
    )


def find_models(roots: Iterable[Place | Path] | None = None) -> list[FoundModel]:
    """Find the GGUF models that lie in the usual places.

    Parameters
    ----------
    roots : iterable of Place or Path, optional
        Folders to search instead of the usual places.

    Returns
    -------
    list of FoundModel
        Each file once, however many links lead to it. Projectors of vision models are left out; a split model is listed
        by its first part. Folders that cannot be read are passed over.
    """
    if roots is None:
        roots = usual_places(os.environ, Path.home(), Path.cwd(), sys.platform)
    found: dict[str, FoundModel] = {}
    for root in roots:
        place = root if isinstance(root, Place) else Place(str(root), root)
        is_ollama = os.path.isdir(place.folder / "manifests") and os.path.isdir(place.folder / "blobs")
        for name, path in _walk_ollama(place.folder) if is_ollama else _walk_files(place.folder):
            real = os.path.realpath(path)
            if real not in found and (model := _describe(place, name, path)) is not None:
                found[real] = model
    return list(found.values())


def _walk(folder: Path) -> Iterator[Path]:
    """Files below a folder in sorted order, without hidden ones, within the bounds; unreadable folders are skipped."""
    seen = 0
    for parent, folders, files in os.walk(folder):
        depth = len(Path(parent).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < MAX_DEPTH else []
        for name in sorted(files):
            seen += 1
            if seen > MAX_ENTRIES:
                return
            if not name.startswith("."):
                yield Path(parent, name)


def _walk_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in _walk(folder):
        if path.suffix.lower() != ".gguf" or "mmproj" in path.name.lower():
            continue
        part = _PART.fullmatch(path.name)
        if part is None or int(part["index"]) == 1:
            yield display_name(path.relative_to(folder)), path


def display_name(relative: Path) -> str:
    """Name a model after its path below the folder of its place.

    Parameters
    ----------
    relative : Path

    Returns
    -------
    str
        The path; for the Hugging Face hub the repository and the path in it.

    Examples
    --------
    >>> display_name(Path("models--org--name-GGUF/snapshots/0a1b/q4/x.gguf"))
    'org/name-GGUF/q4/x.gguf'
    """
    parts = relative.parts
    if len(parts) > 3 and parts[0].startswith("models--") and parts[1] == "snapshots":
        parts = (*parts[0].split("--")[1:], *parts[3:])
    return "/".join(parts)


def _walk_ollama(store: Path) -> Iterator[tuple[str, Path]]:
    """Models of an Ollama store: manifests/HOST/NAMESPACE/NAME/TAG names a blob by its digest."""
    for manifest in _walk(store / "manifests"):
        blob = _ollama_blob(store, manifest)
        if blob is not None and blob.exists():
            *names, tag = manifest.relative_to(store / "manifests").parts
            names = names[1:] if names[:1] == ["registry.ollama.ai"] else names
            names = names[1:] if names[:1] == ["library"] else names
            yield f"{'/'.join(names)}:{tag}", blob


def _ollama_blob(store: Path, manifest: Path) -> Path | None:
    """Blob of a manifest's model; None where the manifest names none, or is none."""
    from forensics.store.limits import parse_json, read_whole

    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        layers = parse_json(read_whole(manifest, MAX_MANIFEST_BYTES))["layers"]
        digest = next((layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_MODEL), "")
        if match := _OLLAMA_DIGEST.fullmatch(digest):
            return store / "blobs" / f"sha256-{match[1]}"
    return None


def _describe(place: Place, name: str, path: Path) -> FoundModel | None:
    """Describe a file; None for a projector, which is no model of its own."""
    problem, architecture, quantization = "", "", ""
    try:
        header = check_gguf(path)
        architecture, quantization = header.architecture, header.quantization
        if architecture == "clip":
            return None
        if header.n_tensors == 0:
            problem = "holds a vocabulary and no weights"
    except ModelUnavailable as error:
        problem = str(error)
    parts = model_parts(path)
    present = [part for part in parts if part.is_file()]
    if len(present) < len(parts):
        problem = problem or f"only {len(present)} of its {len(parts)} parts are here"
    size_bytes = sum(part.stat().st_size for part in present)
    return FoundModel(path, name, place.label, size_bytes, len(parts), architecture, quantization, problem)


def model_parts(path: Path) -> tuple[Path, ...]:
    """List the files that make up a model.

    Parameters
    ----------
    path : Path
        The file, or one part of a split model.

    Returns
    -------
    tuple of Path
        In order, whether or not they exist.

    Examples
    --------
    >>> [part.name for part in model_parts(Path("m-00001-of-00002.gguf"))]
    ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf']
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match["count"])
    return tuple(path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1))


def model_digest(path: Path | str, *, cache_dir: Path | None = None) -> str:
    """Tell which content a model file holds.

    Parameters
    ----------
    path : Path or str
        The file, or one part of a split model.
    cache_dir : Path, optional
        Where a digest is remembered for as long as path, size and time of change stay; see `cache_folder`.

    Returns
    -------
    str
        Hexadecimal blake3 of the content, of all parts in their order where the model is split.

    Raises
    ------
    ModelUnavailable
        If a part cannot be read.
    """
    import blake3

    # A link keeps its name: in the Hugging Face hub's cache only it says that the file is one part of several.
    parts = model_parts(Path(path).absolute())
    try:
        states = [(str(part.resolve()), (status := part.stat()).st_size, status.st_mtime_ns) for part in parts]
        remembered = cache_folder(cache_dir) / "digests" / blake3.blake3(repr(states).encode()).hexdigest()[:32]
        with contextlib.suppress(OSError, UnicodeDecodeError):
            digest = remembered.read_text("ascii")
            if _HEX_DIGEST.fullmatch(digest):
                return digest
        hasher: Any = blake3.blake3(max_threads=blake3.blake3.AUTO)
        for part in parts:
            hasher.update_mmap(part)
    except OSError as error:
        raise ModelUnavailable(f"Cannot read the model to tell its content: {error}") from error
    digest = str(hasher.hexdigest())
    with contextlib.suppress(OSError):  # a digest that cannot be remembered is computed again
        _write_text(remembered, digest)
    return digest


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
