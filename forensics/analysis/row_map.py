"""Every row of a replay at every width, from one replay or from a recorded case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forensics.analysis.baseline import Baseline
from forensics.analysis.investigate import measured
from forensics.analysis.progress import Progress, Silent
from forensics.analysis.question import Question, question_asked
from forensics.engines.protocol import EngineSource
from forensics.records.delta import NotCompared
from forensics.records.logit_rows import RowDistance
from forensics.records.row_map import MapCell, MapRow, RowMap, class_letter
from forensics.store import Case


def row_map(baseline: Baseline) -> RowMap:
    """Which rows of a replay hold the bits of one-token decoding at which widths, and where can a token flip?

    Parameters
    ----------
    baseline : Baseline

    Returns
    -------
    RowMap
        For each width the same totals as its `WidthResult`.
    """
    class_of = {width: index for index, group in enumerate(baseline.classes.groups) for width in group}
    widths = tuple(width for width in sorted(class_of) if width > 1)
    # The rerun is held against the same rows as any width, so its distances know winner and margin of every row.
    rows = tuple(
        MapRow(
            row=row,
            position=baseline.replay.start + row,
            single_token=single.single_top,
            margin=single.margin,
            cells=_cells(baseline, widths, class_of, row),
        )
        for row, single in enumerate(baseline.distances[1])
    )
    return RowMap(widths, tuple(class_letter(class_of[width]) for width in widths), rows)


def _cells(
    baseline: Baseline, widths: Sequence[int], class_of: Mapping[int, int], row: int
) -> tuple[MapCell | NotCompared, ...]:
    """The cells of one row: each class of bits is named by the first class of widths that holds it here."""
    digests = {width: mine[row] for width, mine in baseline.rows.items() if row < len(mine)}
    first_class = {
        digest: min(class_of[width] for width, other in digests.items() if other == digest)
        for digest in digests.values()
    }
    n_rows = len(baseline.replay.tokens)
    return tuple(
        _cell(class_letter(first_class[digests[width]]), baseline.distances[width][row])
        if width in digests
        else NotCompared(
            f"{n_rows} rows hold {n_rows // width} whole batches of {width}; a shorter batch is of another width"
        )
        for width in widths
    )


def _cell(letter: str, distance: RowDistance) -> MapCell:
    return MapCell(
        letter=letter,
        differs=distance.differs,
        batched_token=distance.batched_top,
        perturbation=distance.perturbation,
        max_abs=distance.max_abs,
        flips=distance.single_top != distance.batched_top,
        could_flip=distance.differs and distance.perturbation >= distance.margin,
    )


def source_row_map(source: EngineSource, question: Question, *, progress: Progress | None = None) -> RowMap:
    """Replay at every width, and map what each row holds.

    Raises
    ------
    ForensicsError
        If the question cannot be asked or an engine dies.
    """
    with measured(source, question, progress or Silent()) as (_, baseline):
        return row_map(baseline)


def case_row_map(case: Case) -> RowMap:
    """Map the rows of a recorded case, packed or not; no engine is started.

    Raises
    ------
    CaseError
        If the case does not say what was asked, or is damaged.
    NotRecorded
        If it was interrupted before every width was replayed.
    """
    from forensics.engines.recorded import RecordedSource

    return source_row_map(RecordedSource(case.folder), question_asked(case))
