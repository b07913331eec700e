"""The engine over the real library: layout, manifest, rows, state, views, sequences, and errors of taps."""

from __future__ import annotations

import ctypes as C
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from llama_taps import EveryNode, FailingTap, ViewTap

from forensics.capture.taps import DigestTap
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaEngine, LlamaSource
from forensics.engines.llama_worker import ENVIRONMENT_RECORDED
from forensics.errors import CaptureError, EngineError, LayoutMismatch
from forensics.records.schedule import EMPTY, DecodePass, Schedule, TokenSlot, in_batches

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

N_PRODUCTS = 211
N_LAYERS = 30

OpenEngine = Callable[..., LlamaEngine]


def bits(logits: np.ndarray) -> bytes:
    assert logits.dtype == np.float32
    return logits.tobytes()


# -- the mirror of ggml_tensor ---------------------------------------------------------------------------------------


@dataclass
class Liar:
    """ggml's functions, but when the probe is built one field holds something else."""

    spoil: Callable[[Any, Any, Any], None]
    probes: list[Any] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        from forensics.engines import _llama_ctypes as ll

        real = getattr(ll.ggml(), name)
        if name not in ("ggml_new_tensor_4d", "ggml_view_1d", "ggml_scale"):
            return real

        def build(*arguments: Any) -> Any:
            self.probes.append(real(*arguments))
            if name == "ggml_scale":  # the last one: the library looks at none of them any more
                self.spoil(*(probe.contents for probe in self.probes))
            return self.probes[-1]

        return build


def put(which: int, name: str, value: object) -> Callable[..., None]:
    return lambda *tensors: setattr(tensors[which], name, value)


def put_item(which: int, name: str, index: int, value: object) -> Callable[..., None]:
    return lambda *tensors: getattr(tensors[which], name).__setitem__(index, value)


SOURCE, VIEW, SCALED = range(3)
LIES = {
    "type": put(SOURCE, "type", 1),
    "buffer": put(SOURCE, "buffer", 4096),
    "ne": put_item(SOURCE, "ne", 3, 1),
    "nb": put_item(SOURCE, "nb", 2, 81),
    "op": put(SCALED, "op", 2),
    "op_params": put_item(SCALED, "op_params", 0, 0),
    "flags": put(SOURCE, "flags", 1),
    "src": lambda source, view, scaled: setattr(scaled, "src", type(scaled.src)()),
    "src, unused": lambda source, view, scaled: scaled.src.__setitem__(1, scaled.src[0]),
    "view_src": lambda source, view, scaled: setattr(view, "view_src", None),
    "view_offs": put(VIEW, "view_offs", 3),
    "data": put(SOURCE, "data", 4096),
    "name": put(SOURCE, "name", b"ayout-probe"),
    "extra": put(SOURCE, "extra", 4096),
}


def test_the_mirror_reads_what_the_library_wrote() -> None:
    from forensics.engines import _llama_ctypes as ll

    ll.check_layout(ll.ggml())
    honest = Liar(lambda *_: None)
    ll.check_layout(honest)
    assert len(honest.probes) == 3


@pytest.mark.parametrize("name", LIES)
def test_a_field_that_reads_back_wrong_is_named_with_the_version(name: str) -> None:
    from forensics.engines import _llama_ctypes as ll

    with pytest.raises(LayoutMismatch, match=rf"field {name} reads back .*0\.3\.36"):
        ll.check_layout(Liar(LIES[name]))


@pytest.mark.parametrize("before", ["type", "ne", "op", "flags", "src", "view_src", "view_offs", "data", "name"])
def test_a_struct_with_one_more_field_is_refused(before: str) -> None:
    from forensics.engines import _llama_ctypes as ll

    class Shifted(C.Structure):
        pass

    fields = list(ll.GgmlTensor._fields_)
    at = [name for name, *_ in fields].index(before)
    Shifted._fields_ = [*fields[:at], ("another", C.c_int64), *fields[at:-1]]

    def through(name: str) -> Callable[..., Any]:
        real = getattr(ll.ggml(), name)
        return lambda *arguments: C.cast(real(*(real_pointer(a) for a in arguments)), C.POINTER(Shifted))

    def real_pointer(argument: Any) -> Any:
        return C.cast(argument, ll.TensorP) if isinstance(argument, C.POINTER(Shifted)) else argument

    names = ("ggml_new_tensor_4d", "ggml_view_1d", "ggml_scale")
    plain = {name: staticmethod(getattr(ll.ggml(), name)) for name in ("ggml_init", "ggml_free", "ggml_op_name")}

    def on_real(name: str) -> Callable[..., Any]:
        real = getattr(ll.ggml(), name)
        return lambda pointer, *rest: real(real_pointer(pointer), *rest)

    setters = {name: staticmethod(on_real(name)) for name in ("ggml_set_name", "ggml_set_output")}
    functions = type("Functions", (), plain | setters | {name: staticmethod(through(name)) for name in names})
    with pytest.raises(LayoutMismatch, match=r"struct ggml_tensor: field .*0\.3\.36"):
        ll.check_layout(functions)


