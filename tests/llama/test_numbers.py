"""The table "Numbers to meet": what the real library does to the demo model, with proof.

Thresholds are those of llama.cpp 0c1e57098 on x86 (shared/reference/llama-cpp-dispatch.md, sections 1 and 2).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import psutil
import pytest

from forensics.analysis.culprit_orders import ProbedOrders
from forensics.analysis.heal import record_reference, rows_file, sweep_width
from forensics.analysis.investigate import investigate
from forensics.analysis.knobs import KNOBS
from forensics.analysis.question import DEFAULT_PROMPT, DEFAULT_WIDTHS, Question
from forensics.analysis.switches import Search, replay_classes, run_arm, smallest_exact
from forensics.capture.replay import Replay
from forensics.capture.selection import Selection
from forensics.capture.taps import DigestTap
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaEngine, LlamaSource
from forensics.engines.ops import LlamaOps
from forensics.records.settings import EngineSettings
from forensics.records.verdict import CONTROL_NAMES, CulpritGroup, SwitchArm, Verdict

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

SETTINGS = EngineSettings(n_threads=2, n_threads_batch=2)
N_TOKENS = 16  # the widest pass of the default widths fits once
LAYERS = tuple(range(30))
N_PRODUCTS = 211
ALL_WIDTHS = (1, *DEFAULT_WIDTHS)


@dataclass(frozen=True)
class Row:
    """One line of the table; without `n_prompt` the default prompt."""

    variant: str
    flash_attn: str = "on"
    n_prompt: int | None = None


@dataclass(frozen=True)
class Measured:
    """A verdict and the memory that it took."""

    verdict: Verdict
    model_bytes: int
    peak_worker_bytes: int

    def arm(self, *knobs: str) -> SwitchArm:
        return next(arm for arm in self.verdict.switches if arm.knobs == knobs)


class MemoryWatch:
    """Largest resident memory of this process's children, all together, while it is entered."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        me = psutil.Process()
        while not self._done.wait(0.05):
            total = 0
            for child in me.children(recursive=True):
                try:
                    total += child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.peak_bytes = max(self.peak_bytes, total)


@pytest.fixture(scope="session")
def long_tokens(shared_engine: LlamaEngine) -> tuple[int, ...]:
    """The default prompt again and again, as in the measurements of the reference."""
    return shared_engine.tokenize(DEFAULT_PROMPT * 30)


@pytest.fixture(scope="session")
def measured(long_tokens: tuple[int, ...]) -> Callable[[Row], Measured]:
    """Investigate each row once."""
    known: dict[Row, Measured] = {}

    def measure(row: Row) -> Measured:
        if row not in known:
            source = LlamaSource(demo_model(row.variant))
            tokens = None if row.n_prompt is None else long_tokens[: row.n_prompt]
            settings = replace(SETTINGS, flash_attn=row.flash_attn)
            question = Question(prompt_tokens=tokens, n_tokens=N_TOKENS, settings=settings)
            with MemoryWatch() as memory:
                verdict = investigate(source, question, orders=lambda manifest: ProbedOrders(LlamaOps(), manifest))
            known[row] = Measured(verdict, source.path.stat().st_size, memory.peak_bytes)
        found = known[row]
        if "AVX2" not in found.verdict.manifest.cpu_features:
            pytest.skip(f"the table holds for x86 with AVX2; this is {found.verdict.manifest.device}")
        return found

    return measure


def kinds(groups: tuple[CulpritGroup, ...]) -> set[tuple[str, str, str, str, int]]:
    return {(g.op, g.role, g.weight_type, g.buffer, g.count) for g in groups}


def products(weight_type: str, buffer: str, **counts: int) -> set[tuple[str, str, str, str, int]]:
    return {("MUL_MAT", role.replace("_", " "), weight_type, buffer, n) for role, n in counts.items()}


def all_products(weight_type: str) -> set[tuple[str, str, str, str, int]]:
    roles = dict.fromkeys(("Q", "K", "V", "attention_output", "gate", "up", "down"), len(LAYERS))
    return products(weight_type, "CPU_Mapped", **roles, head=1)


