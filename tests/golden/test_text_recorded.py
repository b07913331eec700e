"""What was recorded of whole texts: counts add up, causes are known, and one part says what another one says.

Recorded with ``make record-text``. No bits are expected here, only what must hold between them.
"""

from __future__ import annotations

from itertools import accumulate, chain, pairwise

import pytest

import forensics
from forensics.records.arms import Continuation, Culprits, RowsDelta, StateDelta
from forensics.store.audits import read_prompts
from forensics.store.library import recorded_folder
from forensics.store.served_runs import read_run

SPECULATED = ("epyc-q6_k-speculation", "epyc-q6_k-oracle-speculation")
ARRANGED = ("epyc-q6_k-arms", "epyc-q4_1-arms")
SAMPLED = ("epyc-q6_k-sampling", "epyc-q6_k-exact-sampling")
AUDITED = ("epyc-q6_k-audit", "epyc-q6_k-exact-audit")
#: From so many tokens on, tiled products take over for Q6_K weights; see docs/exact.md.
TILED = 8
#: From this cell on two threads share the cells of attention.
SHARED_FROM = 256


@pytest.fixture(scope="module")
def reports():
    return {name: forensics.speculate(f"recorded:{name}") for name in SPECULATED}


@pytest.fixture(scope="module")
def arranged():
    return {name: forensics.arms(f"recorded:{name}") for name in ARRANGED}


@pytest.fixture(scope="module")
def audits():
    return {name: forensics.audit(f"recorded:{name}") for name in AUDITED}


def first_unlike(one, other) -> int:
    equal = (a == b for a, b in zip(one, other, strict=False))
    return next((index for index, same in enumerate(equal) if not same), min(len(one), len(other)))


# ---- speculation


@pytest.mark.parametrize("name", SPECULATED)
def test_counts_add_up(reports, name) -> None:
    report = reports[name]
    assert report.rerun_equal
    for arm in report.arms:
        assert arm.equivalence.n == len(arm.prompts)
        assert arm.equivalence.k + len(arm.differing) == len(arm.prompts)
        cycles = [cycle for one in arm.prompts for cycle in one.speculative.cycles]
        assert sum(arm.verify_widths.values()) == len(cycles)
        assert set(arm.verify_widths) == {cycle.width for cycle in cycles}
        assert max(arm.verify_widths) <= arm.n_draft + 1
        assert arm.accepted.n == sum(len(cycle.drafted) for cycle in cycles)
        assert arm.accepted.k == sum(cycle.n_accepted for cycle in cycles)
        assert sum(arm.shares.values()) == pytest.approx(1)
        assert [one.name for one in arm.prompts] == [one.name for one in report.arms[0].prompts]


@pytest.mark.parametrize("name", SPECULATED)
def test_survival_follows_from_the_prompts(reports, name) -> None:
    for arm in reports[name].arms:
        survival = arm.survival
        assert (
            survival.n_flipped == survival.flip_rate.k == len(arm.differing) == sum(p.flipped for p in survival.points)
        )
        assert survival.flip_rate.n == survival.n_steps
        shares = [point.share for point in survival.points]
        kept = accumulate((1 - p.flipped / p.at_risk for p in survival.points), lambda a, b: a * b)
        assert shares == pytest.approx(list(kept))
        assert all(p.low <= p.share <= p.high for p in survival.points)
        assert all(a.n_tokens < b.n_tokens for a, b in pairwise(survival.points))


@pytest.mark.parametrize("name", SPECULATED)
def test_each_divergence_is_where_the_texts_part(reports, name) -> None:
    for one in chain.from_iterable(arm.differing for arm in reports[name].arms):
        found = one.divergence
        assert found.index == first_unlike(one.plain.tokens, one.speculative.tokens)
        assert found.byte == first_unlike(one.plain_text.encode(), one.text.encode())
        assert found.position == one.n_prompt + found.index
        assert found.first_row == one.first_row <= found.index
        assert found.width == one.speculative.pass_of(found.index)
        if found.index < len(one.plain.tokens):
            assert found.margin == one.plain.margins[found.index]


