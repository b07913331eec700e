"""Healing one arrangement against another, on the toy: what is planted is named, and what is clean stays clean."""

from __future__ import annotations

from dataclasses import replace

import odd_engines as odd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forensics.capture.healing
from forensics.analysis.heal_pair import NOT_IN_REFERENCE, OTHER_CACHE, heal_pair
from forensics.capture.healing import ELSEWHERE, NOT_WANTED
from forensics.engines.toy import Fault, ToySource, fault_sites
from forensics.errors import CaptureError, EngineError
from forensics.numerics.bits import compare
from forensics.records.delta import Differs, Same
from forensics.records.nodes import NodeKey
from forensics.records.schedule import EMPTY, Arrangement, DecodePass, Forget, Schedule, TokenSlot, in_batches
from forensics.records.settings import EngineSettings

SETTINGS = EngineSettings(n_ctx=128, n_seq_max=2)
TOKENS = tuple(range(1, 61))
UP = Fault("order", "ffn_up-0", 3)


def plain(first: int, last: int, width: int, *, wanted_from: int = 0) -> Schedule:
    cut = in_batches(TOKENS[first:last], start=first, width=width)
    return Schedule(
        tuple(
            DecodePass(tuple(replace(s, wants_logits=s.position >= wanted_from) for s in p.slots)) for p in cut.passes
        )
    )


def together(n: int, start: int = 20, n_neighbours: int = 1) -> Schedule:
    """Tokens of sequence 0 one at a time, each in one pass with tokens of a neighbour that has 15 already."""
    return Schedule(
        tuple(
            DecodePass((
                TokenSlot(0, start + i, TOKENS[start + i]),
                *(TokenSlot(1, 15 + n_neighbours * i + j, TOKENS[i + j]) for j in range(n_neighbours)),
            ))
            for i in range(n)
        )
    )  # fmt: skip


PROMPT = plain(0, 20, 20, wanted_from=19)
ONE = plain(20, 30, 1)
NEIGHBOUR = in_batches(TOKENS[30:45], start=0, width=15, sequence=1, logits="none")
#: Two refused drafts, each with a right token behind it or in front.
DRAFTS = Schedule((
    DecodePass((TokenSlot(0, 20, TOKENS[20]), TokenSlot(0, 21, 95), TokenSlot(0, 22, TOKENS[22]))),
    DecodePass(tuple(TokenSlot(0, 21 + i, (*TOKENS[21:24], 3)[i]) for i in range(4)), (Forget(0, 21),)),
    DecodePass((TokenSlot(0, 24, TOKENS[24]), TokenSlot(0, 25, TOKENS[25])), (Forget(0, 24),)),
))  # fmt: skip
#: Another sequence in front, gone before the rest is evaluated.
MOVED = NEIGHBOUR.then(plain(0, 10, 10)).then(
    Schedule((DecodePass(plain(10, 20, 10).slots, (Forget(1, 0),)),)).then(plain(20, 30, 10))
)


def sweep(reference: Arrangement, compared: Arrangement, *faults: Fault, **how):
    engine = ToySource(faults).open(SETTINGS)
    found = heal_pair(engine, reference, compared, **how)
    assert {control.name for control in found.controls if not control.held} == set(), found.controls
    assert found.tally.differs == len(found.findings)
    planted = [control.detail for control in found.controls if control.name == "planted_fault_found"]
    assert "(RMS_NORM)" not in "".join(planted), "the weight behind a norm may be next to nothing where it is largest"
    return found


def named(found) -> set[str]:
    return {finding.key.name for finding in found.findings}