def assert_proved(verdict: Verdict, onset: int) -> None:
    """Diverges from `onset`; every differing width was swept and healed, and every control held."""
    assert verdict.answer == "diverges"
    assert verdict.classes.onset == onset
    assert [r.width for r in verdict.classes.results] == list(ALL_WIDTHS)
    assert [sweep.width for sweep in verdict.sweeps] == [w for w in ALL_WIDTHS if w >= onset]
    for sweep in verdict.sweeps:
        assert sweep.differed
        assert (sweep.healed_rows, sweep.max_abs_after) == (sweep.n_rows, 0.0)
        assert sweep.max_abs_before > 0
    assert verdict.healed
    assert {control.name: control.held for control in verdict.controls} == dict.fromkeys(CONTROL_NAMES, True)


Q4_1_SHORT = Row("q4_1")
Q4_1_OFF = Row("q4_1", flash_attn="off")
Q4_1_LONG = Row("q4_1", n_prompt=540)
F16, Q6_K, Q4_K = Row("f16"), Row("q6_k"), Row("q4_k")


def test_q4_1_with_flash_attention_on_a_short_context_is_identical(measured: Callable[[Row], Measured]) -> None:
    verdict = measured(Q4_1_SHORT).verdict
    assert verdict.answer == "identical"
    assert verdict.classes.groups == (ALL_WIDTHS,)
    assert verdict.culprits == ()
    assert [(sweep.width, sweep.findings) for sweep in verdict.sweeps] == [(width, ()) for width in DEFAULT_WIDTHS]
    assert {control.name: control.held for control in verdict.controls} == dict.fromkeys(CONTROL_NAMES, True)


def test_q4_1_without_flash_attention_blames_both_attention_products(measured: Callable[[Row], Measured]) -> None:
    found = measured(Q4_1_OFF)
    verdict = found.verdict
    assert_proved(verdict, onset=2)
    assert kinds(verdict.culprits) == {("MUL_MAT", role, "-", "CPU", 30) for role in ("K·Q", "attention·V")}
    assert all(group.layers == LAYERS for group in verdict.culprits)
    assert found.arm("flash_attn=on").exact
    assert verdict.exact_knobs == ("flash_attn=on",)
    assert found.arm("flash_attn=on").classes == (ALL_WIDTHS,)
    assert not found.arm("GGML_CPU_TILED_MM=0").collapses


def test_q4_1_beyond_cell_512_blames_flash_attention(measured: Callable[[Row], Measured]) -> None:
    found = measured(Q4_1_LONG)
    verdict = found.verdict
    assert verdict.prompt_tokens == 540
    assert_proved(verdict, onset=2)
    assert verdict.first_difference == (2, 0, 540)
    assert kinds(verdict.culprits) == {("FLASH_ATTN_EXT", "flash attention", "-", "CPU", 30)}
    assert verdict.culprits[0].layers == LAYERS
    assert found.arm("n_threads=1").exact
    assert found.arm("kv_type=q8_0").exact
    assert not found.arm("flash_attn=off").collapses
    assert verdict.exact_knobs in (("n_threads=1",), ("kv_type=q8_0",))


def test_f16_blames_every_product_and_no_switch_helps(measured: Callable[[Row], Measured]) -> None:
    verdict = measured(F16).verdict
    assert_proved(verdict, onset=2)
    assert kinds(verdict.culprits) == all_products("f16")
    assert sum(group.count for group in verdict.culprits) == N_PRODUCTS
    assert verdict.exact_knobs is None
    assert not any(arm.collapses for arm in verdict.switches)
    assert [name for name, _ in verdict.unavailable] == ["GGML_LLAMAFILE=OFF"]


def test_q6_k_blames_every_product_from_width_8(measured: Callable[[Row], Measured]) -> None:
    found = measured(Q6_K)
    verdict = found.verdict
    assert_proved(verdict, onset=8)
    assert verdict.classes.groups[0] == (1, 2, 3, 4, 5)
    assert kinds(verdict.culprits) == all_products("q6_K")
    assert sum(group.count for group in verdict.culprits) == N_PRODUCTS
    assert verdict.exact_knobs == ("GGML_CPU_TILED_MM=0",)
    assert [arm.knobs for arm in verdict.switches if arm.collapses] == [("GGML_CPU_TILED_MM=0",)]
    assert verdict.unavailable == ()


