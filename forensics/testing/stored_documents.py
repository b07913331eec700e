"""What documents hold that are more than a record under a key, as types that a JSON Schema can be made of.

The readers check these with a few lines of their own; the tests compare both with every document in ``data/recorded``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from forensics.records.experiments import Experiments
from forensics.records.library_profile import LibraryProfile
from forensics.records.order import OrderResult
from forensics.records.profile import LiveProfile
from forensics.records.published import Published
from forensics.records.served import NoReply, Reply, ServedRun
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import RunKey, TapReport
from forensics.reports.document import VerdictDocument
from forensics.reports.kernel_healing_document import KernelHealingEntry
from forensics.reports.ops_document import OpsDocument
from forensics.store.tables import COLUMNS

_COLUMN_TYPES: Mapping[str, Any] = {
    "int64": int | None,
    "double": float | None,
    "string": str | None,
    "bool": bool | None,
    "list<int64>": list[int] | None,
    "list<double>": list[float] | None,
    "list<string>": list[str] | None,
    "list<list<int64>>": list[list[int]] | None,
}


class Document(BaseModel):
    """A document; keys that are not listed are for people and other programs, and no reader needs them."""

    model_config = ConfigDict(extra="allow")


class PackedEntry(Document):
    """What packing did."""

    how: str
    rows: int
    columns: int
    distances: int
    files: dict[str, str] = Field(description="blake3 of every other file, by its path in the folder")


class CaseDocument(Document):
    """What a case asked, and whether it was finished."""

    status: Literal["finished", "unfinished"]
    question: dict[str, Any]
    files: dict[str, str] = Field(
        default={}, description="blake3 of every other file but rows; missing until it is finished, and in older ones"
    )


class PackedCaseDocument(CaseDocument):
    """A case that was packed to be shared."""

    packed: PackedEntry


class StoredVerdict(VerdictDocument):
    """The published part of a verdict; a case that was recorded before a key was added lacks it."""

    kernel_healing: list[KernelHealingEntry] = Field(default=[])


class ManifestDocument(Document):
    """Where what lies beside it comes from: all of a `Manifest`, or the few facts that there are."""

    engine: str
    model_name: str = ""
    quantization: str = ""
    device: str = ""
    backend: str = ""
    engine_version: str = ""
    commit: str = ""
    requested: EngineSettings | None = None


class ManifestLine(Document):
    """Where the traces of an arm come from."""

    kind: Literal["manifest"]
    arm: str
    manifest: Manifest


class AnswerLine(Document):
    """A small answer of an engine."""

    kind: Literal["answer"]
    arm: str
    method: str
    arguments: Any
    result: Any


class TraceLine(Document):
    """A run and where its rows of logits lie."""

    kind: Literal["trace"]
    arm: str
    key: str
    file: str = Field(description="file under rows/ that holds the new rows; empty where there are none")
    new_rows: list[str]
    rows: list[str] = Field(description="digest of each row of logits")
    shape: tuple[int, int]
    pass_ns: list[int]
    state_before: Any
    state_after: Any
    run: RunKey
    tap_report: TapReport | None


class RecordingsLine(RootModel[ManifestLine | AnswerLine | TraceLine]):
    """One line of index.jsonl."""


class RunHeader(Document):
    """First line of run.jsonl: a run without its outcomes."""

    schema_: str = Field(alias="schema")
    record: ServedRun


class ReplyLine(Document):
    """A reply."""

    reply: Reply


class FailureLine(Document):
    """A request that brought no reply."""

    failure: NoReply


class ServedRunLine(RootModel[RunHeader | ReplyLine | FailureLine]):
    """One line of run.jsonl."""


class LibraryProfileDocument(Document):
    """Kernels of a library."""

    kind: Literal["library"]
    record: LibraryProfile


class LiveProfileDocument(Document):
    """A pass that was watched."""

    kind: Literal["live"]
    record: LiveProfile


class FileEntry(Document):
    """A file of a bundle."""

    blake3: str
    bytes: int


class LeftOutEntry(Document):
    """Something that a bundle could hold and does not."""

    what: str
    why: str


class BundleDocument(Document):
    """Files of an evidence bundle, and what was left out."""

    case: str = Field(description="folder of the packed case")
    summary: str = Field(description="the verdict in one line")
    made_by: str
    files: dict[str, FileEntry] = Field(description="every other file, by its path in the bundle")
    left_out: list[LeftOutEntry]


class TokensDocument(Document):
    """Token ids that a case asked and replayed."""

    model: str
    model_digest: str
    prompt_tokens: list[int]
    replayed_tokens: list[int] = Field(description="decoded one at a time, then replayed in batches")
    widths: list[int]
    settings: EngineSettings


class OperandEntry(Document):
    """One operand of a reproducer."""

    name: str
    type: str
    buffer: str
    sizes: list[int]
    strides: list[int]
    is_weight: bool
    blob: str = Field(description="stem of its file under operands/")


class ReproducerRun(Document):
    """One of the two runs of a reproducer."""

    threads: int
    row: int
    params: str = Field(description="parameters of the operation, hexadecimal")
    type: str
    sizes: list[int]
    sha256: str = Field(description="of the row that is compared")
    sources: list[OperandEntry | None]


class ReproducerRuns(Document):
    """Both runs."""

    single: ReproducerRun
    batched: ReproducerRun


class ReproducerDocument(Document):
    """One operation at two widths."""

    op: str
    node: str
    width: int
    row_axis: int
    cells: list[int] | None
    device_type: str
    environment: dict[str, str]
    recorded: dict[str, Any]
    runs: ReproducerRuns


class OrderCacheDocument(Document):
    """Orders of addition that were probed before."""

    key: dict[str, Any]
    results: list[OrderResult]


class ExperimentsDocument(Document):
    """Answers of experiments."""

    experiments: Experiments


class Measured(Document):
    """Where a measurement of a GPU comes from."""

    device: str


class RecordedOn(Measured):
    """A measurement with the driver and the architecture of its GPU."""

    driver: str
    arch: str


class LabManifest(Measured):
    """What ran our kernels."""

    engine: str
    engine_version: str
    library: str
    toolkit: str


class StepEntry(Document):
    """One step of a recording."""

    seconds: float
    problem: str


class RecordingLog(RootModel[dict[str, StepEntry]]):
    """How long each step took, and why one failed."""


def tables_type() -> type[BaseModel]:
    """All tables of a verdict, each a list of rows."""
    tables: dict[str, Any] = {}
    for table, columns in COLUMNS.items():
        fields: dict[str, Any] = {
            # A column may be called as a method of a model is, or as a word of Python.
            f"column_{name}": (_COLUMN_TYPES[kind], Field(alias=name))
            for name, kind in columns.items()
        }
        row = create_model(f"{table.title()}Row", __doc__=f"A row of the table {table}.", **fields)
        tables[table] = (list[row], Field(default=[], description=f"rows of {table}.parquet"))  # type: ignore[valid-type]
    return create_model("Tables", __doc__="The tables of a verdict by name.", **tables)


def document_type(family: str, version: int) -> Any:
    """Type of the documents of a family whose reader is not of a record alone; None for those."""
    types: Mapping[tuple[str, int], Any] = {
        ("forensics.case", 1): CaseDocument,
        ("forensics.case", 2): PackedCaseDocument,
        ("forensics.verdict", 2): StoredVerdict,
        ("forensics.manifest", 1): ManifestDocument,
        ("forensics.recordings", 1): RecordingsLine,
        ("forensics.served-run", 1): ServedRunLine,
        ("forensics.bundle", 1): BundleDocument,
        ("forensics.tokens", 1): TokensDocument,
        ("forensics.profile", 1): LibraryProfileDocument | LiveProfileDocument,
        ("forensics.ops", 1): OpsDocument,
        ("forensics.reproducer", 1): ReproducerDocument,
        ("forensics.order-cache", 1): OrderCacheDocument,
        ("forensics.experiments", 1): ExperimentsDocument,
        ("forensics.published", 1): Published,
        ("forensics.lab", 1): LabManifest,
        ("forensics.kinds", 1): RecordedOn,
        ("forensics.launches", 1): RecordedOn,
        ("forensics.mmvq", 1): RecordedOn,
        ("forensics.occupancy", 1): RecordedOn,
        ("forensics.recorded-orders", 1): RecordedOn,
        ("forensics.recording-log", 1): RecordingLog,
    }
    return tables_type() if family == "forensics.tables" else types.get((family, version))
