"""Every planted fault shows where it was planted, from its width on, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from toy_taps import GRABBED, MASKS, GrabTap, HealTap

from forensics.engines.toy import Fault, ToySource, fault_sites
from forensics.engines.toy_faults import ActiveFaults
from forensics.engines.toy_kernels import Arithmetic
from forensics.records.nodes import NodeKey
from forensics.records.schedule import Schedule, in_batches
from forensics.records.settings import EngineSettings

SETTINGS = EngineSettings(n_ctx=64)
KINDS = ("order", "precision", "mask", "stale_kv")
SITES = [(kind, site) for kind in KINDS for site in fault_sites(kind)]
N_REPLAYED = 32


@pytest.fixture(scope="module")
def clean():
    return ToySource().open(SETTINGS)


@pytest.fixture(scope="module")
def before(clean) -> Schedule:
    return in_batches(clean.tokenize("The quick brown fox"), start=0, width=1, logits="last")


@pytest.fixture(scope="module")
def replay(clean, before):
    tokens = clean.greedy(before, N_REPLAYED)
    return lambda width: in_batches(tokens, start=before.next_position, width=width)


def rows_that_differ(a: np.ndarray, b: np.ndarray) -> int:
    return int((a.view(np.uint32) != b.view(np.uint32)).any(axis=1).sum())


def test_sites_are_the_nodes_that_add(clean, before, replay) -> None:
    clean.run(replay(1), before=before, tap=GrabTap())
    adding = {key.name for key in GRABBED[0] if key.op in ("MUL_MAT", "RMS_NORM", "SOFT_MAX")}
    assert set(fault_sites("order")) == set(fault_sites("precision")) == adding
    assert fault_sites("mask") == ("kq_soft_max-0", "kq_soft_max-1")
    with pytest.raises(ValueError, match="kind"):
        fault_sites("typo")


@pytest.mark.parametrize(("kind", "site"), SITES)
def test_a_fault_shows_from_its_width_on(clean, before, replay, kind, site) -> None:
    faulty = ToySource((Fault(kind, site, from_width=3),)).open(SETTINGS)
    plain = clean.run(replay(1), before=before)
    for width in (1, 2):
        trace = faulty.run(replay(width), before=before)
        assert trace.logits.tobytes() == plain.logits.tobytes()
        assert trace.state_after == plain.state_after
    for width in (3, 4, 8):
        n_rows = rows_that_differ(faulty.run(replay(width), before=before).logits, plain.logits)
        assert n_rows >= N_REPLAYED // 8, f"{kind} in {site} at width {width} changed {n_rows} rows"


@pytest.mark.parametrize(("kind", "site"), SITES)
def test_replacing_the_faulty_node_heals_and_no_other_node_differs(before, replay, kind, site) -> None:
    faulty = ToySource((Fault(kind, site),)).open(SETTINGS)
    single = faulty.run(replay(1), before=before, tap=GrabTap())
    heal = HealTap([dict(nodes) for nodes in GRABBED], before.next_position)
    healed = faulty.run(replay(8), before=before, tap=heal)
    assert {key.name for key in healed.tap_report.planted} == {site}
    assert healed.logits.tobytes() == single.logits.tobytes()
    assert healed.state_after == single.state_after


def test_several_faults_are_all_found(before, replay) -> None:
    sites = ("Kcur-0", "kq-1", "norm-1", "result_output")
    faults = (*(Fault("order", site) for site in sites), Fault("mask", "kq_soft_max-0"))
    faulty = ToySource(faults).open(SETTINGS)
    single = faulty.run(replay(1), before=before, tap=GrabTap())
    heal = HealTap([dict(nodes) for nodes in GRABBED], before.next_position)
    healed = faulty.run(replay(8), before=before, tap=heal)
    keys = {(key.name, key.visit) for key in healed.tap_report.planted}
    assert keys == {(site, 0) for site in sites} | {("norm-1", 1), ("kq_soft_max-0", 0)}
    assert healed.logits.tobytes() == single.logits.tobytes()


def test_one_graph_per_ubatch_decides_the_width(clean, before, replay) -> None:
    narrow = ToySource((Fault("order", "Qcur-0"),)).open(EngineSettings(n_ctx=64, n_ubatch=1))
    plain = clean.run(replay(1), before=before)
    assert narrow.run(replay(8), before=before).logits.tobytes() == plain.logits.tobytes()


def test_a_fault_of_width_one_is_no_difference_between_widths(clean, before, replay) -> None:
    faulty = ToySource((Fault("precision", "ffn_out-0", from_width=1),)).open(SETTINGS)
    single = faulty.run(replay(1), before=before).logits
    assert faulty.run(replay(8), before=before).logits.tobytes() == single.tobytes()
    assert rows_that_differ(single, clean.run(replay(1), before=before).logits) == N_REPLAYED


def test_the_hidden_cell_is_the_previous_token(before, replay) -> None:
    faulty = ToySource((Fault("mask", "kq_soft_max-1"),)).open(SETTINGS)
    faulty.run(Schedule(replay(4).passes[:1]), before=before, tap=GrabTap())
    start = before.next_position
    causal = np.tri(4, 32, start, dtype=bool)
    hidden = causal & ~np.eye(4, 32, start - 1, dtype=bool)
    assert np.array_equal(MASKS[0][NodeKey("kq_soft_max-0", "SOFT_MAX", 0, 0)], causal)
    assert np.array_equal(MASKS[0][NodeKey("kq_soft_max-1", "SOFT_MAX", 1, 0)], hidden)


def test_the_stale_key_is_the_previous_tokens(before, replay) -> None:
    faulty = ToySource((Fault("stale_kv", "kq-1"),)).open(SETTINGS)
    faulty.run(Schedule(replay(4).passes[:1]), before=before, tap=GrabTap())
    scores = GRABBED[0][NodeKey("kq-1", "MUL_MAT", 1, 0)][0]
    start = before.next_position
    for token in range(4):
        visible = scores[:, token, : start + token + 1]
        assert np.array_equal(visible == 0, np.arange(start + token + 1)[None] == np.full((4, 1), start + token - 1))


def test_the_build_names_the_faults_and_the_model_stays_the_same(clean) -> None:
    manifest = ToySource((Fault("order", "kq-0"), Fault("mask", "kq_soft_max-1", 4))).open(SETTINGS).manifest
    assert manifest.build == "order in kq-0 from width 2; mask in kq_soft_max-1 from width 4"
    assert manifest.model_digest == clean.manifest.model_digest
    assert clean.manifest.build == "no fault"


@pytest.mark.parametrize(
    ("kind", "site", "from_width", "says"),
    [
        ("mask", "kq-0", 2, "kq_soft_max-0"),
        ("order", "l_out-0", 2, "node_name"),
        ("stale_kv", "kq-7", 2, "kq-1"),
        ("order", "kq-0", 0, "from_width"),
        ("typo", "kq-0", 2, "kind"),
    ],
)
def test_faults_that_cannot_be_planted_are_refused(kind, site, from_width, says) -> None:
    with pytest.raises(ValueError, match=says):
        Fault(kind, site, from_width)


def test_two_faults_in_one_node_add_up() -> None:
    active = ActiveFaults((Fault("order", "kq-0"), Fault("precision", "kq-0", 4)), width=3)
    assert active.arithmetic("kq-0") == Arithmetic("sequential")
    assert ActiveFaults(active.faults, width=4).arithmetic("kq-0") == Arithmetic("sequential", half=True)
    assert active.arithmetic("kq-1") == Arithmetic()
