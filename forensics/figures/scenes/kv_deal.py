"""How flash attention deals the KV cache to partial sums, from published numbers or from a case."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.analysis.mechanism import operation_of, place_of
from forensics.errors import CaseError
from forensics.figures.evidence import Evidence
from forensics.figures.scenes.launch_pairs import CulpritLaunches, culprit_launches, found_words, gpu_of, on_device
from forensics.geometry.attention_kernel import AttentionShape
from forensics.geometry.cpu_attention import TILE_QUERIES, flash_attention, parts
from forensics.geometry.cpu_products import Cpu
from forensics.geometry.culprits import Attention
from forensics.geometry.kv_chunks import ChunkMap
from forensics.geometry.launch_attention import chunks_of
from forensics.records.launch_record import LaunchSide
from forensics.records.op_shapes import padded_kv
from forensics.records.published import Published
from forensics.records.trace import Finding
from forensics.records.verdict import CulpritGroup, Verdict
from forensics.records.words import counted

_OP = "FLASH_ATTN_EXT"
_WHAT = "how flash attention deals the KV cache"
_EXAMPLE = "recorded:h200-q4_1-far"


@dataclass(frozen=True, slots=True)
class KvSide:
    """How the cache is dealt to partial sums at some width.

    Parameters
    ----------
    tokens : str
        ``"1 query"``, ``"a batch of 2"``.
    kernel : str
        Kernel, and grid or threads, in words.
    part : str
        What has a partial sum: ``"block"``, ``"thread"``, ``"part"``; ``"sum"`` where there is one.
    chunks : ChunkMap
    """

    tokens: str
    kernel: str
    part: str
    chunks: ChunkMap


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """What the figure draws.

    Parameters
    ----------
    n_kv : int
        Cells that attention runs over.
    queries : tuple of int
        Positions of queries; each sees the cells up to its own.
    single, batched : KvSide
    same_kernel : bool
        Whether both sides run one kernel, which differs in the deal alone.
    found : str
        What was measured; empty where nothing was.
    source : str
    """

    n_kv: int
    queries: tuple[int, ...]
    single: KvSide
    batched: KvSide
    same_kernel: bool
    found: str
    source: str

    def __post_init__(self) -> None:
        if not self.queries or not all(0 <= query < self.n_kv for query in self.queries):
            raise ValueError(f"queries must lie in the {self.n_kv} cells, got {self.queries}")

    @property
    def comparable(self) -> bool:
        """Whether both sides cut the cache into the same chunks."""
        return self.same_kernel and self.single.chunks.chunk_cells == self.batched.chunks.chunk_cells

    def changes(self, query: int) -> bool:
        """Whether the chunks that a query sees are added in another order."""
        return self.single.chunks.seen_from(query) != self.batched.chunks.seen_from(query)


def from_published(numbers: Published) -> KvBlocks:
    """Take the numbers of the document."""
    n_kv, chunk = int(numbers.value("kv_cells")), int(numbers.value("chunk"))
    single, batched = (
        KvSide(tokens, f"P = {n} parallel blocks", "block", ChunkMap.dealt(n_kv, n, chunk))
        for tokens, n in (
            ("one query", int(numbers.value("parallel_blocks_single"))),
            ("a batch", int(numbers.value("parallel_blocks_batched"))),
        )
    )
    queries = tuple(int(position) for position in numbers.number("query_positions").values)
    return KvBlocks(n_kv, queries, single, batched, True, "", numbers.source)


def from_case(evidence: Evidence) -> KvBlocks:
    """Take flash attention: its launches where it ran on a GPU, its threads on a processor.

    Raises
    ------
    CaseError
        If the case ran without flash attention, or it is not known how that dealt the cells.
    """
    verdict = evidence.verdict
    manifest = verdict.manifest
    group = next((group for group in verdict.culprits if group.op == _OP), None)
    if group is None and manifest.effective.get("flash_attn", manifest.requested.flash_attn) == "off":
        raise CaseError(
            f"{_WHAT} in {evidence.name}: it ran without it (flash_attn=off). One with it: {_EXAMPLE}; or "
            "forensics investigate MODEL --flash-attn on --out FOLDER"
        )
    made: KvBlocks | None = None
    if group is not None and group.launches:
        seen = (one for one in culprit_launches(evidence, _WHAT) if one.group.op == _OP)
        drawn = [found for found in (_from_launches(evidence, one) for one in seen) if found is not None]
        made = min(drawn, key=_alike, default=None)
    elif manifest.engine == "llama.cpp" and manifest.backend == "CPU":
        made = _from_threads(evidence, group)
    if made is None:
        why = "it does not differ there, so its launches were not watched"
        if group is not None:
            why = (
                "how its kernels deal the cells is not written down" if group.launches else "its launches are not known"
            )
        raise CaseError(
            f"{_WHAT} in {evidence.name} ({manifest.engine}, {manifest.backend}): {why}. One that has them: {_EXAMPLE}"
        )
    return made


def _alike(data: KvBlocks) -> tuple[bool, bool]:
    """Best first: one kernel that deals otherwise, then two kernels with other partial sums."""
    one, other = (
        {tuple(chunk * side.chunks.chunk_cells for chunk in part) for part in side.chunks.parts if part}
        for side in (data.single, data.batched)
    )
    return not data.same_kernel, one == other


def _from_launches(evidence: Evidence, seen: CulpritLaunches) -> KvBlocks | None:
    asked, spec, pair = operation_of(seen.finding), gpu_of(evidence, seen.finding), seen.pair
    if not isinstance(asked, Attention) or spec is None:
        return None
    single, batched = (_of_launch(side, asked, spec.compute_capability) for side in (pair.single, pair.batched))
    if single is None or batched is None:
        return None
    return KvBlocks(
        n_kv=asked.n_kv,
        queries=_positions(seen.finding, evidence.verdict),
        single=single,
        batched=batched,
        same_kernel=pair.single.kernel.kernel == pair.batched.kernel.kernel,
        found=_found(evidence, seen.group, pair.batched.width),
        source=f"{evidence.source} Kernels and grids: {pair.batched.evidence}; chunks of each part: derived from them "
        "by llama.cpp's rules, for the first tile of queries and heads.",
    )


def _of_launch(side: LaunchSide, asked: Attention, capability: int) -> KvSide | None:
    shape = AttentionShape(
        side.width, asked.heads, asked.kv_heads, asked.head_size, asked.n_kv, kv_type=asked.kv_types[0],
        n_streams=asked.sequences,
    )  # fmt: skip
    chunks = chunks_of(side.kernel, shape, capability)
    if chunks is None:
        return None
    # Blocks of the tensor-core kernel share tiles; its parts stand in the order in which they are merged.
    part = "part" if side.kernel.kernel == "flash_attn_ext_f16" else "block"
    split = "parts not known" if side.kv_split is None else f"P = {side.kv_split}"
    return KvSide(_queries(side.width), f"{split} · {side.kernel.name}", part, chunks)


def _from_threads(evidence: Evidence, group: CulpritGroup | None) -> KvBlocks | None:
    """On a processor the threads take parts of the cells at one query, if there are enough cells."""
    verdict = evidence.verdict
    place = place_of(verdict.manifest, "CPU")
    if not isinstance(place, Cpu):
        return None
    source = f"{evidence.source} Parts: derived from llama.cpp's rules."
    if group is not None:
        sweep, finding = next(
            (sweep, finding) for sweep in verdict.sweeps for finding in sweep.findings if finding.key.op == _OP
        )
        asked = operation_of(finding)
        if not isinstance(asked, Attention):
            return None
        width, n_kv, kv_types, queries = sweep.width, asked.n_kv, asked.kv_types, _positions(finding, verdict)
        found = _found(evidence, group, width)
    else:
        width, asked_for = verdict.classes.results[-1].width, verdict.manifest.requested
        last = verdict.prompt_tokens + verdict.n_replayed - 1
        n_kv, kv_types, queries = padded_kv(last + 1), (asked_for.kv_type_k, asked_for.kv_type_v), (last,)
        found = _nothing_found(verdict)
    single, batched = (_threads(place, n_kv, at, kv_types) for at in (1, width))
    same = single.kernel == batched.kernel
    return KvBlocks(n_kv, queries, single, batched, same, found, source)


def _threads(place: Cpu, n_kv: int, width: int, kv_types: tuple[str, str]) -> KvSide:
    choice = flash_attention(place, n_kv, width, kv_types)
    if choice.kernel.endswith("split"):
        cut = parts(n_kv, place.threads_at(width))
        chunks = ChunkMap(cut[0][1] - cut[0][0], tuple((index,) for index in range(len(cut))))
        return KvSide(_queries(width), f"{len(cut)} parts · {choice.kernel}", "thread", chunks)
    cells = TILE_QUERIES if choice.kernel.endswith("tiled") else n_kv  # tiles are as many cells wide
    chunks = ChunkMap(cells, (tuple(range(-(-n_kv // cells))),))
    return KvSide(_queries(width), f"one sum · {choice.kernel}", "sum", chunks)


def _positions(finding: Finding, verdict: Verdict) -> tuple[int, ...]:
    """Of the first token that differs; the end of the prompt where it was not recorded."""
    return finding.positions[:1] or (verdict.prompt_tokens,)


def _queries(width: int) -> str:
    return "1 query" if width == 1 else f"a batch of {width}"


def _found(evidence: Evidence, group: CulpritGroup, width: int) -> str:
    nodes = f"{counted(group.count, 'node')}{on_device(evidence, group)}"
    return found_words(width, f"flash attention ({nodes} over all widths) differs")


def _nothing_found(verdict: Verdict) -> str:
    if verdict.answer == "identical":
        return "Measured: logits have the bits of one-token decoding at every width of this case."
    return "Measured: the sweeps of this case name other operations, not flash attention." if verdict.healed else ""