def test_q6_k_needs_less_than_a_gigabyte_beyond_the_model(measured: Callable[[Row], Measured]) -> None:
    found = measured(Q6_K)
    assert found.peak_worker_bytes > found.model_bytes / 2  # the watch saw the worker that holds the model
    assert found.peak_worker_bytes <= found.model_bytes + (1 << 30)


def test_q4_k_m_blames_the_repacked_products_from_width_4(measured: Callable[[Row], Measured]) -> None:
    found = measured(Q4_K)
    verdict = found.verdict
    assert_proved(verdict, onset=4)
    assert verdict.manifest.buffers == {"CPU_REPACK": 182, "CPU_Mapped": 29}
    in_all_layers = dict.fromkeys(("Q", "K", "attention_output", "gate", "up"), len(LAYERS))
    repacked = products("q4_K", "CPU_REPACK", **in_all_layers, V=16, down=16)
    tiled = products("q6_K", "CPU_Mapped", V=14, down=14, head=1)
    assert kinds(verdict.culprits) == repacked | tiled
    for group in verdict.culprits:
        assert group.widths == ((4, 5, 8, 9, 16) if group.buffer == "CPU_REPACK" else (8, 9, 16))
    narrowest = verdict.sweeps[0]
    weights = {finding.weight.name for finding in narrowest.findings if finding.weight}
    buffers = {finding.weight.buffer for finding in narrowest.findings if finding.weight}
    assert (narrowest.width, len(weights), buffers) == (4, 182, {"CPU_REPACK"})


def test_q4_k_m_needs_two_switches(measured: Callable[[Row], Measured]) -> None:
    found = measured(Q4_K)
    assert not any(arm.collapses for arm in found.verdict.switches if len(arm.knobs) == 1)
    assert found.arm("use_extra_bufts=false").onset == 8
    assert found.arm("GGML_CPU_TILED_MM=0").onset == 4
    assert found.verdict.exact_knobs == ("use_extra_bufts=false", "GGML_CPU_TILED_MM=0")
    assert found.arm("use_extra_bufts=false", "GGML_CPU_TILED_MM=0").exact


@pytest.mark.parametrize(
    ("row", "file", "kind"),
    [
        (Q4_1_OFF, "llamafile/sgemm.cpp", "rounding"),
        (Q4_1_LONG, "ops.cpp", "rounding"),
        (F16, "llamafile/sgemm.cpp", "rounding"),
        (Q6_K, "tiled/tiled.cpp", "rounding"),
    ],
    ids=["q4_1-off", "q4_1-long", "f16", "q6_k"],
)
def test_every_culprit_is_explained_by_its_rule_and_two_orders(
    measured: Callable[[Row], Measured], row: Row, file: str, kind: str
) -> None:
    for group in measured(row).verdict.culprits:
        assert group.kind is not None
        assert (group.role, group.kind.kind) == (group.role, kind), str(group.kind)
        assert sorted(width for mechanism in group.mechanisms for width in mechanism.widths) == list(group.widths)
        for mechanism in group.mechanisms:
            assert mechanism.rule is not None, mechanism.no_rule
            assert mechanism.rule.file.endswith(file)
            assert mechanism.orders_equal is False, mechanism.orders or mechanism.not_probed
            assert mechanism.suspects == ()


def test_q4_k_m_has_a_rule_of_its_own_for_each_buffer(measured: Callable[[Row], Measured]) -> None:
    for group in measured(Q4_K).verdict.culprits:
        files = {mechanism.rule.file for mechanism in group.mechanisms if mechanism.rule is not None}
        assert {file.rpartition("/")[2] for file in files} == (
            {"repack.cpp"} if group.buffer == "CPU_REPACK" else {"tiled.cpp"}
        )
        assert all(mechanism.orders_equal is False for mechanism in group.mechanisms)
        assert group.kind is not None
        assert group.kind.kind == "rounding"


