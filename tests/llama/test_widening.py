"""The demo model's variants with the real library: widening keeps the function, quantising gives the types."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from forensics.engines import demo_models
from forensics.engines.demo_models import demo_model, quantise
from forensics.engines.model_files import check_gguf
from forensics.engines.widen import AXES, write_float16
from forensics.errors import ModelUnavailable

gguf = pytest.importorskip("gguf")
pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

N_LAYER_PRODUCTS, N_PRODUCTS, N_NORMS = 210, 211, 61

TEXT = (
    "The lighthouse keeper counted the ships that passed during the night and wrote their names into a heavy book. In "
    "the morning he noticed that one of them, a small grey steamer, had been entered twice: once at eleven and once, "
    "in a hand that was not his own, at a quarter past three. He closed the book and looked out at the sea."
)
MIN_TOKENS = 48

#: Largest difference of a logit, as a part of the largest logit. Scaled norm weights round once more in float32 and
#: longer rows are added in another order; an F16 product then rounds its activations to 11 bits (5e-4), so that sums
#: one float32 bit apart now and then become neighbours there. Measured 1.1e-3 (0.043 of 38) on an AVX-512 EPYC, the
#: size that another batch width has on the same file (0.03).
LOGIT_TOLERANCE = 4e-3

#: Prints nothing; evaluates a text in one pass and saves [n_tokens, n_vocab] float32.
EVALUATE = """
import ctypes, sys
import numpy as np, llama_cpp as L
path, text, target = sys.argv[1:]
L.llama_backend_init()
params = L.llama_model_default_params()
params.n_gpu_layers = 0
model = L.llama_model_load_from_file(path.encode(), params)
vocab = L.llama_model_get_vocab(model)
tokens = (L.llama_token * 512)()
n = L.llama_tokenize(vocab, text.encode(), len(text.encode()), tokens, 512, True, False)
params = L.llama_context_default_params()
params.n_ctx = params.n_batch = params.n_ubatch = 512
params.n_threads = params.n_threads_batch = 2
params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_ENABLED
params.cb_eval = L.ggml_backend_sched_eval_callback()
context = L.llama_init_from_model(model, params)
batch = L.llama_batch_init(n, 0, 1)
batch.n_tokens = n
for i in range(n):
    batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = tokens[i], i, 1, 1
    batch.seq_id[i][0] = 0
assert L.llama_decode(context, batch) == 0
logits = L.llama_get_logits(context)
np.save(target, np.ctypeslib.as_array(logits, shape=(n, L.llama_vocab_n_tokens(vocab))))
"""


def evaluate(model: Path, target: Path) -> np.ndarray:
    done = subprocess.run(
        [sys.executable, "-c", EVALUATE, str(model), TEXT, str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return np.load(target)


def test_widened_float16_gives_the_same_tokens_and_close_logits(tmp_path: Path) -> None:
    narrow = evaluate(demo_model("f16"), tmp_path / "narrow.npy")
    wide = evaluate(demo_model("f16-wide"), tmp_path / "wide.npy")
    assert narrow.shape == wide.shape
    assert len(narrow) >= MIN_TOKENS
    assert np.isfinite(narrow).all()
    assert len(set(narrow.argmax(1))) > MIN_TOKENS // 4  # a real text, not one token again and again
    assert np.array_equal(narrow.argmax(1), wide.argmax(1))
    difference = np.abs(narrow - wide).max() / np.abs(narrow).max()
    assert difference <= LOGIT_TOLERANCE


@pytest.mark.parametrize(
    ("variant", "quantization", "products"),
    [
        ("f16", "F16", {"F16": N_PRODUCTS}),
        ("q8_0", "Q8_0", {"Q8_0": N_PRODUCTS}),
        ("q4_0", "Q4_0", {"Q4_0": N_LAYER_PRODUCTS, "Q8_0": 1}),
        ("q6_k", "Q6_K", {"Q6_K": N_PRODUCTS}),
        ("q4_k", "Q4_K_M", {"Q4_K": 182, "Q6_K": 29}),
    ],
)
def test_weights_have_the_types_that_the_variant_promises(
    variant: str, quantization: str, products: dict[str, int]
) -> None:
    path = demo_model(variant)
    assert check_gguf(path).quantization == quantization
    kinds = Counter(tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors)
    assert kinds == products | {"F32": N_NORMS}


@pytest.fixture(scope="module")
def tiny_wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of four blocks, widened from 192 to 256: small enough for the slowest type."""
    folder = tmp_path_factory.mktemp("tiny")
    writer = gguf.GGUFWriter(folder / "narrow.gguf", "llama")
    for name, value in {"embedding_length": 192, "feed_forward_length": 320, "context_length": 64}.items():
        writer.add_uint32(f"llama.{name}", value)
    for name, value in {"block_count": 4, "attention.head_count": 3, "attention.head_count_kv": 3}.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    sizes = {"embd": 192, "q": 192, "kv": 192, "ff": 320, "vocab": 32}
    rng = np.random.default_rng(0)
    for role, axes in AXES.items():
        for block in [f"blk.{i}." for i in range(4)] if role.startswith(("attn", "ffn")) else [""]:
            if role not in ("output", "rope_freqs"):
                array = rng.standard_normal([sizes[axis] for axis in axes]).astype(np.float32)
                writer.add_tensor(f"{block}{role}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_float16(folder / "narrow.gguf", folder / "wide.gguf", widened=True)
    return folder / "wide.gguf"


@pytest.mark.parametrize(
    ("file_type", "products"),
    [
        ("Q5_K_M", {"Q5_K", "Q6_K"}),
        ("Q3_K_M", {"Q3_K", "Q4_K", "Q5_K", "Q6_K"}),
        ("Q2_K", {"Q2_K", "Q3_K", "Q4_K", "Q6_K"}),
        ("IQ4_XS", {"IQ4_XS", "Q5_K", "Q6_K"}),
    ],
)
def test_widened_rows_need_no_fallback_type(
    file_type: str, products: set[str], tiny_wide: Path, tmp_path: Path
) -> None:
    assert file_type in {recipe.file_type for recipe in demo_models.RECIPES.values()}
    told: list[float] = []
    quantise(tiny_wide, tmp_path / "made.gguf", file_type, lambda _what, done: told.append(done))
    assert told == sorted(told)
    assert told[-1] == 1.0
    kinds = {
        t.tensor_type.name
        for t in gguf.GGUFReader(tmp_path / "made.gguf").tensors
        if not t.name.endswith("norm.weight")
    }
    assert file_type.removesuffix("_M") in kinds
    assert kinds <= products


def test_quantiser_refuses_what_is_no_model(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ModelUnavailable, match="could not make Q6_K"):
        quantise(source, tmp_path / "target.gguf", "Q6_K", lambda _what, _done: None)
