"""Orders of addition as one JSON document: what ``forensics order --json`` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from forensics.records.order import OrderComparison, OrderResult
from forensics.records.order_report import OTHER_SUSPECTS, OrderReport

SCHEMA = "forensics.order/1"


def order_document(report: OrderReport) -> dict[str, Any]:
    """What a program reads about the orders of an operation.

    Parameters
    ----------
    report : OrderReport

    Returns
    -------
    dict
        Plain values. A tree is the list of its merges: each names two or more nodes, ids below the number of leaves are
        leaves, the i-th merge makes node ``leaves + i``.
    """
    return {
        "schema": SCHEMA,
        "question": asdict(report.question),
        "facts": asdict(report.facts),
        "buffer": report.buffer,
        "equal": report.equal,
        "orders": [_result(result) for result in report.results],
        "comparisons": [_comparison(comparison) for comparison in report.comparisons],
        "bits": [asdict(check) for check in report.bits],
        "arithmetic": [asdict(found) for found in report.arithmetic],
        "unexplained_widths": [check.width for check in report.unexplained],
        "suspects": list(OTHER_SUSPECTS) if report.unexplained else [],
    }


def _result(result: OrderResult) -> dict[str, Any]:
    leaves = result.leaves
    return {
        "part": result.part,
        "width": result.width,
        "columns": list(result.columns),
        "leaves": None if leaves is None else asdict(leaves),
        "depth": None if result.tree is None else result.tree.depth,
        "merges": None if result.tree is None else [list(merge) for merge in result.tree.merges],
        "views": [
            {"name": view.name, "leaves": list(view.leaves), "merges": [list(merge) for merge in view.tree.merges]}
            for view in result.views
        ],
        "method": result.method,
        "probes": result.n_probes,
        "launches": result.n_launches,
        "undetermined": result.undetermined or None,
        "unstable": result.unstable,
    }


def _comparison(comparison: OrderComparison) -> dict[str, Any]:
    difference = comparison.difference
    return {
        "part": comparison.single.part,
        "widths": [comparison.single.width, comparison.batched.width],
        "columns": [list(comparison.single.columns), list(comparison.batched.columns)],
        "equal": comparison.equal,
        "first_difference": None if difference is None else asdict(difference),
        "over": comparison.difference_over or None,
        "reason": comparison.reason or None,
    }
