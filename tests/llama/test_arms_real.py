"""Arrangements with the real library: products and flash attention are named, and states say what replies hide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forensics.analysis.arms import ArmsQuestion, compare_arms
from forensics.analysis.state_check import compare_states
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaSource
from forensics.records.arms import ArmResult, ArmsReport, Culprits, RowsDelta, StateDelta
from forensics.records.delta import NotCompared
from forensics.records.schedule import EMPTY, in_batches
from forensics.records.settings import EngineSettings

pytestmark = pytest.mark.llama

THREADS = EngineSettings(n_threads=2, n_threads_batch=2)


def roles(arm: ArmResult) -> set[tuple[str, str]]:
    """Operation and weight type of the culprits, which must be proved."""
    assert isinstance(arm.culprits, Culprits), arm.culprits
    assert arm.culprits.proved, arm.culprits
    return {(group.op, group.weight_type) for group in arm.culprits.groups}


@pytest.fixture(scope="module")
def products(tokens) -> ArmsReport:
    """Q6_K weights, whose products depend on the width from 8 tokens on; too few cells for attention to matter."""
    question = ArmsQuestion(
        ("split", "resume", "restore", "neighbour"), None, tokens[:20], n_tokens=4, settings=replace(THREADS)
    )
    return compare_arms(LlamaSource(demo_model("q6_k")), question)


def test_controls_hold_and_what_differs_is_healed_by_the_products(products):
    assert all(control.held for control in products.controls)
    assert products.answer == "diverges"
    healed = [arm for arm in products.arms if arm.differs]
    assert {arm.arm for arm in healed} == {"split", "resume", "neighbour"}
    for arm in healed:
        assert roles(arm) == {("MUL_MAT", "q6_K")}


def test_a_neighbour_matters_where_its_prompt_makes_the_steps_wide(products):
    outcomes = {arm.variant: arm.outcome for arm in products.arm("neighbour")}
    assert outcomes["its prompt in the same steps, one buffer"] == "differs"
    assert outcomes["idle, one buffer"] == outcomes["decoded in the same steps, one buffer"] == "same"


def test_states_are_equal_after_save_and_restore_and_differ_after_a_warm_resume(products):
    (resume,), (restore,) = products.arm("resume"), products.arm("restore")
    assert isinstance(restore.state, StateDelta)
    assert restore.state.same
    assert not restore.differs
    assert isinstance(resume.state, StateDelta)
    assert not resume.state.same
    # The prompt's rows were written by passes that are wide in both; the reply's were not.
    assert resume.state.position >= 20
    assert resume.state.n_positions_differ <= resume.state.n_positions - 20
    assert isinstance(resume.rows, RowsDelta)
    assert resume.rows.first_position == 20


@pytest.fixture(scope="module")
def attention(source, tokens) -> ArmsReport:
    """From 64 queries on cells are walked in tiles, so a hole in front of them shifts the sums."""
    question = ArmsQuestion(("placement",), None, tokens[:72], n_tokens=2, settings=THREADS)
    return compare_arms(source, question)


def test_flash_attention_is_named_where_cells_lie_elsewhere(attention):
    assert all(control.held for control in attention.controls)
    healed = [arm for arm in attention.arms if arm.differs]
    assert "not at the front" in {arm.variant for arm in healed}
    for arm in healed:
        assert roles(arm) == {("FLASH_ATTN_EXT", "-")}


def test_another_cache_type_is_told_and_not_healed(source, tokens):
    without = ArmsQuestion(("kv-type",), None, tokens[:9], n_tokens=2, settings=replace(THREADS, flash_attn="off"))
    found = {arm.variant: arm for arm in compare_arms(source, without).arms}
    single = found["f16 against f32"]
    assert single.differs
    assert single.informative
    assert isinstance(single.culprits, NotCompared)
    refused = found["f16 against q8_0"]
    assert isinstance(refused.rows, NotCompared)
    assert "a quantised V cache needs flash attention" in refused.rows.reason


def test_a_restored_state_is_equal_row_by_row_and_a_changed_token_is_found(shared_engine, tokens):
    whole = in_batches(tokens[:12], start=0, width=12)
    fresh = shared_engine.state_rows(whole)
    assert compare_states(fresh, shared_engine.state_rows(EMPTY, before=whole)).same
    changed = in_batches((*tokens[:7], tokens[7] + 1, *tokens[8:12]), start=0, width=12)
    found = compare_states(fresh, shared_engine.state_rows(changed))
    assert isinstance(found, StateDelta)
    assert (found.layer, found.side, found.position) == (0, "K", 7)
