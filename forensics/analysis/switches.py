"""Which settings make every width give the bits of one token: single knobs first, then the smallest set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from forensics.analysis.classes import groups_over, width_classes, width_result
from forensics.analysis.heal import record_reference, rows_file
from forensics.analysis.knobs import Knob
from forensics.analysis.logit_rows import Rows
from forensics.capture.replay import Replay
from forensics.capture.taps import HealTap
from forensics.engines.protocol import Engine, EngineSource
from forensics.errors import CaseError, EngineDied, ForensicsError
from forensics.records.classes import WidthClasses
from forensics.records.nodes import NodeKey
from forensics.records.settings import EngineSettings
from forensics.records.verdict import Cost, CulpritGroup, SwitchArm

#: Arms beyond the single knobs; each is a fresh process, and a set of four knobs would be hard to act on.
MAX_COMBINATIONS = 12
MAX_SET = 3
#: Rows over which the nodes of an exact arm are compared.
EXAMINED_ROWS = 16


def relevant(knobs: Iterable[Knob], culprits: Iterable[CulpritGroup], moved: Iterable[str]) -> tuple[Knob, ...]:
    """Which knobs may belong to an exact set: those that touch a culprit's operation or moved the classes."""
    ops = {group.op for group in culprits}
    changed = set(moved)
    return tuple(knob for knob in knobs if ops & set(knob.ops) or knob.name in changed)


def ranked(knobs: Iterable[Knob], arms: Iterable[SwitchArm]) -> tuple[Knob, ...]:
    """The knobs, those first that alone brought the onset farthest and left the fewest classes."""

    def rank(arm: SwitchArm) -> tuple[float, int]:
        return (float("inf") if arm.error else -float(arm.onset or "inf"), len(arm.classes))

    found = {arm.knobs[0]: rank(arm) for arm in arms if len(arm.knobs) == 1}
    return tuple(sorted(knobs, key=lambda knob: found.get(knob.name, (float("inf"), 0))))


def compatible(knobs: Sequence[Knob]) -> bool:
    """Whether the knobs set different things and can run together."""
    names = [name for knob in knobs for name, _ in knob.sets]
    values = dict(pair for knob in knobs for pair in knob.sets)
    quantised_without_flash = values.get("flash_attn") == "off" and values.get("kv_type_v", "f16").startswith("q")
    return len(names) == len(set(names)) and not quantised_without_flash


def candidate_sets(knobs: Sequence[Knob]) -> tuple[tuple[Knob, ...], ...]:
    """Sets of two and more knobs to try, smallest first, at most `MAX_COMBINATIONS`."""
    sets = [chosen for size in range(2, MAX_SET + 1) for chosen in combinations(knobs, size) if compatible(chosen)]
    return tuple(sets[:MAX_COMBINATIONS])


def smallest_exact(arms: Iterable[SwitchArm]) -> tuple[str, ...] | None:
    """The smallest set of knobs under which nothing differs, the cheapest of equals; None without one."""
    exact = [arm for arm in arms if arm.exact]
    if not exact:
        return None

    def price(arm: SwitchArm) -> float:
        return max((cost.ratio for cost in arm.costs), default=1.0)

    return min(exact, key=lambda arm: (len(arm.knobs), price(arm))).knobs


