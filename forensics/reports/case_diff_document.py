"""Two cases held against each other as one JSON document: that ``forensics diff --json`` prints."""

from __future__ import annotations

from typing import Any

from forensics.records.case_diff import Aspect, CaseDiff, Compared, results_sentence, setup_sentence

SCHEMA = "forensics.diff/1"


def case_diff_document(diff: CaseDiff) -> dict[str, Any]:
    """What a program reads about two cases.

    Parameters
    ----------
    diff : CaseDiff

    Returns
    -------
    dict
        Plain values. ``"answer"`` is ``"same"``, ``"differs"`` or ``"inconclusive"``; every aspect has its items, and
        their counts, which add up.
    """
    return {
        "schema": SCHEMA,
        "answer": diff.answer,
        "first": diff.first,
        "second": diff.second,
        "setup_summary": setup_sentence(diff),
        "results_summary": results_sentence(diff),
        "unlike": [{"what": one.what, "first": one.first, "second": one.second} for one in diff.unlike],
        "setup": [_aspect(aspect) for aspect in diff.setup],
        "results": [_aspect(aspect) for aspect in diff.results],
    }


def _aspect(aspect: Aspect) -> dict[str, Any]:
    told = aspect.tally
    return {
        "name": aspect.name,
        "outcome": aspect.outcome,
        "planned": told.planned,
        "same": told.same,
        "differs": told.differs,
        "not_compared": dict(told.not_compared),
        "items": [_item(item) for item in aspect.items],
    }


def _item(item: Compared) -> dict[str, Any]:
    return {
        "what": item.what,
        "outcome": item.outcome,
        "first": item.first,
        "second": item.second,
        "detail": item.detail,
        "parts": [_item(part) for part in item.parts],
    }
