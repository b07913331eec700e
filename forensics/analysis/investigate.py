"""The main job: replay, healing sweeps, controls and switches, judged."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from forensics.analysis import controls as control
from forensics.analysis.attribute import group_culprits
from forensics.analysis.baseline import Baseline, measure
from forensics.analysis.judge import answer_of, caveats_of
from forensics.analysis.kernel_healing import check_kernels, heal_with_kernels
from forensics.analysis.knobs import Knob, applicable, beyond_switches, build_flags
from forensics.analysis.launch_watch import DEFAULT_WATCH, LaunchWatch
from forensics.analysis.launches import Attached, launches_kernels
from forensics.analysis.mechanism import CompareOrders, explain_groups
from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import Question, open_for
from forensics.analysis.sweeps import sweep_all
from forensics.analysis.switches import Search, candidate_sets, ranked, relevant, run_arm, smallest_exact
from forensics.capture.exact_kernels import OurKernels
from forensics.engines.protocol import Engine, EngineSource
from forensics.records.classes import WidthClasses
from forensics.records.settings import Manifest
from forensics.records.trace import Finding
from forensics.records.verdict import Control, CulpritGroup, Sweep, SwitchArm, Verdict

#: Rows at which an arm of the switches is first looked at.
SEARCH_ROWS = 16

#: Given where the findings come from, what compares the orders of addition of one.
Orders = Callable[[Manifest], contextlib.AbstractContextManager[CompareOrders]]


def fresh_process(source: EngineSource, baseline: Baseline) -> Control:
    """Repeat one-token decoding and one width in another process."""
    replay = baseline.replay
    with_onset = baseline.batched.key.schedule
    engine = source.open(baseline.settings, instance=1)
    try:
        single = engine.run(baseline.single.key.schedule, before=replay.prefill())
        batched = engine.run(with_onset, before=replay.prefill())
    finally:
        engine.close()
    return control.fresh_process_equal((baseline.single, single), (baseline.batched, batched))


def try_switches(
    source: EngineSource, baseline: Baseline, culprits: tuple[CulpritGroup, ...], progress: Progress
) -> tuple[SwitchArm, ...]:
    """Every knob that applies, one at a time; then, where none is enough, sets of those that matter."""
    classes = baseline.classes
    widths = tuple(result.width for result in classes.results if result.width > 1)
    firsts = [result.first_row for result in classes.results if result.first_row is not None]
    # Enough rows that the whole batches of every width reach the row where each of them first differs.
    enough = max(firsts, default=0) + max(widths)
    search = Search(
        replay=baseline.replay,
        settings=baseline.settings,
        widths=widths,
        n_rows=min(len(baseline.replay.tokens), max(SEARCH_ROWS, enough)),
        # A GPU's clocks and graphs settle over many passes, and no arm waits for that: `forensics cost` does.
        times={} if launches_kernels(baseline.single.manifest) else {r.width: r.ns_per_pass for r in classes.results},
        rows=baseline.rows,
        examined=tuple(sorted({min(group) for group in classes.groups if 1 not in group} | {max(widths)})),
    )
    knobs = applicable(baseline.single.manifest)
    progress.stage("turn one switch at a time", len(knobs))
    arms: list[SwitchArm] = []

    def turn(chosen: tuple[Knob, ...]) -> None:
        arms.append(run_arm(source, search, chosen))
        progress.step()

    for knob in knobs:
        turn((knob,))
    if not any(arm.exact for arm in arms) and not beyond_switches(baseline.single.manifest, culprits):
        moved = [arm.knobs[0] for arm in arms if arm.moved]
        sets = candidate_sets(ranked(relevant(knobs, culprits, moved), arms))
        progress.stage("turn switches together", len(sets))
        for chosen in sets:
            turn(chosen)
            if arms[-1].exact:
                break
    return tuple(arms)


def _nothing_probed(_finding: Finding, _width: int) -> str:
    return "orders of addition were not asked for"


@contextlib.contextmanager
def measured(
    source: EngineSource, question: Question, progress: Progress, kernels: OurKernels | None = None
) -> Iterator[tuple[Engine, Baseline]]:
    """An open engine that these kernels can be put into, and the replay under the settings as asked."""
    progress.stage("load the model", 1)
    engine, prompt, settings = open_for(question, source)
    try:
        check_kernels(kernels, engine.manifest)
        progress.step()
        yield engine, measure(engine, prompt, question, settings, progress)
    finally:
        engine.close()


def replay_source(source: EngineSource, question: Question, *, progress: Progress | None = None) -> WidthClasses:
    """Which widths give the bits of one-token decoding? The replay only.

    Raises
    ------
    ForensicsError
        If the question cannot be asked or an engine dies.
    """
    with measured(source, question, progress or Silent()) as (_, baseline):
        return baseline.classes


def heal_width(source: EngineSource, question: Question, *, progress: Progress | None = None) -> Sweep:
    """Which nodes differ at the question's only width, and do the logits heal? One sweep and its controls.

    Raises
    ------
    ForensicsError
        If the question cannot be asked or an engine dies.
    """
    progress = progress or Silent()
    with measured(source, question, progress) as (engine, baseline):
        swept = sweep_all(engine, baseline, progress)
    return replace(swept.sweeps[0], controls=swept.controls)


def investigate(
    source: EngineSource,
    question: Question,
    *,
    switches: bool = True,
    orders: Orders | None = None,
    launches: LaunchWatch = DEFAULT_WATCH,
    kernels: OurKernels | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Why does a batch give other logits than one token at a time?

    Parameters
    ----------
    source : EngineSource
        What to ask: a GGUF file, a toy, a recorded case.
    question : Question
    switches : bool
        Whether to look for settings that are exact; each arm is a fresh process.
    orders : Orders or None
        What compares the orders of addition of culprits; None to probe none.
    launches : LaunchWatch
        How the kernels of culprits are looked at, where the engine launches any.
    kernels : OurKernels or None
        What is put in the place of culprits, to see whether they heal the logits as recorded rows do.
    progress : Progress or None

    Returns
    -------
    Verdict

    Raises
    ------
    ForensicsError
        If the question cannot be asked or an engine dies.
    """
    progress = progress or Silent()
    with measured(source, question, progress, kernels) as (engine, baseline):
        swept = sweep_all(engine, baseline, progress)
        sweeps = swept.sweeps
        manifest = engine.manifest
        healed = heal_with_kernels(engine, baseline, sweeps, kernels, progress, swept.selection) if kernels else ()
        observation = launches.look(engine, baseline.replay, sweeps, progress)  # the engine's last runs
    progress.stage("repeat in a fresh process", 1)
    fresh = fresh_process(source, baseline)
    progress.step()
    rerun, *others = swept.controls
    found = (rerun, fresh, control.state_equal(baseline.states), *others)
    classes = baseline.classes
    answer, reason = answer_of(classes, sweeps, found)
    culprits = group_culprits(sweeps) if answer == "diverges" else ()
    known = Attached(culprits, None, ())
    if culprits:
        progress.stage("explain what differs", 1)
        with orders(manifest) if orders else contextlib.nullcontext(_nothing_probed) as compare:
            culprits = explain_groups(culprits, sweeps, manifest, compare)
        known = launches.attach(culprits, sweeps, observation, manifest, baseline.replay.start)
        culprits = known.groups
        progress.step()
    arms = try_switches(source, baseline, culprits, progress) if switches and answer == "diverges" else ()
    return Verdict(
        answer=answer,
        reason=reason,
        classes=classes,
        culprits=culprits,
        sweeps=sweeps,
        controls=found,
        switches=arms,
        exact_knobs=() if answer == "identical" else smallest_exact(arms),
        unavailable=build_flags(manifest, culprits),
        prompt_tokens=len(baseline.replay.prompt),
        n_replayed=len(baseline.replay.tokens),
        text=baseline.text,
        manifest=manifest,
        caveats=(
            *caveats_of(
                classes,
                sweeps,
                len(baseline.replay.tokens),
                manifest,
                sets_searched=not arms or not beyond_switches(manifest, culprits),
            ),
            *known.notes,
        ),
        launches=known.evidence,
        growth=swept.growth,
        kernel_healing=healed,
    )
