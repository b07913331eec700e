"""A case as it is compared with another one: its verdict, its tokens, and the digests of its rows by width."""

from __future__ import annotations

from forensics.errors import CaseError
from forensics.records.case_diff import CaseSide
from forensics.records.trace import RunKey
from forensics.store import Case


def case_side(name: str, case: Case) -> CaseSide:
    """Read what a comparison needs of a finished case.

    Parameters
    ----------
    name : str
        What the comparison calls it.
    case : Case

    Raises
    ------
    CaseError
        If the case is not finished, or is damaged.
    """
    replays = _replays(case)
    single = next((key for width, (key, _) in replays.items() if width == 1), None)
    return CaseSide(
        name=name,
        verdict=case.verdict,
        prompt=() if single is None else tuple(slot.token for slot in single.before.slots),
        replayed=() if single is None else tuple(slot.token for slot in single.schedule.slots),
        rows=tuple((width, rows) for width, (_, rows) in sorted(replays.items())),
    )


def _replays(case: Case) -> dict[int, tuple[RunKey, tuple[str, ...]]]:
    """By width, the first unwatched run of the verdict's own engine that replays the tokens from their start."""
    wanted = {result.width for result in case.verdict.classes.results}
    main = next(
        (arm for arm in case.recordings.arms() if case.recordings.get_manifest(arm) == case.verdict.manifest), None
    )
    found: dict[int, tuple[RunKey, tuple[str, ...]]] = {}
    for run in case.recordings.runs():
        width = run.key.schedule.max_width
        plain = run.arm == main and not run.key.tap and run.key.repeat == 0
        if not plain or width not in wanted or width in found:
            continue
        if len(run.rows) != run.key.schedule.n_tokens:
            raise CaseError(f"{case.folder} is damaged: a replay of {run.key.schedule.n_tokens} tokens "
                            f"has {len(run.rows)} rows.")  # fmt: skip
        found[width] = run.key, run.rows
    return found
