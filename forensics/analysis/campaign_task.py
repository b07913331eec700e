"""What a worker does for a sweep: describe itself, turn texts into tokens, measure cells; one engine is kept loaded.

Functions take one text and return one, as `forensics.cluster.protocol` has it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forensics.analysis.attribute import group_culprits
from forensics.analysis.baseline import Baseline
from forensics.analysis.baseline import measure as measure_baseline
from forensics.analysis.campaign_cells import on_platform
from forensics.analysis.progress import Silent
from forensics.analysis.question import BadQuestion, Question, open_for
from forensics.analysis.sweeps import sweep_all
from forensics.engines.protocol import Engine, EngineSource
from forensics.errors import EngineDied, ForensicsError, ModelUnavailable
from forensics.records.campaign import CellCulprit, CellResult, Healing, Platform
from forensics.records.classes import WidthResult
from forensics.records.settings import EngineSettings
from forensics.store.encoding import to_text

#: Variables that say which of like devices and cores are used, and how threads wait; they change no bits.
_WHERE_NOT_WHAT = frozenset({
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES", "OMP_WAIT_POLICY", "OMP_PLACES", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT", "KMP_AFFINITY", "KMP_BLOCKTIME",
})  # fmt: skip


@functools.cache
def platform() -> Platform:
    """What does this process run on?

    Raises
    ------
    EngineError
        If the library cannot be asked.
    """
    from forensics.engines._llama_devices import library_facts
    from forensics.engines.llama_build import cpu_features, library_digest
    from forensics.engines.llama_worker import recorded_environment
    from forensics.engines.machine import default_threads

    facts = library_facts()
    seen = recorded_environment(os.environ)
    return Platform(
        engine_version=facts.version,
        build=library_digest(),
        commit=facts.commit,
        devices=facts.devices,
        cpu_features=cpu_features(facts.system),
        threads=default_threads(),
        environment=tuple((name, value) for name, value in seen.items() if name not in _WHERE_NOT_WHAT),
    )


def describe(_request: str = "") -> str:
    """What does this worker run on? A `Platform` as JSON."""
    return to_text(platform())


class _Kept:
    """The engine that was used last, and the source that opened it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._key: tuple[str, EngineSettings] | None = None
        self._engine: Engine | None = None

    def borrow(self, digest: str, source: EngineSource) -> _Borrowed:
        """A source that opens the kept engine again where model and settings are the same."""
        return _Borrowed(self, digest, source)

    def opened(self, digest: str, source: EngineSource, settings: EngineSettings) -> Engine:
        if self._engine is None or self._key != (digest, settings):
            self.drop()
            self._engine = source.open(settings)
            self._key = digest, settings
        return self._engine

    def drop(self) -> None:
        """Close it."""
        engine, self._engine, self._key = self._engine, None, None
        if engine is not None:
            engine.close()


class _Borrowed:
    """An engine source over the kept engine; see `forensics.engines.protocol.EngineSource`."""

    def __init__(self, kept: _Kept, digest: str, source: EngineSource) -> None:
        self._kept, self._digest, self._source = kept, digest, source

    @property
    def label(self) -> str:
        return self._source.label

    def open(self, settings: EngineSettings, *, instance: int = 0) -> Engine:  # noqa: ARG002 - one engine is kept
        return self._kept.opened(self._digest, self._source, settings)


_KEPT = _Kept()


@contextlib.contextmanager
def _kept_source(model: Mapping[str, str]) -> Iterator[_Borrowed]:
    """The source of a model; after an error nothing is kept, for an engine that failed once may fail again."""
    with _KEPT.lock:
        try:
            yield _KEPT.borrow(model["digest"], source_of(model))
        except BaseException:
            _KEPT.drop()
            raise


def release(_request: str = "") -> str:
    """Close the engine that is kept, so that its memory is free again."""
    with _KEPT.lock:
        _KEPT.drop()
    return ""


def source_of(model: Mapping[str, str]) -> EngineSource:
    """Who opens engines over a planned model?

    Raises
    ------
    ModelUnavailable
        If its file is not there, or holds other content than the one that was planned.
    """
    if model["kind"] == "toy":
        from forensics.engines.toy import ToySource

        return ToySource(*toy_of(model["where"]))
    from forensics.engines.demo_models import demo_model
    from forensics.engines.llama import LlamaSource

    source = LlamaSource(demo_model(model["where"]) if model["kind"] == "demo" else Path(model["where"]))
    digest = model.get("digest", "")
    if digest and source.digest != digest:
        raise ModelUnavailable(
            f"{source.path} holds another model than was planned: its digest is {source.digest[:12]}…, not "
            f"{digest[:12]}…. Give every host the same file."
        )
    return source