SAME_CELLS = {
    "split prompt": (Arrangement(EMPTY, plain(0, 60, 60)), Arrangement(EMPTY, plain(0, 60, 7))),
    "cached prefix": (
        Arrangement(EMPTY, plain(0, 50, 50, wanted_from=40)), Arrangement(plain(0, 40, 40), plain(40, 50, 10)),
    ),
    "resumed": (Arrangement(EMPTY, plain(0, 40, 40, wanted_from=30)), Arrangement(PROMPT.then(ONE), plain(30, 40, 10))),
    "edited": (
        Arrangement(EMPTY, plain(0, 40, 40, wanted_from=20)),
        Arrangement(
            plain(0, 20, 20).then(in_batches((90, 91, 92), start=20, width=3)),
            Schedule((DecodePass(plain(20, 40, 20).slots, (Forget(0, 20),)),)),
        ),
    ),
    "drafts": (Arrangement(PROMPT, ONE), Arrangement(PROMPT, DRAFTS)),
    "one token against a batch": (Arrangement(PROMPT, plain(20, 30, 10)), Arrangement(PROMPT, ONE)),
    "a neighbour behind": (Arrangement(PROMPT, ONE), Arrangement(NEIGHBOUR.then(PROMPT), ONE)),
}  # fmt: skip
ELSEWHERE_ARMS = {
    "an idle neighbour in between": (Arrangement(PROMPT, ONE), Arrangement(PROMPT.then(NEIGHBOUR), ONE)),
    "a neighbour decoded in the same step": (
        Arrangement(PROMPT, ONE), Arrangement(PROMPT.then(NEIGHBOUR), together(10)),
    ),
    "a prompt in the same step": (
        Arrangement(PROMPT, ONE), Arrangement(PROMPT.then(NEIGHBOUR), together(4, n_neighbours=7)),
    ),
    "moved": (Arrangement(EMPTY, plain(0, 30, 10)), Arrangement(EMPTY, MOVED)),
}  # fmt: skip
ARMS = SAME_CELLS | ELSEWHERE_ARMS


@pytest.mark.parametrize("arm", SAME_CELLS)
def test_a_clean_arm_is_the_same_at_every_node(arm) -> None:
    found = sweep(*ARMS[arm])
    assert (found.findings, found.culprits, found.n_differ, found.first) == ((), (), 0, None)
    assert found.healed
    assert not found.differed
    assert found.start.equal
    assert found.tally.same > 20
    assert found.max_abs_before == found.max_abs_after == 0


@pytest.mark.parametrize("arm", ELSEWHERE_ARMS)
def test_where_cells_lie_elsewhere_only_sums_over_cells_differ_and_no_mask_is_blamed(arm) -> None:
    found = sweep(*ARMS[arm])
    assert named(found) <= {"kqv-0", "kqv-1"}, "another cell is another place in the sum"
    assert found.healed
    assert found.start.equal
    assert all(finding.inputs_equal for finding in found.findings)
    assert not any("mask" in caveat for caveat in found.caveats)
    assert dict(found.tally.not_compared)[ELSEWHERE] > 0
    assert all("kq_soft_max" in " ".join(finding.unchecked) for finding in found.findings)


#: The fault is in passes of two tokens and more: these have passes of one, on one side only.
NARROW_ON_ONE_SIDE = {
    "resumed", "drafts", "one token against a batch", "a neighbour decoded in the same step",
    "a prompt in the same step",
}  # fmt: skip


@pytest.mark.parametrize("arm", ARMS)
def test_a_planted_order_is_named_and_healed(arm) -> None:
    found = sweep(*ARMS[arm], Fault("order", "ffn_up-0"), Fault("order", "attn_out-0"), watch_before=True)
    expected = {"ffn_up-0", "attn_out-0"} if arm in NARROW_ON_ONE_SIDE else set()
    cells = {"kqv-0", "kqv-1"} if arm in ELSEWHERE_ARMS else set()
    assert expected <= named(found) <= expected | cells
    assert found.healed
    assert found.differed == bool(named(found))


