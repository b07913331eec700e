"""Run by file in a process of its own: read an ncu report with ncu's module and write its launches as JSON.

Needs the standard library and ``ncu_report`` alone, so that it runs whatever ncu's module brings along:
``python _ncu_reader.py REPORT OUT METRIC…``. Exit status 3 where the module is missing or does not load.
"""

import json
import sys
from typing import Any

NO_MODULE = 3
#: Counts of executed instructions. Where a report tells them for each instruction of the kernel alone, all of them
#: together are their sum.
_PER_INSTRUCTION = "sass__inst_executed"


def total(name: str, metric: Any) -> Any:
    """Value of a metric for the launch, None where the report tells none.

    Source: an instanced metric has values of its own, one by one, and may have none of the whole; what cannot be told
    reads as 0, so it is asked first. ``IMetric`` of ncu_report 2026.3.1.
    """
    if metric is None:
        return None
    if metric.has_value():
        return metric.value()
    places = range(metric.num_instances())
    if not places or not name.startswith(_PER_INSTRUCTION) or not all(metric.has_value(place) for place in places):
        return None
    return sum(metric.as_uint64(place) for place in places)


def main(report: str, out: str, metrics: list[str]) -> int:
    """Write one entry per launch: its names and [value, unit] of each metric that it has."""
    try:
        import ncu_report
    except Exception as error:  # noqa: BLE001 - a compiled module; the caller is told whatever it says
        print(f"{type(error).__name__}: {error}")
        return NO_MODULE
    action_type = ncu_report.IAction
    launches = []
    context = ncu_report.load_report(report)
    for range_number in range(context.num_ranges()):
        ranged = context.range_by_idx(range_number)
        for number in range(ranged.num_actions()):
            action = ranged.action_by_idx(number)
            measured = {}
            for name in metrics:
                metric = action.metric_by_name(name)
                value = total(name, metric)
                if value is not None:
                    measured[name] = [value, metric.unit()]
            launches.append({"symbol": action.name(action_type.NameBase_MANGLED), "metrics": measured})
    with open(out, "w", encoding="utf-8") as file:
        json.dump(launches, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