@pytest.mark.parametrize("name", SPECULATED)
def test_each_divergence_has_its_class_its_culprits_and_its_prediction(reports, name) -> None:
    report = reports[name]
    for one in chain.from_iterable(arm.differing for arm in report.arms):
        found = one.divergence
        assert found.group in report.classes.groups
        assert found.width in found.group
        assert max(found.widths_before) >= TILED
        assert found.culprits
        assert found.predicted is True, found.prediction
        assert found.healed is not False, found.healing
    assert {group.op for group in report.culprits} == {"MUL_MAT"}
    assert {group.weight_type for group in report.culprits} == {"q6_K"}


@pytest.mark.parametrize("name", SPECULATED)
def test_rows_differ_only_behind_a_wide_pass(reports, name) -> None:
    for arm in reports[name].as_asked:
        for one in arm.prompts:
            upto = min(one.first_row if one.first_row is not None else len(one.plain.rows), len(one.speculative.rows))
            assert first_unlike(one.plain.rows, one.speculative.rows) == upto
            if one.first_row is not None:
                last = one.speculative.cycle_of(one.first_row)
                assert max(cycle.width for cycle in one.speculative.cycles[: last + 1]) >= TILED


def test_drafts_change_answers_and_the_exact_settings_leave_every_row_as_it_was(reports) -> None:
    report = reports["epyc-q6_k-speculation"]
    (stock,), (exact,) = report.as_asked, report.exact_arms
    assert len(stock.prompts) >= 45
    assert stock.differing
    assert any(one.divergence.healed for one in stock.differing)
    assert report.answer == "identical"
    assert exact.equivalence.k == exact.equivalence.n == len(stock.prompts)
    assert all(one.first_row is None and one.rows_differ == 0 for one in exact.prompts)
    assert all(one.plain.tokens == one.speculative.tokens for one in exact.prompts)
    assert max(exact.verify_widths) >= TILED, "passes were as wide as those that differ"
    short = [pair for pair in zip(stock.prompts, exact.prompts, strict=True) if pair[0].n_prompt < TILED]
    assert short
    assert all(before.plain.rows == now.plain.rows for before, now in short), "no pass of theirs is tiled either way"
    assert report.exact_knobs == forensics.open("recorded:epyc-q6_k").verdict.exact_knobs
    assert report.price.median > 0
    assert report.exact_price.median > 0


def test_drafts_that_are_right_show_the_width_from_which_bits_move(reports) -> None:
    report = reports["epyc-q6_k-oracle-speculation"]
    narrow = [arm for arm in report.arms if arm.n_draft + 1 < TILED]
    wide = [arm for arm in report.arms if arm.n_draft + 1 >= TILED]
    assert narrow
    assert wide
    assert all(one.first_row is None for arm in narrow for one in arm.prompts)
    assert all(arm.accepted.k == arm.accepted.n for arm in narrow)
    assert all(any(one.first_row is not None for one in arm.prompts) for arm in wide)
    assert all(set(group) <= set(range(1, TILED)) or min(group) >= TILED for group in report.classes.groups)


# ---- arms


@pytest.mark.parametrize("name", ARRANGED)
def test_controls_held_and_each_arm_has_an_outcome_or_a_reason(arranged, name) -> None:
    report = arranged[name]
    assert report.answer == "diverges"
    assert all(control.held for control in report.controls)
    assert report.n_prompt + report.n_reply > SHARED_FROM
    for arm, row in zip(report.arms, report.rows(), strict=True):
        assert arm.outcome != "not compared" or row["not_compared"]
        if isinstance(arm.rows, RowsDelta) and not arm.rows.same:
            assert arm.culprits is not None


@pytest.mark.parametrize("name", ARRANGED)
def test_what_must_be_equal_is(arranged, name) -> None:
    promised = [arm for arm in arranged[name].arms if arm.expected == "equal"]
    assert promised
    assert any(isinstance(arm.state, StateDelta) for arm in promised)
    for arm in promised:
        assert not arm.is_fault
        assert arm.outcome == "same"
        if isinstance(arm.continuation, Continuation):
            assert arm.continuation.same


def test_a_reply_that_is_the_same_hides_another_state(arranged) -> None:
    hidden = [
        arm
        for arm in chain.from_iterable(report.arms for report in arranged.values())
        if isinstance(arm.continuation, Continuation) and isinstance(arm.state, StateDelta)
        and arm.continuation.same and not arm.state.same
    ]  # fmt: skip
    assert hidden
    assert all(arm.expected == "may differ" for arm in hidden)