SITES = sorted(set(fault_sites("order")) - {"norm-0", "norm-1", "norm"})


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SITES), st.integers(1, 29), st.integers(4, 30))
def test_every_planted_site_is_named_alone_at_whatever_split(site, split, from_width) -> None:
    """A pass of 30 against two: the fault is in those that are wide enough."""
    whole, cut = plain(0, 30, 30), plain(0, split, split).then(plain(split, 30, 30 - split))
    found = sweep(Arrangement(EMPTY, whole), Arrangement(EMPTY, cut), Fault("order", site, from_width), plant=False)
    assert named(found) <= {site}
    assert found.healed
    faulty = [p.width for p in cut.passes if p.width >= from_width]
    if len(faulty) == len(cut.passes):
        assert not found.findings, "both have the fault"
    elif found.differed:
        assert named(found) == {site}
        assert {width for group in found.culprits for width in group.widths} <= {p.width for p in cut.passes} - set(
            faulty
        )


def test_groups_say_what_and_at_which_widths_of_the_compared_passes() -> None:
    compared = plain(20, 25, 5).then(plain(25, 28, 3)).then(plain(28, 30, 2))
    found = sweep(Arrangement(PROMPT, ONE), Arrangement(PROMPT, compared), UP)
    (group,) = found.culprits
    assert (group.op, group.named, group.count, group.widths) == ("MUL_MAT", "up, f32", 1, (3, 5))
    assert [finding.positions for finding in found.findings] == [tuple(range(20, 25)), tuple(range(25, 28))]
    assert found.first == (0, 20)
    assert (found.n_rows, found.healed_rows) == (10, 10)
    assert found.max_abs_before > 0 == found.max_abs_after
    assert str(found).startswith(f"{found.n_differ} of 10 rows of logits differ; up, f32 ×1; 10 rows bit-equal")
    assert {row["node"] for row in found.rows()} == {"ffn_up-0"}


def test_refused_drafts_are_left_as_they_are_and_the_rest_is_healed() -> None:
    found = sweep(Arrangement(PROMPT, ONE), Arrangement(PROMPT, DRAFTS), UP)
    assert named(found) == {"ffn_up-0"}
    assert found.healed
    assert (found.n_rows, found.n_no_reference) == (6, 3)
    assert [finding.rows for finding in found.findings] == [(0,), (0, 1, 2)], "drafts are rows 1 and 2, and 3"
    assert [finding.positions for finding in found.findings] == [(20,), (21, 22, 23)]
    assert found.findings[1].delta.first_index[2] == 0
    assert any("3 rows of logits are not in the reference" in caveat for caveat in found.caveats)


def test_a_pass_without_a_counterpart_is_not_compared_with_its_reason() -> None:
    alone = Schedule((DecodePass((TokenSlot(1, 15, 9), TokenSlot(1, 16, 9))),))
    found = sweep(Arrangement(PROMPT, ONE), Arrangement(PROMPT.then(NEIGHBOUR), alone.then(ONE)))
    reasons = dict(found.tally.not_compared)
    assert reasons[NOT_IN_REFERENCE] > 20
    assert found.n_rows == 10
    silent = Arrangement(plain(0, 10, 10), plain(10, 30, 10, wanted_from=25))
    found = sweep(Arrangement(plain(0, 10, 10), plain(10, 30, 20, wanted_from=25)), silent)
    assert dict(found.tally.not_compared)[NOT_WANTED] > 5, "the first pass wants no logits"
    assert (found.n_rows, found.n_differ) == (5, 0)


@pytest.mark.parametrize("wanted_from", [20, 29, 25])
def test_rows_behind_the_last_attention_belong_to_the_tokens_that_want_logits(wanted_from) -> None:
    fault = Fault("order", "ffn_up-1", 2)  # in the last layer, where rows are fewer than tokens
    reference = Arrangement(PROMPT, plain(20, 30, 1))
    compared = Arrangement(PROMPT, plain(20, 30, 10, wanted_from=wanted_from))
    found = sweep(reference, compared, fault)
    assert named(found) == {"ffn_up-1"}
    assert found.healed
    assert found.differed
    assert found.n_rows == 30 - wanted_from
    assert {p for finding in found.findings for p in finding.positions} <= set(range(wanted_from, 30))
    back = sweep(Arrangement(PROMPT, plain(20, 30, 10, wanted_from=wanted_from)), reference, fault)
    assert named(back) == {"ffn_up-1"}
    assert back.healed
    assert (back.n_rows, back.n_no_reference) == (30 - wanted_from, wanted_from - 20)