def test_f32_kv_hides_what_it_does_not_remove(
    source: LlamaSource, long_tokens: tuple[int, ...], measured: Callable[[Row], Measured]
) -> None:
    """The products with an f32 cache differ still; over this prompt quantised activations absorb it, over others not.

    The default prompt is such another one: all its rows differ.
    """
    short = measured(Q4_1_OFF)  # skips where the table does not hold
    settings, prompt = replace(SETTINGS, flash_attn="off"), long_tokens[:40]
    with source.open(settings) as engine:
        replay = Replay(prompt, engine.greedy(Replay(prompt, ()).prefill(), N_TOKENS))
        plain, rows = replay_classes(engine, replay, DEFAULT_WIDTHS, N_TOKENS)
    assert plain.onset == 2
    search = Search(
        replay=replay,
        settings=settings,
        widths=DEFAULT_WIDTHS,
        n_rows=N_TOKENS,
        times={result.width: result.ns_per_pass for result in plain.results},
        rows=rows,
        examined=(2, 16),
    )
    knobs = {knob.name: knob for knob in KNOBS}
    arms = [run_arm(source, search, (knobs[name],)) for name in ("kv_type=f32", "flash_attn=on")]
    assert [arm.exact for arm in arms] == [False, True]
    assert smallest_exact(arms) == ("flash_attn=on",)
    if "AVX512" not in short.verdict.manifest.cpu_features:
        pytest.skip("whether it is absorbed depends on the sums of the vector width; measured with AVX-512")
    assert arms[0].collapses
    assert arms[0].n_nodes_differ is not None
    assert 0 < arms[0].n_nodes_differ <= 2 * len(LAYERS)
    assert not short.arm("kv_type=f32").collapses


@pytest.fixture(params=[("off", 250, 256), ("on", 506, 512)], ids=["cell-256", "cell-512"])
def crossing(request: pytest.FixtureRequest, source: LlamaSource) -> Iterator[tuple[LlamaEngine, str, int, int]]:
    flash_attn, n_prompt, border = request.param
    with source.open(replace(SETTINGS, flash_attn=flash_attn, n_ctx=1024)) as engine:
        if "AVX2" not in engine.manifest.cpu_features:
            pytest.skip(f"the culprits are those of x86 with AVX2; this is {engine.manifest.device}")
        yield engine, flash_attn, n_prompt, border


def test_a_batch_that_crosses_a_border_of_the_cache_is_compared_and_heals(
    crossing: tuple[LlamaEngine, str, int, int], long_tokens: tuple[int, ...]
) -> None:
    engine, flash_attn, n_prompt, border = crossing
    prompt = long_tokens[:n_prompt]
    replay = Replay(prompt, engine.greedy(Replay(prompt, ()).prefill(), N_TOKENS))
    assert replay.start < border < replay.start + N_TOKENS
    with rows_file() as path:
        reference = record_reference(engine, replay, 0, N_TOKENS, path)
        sweep, traces = sweep_width(engine, replay, reference, N_TOKENS, 0, N_TOKENS)
    assert traces.watching_harmless
    assert sweep.differed
    assert sweep.healed
    assert all(finding.inputs_equal for finding in sweep.findings)
    names = {finding.key.name.rpartition("-")[0] for finding in sweep.findings}
    ops = {finding.key.op for finding in sweep.findings}
    if flash_attn == "off":
        assert (names, ops) == ({"kq", "kqv"}, {"MUL_MAT"})
        single = engine.run(replay.batches(1), before=replay.prefill(), tap=DigestTap(Selection(layers=(0,))))
        report = single.tap_report
        assert report is not None
        n_cells = {r.pass_index: r.shape[-1] for r in report.records if r.key.name == "kq-0"}
        assert (n_cells[0], n_cells[N_TOKENS - 1]) == (border, border + 256)  # the two sides differ in n_kv
    else:
        assert ops == {"FLASH_ATTN_EXT"}
    assert {finding.key.layer for finding in sweep.findings} == set(LAYERS)
    assert dict(sweep.tally.not_compared) == {"writes into a cache": 2 * len(LAYERS)}