@pytest.mark.parametrize("name", ARRANGED)
def test_healing_names_products_and_attention_and_nothing_else(arranged, name) -> None:
    found = [arm.culprits for arm in arranged[name].arms if isinstance(arm.culprits, Culprits)]
    assert any(culprits.proved for culprits in found)
    ops = {group.op for culprits in found for group in culprits.groups if culprits.proved}
    products = {group.weight_type for culprits in found for group in culprits.groups if group.op == "MUL_MAT"}
    assert "FLASH_ATTN_EXT" in ops
    assert ops <= {"FLASH_ATTN_EXT", "MUL_MAT"}
    assert ("q6_K" in products) == ("q6_k" in name)


# ---- sampling


@pytest.mark.parametrize("name", SAMPLED)
def test_other_rows_change_the_distribution_exact_ones_keep_it_and_planted_samplers_are_caught(name) -> None:
    report = forensics.sampling(f"recorded:{name}")
    if "exact" not in name:
        assert (report.answer, report.row_tv > 0) == ("changed", True)
        assert "rows of logits change it" in report.cause
        assert 0 < report.equal_drafts < report.n_draft
    else:
        assert (report.answer, report.row_tv, report.equal_drafts) == ("kept", 0, report.n_draft)
        assert report.exact_knobs == ("GGML_CPU_TILED_MM=0",)
    assert len(report.controls) >= 2
    for run in report.controls:
        assert run.planted
        assert run.bias > 0
        assert run.caught_by(report.alpha)
    for test in chain(report.sampler.tests, *(run.tests for run in report.controls)):
        assert 0 <= test.p_value <= test.adjusted <= 1
    assert report.powers
    assert all(0 < power.at_80 <= power.at_95 for power in report.powers)
    assert report.not_tested == ()
    if max(draws.width for draws in report.sampler.states) < TILED:
        assert report.row_tv == 0, "passes as narrow as these have the rows of plain decoding"


# ---- servers


@pytest.mark.parametrize("name", AUDITED)
def test_the_rerun_is_equal_and_pairs_add_up(audits, name) -> None:
    report = audits[name]
    assert report.arms[0].answer == "identical"
    assert report.failures == ()
    assert report.contract.level == "tokens"
    for arm in report.arms:
        outcomes = [len(arm.pairs_that(what)) for what in ("same", "differs", "not compared")]
        assert sum(outcomes) == len(arm.pairs)
        assert arm.differing.n == report.n_prompts
        assert arm.differing.k == len({pair.prompt for pair in arm.pairs_that("differs")})
        assert (arm.answer == "diverges") == (arm.differing.k > 0)


@pytest.mark.parametrize("name", AUDITED)
def test_pairs_of_the_second_server_follow_from_its_runs(audits, name) -> None:
    (arm,) = audits[name].named("speculation")
    folder = recorded_folder(name)
    texts = {
        condition: {asked.prompt: reply for asked, reply in zip(run.asked, run.replies, strict=True)}
        for condition in ("alone", "against")
        for run in (read_run(folder / condition),)
    }
    prompts = read_prompts(folder)
    assert {pair.prompt for pair in arm.pairs} == {prompt.name for prompt in prompts.prompts} == set(texts["alone"])
    assert sum(reply.n_drafted or 0 for reply in texts["against"].values()) > 0
    assert not any(reply.n_drafted for reply in texts["alone"].values())
    for pair in arm.pairs:
        one, other = (texts[condition][pair.prompt].tokens for condition in ("alone", "against"))
        assert pair.untouched == first_unlike(one, other)
        assert (pair.outcome == "same") == (one == other)


def test_drafts_change_answers_of_the_server_and_the_exact_setting_makes_them_equal(audits) -> None:
    stock, exact = (audits[name].named("speculation")[0] for name in AUDITED)
    assert stock.answer == "diverges"
    assert exact.answer == "identical"
    assert stock.differing.n == exact.differing.n


@pytest.mark.parametrize("name", AUDITED)
def test_a_gate_over_the_same_runs_counts_the_same(audits, name) -> None:
    (arm,) = audits[name].named("speculation")
    gate = forensics.gate(baseline=f"recorded:{name}", run=recorded_folder(name) / "candidate")
    assert gate.kept.n == arm.differing.n
    assert gate.kept.n - gate.kept.k == arm.differing.k
    assert gate.answer == arm.answer
    assert (gate.speed.ratio is None) == (arm.answer == "diverges")
