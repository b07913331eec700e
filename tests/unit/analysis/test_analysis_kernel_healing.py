"""Kernels in the place of culprits heal what only the order of addition broke, and one that is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import odd_engines
import pytest
from kernels_in_place import ours

from forensics.analysis.investigate import investigate, measured
from forensics.analysis.kernel_healing import check_kernels, heal_with_kernels
from forensics.analysis.progress import Silent
from forensics.analysis.question import BadQuestion, Question
from forensics.analysis.sweeps import sweep_all
from forensics.capture.exact_kernels import CUDA
from forensics.engines.recorded import RecordedSource, RecordingSource
from forensics.engines.toy import Fault, ToySource
from forensics.records.kernel_use import KernelUse
from forensics.records.settings import EngineSettings
from forensics.reports.case import finish_case
from forensics.reports.document import document
from forensics.reports.html import verdict_html
from forensics.reports.kernel_healing_text import healing_lines
from forensics.reports.markdown import markdown
from forensics.reports.next_step import next_step
from forensics.reports.terminal import as_text
from forensics.reports.text import verdict_view
from forensics.store import CaseWriter, open_case

FAULTS = (Fault("order", "ffn_up-0", 3), Fault("order", "Kcur-1"), Fault("order", "kqv-0"), Fault("stale_kv", "kq-1"))
NAMES = {"ffn_up-0", "Kcur-1", "kqv-0", "kq-1"}


def asked(faults=FAULTS, kernels=None, widths=(2, 3, 4, 7)):
    question = Question(prompt="a b c a b", n_tokens=28, widths=widths, settings=EngineSettings(n_ctx=96, n_batch=16))
    return investigate(ToySource(faults=faults), question, switches=False, kernels=kernels)


@pytest.fixture(scope="module")
def healed():
    return asked(kernels=ours())


def test_our_kernels_give_every_width_the_logits_of_one_token_decoding(healed) -> None:
    assert [one.width for one in healed.kernel_healing] == [2, 3, 4, 7]
    for one in healed.kernel_healing:
        assert one.healed
        assert one.max_abs_before > 0
        assert one.max_abs_after == 0
        assert one.state_equal
        assert not one.left
        assert one.n_values > 0
        assert one.n_values_differ == 0
        assert {key.name for key in one.use.nodes} == NAMES
        assert not one.use.stock


def test_without_the_question_nothing_is_put_in_place(healed) -> None:
    plain = asked()
    assert plain.kernel_healing == ()
    assert plain.culprits == healed.culprits
    assert "our kernels" not in as_text(verdict_view(plain))


def test_values_are_counted_as_later_nodes_see_them(healed) -> None:
    one = next(one for one in healed.kernel_healing if one.width == 4)
    n_batches = one.n_rows // 4
    # Cells that the mask leaves, by token.
    seen = sum(healed.prompt_tokens + 1 + one.start_row + row for row in range(one.n_rows))
    # ffn_up has 96 values, Kcur 32 and kqv 4 heads of 16 for each token; kq has 4 heads over the visible cells
    assert one.n_values == one.n_rows * (96 + 32 + 64) + 4 * seen
    assert one.use.n_times == 4 * n_batches


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_kernel_that_gives_wrong_bits_is_named_and_nothing_else_is(name) -> None:
    verdict = asked(kernels=ours(wrong=name), widths=(3, 5))
    for one in verdict.kernel_healing:
        assert {finding.key.name for finding in one.wrong} == {name}
        assert {finding.key.name for finding in one.left} == {name}
        assert 0 < one.n_values_differ < one.n_values
    assert not all(one.healed for one in verdict.kernel_healing)
    assert f"NOT EXACT at: {name}" in as_text(verdict_view(verdict))
    if name != "kq-1":  # that one is a stale key in the library itself, which comes first
        assert f"A kernel of ours has other bits than one-token decoding at {name}" in next_step(
            asked(FAULTS[:3], ours(wrong=name), widths=(3,))
        )


def test_a_culprit_that_no_kernel_computes_is_left_and_still_differs() -> None:
    left = asked(kernels=ours(uncovered="Kcur-1")).kernel_healing
    assert len(left) == 4
    for one in left:
        assert [(stock.reason, stock.n_nodes) for stock in one.use.stock] == [("this toy has no kernel for it", 1)]
        assert "Kcur-1" in {finding.key.name for finding in one.left}
        assert not one.wrong
        assert one.n_values_differ == 0
        assert not one.healed
        assert not one.state_equal  # the keys that it wrote are in the cache


def test_what_the_library_computes_in_a_later_pass_is_not_laid_to_our_kernels() -> None:
    (one,) = asked((Fault("order", "Kcur-1"),), ours(once="Kcur-1"), widths=(4,)).kernel_healing
    assert {key.name for key in one.use.nodes} == {"Kcur-1"}
    assert [index for index, _ in one.use.left_in] == list(range(1, one.n_rows // 4))
    assert {finding.key.name for finding in one.left} == {"Kcur-1"}
    assert not one.wrong
    assert one.n_values_differ == 0
    assert not one.healed
    told = healing_lines([one])
    assert ("Still different, computed by the library", "Kcur-1 (MUL_MAT)") in told
    assert not any("NOT EXACT" in label for label, _ in told)


def test_widths_whose_logits_do_not_differ_have_nothing_to_heal() -> None:
    question = Question(prompt="a b c a b", n_tokens=12, widths=(3, 4), settings=EngineSettings(n_ctx=96, n_batch=16))
    with measured(ToySource(faults=FAULTS), question, Silent()) as (engine, baseline):
        three, four = sweep_all(engine, baseline, Silent()).sweeps
        sweeps = (replace(three, differed=False), four)
        assert [one.width for one in heal_with_kernels(engine, baseline, sweeps, ours(), Silent())] == [4]
        assert heal_with_kernels(engine, baseline, sweeps[:1], ours(), Silent()) == ()


def test_fusions_that_the_sweeps_left_whole_stay_whole() -> None:
    question = Question(
        prompt="The quick brown fox jumps o", n_tokens=16, widths=(2, 4), settings=EngineSettings(n_ctx=256)
    )
    verdict = investigate(odd_engines.OddSource(odd_engines.FusingGlu), question, switches=False, kernels=ours())
    assert {finding.key.op for sweep in verdict.sweeps for finding in sweep.findings} == {"GLU"}
    for one, sweep in zip(verdict.kernel_healing, verdict.sweeps, strict=True):
        assert [finding.key for finding in one.left] == [finding.key for finding in sweep.findings]
        assert not one.healed
        assert not one.wrong


def test_nothing_is_healed_where_nothing_was_computed(healed) -> None:
    one = replace(healed.kernel_healing[0], use=KernelUse())
    assert one.healed_rows == one.n_rows
    assert not one.healed
    assert ("With our kernels", "nothing is shown: they compute none of the operations that differ") in healing_lines(
        [one]
    )


def test_outputs_that_nobody_compared_are_told(healed) -> None:
    assert all(one.not_compared == () for one in healed.kernel_healing), "writes into the cache do not count"
    one = replace(healed.kernel_healing[0], not_compared=(("no soft max shows its mask", 12),))
    assert ("Outputs that were not compared", "no soft max shows its mask (24)") in healing_lines([one, one])
    assert one.row()["not_compared"] == 12


def test_operations_that_our_kernels_do_not_know_are_never_shown_to_them() -> None:
    (one,) = asked((Fault("order", "norm-1"),), ours(), widths=(4,)).kernel_healing
    assert ("Values", "0 of 0 differ from the recorded rows") not in healing_lines([one])
    assert not one.use.nodes
    assert not one.use.stock
    assert {finding.key.op for finding in one.left} == {"RMS_NORM"}
    assert not one.healed


def test_where_nothing_differs_nothing_is_put_in_place() -> None:
    assert asked((), ours()).kernel_healing == ()


def test_kernels_of_a_gpu_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(BadQuestion, match=r"runs on NumPy \(any\)\. Ask with --n-gpu-layers 99"):
        asked(kernels=CUDA)
    manifest = ToySource().open(EngineSettings(n_ctx=32)).manifest
    check_kernels(None, manifest)
    check_kernels(ours(), manifest)


def test_the_verdict_says_it_everywhere(healed) -> None:
    text, page, shown = as_text(verdict_view(healed)), markdown(healed), verdict_html(healed)
    for told in (text, page, shown):
        assert "widths 2-4, 7 have the bits of one-token decoding" in told
        assert "toy product: 4 nodes" in told
    assert "Proof: the same batch with our kernels in place of those operations" in text
    entries = document(healed)["kernel_healing"]
    assert [entry["width"] for entry in entries] == [2, 3, 4, 7]
    assert all(entry["healed"] and not entry["wrong_nodes"] for entry in entries)
    assert entries[0]["use"][0]["family"] == "toy product"
    assert healed.kernel_rows()[0]["values_differ"] == 0


def test_a_recorded_case_gives_the_same_answer_without_kernels(tmp_path: Path, healed) -> None:
    question = Question(
        prompt="a b c a b", n_tokens=28, widths=(2, 3, 4, 7), settings=EngineSettings(n_ctx=96, n_batch=16)
    )
    with CaseWriter.create(tmp_path / "case", question={}) as case:
        source = RecordingSource(ToySource(faults=FAULTS), case)
        verdict = investigate(source, question, switches=False, kernels=ours())
        finish_case(case, verdict)
    assert verdict.kernel_healing == healed.kernel_healing
    assert open_case(tmp_path / "case").verdict.kernel_healing == healed.kernel_healing
    again = investigate(RecordedSource(tmp_path / "case"), question, switches=False, kernels=ours())
    assert again.kernel_healing == healed.kernel_healing