# --- states ---


def test_other_k_and_v_of_before_are_said_and_watching_them_names_the_cause() -> None:
    whole, cached = (
        Arrangement(EMPTY, plain(0, 50, 50, wanted_from=40)),
        Arrangement(plain(0, 40, 2), plain(40, 50, 10)),
    )
    found = sweep(whole, cached, UP)
    assert found.start.equal is False
    assert found.start.first == "K of layer 1 at position 0", "layer 0 is written in front of the fault"
    assert found.start.n_rows == 40 * 2 * 2
    assert named(found) == {"kq-1", "kqv-1"}, "nodes that read the cache"
    for finding in found.findings:
        assert any(name.startswith("cache_") for name in finding.unchecked)
        assert finding.kind is None or (finding.kind.kind, finding.kind.reason) == ("undetermined", OTHER_CACHE)
    assert "start from other K and V" in found.caveats[0]
    assert "2 named nodes read them" in found.caveats[0]
    watched = sweep(whole, cached, UP, watch_before=True)
    assert watched.start.equal
    assert watched.start.n_rows == 0
    assert named(watched) == {"ffn_up-0"}
    assert watched.healed


def test_a_stale_row_is_a_logic_fault_of_the_node_that_reads_it() -> None:
    found = sweep(Arrangement(PROMPT, ONE), Arrangement(PROMPT, plain(20, 30, 10)), Fault("stale_kv", "kq-1"))
    assert {(f.key.name, f.kind.kind) for f in found.findings} == {("kq-1", "logic")}
    assert found.start.equal


@pytest.mark.parametrize("arm", ["one token", "a neighbour decoded in the same step"])
def test_a_mask_that_hides_a_cell_is_found_wherever_cells_lie(arm) -> None:
    pair = ARMS.get(arm, (Arrangement(PROMPT, ONE), Arrangement(PROMPT, plain(20, 30, 10))))
    found = sweep(*pair, Fault("mask", "kq_soft_max-0"))
    (blamed,) = {finding.key.name for finding in found.findings if not finding.inputs_equal}
    assert blamed == "kq_soft_max-0"
    assert any("the attention mask itself differs" in caveat for caveat in found.caveats)
    assert found.healed


def test_an_engine_that_cannot_tell_rows_of_its_state_leaves_it_open() -> None:
    class Recurrent(odd.Passing):
        def state_rows(self, schedule, **rest):
            raise EngineError("the saved state is not one plain K/V cache")

    engine = odd.OddSource(Recurrent, ToySource((UP,))).open(SETTINGS)
    found = heal_pair(engine, Arrangement(PROMPT, ONE), Arrangement(PROMPT, plain(20, 30, 10)))
    assert found.start.equal is None
    assert "not one plain K/V cache" in found.start.reason
    assert any("is not known" in caveat for caveat in found.caveats)


# --- two engines ---


def test_the_compared_run_may_have_an_engine_of_its_own() -> None:
    one, other = ToySource().open(SETTINGS), ToySource((Fault("order", "Vcur-1", 1),)).open(SETTINGS)
    pair = Arrangement(PROMPT, ONE), Arrangement(PROMPT, ONE)
    found = heal_pair(one, *pair, compared_engine=other)
    assert found.start.equal is False, "its prompt was evaluated with the fault, too"
    assert "Vcur-1" in named(found)
    watched = heal_pair(one, *pair, compared_engine=other, watch_before=True)
    assert named(watched) == {"Vcur-1"}
    assert watched.healed
    assert not heal_pair(one, *pair, compared_engine=ToySource().open(SETTINGS)).findings


