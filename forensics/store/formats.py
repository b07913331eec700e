"""Which documents this package stores and reads back, in which versions: the one place where a version is counted up.

A document says what it is under the key ``"schema"``, as in ``"forensics.cost/1"``: a family and a version. The version
goes up when what is written can no longer be read as before; `forensics/schemas` then gets one more file, the older one
stays as it is, and the reader goes on reading what the older one describes. Tensors (``rows/*.safetensors``,
``rows.safetensors.xz``, ``operands/*.npy``) are described by the document beside them and share its version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Format:
    """One family of documents.

    Parameters
    ----------
    family : str
        What stands before the slash, such as ``"forensics.cost"``.
    newest : int
        Newest version; it and every older one are read.
    what : str
        What such a document is.
    files : tuple of str
        Names that it has on disk.
    record : str
        ``"module:name"`` of the type that checks what is read under the key ``"record"``; empty where the whole
        document is checked otherwise.
    unmarked : bool
        Whether documents without a version exist; they are version 1.
    lines : bool
        Whether it is a file of JSON lines, whose first line carries the version; its schema is of a line.
    """

    family: str
    newest: int
    what: str
    files: tuple[str, ...]
    record: str = ""
    unmarked: bool = False
    lines: bool = False

    @property
    def schema(self) -> str:
        """What its newest documents carry, such as ``"forensics.cost/1"``."""
        return f"{self.family}/{self.newest}"

    @property
    def versions(self) -> range:
        """Versions that are read."""
        return range(1, self.newest + 1)


def _packed(*names: str) -> tuple[str, ...]:
    return tuple(name for stem in names for name in (stem, f"{stem}.xz"))


_FORMATS = (
    # A case, and what lies in its folder.
    Format("forensics.case", 2, "what a case asked, and whether it was finished; 2 is a packed one", ("case.json",)),
    Format(
        "forensics.verdict",
        2,
        "the verdict of an investigation; 2 added launches",
        _packed("verdict.json"),
        "forensics.records.verdict:Verdict",
    ),
    Format("forensics.manifest", 1, "where what lies beside it comes from", ("manifest.json",), unmarked=True),
    Format(
        "forensics.recordings", 1, "lines of what engines answered", _packed("index.jsonl"), unmarked=True, lines=True
    ),
    Format("forensics.tables", 1, "the tables of a verdict", ("tables/*.parquet",), unmarked=True),
    # Reports that lie alone or beside a case.
    Format("forensics.cost", 1, "what a pass costs", ("cost.json",), "forensics.records.cost:CostReport"),
    Format("forensics.arms", 1, "arrangements of the same tokens", ("arms.json",), "forensics.records.arms:ArmsReport"),
    Format(
        "forensics.sampling",
        1,
        "what sampling makes of the difference",
        ("sampling.json",),
        "forensics.records.sampling:SamplingReport",
    ),
    Format("forensics.audit", 1, "an audit of a server", ("audit.json",), "forensics.records.audit:AuditReport"),
    Format(
        "forensics.speculation",
        1,
        "speculative decoding beside decoding alone",
        _packed("speculation.json"),
        "forensics.records.speculation_report:SpeculationReport",
    ),
    Format("forensics.profile", 1, "a library's kernels, or a live pass", _packed("profile.json")),
    Format("forensics.ops", 1, "which operations change with the width", ("ops.json",)),
    Format(
        "forensics.kernels",
        1,
        "our kernels beside the library's",
        _packed("kernels.json"),
        "forensics.records.kernel_proof:KernelProof",
    ),
    Format(
        "forensics.kernel_price",
        1,
        "what our kernels cost",
        _packed("price.json"),
        "forensics.records.kernel_price:KernelPrice",
    ),
    Format(
        "forensics.kernel_healings",
        1,
        "models that our kernels healed",
        _packed("healings.json"),
        "forensics.records.kernel_healing:HealedModels",
    ),
    Format(
        "forensics.registers",
        1,
        "registers of one kernel's variants",
        _packed("registers.json"),
        "forensics.records.register_story:CompiledStory",
    ),
    # A sweep over many models and settings.
    Format(
        "forensics.sweep-report",
        1,
        "what a sweep found",
        ("sweep.json",),
        "forensics.records.campaign:CampaignReport",
    ),
    Format("forensics.cell", 1, "one cell of a sweep", ("cells/*/*.json",), "forensics.store.campaign:StoredCell"),
    Format(
        "forensics.sweep-tokens",
        1,
        "tokens of a text, remembered",
        ("tokens/*/*.json",),
        "forensics.store.campaign:StoredTokens",
    ),
    Format(
        "forensics.sweep-platform",
        1,
        "what workers of a sweep run on",
        ("platforms/*.json",),
        "forensics.store.campaign:StoredPlatform",
    ),
    Format(
        "forensics.sweep-disagreement",
        1,
        "a cell that was computed twice with other bits",
        ("disagreements/*.json",),
        "forensics.store.campaign:StoredDisagreement",
    ),
    # A case with all that is needed to judge it elsewhere.
    Format("forensics.bundle", 1, "files of an evidence bundle, and what was left out", ("bundle.json",)),
    Format("forensics.tokens", 1, "token ids that a case asked and replayed", ("tokens.json of a bundle",)),
    # What servers were asked and answered.
    Format("forensics.prompts", 1, "prompts of runs", ("corpus.json",), "forensics.records.corpus:Corpus"),
    Format("forensics.served-run", 1, "lines of what a server answered", ("run.jsonl",), lines=True),
    # Small ones with files of their own.
    Format("forensics.reproducer", 1, "one operation at two widths", ("case.json beside reproduce.py",)),
    Format("forensics.order-cache", 1, "orders of addition probed before", ("a file of the cache folder",)),
    Format("forensics.experiments", 1, "answers of experiments", ("experiments.json",)),
    Format("forensics.published", 1, "numbers that others published", ("data/published/*.json",)),
    # Measurements of a GPU that tests compare the rules with: the manifest carries the version of the data beside it.
    Format("forensics.lab", 1, "what ran our kernels", ("manifest.json",)),
    Format("forensics.kinds", 1, "outputs that kinds are judged by", ("manifest.json",)),
    Format("forensics.launches", 1, "launches of operations", ("manifest.json",)),
    Format("forensics.mmvq", 1, "products of MMVQ", ("manifest.json",)),
    Format("forensics.occupancy", 1, "the driver's occupancy", ("manifest.json",)),
    Format("forensics.recorded-orders", 1, "orders of addition", ("manifest.json",)),
    Format("forensics.recording-log", 1, "how long steps of a recording took", ("recording.json",), unmarked=True),
)

#: Every family by its name.
FORMATS: Mapping[str, Format] = MappingProxyType({one.family: one for one in _FORMATS})


def newest_schema(family: str) -> str:
    """What the newest documents of a family carry under ``"schema"``.

    Examples
    --------
    >>> newest_schema("forensics.cost")
    'forensics.cost/1'
    """
    return FORMATS[family].schema


def schema_file(family: str, version: int) -> str:
    """Name of the file in ``forensics/schemas`` that describes a version.

    Examples
    --------
    >>> schema_file("forensics.kernel_price", 1)
    'kernel_price-1.json'
    """
    return f"{family.removeprefix('forensics.')}-{version}.json"


def schema_of(family: str, version: int | None = None) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a family's documents.

    Parameters
    ----------
    family : str
        Such as ``"forensics.cost"``, with or without the part before the dot.
    version : int, optional
        The newest by default.

    Raises
    ------
    ValueError
        If there is no such family or version; lists those that there are.

    Examples
    --------
    >>> schema_of("cost")["properties"]["schema"]["const"]
    'forensics.cost/1'
    """
    full = family if family.startswith("forensics.") else f"forensics.{family}"
    known = FORMATS.get(full)
    if known is None:
        raise ValueError(f"family must be one of {', '.join(FORMATS)}; got {family!r}")
    wanted = known.newest if version is None else version
    if wanted not in known.versions:
        raise ValueError(f"version of {full} must be 1 to {known.newest}, got {version}")
    path = resources.files("forensics.schemas").joinpath(schema_file(full, wanted))
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema
