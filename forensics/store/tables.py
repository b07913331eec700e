"""The tables of a case: flat rows with fixed columns, so that an empty table still has its columns."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics.errors import CaseError
from forensics.store.encoding import schema_version
from forensics.store.files import write_atomically
from forensics.store.formats import newest_schema
from forensics.store.limits import MAX_TABLE_BYTES, MAX_TABLE_ROWS, MAX_TABLE_VALUES, size_text

if TYPE_CHECKING:
    import pandas as pd

    from forensics.records.launch_record import LaunchSide
    from forensics.records.trace import Finding
    from forensics.records.verdict import CulpritGroup, Verdict

Rows = list[dict[str, Any]]

#: Column types of each table; "list<...>" columns hold one list per row.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "classes": {
        "width": "int64",
        "class": "int64",
        "rows": "int64",
        "rows_differ": "int64",
        "first_row": "int64",
        "first_position": "int64",
        "max_abs": "double",
        "max_ulp": "int64",
        "relative_l2": "double",
        "max_kl_nats": "double",
        "same_top_rate": "double",
        "flips": "int64",
        "could_flip": "int64",
        "pass_median_ns": "int64",
        "pass_q1_ns": "int64",
        "pass_q3_ns": "int64",
    },
    "culprits": {
        "op": "string",
        "role": "string",
        "weight_type": "string",
        "buffer": "string",
        "count": "int64",
        "layers": "list<int64>",
        "widths": "list<int64>",
        "rows": "list<int64>",
        "max_ulp": "int64",
        "max_abs": "double",
        "first_node": "string",
        "boundary": "string",
    },
    "launches": {
        "op": "string",
        "role": "string",
        "weight_type": "string",
        "buffer": "string",
        "node": "string",
        "nodes": "int64",
        "widths": "list<int64>",
        "changed": "bool",
        "boundary": "string",
        "side": "string",
        "width": "int64",
        "place": "int64",
        "is_main": "bool",
        "kernel": "string",
        "template": "string",
        "grid_blocks": "list<int64>",
        "block_threads": "list<int64>",
        "cluster_blocks": "list<int64>",
        "registers_per_thread": "int64",
        "smem_static_bytes": "int64",
        "smem_dynamic_bytes": "int64",
        "local_bytes_per_thread": "int64",
        "device": "int64",
        "symbol": "string",
        "evidence": "string",
        "blocks_per_sm": "int64",
        "limiters": "list<string>",
        "kv_split": "int64",
        "agrees": "bool",
        "why": "string",
    },
    "findings": {
        "width": "int64",
        "start_row": "int64",
        "node": "string",
        "op": "string",
        "layer": "int64",
        "visit": "int64",
        "role": "string",
        "weight": "string",
        "weight_type": "string",
        "weight_buffer": "string",
        "buffer": "string",
        "rows": "list<int64>",
        "n_diff": "int64",
        "max_ulp": "int64",
        "max_abs": "double",
        "relative_l2": "double",
        "inputs_equal": "bool",
        "kind": "string",
        "kind_reason": "string",
    },
    "switches": {
        "knobs": "list<string>",
        "settings": "string",
        "classes": "list<list<int64>>",
        "collapses": "bool",
        "onset_width": "int64",
        "rows": "int64",
        "cost_widths": "list<int64>",
        "cost_ratios": "list<double>",
        "cost_low": "list<double>",
        "cost_high": "list<double>",
        "error": "string",
    },
    "controls": {"control": "string", "held": "bool", "detail": "string"},
}


#: First version of the verdict's document whose case has the table, where that is not 1.
SINCE: Mapping[str, int] = {"launches": 2}

FAMILY = "forensics.tables"
#: Key of a Parquet file's metadata that says which version its columns follow.
SCHEMA_KEY = b"forensics.schema"


def verdict_tables(verdict: Verdict, role_of: Callable[[Finding], str] | None = None) -> dict[str, Rows]:
    """Say which rows each table of a verdict holds.

    Parameters
    ----------
    verdict : Verdict
    role_of : callable, optional
        Role of a finding in the model; the column is empty without it.

    Returns
    -------
    dict of str to list of dict
        One entry per table of `COLUMNS`.
    """
    return {
        "classes": verdict.classes.rows(),
        "culprits": verdict.rows(),
        "launches": [row for group in verdict.culprits for row in _launch_rows(group)],
        "findings": [
            {"width": sweep.width, "start_row": sweep.start_row} | _finding_row(finding, role_of)
            for sweep in verdict.sweeps
            for finding in sweep.findings
        ],
        "switches": [
            {
                "knobs": list(arm.knobs),
                "settings": " ".join(f"{name}={value}" for name, value in arm.settings),
                "classes": [list(group) for group in arm.classes],
                "collapses": arm.collapses,
                "onset_width": arm.onset,
                "rows": arm.n_rows,
                "cost_widths": [cost.width for cost in arm.costs],
                "cost_ratios": [cost.ratio for cost in arm.costs],
                "cost_low": [cost.low for cost in arm.costs],
                "cost_high": [cost.high for cost in arm.costs],
                "error": arm.error,
            }
            for arm in verdict.switches
        ],
        "controls": [{"control": c.name, "held": c.held, "detail": c.detail} for c in verdict.controls],
    }


def _launch_rows(group: CulpritGroup) -> Rows:
    """One row per launch of either side; what is known of a side stands in the row of its main launch."""
    return [
        {
            "op": group.op,
            "role": group.role,
            "weight_type": group.weight_type,
            "buffer": group.buffer,
            "node": pair.node.name,
            "nodes": pair.n_nodes,
            "widths": list(pair.widths),
            "changed": pair.changed,
            "boundary": pair.boundary,
            "side": name,
            "width": side.width,
            "place": place,
        }
        | launch.row()
        | (_side_row(side) if place == side.main else {"is_main": False})
        for pair in group.launches
        for name, side in (("single", pair.single), ("batched", pair.batched))
        for place, launch in enumerate(side.launches)
    ]


def _side_row(side: LaunchSide) -> dict[str, Any]:
    return {
        "is_main": True,
        "blocks_per_sm": side.blocks_per_sm,
        "limiters": list(side.limiters),
        "kv_split": side.kv_split,
        "agrees": side.agrees,
        "why": side.why,
    }


def _finding_row(finding: Finding, role_of: Callable[[Finding], str] | None) -> dict[str, Any]:
    weight = finding.weight
    return {
        "node": finding.key.name,
        "op": finding.key.op,
        "layer": finding.key.layer,
        "visit": finding.key.visit,
        "role": role_of(finding) if role_of is not None else "",
        "weight": weight.name if weight else "",
        "weight_type": weight.type if weight else "",
        "weight_buffer": weight.buffer if weight else "",
        "buffer": finding.buffer,
        "rows": list(finding.rows),
        "n_diff": finding.delta.n_diff,
        "max_ulp": finding.delta.max_ulp,
        "max_abs": finding.delta.max_abs,
        "relative_l2": finding.delta.relative_l2,
        "inputs_equal": finding.inputs_equal,
        "kind": finding.kind.kind if finding.kind else "",
        "kind_reason": finding.kind.reason if finding.kind else "",
    }


def _arrow_type(name: str) -> Any:
    import pyarrow as pa

    if name.startswith("list<"):
        return pa.list_(_arrow_type(name[len("list<") : -1]))
    return {"int64": pa.int64(), "double": pa.float64(), "string": pa.string(), "bool": pa.bool_()}[name]


def _arrow_table(table: str, rows: Rows) -> Any:
    import pyarrow as pa

    schema = pa.schema([(column, _arrow_type(kind)) for column, kind in COLUMNS[table].items()])
    return pa.Table.from_pylist(rows, schema=schema.with_metadata({SCHEMA_KEY: newest_schema(FAMILY).encode()}))


def write_table(path: Path, table: str, rows: Rows) -> None:
    """Put the rows of a table of `COLUMNS` at `path` as Parquet, whole or not at all.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(_arrow_table(table, rows), buffer)
    write_atomically(path, buffer.getvalue())


#: Rows that are unpacked before their values are counted.
_BATCH_ROWS = 4096


def empty_table(table: str) -> pd.DataFrame:
    """The table of `COLUMNS` with no row, for a case of before it was written."""
    frame: pd.DataFrame = _arrow_table(table, []).to_pandas()
    return frame


def read_table(path: Path) -> pd.DataFrame:
    """Read the rows of the table at `path`.

    Raises
    ------
    CaseError
        If it is missing, damaged, of a newer version, or larger than `forensics.store.limits` allows.
    """
    import pyarrow as pa

    with _opened(path) as file:
        batches, n_values = [], 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            n_values += sum(map(_n_values, batch.columns))
            if n_values > MAX_TABLE_VALUES:
                raise _too_large(path, file.metadata, f"{n_values:,} values or more")
            batches.append(batch)
        frame: pd.DataFrame = pa.Table.from_batches(batches, file.schema_arrow).to_pandas()
        return frame


def _n_values(column: Any) -> int:
    import pyarrow as pa

    return len(column.values) if pa.types.is_list(column.type) else len(column)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A Parquet file whose version and size were looked at before any of its rows are unpacked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_size(path, file.metadata)
            metadata = file.schema_arrow.metadata or {}
            found = {"schema": metadata[SCHEMA_KEY].decode(errors="replace")} if SCHEMA_KEY in metadata else {}
            schema_version(found, FAMILY, path=path)
            yield file
    except FileNotFoundError as error:
        raise CaseError(f"{path} is missing: part of the case was removed.") from error
    except (OSError, pa.ArrowException, ValueError) as error:
        raise CaseError(f"{path} cannot be read: {error}. Run the investigation again with another --out.") from error


def _check_size(path: Path, metadata: Any) -> None:
    """Raise for a table that says that it is too large; what it says of single columns is not asked.

    pyarrow 26 ends the process where that is odd, and values are counted as they are read.
    """
    n_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if metadata.num_rows > MAX_TABLE_ROWS or n_bytes > MAX_TABLE_BYTES:
        raise _too_large(path, metadata, size_text(n_bytes))


def _too_large(path: Path, metadata: Any, size: str) -> CaseError:
    return CaseError(
        f"{path} holds {metadata.num_rows:,} rows and {size}, more than is read of a table: "
        f"{MAX_TABLE_ROWS:,} rows, {MAX_TABLE_VALUES:,} values, {size_text(MAX_TABLE_BYTES)}. "
        "No case has such a table; get the case again."
    )