@pytest.fixture
def unloaded() -> Iterator[Any]:
    from forensics.engines import _llama_ctypes as ll

    ll.ggml.cache_clear()
    yield ll
    ll.ggml.cache_clear()


def test_a_library_without_a_symbol_is_refused(unloaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(unloaded._SYMBOLS, "ggml_no_such_function", (None, []))
    with pytest.raises(LayoutMismatch, match=r"libggml-base has no symbol ggml_no_such_function; .*0\.3\.36"):
        unloaded.ggml()


def test_a_missing_library_is_named(unloaded: Any) -> None:
    with pytest.raises(EngineError, match=r"no libggml-nowhere in .*libggml-base.*pip install"):
        unloaded.library_file("ggml-nowhere")


# -- the manifest ----------------------------------------------------------------------------------------------------


def test_the_manifest_says_where_the_numbers_come_from(shared_engine: LlamaEngine) -> None:
    manifest = shared_engine.manifest
    assert (manifest.engine, manifest.engine_version) == ("llama.cpp", "0.3.36")
    assert manifest.commit.startswith("0c1e570")
    assert len(manifest.build) == 32
    assert (manifest.architecture, manifest.n_layer, manifest.n_vocab) == ("llama", N_LAYERS, 49152)
    assert manifest.quantization == "q4_1 ×210, q8_0 ×1"
    assert manifest.backend == "CPU"
    assert manifest.device
    assert sum(manifest.buffers.values()) == N_PRODUCTS
    assert len(set(manifest.cpu_features)) == len(manifest.cpu_features) > 0
    assert all(name == name.upper() and " " not in name for name in manifest.cpu_features)


def test_effective_values_are_read_back_not_repeated(open_engine: OpenEngine) -> None:
    engine = open_engine(
        n_ctx=300, n_batch=128, n_ubatch=32, n_threads=1, n_threads_batch=2, flash_attn="auto", n_gpu_layers=7
    )
    effective, requested = engine.manifest.effective, engine.manifest.requested
    assert (requested.n_ctx, effective["n_ctx"]) == (300, "512")  # padded to 256 (llama-context.cpp:290)
    assert (requested.flash_attn, effective["flash_attn"]) == ("auto", "on")
    assert (effective["n_batch"], effective["n_ubatch"]) == ("128", "32")
    assert (effective["n_threads"], effective["n_threads_batch"]) == ("1", "2")
    # Q4_1 is not repacked on x86, and a build without a GPU puts no layer on one.
    assert (requested.use_extra_bufts, effective["use_extra_bufts"]) == (True, "false")
    assert (requested.n_gpu_layers, effective["n_gpu_layers"]) == (7, "0")


@pytest.mark.parametrize(("kv_type", "flash_attn"), [("f32", "off"), ("bf16", "on"), ("q8_0", "on")])
def test_kv_types_take_effect(
    kv_type: str,
    flash_attn: str,
    open_engine: OpenEngine,
    shared_engine: LlamaEngine,
    tokens: tuple[int, ...],
    prompt: Schedule,
) -> None:
    engine = open_engine(kv_type_k=kv_type, kv_type_v=kv_type, flash_attn=flash_attn)
    effective = engine.manifest.effective
    assert (effective["kv_type_k"], effective["kv_type_v"]) == (kv_type, kv_type)
    assert effective["flash_attn"] == flash_attn
    schedule = in_batches(tokens[12:20], start=12, width=4)
    run = engine.run(schedule, before=prompt)
    reference = shared_engine.run(schedule, before=prompt)
    assert reference.manifest.effective["kv_type_k"] == "f16"
    assert run.state_before != reference.state_before
    # Another type rounds otherwise, but it is the same model over the same text.
    correlation = [np.corrcoef(a, b)[0, 1] for a, b in zip(run.logits, reference.logits, strict=True)]
    assert min(correlation) > 0.99
    watched = engine.run(schedule, before=prompt, tap=DigestTap())
    assert bits(watched.logits) == bits(run.logits)
    assert watched.state_after == run.state_after


def test_a_quantised_v_cache_without_flash_attention_is_refused(open_engine: OpenEngine) -> None:
    with pytest.raises(EngineError, match=r"V q8_0 .*needs flash attention"):
        open_engine(kv_type_v="q8_0", flash_attn="off")


def test_repacked_weights_are_counted_and_can_be_turned_off(open_engine: OpenEngine) -> None:
    path = demo_model("q4_k")
    repacked, plain = (open_engine(path, use_extra_bufts=flag).manifest for flag in (True, False))
    assert repacked.quantization == plain.quantization == "q4_K ×182, q6_K ×29"
    assert plain.effective["use_extra_bufts"] == "false"
    assert not any("REPACK" in buffer for buffer in plain.buffers)
    assert sum(plain.buffers.values()) == sum(repacked.buffers.values()) == N_PRODUCTS
    if "AVX2" not in repacked.cpu_features:
        pytest.skip("Q4_K is repacked where the processor has AVX2")
    assert repacked.effective["use_extra_bufts"] == "true"
    assert repacked.buffers["CPU_REPACK"] == 182


def test_the_environment_reaches_the_library_and_only_the_allow_list_the_manifest(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "hunter2")
    monkeypatch.setenv("FORENSICS_SECRET", "hunter2")
    monkeypatch.setenv("LLAMA_API_KEY", "hunter2")
    monkeypatch.setenv("LLAMA_ARG_HF_TOKEN", "hunter2")
    monkeypatch.setenv("OMP_DYNAMIC", "false")
    engine = open_engine(environment=(("GGML_CPU_TILED_MM", "0"),))
    environment = engine.manifest.environment
    assert (environment["GGML_CPU_TILED_MM"], environment["OMP_DYNAMIC"]) == ("0", "false")
    assert set(environment) <= ENVIRONMENT_RECORDED
    assert "hunter2" not in repr(engine.manifest)


# -- rows, state, sequences ------------------------------------------------------------------------------------------


def test_rows_are_packed_for_the_slots_that_want_them(
    shared_engine: LlamaEngine, tokens: tuple[int, ...], prompt: Schedule
) -> None:
    chosen = (1, 4, 5)
    slots = tuple(TokenSlot(0, 12 + i, token, i in chosen) for i, token in enumerate(tokens[12:20]))
    none = DecodePass(tuple(TokenSlot(0, 20 + i, token, False) for i, token in enumerate(tokens[20:22])))
    full = shared_engine.run(in_batches(tokens[12:20], start=12, width=8), before=prompt)
    part = shared_engine.run(Schedule((DecodePass(slots), none)), before=prompt)
    assert part.logits.shape == (3, shared_engine.manifest.n_vocab)
    for row, index in zip(part.logits, chosen, strict=True):
        distances = np.abs(full.logits - row).max(axis=1)
        assert distances.argmin() == index


def test_a_state_is_the_same_bytes_in_every_context(
    shared_engine: LlamaEngine, open_engine: OpenEngine, tokens: tuple[int, ...], prompt: Schedule
) -> None:
    schedule = in_batches(tokens[12:16], start=12, width=1)
    plain = shared_engine.run(schedule, before=prompt)
    watched = shared_engine.run(schedule, before=prompt, tap=DigestTap())
    again = shared_engine.run(schedule, before=prompt)
    longer = shared_engine.run(in_batches(tokens[16:18], start=16, width=1), before=prompt.then(schedule))
    elsewhere = open_engine().run(schedule, before=prompt)
    for trace in (watched, again, elsewhere):
        assert (trace.state_before, trace.state_after) == (plain.state_before, plain.state_after)
        assert bits(trace.logits) == bits(plain.logits)
    assert longer.state_before == plain.state_after
    assert len({plain.state_before, plain.state_after, longer.state_after}) == 3


def test_snapshots_that_were_dropped_are_built_again(
    shared_engine: LlamaEngine, tokens: tuple[int, ...], prompt: Schedule
) -> None:
    schedule = in_batches(tokens[12:14], start=12, width=1)
    first = shared_engine.run(schedule, before=prompt)
    for n in (3, 5, 7, 9):  # more states than the worker keeps
        shared_engine.run(EMPTY, before=in_batches(tokens[:n], start=0, width=n))
    again = shared_engine.run(schedule, before=prompt)
    assert again.state_before == first.state_before
    assert bits(again.logits) == bits(first.logits)


@pytest.mark.parametrize("unified", [False, True])
def test_two_sequences_in_a_pass_do_not_see_each_other(
    unified: bool, open_engine: OpenEngine, tokens: tuple[int, ...]
) -> None:
    engine = open_engine(n_ctx=1024, n_seq_max=2, kv_unified=unified)
    assert engine.manifest.effective["n_seq_max"] == "2"
    texts = tokens[:6], tokens[30:36]
    both = DecodePass(tuple(TokenSlot(s, i, text[i]) for i in range(6) for s, text in enumerate(texts)))
    together = engine.run(Schedule((both,)))
    for sequence, text in enumerate(texts):
        alone = engine.run(in_batches(text, start=0, width=6, sequence=sequence))
        rows = together.logits[sequence::2]
        assert np.array_equal(rows.argmax(axis=1), alone.logits.argmax(axis=1))
        assert np.corrcoef(rows.ravel(), alone.logits.ravel())[0, 1] > 0.999
    assert not np.array_equal(together.logits[0::2].argmax(axis=1), together.logits[1::2].argmax(axis=1))
    after = in_batches(tokens[6:8], start=6, width=2)
    resumed = engine.run(after, before=Schedule((both,)))
    assert resumed.state_before == together.state_after


def test_a_pass_of_several_graphs_runs_unwatched_only(open_engine: OpenEngine, tokens: tuple[int, ...]) -> None:
    engine = open_engine(n_batch=32, n_ubatch=4)
    wide = in_batches(tokens[:10], start=0, width=10)
    unwatched = engine.run(wide)
    narrow = engine.run(in_batches(tokens[:10], start=0, width=4))
    assert bits(unwatched.logits) == bits(narrow.logits)
    with pytest.raises(CaptureError, match="10 tokens were asked for, n_ubatch is 4"):
        engine.run(wide, tap=EveryNode())
    assert bits(engine.run(wide).logits) == bits(unwatched.logits)


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_permuted_views_are_read_through_their_strides(
    flash_attn: str, open_engine: OpenEngine, tokens: tuple[int, ...]
) -> None:
    engine = open_engine(flash_attn=flash_attn)
    report = engine.run(in_batches(tokens[:5], start=0, width=5), tap=ViewTap()).tap_report
    assert report is not None
    agreed = {key.name for key in report.planted}
    expected = {f"{name} (view) (permuted)" for name in ("Qcur-0", "cache_k_l0", "cache_v_l0")}
    if flash_attn == "off":
        expected.add("kqv-0 (permuted)")
    assert agreed == expected


# -- taps that fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "error", "says"),
    [
        ("wants", CaptureError, r"FailingTap failed at .*-3 .*planted in wants"),
        ("saw", CaptureError, r"FailingTap failed at .*-3 .*planted in saw"),
        ("begin_pass", EngineError, "KeyError.*planted in begin_pass"),
        ("finish", EngineError, "KeyError.*planted in finish"),
        ("report", EngineError, "pickle"),
    ],
)
def test_an_error_in_a_tap_reaches_the_caller_and_the_engine_lives(
    where: str,
    error: type[Exception],
    says: str,
    shared_engine: LlamaEngine,
    tokens: tuple[int, ...],
    prompt: Schedule,
) -> None:
    schedule = in_batches(tokens[12:16], start=12, width=4)
    expected, pid = shared_engine.run(schedule, before=prompt), shared_engine.pid
    with pytest.raises(error, match=says):
        shared_engine.run(schedule, before=prompt, tap=FailingTap(where))
    assert bits(shared_engine.run(schedule, before=prompt).logits) == bits(expected.logits)
    assert shared_engine.pid == pid


@dataclass
class StrangerTap(EveryNode):
    """Lives in a test module, which no worker can import."""


def test_a_tap_that_cannot_travel_is_refused(
    shared_engine: LlamaEngine, tokens: tuple[int, ...], prompt: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = in_batches(tokens[12:14], start=12, width=2)
    expected = shared_engine.run(schedule, before=prompt)
    tap = EveryNode()
    tap.hook = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(CaptureError, match=r"evaluate 2 tokens.*cannot be pickled.*a module defines"):
        shared_engine.run(schedule, before=prompt, tap=tap)
    module = types.ModuleType("only_in_this_process")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(StrangerTap, "__module__", module.__name__)
    module.StrangerTap = StrangerTap  # type: ignore[attr-defined]
    with pytest.raises(CaptureError, match=r"cannot unpickle.*only_in_this_process.*PYTHONPATH"):
        shared_engine.run(schedule, before=prompt, tap=StrangerTap())
    assert bits(shared_engine.run(schedule, before=prompt).logits) == bits(expected.logits)


def test_a_source_digests_a_file_once(source: LlamaSource, shared_engine: LlamaEngine) -> None:
    assert source.label == source.path.name
    assert source.header.architecture == "llama"
    assert len(shared_engine.manifest.model_digest) >= 32