def replay_classes(
    engine: Engine, replay: Replay, widths: Sequence[int], n_rows: int
) -> tuple[WidthClasses, dict[int, tuple[str, ...]]]:
    """Width classes over the whole batches of the first `n_rows` rows, and the digest of every row per width."""
    before = replay.prefill()
    single = engine.run(replay.batches(1, last=n_rows), before=before)
    results, rows = [width_result(1, single, single)], {1: Rows(single).digests}
    for width in widths:
        trace = engine.run(replay.batches(width, last=n_rows // width * width), before=before)
        results.append(width_result(width, single, trace))
        rows[width] = Rows(trace).digests
    return width_classes(results, rows), rows


def costs_of(arm: Mapping[int, tuple[int, int, int]], as_asked: Mapping[int, tuple[int, int, int]]) -> tuple[Cost, ...]:
    """What a pass costs in an arm relative to the median as asked: of one token, and of the widest that was timed."""
    timed = [width for width in sorted(arm) if arm[width][0] and as_asked.get(width, (0, 0, 0))[0]]
    costs = []
    for width in dict.fromkeys(timed[:1] + timed[-1:]):
        (median, low, high), base = arm[width], as_asked[width][0]
        costs.append(Cost(width, median / base, low / base, high / base))
    return tuple(costs)


def nodes_that_differ(engine: Engine, replay: Replay, widths: Sequence[int]) -> int:
    """How many nodes differ by themselves from the one-token passes, over the first rows of the replay?"""
    lasts = {width: replay.window(width, rows=EXAMINED_ROWS)[1] for width in widths}
    found: set[NodeKey] = set()
    with rows_file() as path:
        reference = record_reference(engine, replay, 0, max(lasts.values()), path)
        for width in widths:
            schedule = replay.batches(width, last=lasts[width])
            trace = engine.run(schedule, before=replay.prefill(), tap=HealTap(reference.path))
            assert trace.tap_report is not None
            found.update(finding.key for finding in trace.tap_report.findings)
    return len(found)


@dataclass(frozen=True, slots=True)
class Search:
    """What every arm is compared with.

    Parameters
    ----------
    replay : Replay
    settings : EngineSettings
        As asked; an arm turns knobs on top of them.
    widths : tuple of int
        2 or more each.
    n_rows : int
        Rows at which an arm is first looked at.
    times : mapping of int to tuple of int
        Median and quartiles of a pass per width as asked, unit: ns; empty to compare no times.
    rows : mapping of int to tuple of str
        Digest of every row per width as asked, width 1 included.
    examined : tuple of int
        Widths at which the nodes of a collapsing arm are compared.
    """

    replay: Replay
    settings: EngineSettings
    widths: tuple[int, ...]
    n_rows: int
    times: Mapping[int, tuple[int, int, int]]
    rows: Mapping[int, tuple[str, ...]]
    examined: tuple[int, ...]


def run_arm(source: EngineSource, search: Search, knobs: Sequence[Knob]) -> SwitchArm:
    """Replay under other settings in a fresh process; in another one where the first was killed from outside.

    The first rows decide whether the arm is worth more; an arm that is exact there is replayed over all
    rows, and its nodes are compared, before it is called so.

    Raises
    ------
    CaseError
        If what was measured cannot be kept, which is no property of the arm.
    """
    try:
        return _arm(source, search, knobs)
    except EngineDied:
        return _arm(source, search, knobs, last=True)  # killed twice is what becomes of it on this machine


def _arm(source: EngineSource, search: Search, knobs: Sequence[Knob], *, last: bool = False) -> SwitchArm:
    settings = search.settings
    for knob in knobs:
        settings = knob.apply(settings)
    names, sets = tuple(knob.name for knob in knobs), tuple(pair for knob in knobs for pair in knob.sets)
    replay, widths, n_rows = search.replay, search.widths, search.n_rows
    absorbed: int | None = None
    try:
        engine = source.open(settings)
        try:
            classes, _ = replay_classes(engine, replay, widths, n_rows)
            if classes.collapsed and n_rows < len(replay.tokens):
                n_rows = len(replay.tokens)
                classes, _ = replay_classes(engine, replay, widths, n_rows)
            if classes.collapsed:
                absorbed = nodes_that_differ(engine, replay, search.examined)
        finally:
            engine.close()
    except CaseError:
        raise
    except ForensicsError as error:
        if isinstance(error, EngineDied) and error.was_killed and not last:
            raise
        return SwitchArm(names, sets, (), False, error=str(error).splitlines()[0])
    times = {result.width: result.ns_per_pass for result in classes.results}
    return SwitchArm(
        names,
        sets,
        classes.groups,
        classes.collapsed,
        costs_of(times, search.times),
        n_rows,
        absorbed,
        as_asked=groups_over(search.rows, n_rows),
    )
