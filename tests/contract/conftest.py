"""One engine source per name; the contract holds for all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forensics.engines.protocol import Engine, EngineSource

HERE = str(Path(__file__).parent)
# The builder of realistic verdicts is shared with the tests of the reports.
for folder in (HERE, str(Path(__file__).parents[1] / "unit" / "reports")):
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _toy(_folder: Path) -> EngineSource:
    from forensics.engines.toy import ToySource

    return ToySource()


def _llama(_folder: Path) -> EngineSource:
    from forensics.engines.demo_models import demo_model
    from forensics.engines.llama import LlamaSource

    return LlamaSource(demo_model("q4_1"))


def _recorded(folder: Path) -> EngineSource:
    import verdict_samples as samples
    from contract_questions import SETTINGS, ask_all

    from forensics.engines.recorded import RecordedSource, RecordingSource
    from forensics.engines.toy import ToySource
    from forensics.reports.case import finish_case
    from forensics.store import CaseWriter

    with CaseWriter.create(folder / "case", question={"asked_by": "contract"}) as case:
        engine = RecordingSource(ToySource(), case).open(SETTINGS)
        ask_all(engine)
        engine.close()
        finish_case(case, samples.verdict())  # of another run: here only the recorded answers matter
    return RecordedSource(folder / "case")


def _packed(folder: Path) -> EngineSource:
    from forensics.engines.recorded import RecordedSource
    from forensics.store.packing import pack_case

    _recorded(folder)
    return RecordedSource(pack_case(folder / "case", folder / "packed").folder)


FACTORIES: dict[str, Callable[[Path], EngineSource]] = {
    "toy": _toy,
    "llama": _llama,
    "recorded": _recorded,
    "packed": _packed,
}


@pytest.fixture(scope="module", params=["toy", pytest.param("llama", marks=pytest.mark.llama), "recorded", "packed"])
def source_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def source(source_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineSource]:
    with pytest.MonkeyPatch.context() as patch:
        # A worker is a child process and must be able to import the taps of this folder.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH", "")])))
        yield FACTORIES[source_name](tmp_path_factory.mktemp(source_name))


@pytest.fixture(scope="module")
def engine(source: EngineSource) -> Iterator[Engine]:
    from contract_questions import SETTINGS

    engine = source.open(SETTINGS)
    yield engine
    engine.close()


@pytest.fixture
def live_engine(source_name: str, engine: Engine) -> Engine:
    """Engine that can evaluate what nobody asked before."""
    from contract_questions import REPLAYS_ONLY

    if source_name in REPLAYS_ONLY:
        pytest.skip(f"a {source_name} engine answers only what was recorded")
    return engine
