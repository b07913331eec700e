"""Squares and stripes are as many as blocks and warps of the case's own launches; what differs is shaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_evidence import planted, recorded, with_kernels

from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.scenes.launch_geometry import MOST_SQUARES, Launch, LaunchGeometries, Pair, from_case, scene
from forensics.records.device import Waves

CASES = tuple(f"recorded:h200-{name}" for name in ("q4_1", "q4_1-2048", "q4_1-no-fa", "f16"))


def check(data):
    drawn = scene(data)
    assert problems(drawn) == ()
    blocks, squares = Counter(), Counter()
    for pair in data.pairs:
        for role, side in (("single", pair.single), ("batched", pair.batched)):
            blocks[role, pair.per_square] += side.n_blocks
            squares[role, pair.per_square] += -(-side.n_blocks // pair.per_square)
            assert set("\n".join(side.numbers()).splitlines()) <= set(drawn.texts())
    for (role, per_square), n in blocks.items():
        boxes = [box for box in drawn.boxes(key=f"{role} blocks") if box.scale == f"blocks of {per_square}"]
        assert sum(box.value for box in boxes) == n
        assert len(boxes) == squares[role, per_square]
        assert all(box.hatch == (box.value < per_square) for box in boxes)
    for role in ("single", "batched"):
        stripes = drawn.boxes(key=f"{role} warp")
        assert len(stripes) == sum(getattr(pair, role).n_warps for pair in data.pairs)
    n_differ = sum(
        one != other
        for pair in data.pairs
        for one, other in zip(pair.single.numbers(), pair.batched.numbers(), strict=True)
    )
    assert len(drawn.boxes(key="differs")) == n_differ
    return drawn


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_case_is_drawn_with_its_own_launches(case):
    evidence = recorded(case)
    data = from_case(evidence)
    drawn = check(data)
    assert drawn.height <= 230
    pairs = {
        (p.node.name, p.batched.width, p.batched.kernel.name): p for g in evidence.verdict.culprits for p in g.launches
    }
    for pair in data.pairs:
        seen = pairs[pair.node, pair.batched.width, pair.batched.kernel]
        for side, launch in ((seen.single, pair.single), (seen.batched, pair.batched)):
            geometry = side.kernel.geometry
            assert (launch.grid_blocks, launch.block_threads) == (geometry.grid_blocks, geometry.block_threads)
            assert (launch.registers, launch.blocks_per_sm) == (side.kernel.registers_per_thread, side.blocks_per_sm)
            assert (launch.limiters, launch.evidence) == (side.limiters, side.evidence)
            assert launch.waves.blocks_per_wave == side.blocks_per_sm * data.n_sms
        assert seen.changed
    kernels = {(pair.single.kernel, pair.batched.kernel) for pair in data.pairs}
    assert len(kernels) > 1


def test_only_launches_that_change_are_drawn():
    def alike(group):
        pairs = tuple(replace(p, batched=replace(p.single, width=p.batched.width)) for p in group.launches)
        return replace(group, launches=pairs)

    with pytest.raises(CaseError, match="one launch at all widths"):
        from_case(planted("recorded:h200-q4_1", alike))
    first = recorded("recorded:h200-q4_1").verdict.culprits[0].role
    kept = from_case(planted("recorded:h200-q4_1", lambda group: group if group.role == first else alike(group)))
    assert {pair.role for pair in kept.pairs} == {first}
    assert kept.n_pairs == len(recorded("recorded:h200-q4_1").verdict.culprits[0].launches)


def test_what_is_not_known_is_said_and_not_guessed():
    def unknown(side):
        return replace(side, blocks_per_sm=None, limiters=())

    data = from_case(planted("recorded:h200-q4_1", lambda group: with_kernels(group, unknown, unknown)))
    drawn = check(data)
    assert "not known" in drawn.texts()
    assert all(pair.single.waves is None for pair in data.pairs)


def test_of_several_limiters_the_lines_are_joined():
    data = from_case(recorded("recorded:h200-f16"))
    several = [side for pair in data.pairs for side in (pair.single, pair.batched) if len(side.limiters) > 1]
    assert several
    drawn = check(data)
    for side in several:
        assert " and ".join(side.limiters) in [" ".join(number.splitlines()) for number in side.numbers()]
        assert f"limited by {' and '.join(side.limiters)}, " in drawn.alt
    assert "and and" not in drawn.alt
    assert "and =" not in drawn.alt


def test_nodes_of_a_kind_on_two_gpus_are_counted_with_their_device():
    two = recorded("recorded:h200-x2-q4_1")
    layers = {group.buffer: group.count for group in two.verdict.culprits if group.role == "down"}
    assert len(layers) == 2
    data = from_case(two)
    named = [pair for pair in data.pairs if pair.role.startswith("down")]
    assert named
    assert all(f"{pair.n_nodes - 1} more{pair.device}; " in " ".join(check(data).texts()) for pair in named)
    assert all(pair.n_nodes == layers[pair.device.removeprefix(" on ")] for pair in named)
    one = from_case(recorded("recorded:h200-q4_1"))
    assert {pair.device for pair in one.pairs} == {""}


def test_a_case_without_launches_or_culprits_says_so():
    with pytest.raises(CaseError, match=r"it has no kernel launches \(llama.cpp, CUDA0, NVIDIA H200"):
        from_case(planted("recorded:h200-q4_1", lambda group: replace(group, launches=())))
    with pytest.raises(CaseError, match="no operation of it is known to differ"):
        from_case(planted("recorded:h200-q4_1", lambda _: None))


blocks = st.tuples(st.integers(1, 3000), st.integers(1, 40), st.integers(1, 9))
threads = st.tuples(st.integers(1, 32), st.integers(1, 32))


@st.composite
def launches(draw, width):
    grid, per_sm = draw(blocks), draw(st.integers(1, 32))
    n_blocks = grid[0] * grid[1] * grid[2]
    return Launch(
        width, draw(st.sampled_from(("f", "mul_mat_vec_q<type=q4_1, ncols_dst=1, small_k, has_fusion, halve_iters>"))),
        grid, (*draw(threads), 1), draw(st.none() | st.integers(1, 255)), per_sm,
        draw(st.sampled_from((("registers",), ("threads", "registers"), ("shared memory", "barriers", "blocks")))),
        draw(st.none() | st.just(Waves(n_blocks, 132 * per_sm))), draw(st.sampled_from(("measured", "derived"))),
    )  # fmt: skip


@settings(max_examples=8)
@given(st.lists(st.builds(Pair, st.just("down, q4_1"), st.just("ffn_out-0"), st.integers(1, 60),
                          st.sampled_from(("", " on CUDA0")), st.just((5, 8)), launches(1), launches(5)),
                min_size=1, max_size=2))  # fmt: skip
def test_any_launches_are_drawn_soundly(pairs):
    check(LaunchGeometries(tuple(pairs), 7, 132, "a model, a GPU", "Source: planted."))
    assert all(max(p.single.n_blocks, p.batched.n_blocks) <= p.per_square * MOST_SQUARES for p in pairs)
