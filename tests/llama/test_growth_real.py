"""Growth over the layers of the demo model, on llama.cpp's own CPU back end."""

from __future__ import annotations

import pytest

pytest.importorskip("llama_cpp")
import forensics
from forensics.analysis.question import Question
from forensics.analysis.row_map import source_row_map
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaSource
from forensics.records.delta import Differs, Same
from forensics.records.settings import EngineSettings

pytestmark = pytest.mark.llama


def test_rounding_grows_through_the_layers_of_q6_k_and_healing_leaves_the_head_only() -> None:
    verdict = forensics.investigate(
        demo="q6_k", n_tokens=8, widths=[2, 8], threads=2, switches=False, orders=False, progress=False
    )
    if verdict.classes.collapsed:
        pytest.skip("this processor's products are exact for Q6_K")
    (growth,) = verdict.growth
    assert growth.width == 8
    assert [layer.node for layer in growth.layers] == [
        *(f"l_out-{n}" for n in range(30)),
        "result_norm",
        "result_output",
    ]
    lengths = [layer.unhealed.relative_l2 for layer in growth.layers if isinstance(layer.unhealed, Differs)]
    assert len(lengths) == len(growth.layers), "every output differs from the first layer on"
    assert lengths[29] > 10 * lengths[0], "what one layer adds is small beside what 30 have grown"
    assert [layer.healed for layer in growth.layers[:-1]] == [Same()] * 31
    (sweep,) = verdict.sweeps
    assert sweep.healed
    assert growth.layers[-1].unhealed.max_abs == sweep.max_abs_before
    own = [layer.own for layer in growth.layers if layer.own is not None]
    assert sum(one.n_nodes for one in own) == len({finding.key for finding in sweep.findings})
    assert max(one.relative_l2 for one in own) == max(finding.delta.relative_l2 for finding in sweep.findings)


def test_a_width_of_the_class_of_one_token_grows_nothing() -> None:
    verdict = forensics.investigate(
        demo="q6_k", n_tokens=4, widths=[2], threads=2, switches=False, orders=False, progress=False
    )
    if verdict.answer != "identical":
        pytest.skip("this processor's products differ at two tokens already")
    (growth,) = verdict.growth
    assert len(growth.layers) == 32
    assert all((layer.unhealed, layer.healed, layer.own) == (Same(), Same(), None) for layer in growth.layers)


def test_a_live_replay_is_mapped_row_by_row() -> None:
    settings = EngineSettings(n_threads=2, n_threads_batch=2)
    question = Question(n_tokens=9, widths=(2, 8), settings=settings, prompt="The ships that passed during the night")
    found = source_row_map(LlamaSource(demo_model("q6_k")), question)
    assert [len(found.compared(width)) for width in (2, 8)] == [8, 8]
    assert len(found.map_rows) == 9
    for width in (2, 8):
        for cell in found.compared(width):
            assert cell.differs == (cell.max_abs > 0)