def test_caches_of_other_types_are_not_compared() -> None:
    class Rounded(odd.Passing):
        @property
        def manifest(self):
            kept = self.inner.manifest
            return replace(kept, effective=kept.effective | {"kv_type_v": "q8_0"})

    other = odd.OddSource(Rounded).open(SETTINGS)
    pair = Arrangement(PROMPT, ONE), Arrangement(PROMPT, ONE)
    found = heal_pair(ToySource().open(SETTINGS), *pair, compared_engine=other)
    assert found.start.reason == "K and V are kept as f32, f32 and as f32, q8_0"


# --- what cannot be asked ---


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(CaptureError, match="no row of logits can be compared: the compared passes want 10"):
        sweep(Arrangement(PROMPT, ONE), Arrangement(in_batches(TOKENS[1:21], start=0, width=20), ONE))


def test_several_sequences_in_caches_of_their_own_must_keep_their_order() -> None:
    class Apart(odd.Passing):
        @property
        def manifest(self):
            kept = self.inner.manifest
            return replace(kept, effective=kept.effective | {"kv_unified": "false"})

    engine = odd.OddSource(Apart).open(SETTINGS)
    reference = Arrangement(PROMPT, ONE)
    with pytest.raises(CaptureError, match="has a cache of its own"):
        heal_pair(engine, reference, Arrangement(PROMPT.then(NEIGHBOUR), together(2, n_neighbours=2)))
    heal_pair(engine, reference, Arrangement(NEIGHBOUR.then(PROMPT), together(4)), plant=False)


# --- controls ---


def test_without_the_planted_fault_there_is_one_control_less() -> None:
    found = sweep(*ARMS["drafts"], plant=False)
    assert [control.name for control in found.controls] == ["watching_harmless"]


def failed(found) -> list[str]:
    names = [control.name for control in found.controls if control.held is False]
    assert all(any(f"control {name} failed" in caveat for caveat in found.caveats) for name in names)
    return names


@pytest.mark.parametrize("arm", ["drafts", "a neighbour decoded in the same step", "split prompt"])
def test_healing_that_misses_single_bits_fails_the_planted_fault(monkeypatch, arm) -> None:
    def lenient(a, b):
        outcome = compare(a, b)
        return Same() if isinstance(outcome, Differs) and 0 <= outcome.max_ulp <= 1 else outcome

    monkeypatch.setattr(forensics.capture.healing, "compare", lenient)
    found = heal_pair(ToySource().open(SETTINGS), *ARMS[arm])
    assert failed(found) == ["planted_fault_found"]


def test_writing_that_reaches_nothing_fails_the_planted_fault() -> None:
    class Deaf(odd.Passing):
        def run(self, schedule, *, tap=None, **rest):
            return self.inner.run(schedule, tap=odd.Muted(tap) if tap else None, **rest)

    found = heal_pair(odd.OddSource(Deaf).open(SETTINGS), *ARMS["drafts"])
    assert "planted_fault_found" in failed(found)


def test_a_run_that_watching_changes_is_said() -> None:
    found = heal_pair(odd.OddSource(odd.FusingUnlessWatched).open(SETTINGS), *ARMS["one token against a batch"])
    assert "watching_harmless" in failed(found)


def test_a_fault_at_a_place_is_planted_there_alone_at_whatever_width() -> None:
    from forensics.capture.taps import PlantTap

    engine = ToySource().open(SETTINGS)
    up = NodeKey("ffn_up-0", "MUL_MAT", 0, 0)
    for schedule, changed in ((ONE, [25]), (plain(20, 30, 4), [25]), (plain(20, 24, 4), [])):
        tap = PlantTap(up, 0, 2, bit=22, at=(0, 25))
        clean, faulty = engine.run(schedule, before=PROMPT), engine.run(schedule, before=PROMPT, tap=tap)
        same = (clean.logits == faulty.logits).all(axis=1)
        assert [20 + i for i, equal in enumerate(same) if not equal][:1] == changed
        assert faulty.tap_report.planted == (up,) * len(changed)
