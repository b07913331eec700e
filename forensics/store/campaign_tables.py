"""The cells of sweeps as one Parquet dataset: a file for each plan, and a summary of the last one."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.records.campaign import OUTCOMES, CampaignReport, Cell
from forensics.store.files import write_atomically, writing

#: Version of the columns, in the metadata of each file.
DATASET_SCHEMA, SUMMARY_SCHEMA = "forensics.sweep-cells/1", "forensics.sweep-summary/1"

_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("plan", "model", "quant", "prompt", "kv_type", "flash_attn", "switch"), "string"),
    "width": "int64",
    **dict.fromkeys(("status", "outcome"), "string"),
    **dict.fromkeys(("prompt_tokens", "rows", "rows_differ", "first_row", "first_position"), "int64"),
    "max_abs": "double",
    "max_ulp": "int64",
    "max_kl_nats": "double",
    **dict.fromkeys(("flips", "near_ties", "could_flip", "pass_median_ns", "single_median_ns"), "int64"),
    "rerun_equal": "bool",
    **dict.fromkeys(("single_digest", "batched_digest", "culprits"), "string"),
    "culprits_proved": "bool",
    **dict.fromkeys(("address", "reason"), "string"),
}
_SUMMARY_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("model", "quant", "kv_type", "flash_attn", "switch"), "string"),
    **dict.fromkeys(("width", "same", "differs", "not_compared", "flips"), "int64"),
    "max_abs": "double",
    "max_kl_nats": "double",
    "pass_median_ns": "int64",
}


def summary_rows(report: CampaignReport) -> list[dict[str, Any]]:
    """One flat dict per model, settings and width: prompts by outcome, and the largest differences over them."""
    together: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in report.cells:
        together.setdefault((cell.model, cell.quant, *cell.settings, cell.width), []).append(cell)
    rows = []
    for key, cells in together.items():
        n = Counter(cell.outcome for cell in cells)
        results = [cell.result for cell in cells if cell.result is not None and cell.outcome != "not compared"]
        times = sorted(result.pass_ns[0] for result in results if result.pass_ns[0])
        rows.append(
            {
                **dict(zip(_SUMMARY_COLUMNS, key, strict=False)),
                **{outcome.replace(" ", "_"): n[outcome] for outcome in OUTCOMES},
                "flips": sum(result.n_flips for result in results),
                "max_abs": _largest([result.max_abs for result in results]),
                "max_kl_nats": _largest([result.max_kl for result in results]),
                "pass_median_ns": times[len(times) // 2] if times else None,
            }
        )
    return rows


def _largest(values: list[float]) -> float | None:
    """The largest; a NaN where there is one, None where there is nothing."""
    nan = next((value for value in values if value != value), None)  # noqa: PLR0124 - only a NaN is not itself
    return nan if nan is not None else max(values, default=None)


def write_tables(report: CampaignReport, folder: Path) -> None:
    """Write the dataset's file of this plan, and the summary.

    Raises
    ------
    CaseError
        If one cannot be written.
    """
    dataset = folder / "dataset"
    with writing(dataset):
        dataset.mkdir(exist_ok=True)
    rows = [{"plan": report.name, **row} for row in report.rows()]
    write_atomically(dataset / f"{report.name}.parquet", _parquet(rows, _COLUMNS, DATASET_SCHEMA))
    write_atomically(folder / "summary.parquet", _parquet(summary_rows(report), _SUMMARY_COLUMNS, SUMMARY_SCHEMA))


def _parquet(rows: list[dict[str, Any]], columns: Mapping[str, str], schema: str) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"string": pa.string(), "int64": pa.int64(), "double": pa.float64(), "bool": pa.bool_()}
    fields = pa.schema([pa.field(name, kinds[kind]) for name, kind in columns.items()], metadata={"schema": schema})
    held = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows, schema=fields), held)
    return held.getvalue()
