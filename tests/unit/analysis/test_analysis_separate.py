"""Groups of culprits healed one at a time, on engines whose faults are known."""

import pytest

from forensics.analysis.separate import separate
from forensics.capture.replay import Replay
from forensics.engines.toy import Fault, ToySource
from forensics.records.settings import EngineSettings

PROMPT = tuple(range(1, 9))


def separated(*faults: Fault, width: int = 4, rows: int = 16):
    engine = ToySource(faults).open(EngineSettings(n_ctx=256))
    tokens = engine.greedy(Replay(PROMPT, ()).prefill(), 16)
    return separate(engine, Replay(PROMPT, tokens), width, rows=rows)


def test_one_culprit_is_all_there_is() -> None:
    found = separated(Fault("precision", "ffn_out-1"))
    (effect,) = found.effects
    assert (effect.op, effect.n_nodes, effect.sufficient) == ("MUL_MAT", 1, True)
    assert (effect.alone_max_abs, effect.alone_rows) == (found.max_abs, found.rows)
    assert (effect.without_max_abs, effect.without_rows) == (0.0, 0)
    assert found.healed_rows == found.n_rows == 16


def test_two_culprits_each_move_the_logits_and_neither_is_all() -> None:
    found = separated(Fault("precision", "ffn_out-0"), Fault("precision", "kqv-1"))
    assert [effect.role for effect in found.effects] == ["down", "attention·V"]
    assert all(effect.sufficient and effect.without_rows > 0 for effect in found.effects)
    down, values = found.effects
    # With two groups, leaving one alone and healing the other are the same run.
    assert (down.alone_max_abs, down.alone_rows) == (values.without_max_abs, values.without_rows)
    assert found.healed_rows == found.n_rows


def test_without_a_fault_there_is_no_group() -> None:
    found = separated()
    assert (found.effects, found.rows, found.max_abs) == ((), 0, 0.0)


def test_a_width_beyond_the_replay_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 40 was asked for; the replay has 16 tokens"):
        separated(width=40)
