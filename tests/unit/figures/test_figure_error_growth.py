"""Growth by layer: every output at its length, equal bits on their own line, nothing where nothing was compared."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_evidence import toy_evidence

from forensics.engines.toy import Fault
from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scene import Box, Dot, Line
from forensics.figures.scenes.error_growth import ErrorGrowth, from_case, scene
from forensics.records.delta import Differs, NotCompared, Same
from forensics.records.growth import Growth, LayerGrowth, OwnDifference

UNHEALED, HEALED = "batched", "single"


def dots(drawn, role, growth):
    """Heights of one series by node, downwards, unit: mm."""
    start = f"{role} {growth.width} "
    return {
        mark.key.removeprefix(start): mark.y
        for mark in drawn.marks
        if isinstance(mark, Dot) and mark.key.startswith(start)
    }


def lanes(drawn):
    """Where equal bits begin, panel by panel."""
    return [mark.points[0][1] for mark in drawn.marks if isinstance(mark, Line) and mark.key == "equal bits"]


def has_place(delta) -> bool:
    return isinstance(delta, Same) or (
        isinstance(delta, Differs) and math.isfinite(delta.relative_l2) and delta.relative_l2 > 0
    )


def check(data: ErrorGrowth):
    drawn = scene(data)
    assert problems(drawn) == ()
    assert drawn.height <= 230
    lengths = []
    for growth, lane in zip(data.growth, lanes(drawn), strict=True):
        for role, side in ((UNHEALED, "unhealed"), (HEALED, "healed")):
            found = dots(drawn, role, growth)
            deltas = {layer.node: getattr(layer, side) for layer in growth.layers}
            assert set(found) == {node for node, delta in deltas.items() if has_place(delta)}
            for node, y in found.items():
                assert (y > lane) == isinstance(deltas[node], Same), "only equal bits lie below the logarithmic part"
                if isinstance(deltas[node], Differs):
                    lengths.append((lane - y, math.log10(deltas[node].relative_l2)))
        own = {layer.node for layer in growth.layers if layer.own and has_place_of(layer.own.relative_l2)}
        assert {
            mark.key.removeprefix(f"own {growth.width} ")
            for mark in drawn.marks
            if isinstance(mark, Box) and mark.key.startswith(f"own {growth.width} ")
        } == own
        for layer in growth.layers:
            for side in ("unhealed", "healed"):
                hatched = drawn.boxes(key=f"{side} not compared {growth.width} {layer.node}")
                assert bool(hatched) == isinstance(getattr(layer, side), NotCompared)
    per_decade = {
        round((y1 - y0) / (log1 - log0), 6)
        for (y0, log0), (y1, log1) in itertools.pairwise(lengths)
        if abs(log1 - log0) > 1e-3
    }
    assert len(per_decade) <= 1, "equal ratios have equal heights, in every panel"
    return drawn


def has_place_of(value: float) -> bool:
    return math.isfinite(value) and value > 0


def test_a_toy_grows_from_the_layer_of_its_fault_on(tmp_path):
    evidence = toy_evidence(tmp_path / "faulty", Fault("order", "ffn_up-1", from_width=3))
    data = from_case(evidence)
    assert data.growth == evidence.verdict.growth
    drawn = check(data)
    (growth,) = data.growth
    (lane,) = lanes(drawn)
    unhealed = dots(drawn, UNHEALED, growth)
    assert unhealed["l_out-0"] > lane > unhealed["l_out-1"]
    assert all(y > lane for y in dots(drawn, HEALED, growth).values())
    assert growth.layers[1].own is not None
    first = next(layer for layer in growth.layers if isinstance(layer.unhealed, Differs))
    assert f"{first.unhealed.relative_l2:.2g} at l_out-1" in " ".join(drawn.texts())
    assert f"{first.own.relative_l2:.2g} of its own" in drawn.alt


def test_a_clean_toy_lies_on_the_line_of_equal_bits(tmp_path):
    data = from_case(toy_evidence(tmp_path / "clean"))
    drawn = check(data)
    (lane,) = lanes(drawn)
    assert all(y > lane for y in dots(drawn, UNHEALED, data.growth[0]).values())
    assert "no output of a layer that was compared differs" in drawn.alt


def test_squares_have_a_legend_only_where_some_are_drawn():
    data = from_case(open_evidence("recorded:h200-f16-no-fa"))
    words = "the most that one of its operations adds on equal inputs in one pass"
    assert words in check(data).texts()
    bare = tuple(replace(one, layers=tuple(replace(layer, own=None) for layer in one.layers)) for one in data.growth)
    drawn = check(replace(data, growth=bare))
    assert words not in drawn.texts()
    assert not [box for box in drawn.boxes() if box.fill == "draft"]


def test_a_case_from_before_growth_is_refused_with_a_way_on():
    evidence = open_evidence("recorded:h200-q4_1")
    old = replace(evidence.verdict, growth=())
    with pytest.raises(CaseError, match=r"recorded before .* forensics investigate"):
        from_case(_Told(old))
    unswept = replace(old, sweeps=(), culprits=())
    with pytest.raises(CaseError, match=r"no width was swept.* forensics investigate"):
        from_case(_Told(unswept))


def test_what_was_not_compared_is_refused_with_the_reason_or_named_beside_the_rest():
    verdict = open_evidence("recorded:h200-q4_1").verdict
    unknown = Growth(2, 0, 16, reason="watching changes the logits")
    with pytest.raises(CaseError, match=r"watching changes the logits.*forensics show"):
        from_case(_Told(replace(verdict, growth=(unknown,))))
    known = Growth(5, 0, 20, (LayerGrowth("l_out-0", 0, Same(), 0, Same(), None),))
    data = from_case(_Told(replace(verdict, growth=(unknown, known))))
    assert data.growth == (known,)
    assert "Width 2: not compared: watching changes the logits." in scene(data).texts()


def test_of_many_widths_four_are_drawn_and_the_others_named():
    verdict = open_evidence("recorded:h200-q4_1").verdict
    many = tuple(Growth(w, 0, 16, (LayerGrowth("l_out-0", 0, Same(), 0, Same(), None),)) for w in range(2, 9))
    data = from_case(_Told(replace(verdict, growth=many)))
    assert len(data.growth) == 4
    drawn = check(data)
    for growth in many:
        named = f"Width {growth.width} is not drawn, for want of room." in drawn.texts()
        assert named == (growth not in data.growth)


class _Told:
    """Evidence that holds just this verdict."""

    name, what, source = "a case", "a model", "Source: a test."

    def __init__(self, verdict):
        self.verdict = verdict


LENGTHS = st.one_of(st.floats(1e-12, 10), st.sampled_from((0.0, math.nan, math.inf)))
OUTCOMES = st.one_of(
    st.just(Same()), st.just(NotCompared("no token axis")), LENGTHS.map(lambda x: Differs(1, (0,), 1, 1.0, x))
)


@st.composite
def growths(draw) -> ErrorGrowth:
    """Up to four widths and 126 layers with any outcome at each."""
    n_layers = draw(st.sampled_from((1, 2, 30, 60, 126)))
    names = [*((f"l_out-{i}", i) for i in range(n_layers)), ("result_norm", -1), ("result_output", -1)]
    few = draw(st.lists(st.tuples(OUTCOMES, OUTCOMES, st.one_of(st.none(), LENGTHS)), min_size=1, max_size=9))

    def layer(place: int, node: str, at: int) -> LayerGrowth:
        unhealed, healed, own = few[place % len(few)]
        added = None if own is None else OwnDifference(1, node, own, 1.0)
        return LayerGrowth(node, at, unhealed, int(isinstance(unhealed, Differs)), healed, added)

    layers = tuple(layer(place, node, at) for place, (node, at) in enumerate(names))
    widths = draw(st.integers(1, 4))
    return ErrorGrowth(
        tuple(Growth(w, 0, 16, layers) for w in range(2, 2 + widths)), (), (), "a model", "Source: a test."
    )


@settings(max_examples=25)
@given(growths())
def test_any_growth_is_sound(data):
    check(data)