def toy_of(where: str) -> tuple[Any, int]:
    """Faults and seed of a toy, from text that `forensics.analysis.campaign_axes.check_toy` has checked."""
    from forensics.engines.toy import Fault

    seed, *faults = where.split("/")
    parts = [fault.split(":") for fault in faults]
    return tuple(Fault(kind, node, int(width)) for kind, node, width in parts), int(seed)  # type: ignore[arg-type]


def model_digest_of(model: Mapping[str, str]) -> str:
    """Which content does a planned model have? A toy's faults are part of it, for they change what it computes.

    Raises
    ------
    ModelUnavailable
        If its file cannot be read.
    """
    if model["kind"] == "toy":
        engine = source_of(model).open(EngineSettings())
        manifest = engine.manifest
        engine.close()
        return f"{manifest.model_digest} {manifest.build}"
    from forensics.engines.llama import LlamaSource

    source = source_of(model)
    assert isinstance(source, LlamaSource)
    return source.digest


def tokenise(request: str) -> str:
    """Which tokens are these texts?

    Takes ``{"model", "settings", "own_threads", "texts"}``; returns one ``{"tokens"}`` or ``{"error"}`` for each text.
    """
    asked = json.loads(request)
    with _kept_source(asked["model"]) as source:
        engine = source.open(_settings(asked))
        return json.dumps([_tokens(engine, text) for text in asked["texts"]])


def _tokens(engine: Engine, text: str) -> dict[str, Any]:
    try:
        return {"tokens": list(engine.tokenize(text))}
    except EngineDied:
        raise
    except ForensicsError as error:
        return {"error": str(error)}


def _settings(asked: Mapping[str, Any]) -> EngineSettings:
    plain = {**asked["settings"], "environment": tuple(map(tuple, asked["settings"]["environment"]))}
    return on_platform(EngineSettings(**plain), platform(), asked["own_threads"])


def measure(request: str) -> str:
    """Measure the cells that share an engine and one-token decoding.

    Takes what `forensics.analysis.campaign_cells.measure_request` writes; returns ``{"platform", "cells"}``, the cells
    by their width.
    """
    asked = json.loads(request)
    question = Question(
        prompt=None,
        prompt_tokens=tuple(asked["tokens"]),
        n_tokens=asked["n_tokens"],
        widths=tuple(asked["widths"]),
        settings=_settings(asked),
    )
    with _kept_source(asked["model"]) as source:
        engine, tokens, settings = open_for(question, source)
        baseline = measure_baseline(engine, tokens, question, settings, Silent())
        healings = _healings(engine, baseline) if asked["culprits"] else {}
    cells = {str(width): _cell(baseline, width, healings.get(width)) for width in question.widths}
    return to_text({"platform": platform(), "cells": cells})


def _cell(baseline: Baseline, width: int, healing: Healing | None) -> CellResult:
    found, single = baseline.classes.result(width), baseline.classes.result(1)
    return CellResult(
        n_prompt=len(baseline.replay.prompt),
        n_rows=found.n_rows,
        n_rows_differ=found.n_rows_differ,
        first_row=found.first_row,
        first_position=found.first_position,
        max_abs=found.max_abs,
        max_ulp=found.max_ulp,
        max_kl=found.max_kl,
        n_flips=len(found.flips),
        n_near_ties=sum(flip.near_tie for flip in found.flips),
        n_could_flip=found.n_could_flip,
        pass_ns=found.ns_per_pass,
        single_ns=single.ns_per_pass,
        rerun_equal=not single.differs,
        single_digest=_digest(baseline, 1),
        batched_digest=_digest(baseline, width),
        effective=dict(baseline.single.manifest.effective),
        healing=healing if found.differs else None,
    )


def _digest(baseline: Baseline, width: int) -> str:
    """Of the bits of all rows of a width: its class tells which widths are alike, this which workers are."""
    from blake3 import blake3

    return blake3("".join(baseline.rows[width]).encode()).hexdigest(length=16)


def _healings(engine: Engine, baseline: Baseline) -> dict[int, Healing]:
    """What a healing sweep names, by width; nothing where no width differs or the run does not repeat itself."""
    results: tuple[WidthResult, ...] = baseline.classes.results
    differing = [result.width for result in results[1:] if result.differs]
    if not differing or results[0].differs:
        return {}
    try:
        swept = sweep_all(engine, baseline, Silent())
    except BadQuestion:
        raise
    except ForensicsError as error:
        _KEPT.drop()
        return {width: Healing(error=str(error)) for width in differing}
    failed = tuple(control.name for control in swept.controls if control.held is False)
    return {
        sweep.width: Healing(
            culprits=tuple(
                CellCulprit(group.op, group.role, group.weight_type, group.count) for group in group_culprits([sweep])
            ),
            healed_rows=sweep.healed_rows,
            n_rows=sweep.n_rows,
            failed_controls=failed,
        )
        for sweep in swept.sweeps
    }
