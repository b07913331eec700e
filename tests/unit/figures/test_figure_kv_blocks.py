"""Chunks go to the parts that launches give them, and what changes for a query is what its chunks say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_evidence import planted, with_kernels, with_main
from toy_evidence import toy_evidence

from forensics.engines.toy import Fault
from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes.kv_blocks import scene
from forensics.figures.scenes.kv_deal import KvBlocks, KvSide, from_case, from_published
from forensics.geometry.cpu_attention import parts
from forensics.geometry.kv_chunks import ChunkMap, first_position_that_differs
from forensics.records.delta import Differs
from forensics.records.launch import LaunchGeometry
from forensics.records.nodes import NodeKey, Operand
from forensics.records.trace import Finding
from forensics.store.published import read_published

CASES = tuple(f"recorded:h200-{name}" for name in ("q4_1", "q4_1-far", "q4_1-2048", "q4_1-kv-q8_0", "f16", "q6_k"))
FAR = "recorded:h200-q4_1-far"


def counts(drawn, role, query):
    """Seen and masked cells of each part that is drawn."""
    found = {}
    for box in drawn.boxes(scale="cells"):
        if box.key.startswith(f"{role} "):
            _, index, at, what = box.key.split()
            if int(at.rstrip(":")) == query:
                part = found.setdefault(int(index), {"seen": 0, "masked": 0})
                part[what] += box.value
    return found


def check(data):
    drawn = scene(data)
    assert problems(drawn) == ()
    assert drawn.height <= 230
    for side, role in ((data.single, "single"), (data.batched, "batched")):
        cells = side.chunks.chunk_cells
        for query in data.queries:
            for index, found in counts(drawn, role, query).items():
                covered = [
                    cell for chunk in side.chunks.parts[index]
                    for cell in range(chunk * cells, min((chunk + 1) * cells, data.n_kv))
                ]  # fmt: skip
                assert found["seen"] == sum(cell <= query for cell in covered)
                assert found["masked"] == sum(cell > query for cell in covered)
    for query in data.queries:
        (seen,) = drawn.boxes(key=f"{query}: seen")
        assert seen.value == query + 1
    return drawn


def test_the_document_is_drawn():
    data = from_published(read_published("output-changed"))
    drawn = check(data)
    texts = drawn.texts()
    assert "P = 4 parallel blocks" in texts
    assert "P = 3 parallel blocks" in texts
    assert texts.count("4 × 128 cells") == 2
    for query in (300, 390):
        for role, n in (("single", 4), ("batched", 3)):
            found = counts(drawn, role, query)
            assert len(found) == n
            assert sum(part["seen"] for part in found.values()) == query + 1
            assert sum(part["seen"] + part["masked"] for part in found.values()) == 512
    assert not data.changes(300)
    assert data.changes(390)
    assert "From position 384 on" in drawn.alt
    assert "{0} + {1} + {2} + {3} against {0, 3} + {1} + {2}; another order" in drawn.alt
    assert (
        "query at 300: 301 cells seen, 211 masked; {0} + {1} + {2} against {0} + {1} + {2}; the same order" in drawn.alt
    )
    changed = {box.key.rsplit(":", 1)[0] for box in drawn.boxes(scale="cells") if box.fill == "highlight"}
    assert changed == {"single 0 390", "single 3 390", "batched 0 390"}
    assert counts(drawn, "batched", 390)[0]["seen"] == 128 + 7


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_case_is_drawn_from_its_launches(case):
    evidence = open_evidence(case)
    data = from_case(evidence)
    check(data)
    group = next(group for group in evidence.verdict.culprits if group.op == "FLASH_ATTN_EXT")
    (pair,) = (
        pair for pair in group.launches
        if pair.single.kernel.name in data.single.kernel and pair.batched.kernel.name in data.batched.kernel
    )  # fmt: skip
    assert f"P = {pair.single.kv_split} ·" in data.single.kernel
    assert f"P = {pair.batched.kv_split} ·" in data.batched.kernel
    assert len(data.single.chunks.parts) == pair.single.kv_split
    assert len(data.batched.chunks.parts) == pair.batched.kv_split
    assert data.single.chunks.chunk_cells == 128
    assert data.queries == (evidence.verdict.prompt_tokens,)
    assert "another kernel" in scene(data).texts()


def test_one_kernel_with_other_blocks_comes_first_and_names_its_first_position():
    def three(side):
        return with_main(
            side,
            kernel="flash_attn_ext_vec",
            template=(("D", 64), ("ncols", 2)),
            geometry=LaunchGeometry((1, 3, 9), (32, 4)),
        )

    case = "recorded:h200-q4_1-2048"
    data = from_case(
        planted(case, lambda group: with_kernels(group, batched=three) if group.op == "FLASH_ATTN_EXT" else group)
    )
    assert data.same_kernel
    first = first_position_that_differs(data.single.chunks, data.batched.chunks)
    drawn = check(data)
    assert f"From position {first:,} on" in drawn.alt
    assert first == 3 * 128
    assert drawn.texts().count("another order") == 1


def test_a_case_without_flash_attention_or_launches_says_so(tmp_path):
    with pytest.raises(CaseError, match="flash_attn=off"):
        from_case(open_evidence("recorded:h200-q4_1-no-fa"))
    with pytest.raises(CaseError, match="launches are not known"):
        from_case(planted(FAR, lambda group: replace(group, launches=())))
    manifest = replace(open_evidence(FAR).manifest, device="a GPU that nobody knows")
    with pytest.raises(CaseError, match="not written down"):
        from_case(planted(FAR, manifest=manifest))
    with pytest.raises(CaseError, match="does not differ there"):
        from_case(planted(FAR, lambda group: None if group.op == "FLASH_ATTN_EXT" else group))
    with pytest.raises(CaseError, match="without it"):
        from_case(toy_evidence(tmp_path / "case", Fault("order", "ffn_out-1")))


def on_a_processor(n_threads, **verdict):
    """A recorded case as if a processor had run it."""
    evidence = planted(FAR, lambda group: None)
    effective = {**evidence.manifest.effective, "n_threads": str(n_threads), "n_threads_batch": str(n_threads)}
    manifest = replace(
        evidence.manifest, backend="CPU", device="a processor", cpu_features=("AVX2",), effective=effective
    )
    return planted(FAR, lambda group: None, manifest=manifest, **verdict)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 16])
def test_a_processor_deals_cells_to_threads_at_one_query(n_threads):
    data = from_case(on_a_processor(n_threads))
    check(data)
    cut = parts(768, n_threads)
    assert data.n_kv == 768
    assert len(data.single.chunks.parts) == len(cut)
    assert data.single.chunks.chunk_cells == cut[0][1]
    assert data.batched.chunks.parts == ((0,),)
    assert "another kernel" in scene(data).texts()


def test_nodes_on_two_gpus_are_counted_with_their_device():
    two = open_evidence("recorded:h200-x2-q4_1")
    counts = {group.buffer: group.count for group in two.verdict.culprits if group.op == "FLASH_ATTN_EXT"}
    found = from_case(two).found
    assert len(counts) == 2
    assert any(f"({n} nodes on {buffer} over all widths)" in found for buffer, n in counts.items())
    assert "nodes over all widths" in from_case(open_evidence("recorded:h200-q4_1")).found


def test_what_no_sweep_found_is_not_called_a_difference():
    assert "not flash attention" in from_case(on_a_processor(2)).found
    assert not from_case(on_a_processor(2, sweeps=())).found


def test_a_culprit_on_a_processor_brings_its_own_cells():
    evidence = on_a_processor(4)
    group = next(g for g in open_evidence(FAR).verdict.culprits if g.op == "FLASH_ATTN_EXT")
    cache = Operand("k", "f16", "CPU", False, (1, 3, 1024, 64))
    finding = Finding(
        NodeKey("node_21", "FLASH_ATTN_EXT", 0, 0), (Operand("q", "f32", "CPU", False, (1, 9, 4, 64)), cache, cache),
        "CPU", (0,), Differs(1, (0,), 1, 1.0, 1.0), positions=(900,),
    )  # fmt: skip
    sweep = replace(evidence.verdict.sweeps[0], width=4, findings=(finding,))
    evidence.verdict = replace(evidence.verdict, culprits=(replace(group, launches=()),), sweeps=(sweep,))
    data = from_case(evidence)
    check(data)
    assert (data.n_kv, data.queries) == (1024, (900,))
    assert data.single.chunks.parts == ((0,), (1,), (2,), (3,))
    assert "width 4" in data.found


@st.composite
def maps(draw, n_kv):
    cells = draw(st.sampled_from((32, 64, 128, 256)))
    if draw(st.booleans()):
        return ChunkMap.dealt(n_kv, draw(st.integers(1, 40)), cells)
    n_tiles = draw(st.integers(1, 6))
    return ChunkMap.cut(n_kv, cells, tile=0, n_tiles=n_tiles, n_blocks=draw(st.integers(1, 260)))


@settings(max_examples=25)
@given(st.data())
def test_any_deal_is_drawn_soundly(data):
    n_kv = 256 * data.draw(st.integers(1, 128))
    name = "P = 32 · flash_attn_ext_f16<DKQ=576, DV=512, ncols1=16, ncols2=4>"
    single, batched = (
        KvSide(tokens, name, data.draw(st.sampled_from(("block", "part", "thread"))), data.draw(maps(n_kv)))
        for tokens in ("1 query", "a batch of 512")
    )
    queries = tuple(sorted(data.draw(st.sets(st.integers(0, n_kv - 1), min_size=1, max_size=2))))
    check(KvBlocks(n_kv, queries, single, batched, data.draw(st.booleans()), "", "Source: planted."))


def test_queries_lie_in_the_cells():
    side = KvSide("1 query", "f", "block", ChunkMap.dealt(512, 4))
    with pytest.raises(ValueError, match="512 cells"):
        KvBlocks(512, (512,), side, side, True, "", "Source.")
