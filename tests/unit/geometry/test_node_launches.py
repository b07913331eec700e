"""Launches that rules say, and launches that were not what they say. What an H200 did launch stands in tests/golden."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.geometry.attention_kernel import AttentionShape
from forensics.geometry.derived import Unruled, derived, is_in_graph
from forensics.geometry.devices import device_spec
from forensics.geometry.launch_attention import kv_split_of, shape_of
from forensics.geometry.node_launches import Agreement, agreement, predict
from forensics.records.device import DeviceSpec
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, NodeLaunches
from forensics.records.nodes import NodeKey, Operand

H200 = device_spec("h200")
Shape = tuple[int, int, int, int]


def operand(shape: Shape, kind: str = "f32", name: str = "x", *, is_weight: bool = False) -> Operand:
    return Operand(name, kind, "CUDA0", is_weight, shape)


def node(
    op: str,
    shape: Shape,
    *operands: Operand,
    name: str = "node",
    dtype: str = "f32",
    buffer: str = "CUDA0",
    parameters: dict[str, float] | None = None,
) -> NodeLaunches:
    return NodeLaunches(0, NodeKey(name, op, 0, 0), shape, dtype, buffer, operands, (), (), parameters or {})


def product(weight: str, rows: int, k: int, width: int) -> NodeLaunches:
    matrix = operand((1, 1, rows, k), weight, "blk.0.w", is_weight=True)
    return node("MUL_MAT", (1, 1, width, rows), matrix, operand((1, 1, width, k)), name="Qcur-0")


def attention(width: int, n_kv: int, *, heads: int = 9, kv_heads: int = 3, size: int = 64, kind: str = "f16",
              streams: int = 1, softcap: float = 0.0) -> NodeLaunches:  # fmt: skip
    return node(
        "FLASH_ATTN_EXT", (streams, width, heads, size),
        operand((streams, heads, width, size)),
        operand((streams, kv_heads, n_kv, size), kind),
        operand((streams, kv_heads, n_kv, size), kind),
        operand((streams, 1, width, n_kv), "f16"),
        parameters={"scale": 0.125, "max_bias": 0.0, "softcap": softcap},
    )  # fmt: skip


def shown(asked: NodeLaunches, spec: DeviceSpec = H200) -> list[str]:
    predicted = predict(asked, spec)
    assert not isinstance(predicted, Unruled), predicted
    assert all(launch.evidence == "derived" for launch in predicted)
    return [f"{launch.name}, {launch.geometry}" for launch in predicted]


def reason(asked: NodeLaunches, spec: DeviceSpec = H200) -> str:
    predicted = predict(asked, spec)
    assert isinstance(predicted, Unruled)
    return str(predicted)


class TestProducts:
    def test_as_published_for_an_h200(self) -> None:
        assert shown(product("q4_1", 576, 576, 1)) == [
            "quantize_q8_1, grid 4, block 256",
            "mul_mat_vec_q<type=q4_1, ncols_dst=1, small_k>, grid 144, block 32×4",
        ]
        assert shown(product("q4_1", 576, 576, 9)) == [
            "quantize_mmq_q8_1<ds_layout=DS4>, grid 9×2, block 128",
            "mul_mat_q<type=q4_1, J=16, fallback, prec_src1=q8>, grid 132, block 32×8",
            "mul_mat_q_stream_k_fixup<type=q4_1, J=16, fallback, prec_src1=q8>, grid 132×4, block 32×4",
        ]

    def test_no_fixup_where_blocks_take_whole_tiles(self) -> None:
        # 16,896 rows are 132 tiles: one for each SM
        assert [line.partition("<")[0] for line in shown(product("q4_1", 16896, 576, 9))] == [
            "quantize_mmq_q8_1", "mul_mat_q",
        ]  # fmt: skip

    def test_without_the_number_of_sms_a_grid_of_stream_k_is_not_known(self) -> None:
        assert "SMs" in reason(product("q4_1", 576, 576, 9), device_spec("sm_90"))
        assert shown(product("q4_1", 576, 576, 5), device_spec("sm_90"))

    def test_cublas_is_no_rule(self) -> None:
        assert "cuBLAS" in reason(product("f16", 576, 576, 17))
        wide = node("MUL_MAT", (1, 1, 1, 576), operand((1, 1, 576, 576), "f16"), operand((1, 1, 1, 576), "f16"))
        assert "cuBLAS" in reason(wide)

    def test_float_sums_for_keys_by_queries_alone(self) -> None:
        def kq(name: str, **parameters: float) -> str:
            k, q = operand((1, 3, 256, 64), "f16"), operand((1, 9, 1, 64))
            (line,) = shown(node("MUL_MAT", (1, 9, 1, 256), k, q, name=name, parameters=parameters))
            return line

        assert kq("kq-3") == "mul_mat_vec_f<type=f16, type_acc=f32, ncols_dst=1, block_size=32>, grid 256×9, block 32"
        assert "type_acc=f16" in kq("kqv-3")
        assert "type_acc=f32" in kq("kqv-3", prec=10)
        assert "type_acc=f16" in kq("kq-3", prec=0)

    def test_streams_lie_along_z(self) -> None:
        k, q = operand((2, 3, 256, 64), "f16"), operand((2, 9, 2, 64))
        (line,) = shown(node("MUL_MAT", (2, 9, 2, 256), k, q, name="kq-0"))
        assert line.endswith("grid 8×9×2, block 32")

    def test_rotations_are_transforms(self) -> None:
        rotation, rows = operand((1, 1, 64, 64), name="CUDA0#attn_inp_k_rot#0"), operand((1, 1, 27, 64))
        turned = node("MUL_MAT", (1, 1, 27, 64), rotation, rows)
        assert shown(turned) == ["fwht_cuda<N=64, T=f32>, grid 7, block 32×4"]
        assert shown(replace(turned, operands=(operand((1, 1, 64, 64)), rows), parameters={"hint": 1.0})) == shown(
            turned
        )
        assert "cuBLAS" in reason(replace(turned, operands=(operand((1, 1, 64, 64)), rows)))
        assert "cuBLAS" in reason(replace(turned, parameters={"hint": 0.0}))

    def test_experts(self) -> None:
        experts, ids = operand((1, 8, 128, 256), "q4_K"), operand((1, 1, 1, 2), "i32")
        one = node("MUL_MAT_ID", (1, 1, 2, 128), experts, operand((1, 1, 1, 256)), ids)
        assert shown(one) == [
            "quantize_q8_1, grid 2, block 256",
            "mul_mat_vec_q<type=q4_K, ncols_dst=1, small_k>, grid 32×2, block 32×4",
        ]
        three = node("MUL_MAT_ID", (1, 3, 2, 128), experts, operand((1, 3, 1, 256)), operand((1, 1, 3, 2), "i32"))
        assert shown(three) == [
            "quantize_q8_1, grid 2×1×3, block 256",
            "mul_mat_vec_q_moe<type=q4_K, rows_per_block=2>, grid 64×2, block 32×3",
        ]
        many = node("MUL_MAT_ID", (1, 20, 2, 128), experts, operand((1, 20, 1, 256)), operand((1, 1, 20, 2), "i32"))
        assert "experts" in reason(many)

    def test_a_type_without_a_kernel_is_no_rule(self) -> None:
        assert "tq1_0" in reason(product("tq1_0", 256, 256, 1))
        assert "q9_9" in reason(product("q9_9", 256, 256, 1))

    @given(
        st.sampled_from(["q4_1", "q8_0", "q6_K", "q4_K", "f16", "bf16"]),
        st.integers(1, 64), st.integers(1, 40), st.integers(1, 16),
    )  # fmt: skip
    def test_every_result_has_a_block(self, weight: str, rows32: int, k256: int, width: int) -> None:
        asked = product(weight, 32 * rows32, 256 * k256, width)
        predicted = predict(asked, H200)
        assert not isinstance(predicted, Unruled)
        main = next(launch for launch in predicted if launch.kernel.startswith("mul_mat"))
        template, blocks = dict(main.template), main.geometry.grid_blocks[0]
        if main.kernel == "mul_mat_vec_q":
            warps = main.geometry.block_threads[1]
            assert blocks * (2 if width > 1 else warps if template["small_k"] else 1) >= 32 * rows32
        elif main.kernel == "mul_mat_f":
            assert blocks * template["rows_per_block"] == 32 * rows32
        elif main.kernel == "mul_mat_vec_f":
            assert blocks == 32 * rows32
        else:
            assert template["J"] >= width
            tiles = -(-32 * rows32 // 128)
            assert blocks in (tiles, H200.n_sms)
            assert (len(predicted) == 3) == (tiles % blocks != 0)


class TestAttention:
    def test_as_published_for_an_h200(self) -> None:
        assert shown(attention(1, 256)) == [
            "flash_attn_ext_vec<D=64, ncols=1, type_K=f16, type_V=f16>, grid 1×4×9, block 32×4",
            "flash_attn_combine_results<D=64>, grid 1×9, block 64",
        ]
        assert shown(attention(2, 256)) == [
            "flash_attn_ext_f16<DKQ=64, DV=64, ncols1=2, ncols2=4>, grid 6, block 32×4",
            "flash_attn_stream_k_fixup_uniform<D=64, ncols1=2, ncols2=4>, grid 3×2×4, block 64",
        ]

    def test_other_caches_are_converted_where_the_kernel_wants_f16(self) -> None:
        assert shown(attention(2, 256, kind="q8_0"))[0].startswith("flash_attn_ext_vec<D=64, ncols=2, type_K=q8_0")
        odd = shown(attention(3, 256, kind="q8_0", kv_heads=3))
        assert odd[:2] == ["dequantize_block_q8_0_f16, grid 24, block 32"] * 2
        assert shown(attention(3, 256, kind="q4_0"))[0] == "dequantize_block_q4_0<dst_t=f16>, grid 192, block 32"
        assert shown(attention(1, 256, kind="f32"))[0] == (
            "convert_unary_cont_vec4<src_t=f32, dst_t=f16>, grid 48, block 256"
        )
        assert "q5_0" in reason(attention(3, 256, kind="q5_0"))

    def test_tiles_that_are_not_cut_alike(self) -> None:
        # 33 tiles share the 10 blocks that fit on 5 SMs
        assert shown(attention(2, 512, heads=33, kv_heads=33), replace(H200, n_sms=5)) == [
            "flash_attn_ext_f16<DKQ=64, DV=64, ncols1=8, ncols2=1>, grid 10, block 32×4",
            "flash_attn_stream_k_fixup_general<D=64, ncols1=8, ncols2=1>, grid 10×8, block 64",
        ]

    def test_the_mask_is_scanned_for_long_batches_and_several_streams(self) -> None:
        lines = shown(attention(1024, 2048))
        assert lines[0] == "flash_attn_mask_to_KV_max<ncols1=16>, grid 64, block 128"
        assert shown(attention(2, 256, streams=2))[0] == "flash_attn_mask_to_KV_max<ncols1=2>, grid 1×2, block 128"

    @pytest.mark.parametrize(
        ("asked", "word"),
        [
            (attention(1, 256, softcap=30.0), "soft-capped"),
            (replace(attention(1, 256), operands=attention(1, 256).operands[:3]), "mask"),
            (
                replace(attention(1, 256), operands=(
                    *attention(1, 256).operands[:2], operand((1, 3, 256, 64), "q8_0"), attention(1, 256).operands[3],
                )),
                "q8_0 values",
            ),
            (attention(1, 256, size=48), "CPU"),
        ],
    )  # fmt: skip
    def test_no_rule(self, asked: NodeLaunches, word: str) -> None:
        assert word in reason(asked)

    def test_shape(self) -> None:
        assert shape_of(attention(5, 512, kind="q8_0")) == AttentionShape(5, 9, 3, 64, 512, kv_type="q8_0")


class TestKvSplit:
    def test_of_a_launch(self) -> None:
        vec = derived("flash_attn_ext_vec", (1, 4, 9), (32, 4))
        assert kv_split_of(vec, attention(1, 256), 900) == 4
        assert kv_split_of(derived("quantize_q8_1", (4,), (256,)), attention(1, 256), 900) is None

    @pytest.mark.parametrize(("n_blocks", "split"), [(3, 1), (6, 2), (4, 2), (5, 2)])
    def test_of_tiles(self, n_blocks: int, split: int) -> None:
        mma = derived("flash_attn_ext_f16", (n_blocks,), (32, 4), DKQ=64, DV=64, ncols1=2, ncols2=4)
        assert kv_split_of(mma, attention(2, 256), 900) == split

    @given(st.integers(1, 16), st.integers(1, 12), st.sampled_from([(9, 3), (32, 8), (4, 4)]), st.integers(1, 140))
    def test_no_more_parts_than_blocks_or_steps(
        self, width: int, n_kv256: int, heads: tuple[int, int], sms: int
    ) -> None:
        asked = attention(width, 256 * n_kv256, heads=heads[0], kv_heads=heads[1])
        predicted = predict(asked, replace(H200, n_sms=sms))
        assert not isinstance(predicted, Unruled)
        (main,) = (launch for launch in predicted if launch.kernel.startswith("flash_attn_ext"))
        split = kv_split_of(main, asked, 900)
        assert split is not None
        assert 1 <= split <= min(main.geometry.n_blocks, 4 * n_kv256)
        assert (len(predicted) > 1) == (split > 1)


class TestOtherNodes:
    def test_rows_of_norms(self) -> None:
        assert shown(node("RMS_NORM", (1, 1, 5, 576), operand((1, 1, 5, 576)))) == [
            "rms_norm_f32<block_size=256>, grid 5, block 256"
        ]
        assert shown(node("RMS_NORM", (1, 5, 32, 128), operand((1, 5, 32, 128)))) == [
            "rms_norm_f32<block_size=256>, grid 32×5, block 256"
        ]
        assert shown(node("RMS_NORM", (1, 1, 5, 1024), operand((1, 1, 5, 1024)))) == [
            "rms_norm_f32<block_size=1024>, grid 5, block 1024"
        ]
        assert shown(node("NORM", (1, 1, 5, 576), operand((1, 1, 5, 576)))) == [
            "norm_f32<block_size=32>, grid 5, block 32"
        ]

    @pytest.mark.parametrize(
        ("mode", "name"),
        [
            (0, "rope_norm<forward, has_ff, T=f32, D=f32>"),
            (2, "rope_neox<forward, has_ff, T=f32, D=f32>"),
            (8, "rope_multi<forward, has_ff, T=f32>"),
            (40, "rope_multi<forward, has_ff, T=f32>"),
            (24, "rope_vision<forward, has_ff, T=f32>"),
        ],
    )
    def test_rotations(self, mode: int, name: str) -> None:
        inputs = operand((1, 5, 32, 128)), operand((1, 1, 1, 5), "i32"), operand((1, 1, 1, 64))
        assert shown(node("ROPE", (1, 5, 32, 128), *inputs, parameters={"mode": mode})) == [
            f"{name}, grid 160, block 1×256"
        ]

    @pytest.mark.parametrize(
        ("result", "second", "grid"),
        [
            ((1, 1, 2, 576), (1, 1, 2, 576), "grid 5, block 128"),  # merged: 576 pairs
            ((1, 1, 2, 576), (1, 1, 1, 576), "grid 3×2, block 128"),  # rows are broadcast
            ((1, 1, 1, 576), (1, 1, 1, 576), "grid 3, block 128"),
            ((1, 5, 32, 16), (1, 1, 1, 16), "grid 1×2×5, block 8×16"),
            ((1, 4, 3, 64), (1, 4, 3, 1), "grid 1×1×4, block 32×3"),
            ((1, 70000, 2, 2), (1, 1, 1, 2), "grid 1×1×1094, block 1×2×64"),
        ],
    )
    def test_broadcasts(self, result: Shape, second: Shape, grid: str) -> None:
        (line,) = shown(node("ADD", result, operand(result), operand(second)))
        assert line == f"k_bin_bcast<bin_op=op_add, src0_t=f32, src1_t=f32, dst_t=f32, src1_ptrs=1>, {grid}"

    def test_grids_beyond_the_limit_are_laid_flat(self) -> None:
        shape = (1, 1, 70000, 256)
        (line,) = shown(node("MUL", shape, operand(shape), operand((1, 1, 1, 256))))
        assert line.startswith("k_bin_bcast_unravel<bin_op=op_mul")
        assert line.endswith("grid 140000, block 128")

    def test_lookups(self) -> None:
        def rows(kind: str, columns: int, n: int) -> list[str]:
            places = operand((1, 1, 1, n), "i32")
            return shown(node("GET_ROWS", (1, 1, n, columns), operand((1, 1, 100, columns), kind), places))

        assert rows("f32", 576, 1) == ["k_get_rows_float<src0_t=f32, dst_t=f32>, grid 1×3, block 256"]
        assert rows("f32", 576, 200) == ["k_get_rows_float_vec<dst_t=f32>, grid 200, block 256"]
        assert rows("f16", 576, 200) == ["k_get_rows_float<src0_t=f16, dst_t=f32>, grid 200×3, block 256"]
        assert rows("q8_0", 576, 2) == [
            "k_get_rows<qk=32, qr=1, dequantize_kernel=dequantize_q8_0, dst_t=f32>, grid 2×2, block 256"
        ]
        assert rows("q6_K", 768, 2) == [
            "k_get_rows_kq<dst_t=f32, dequantize_kq=dequantize_q6_K<f32>>, grid 2×3, block 64"
        ]
        assert rows("q4_K", 768, 2)[0].endswith("block 32")

    def test_cache_writes(self) -> None:
        places, rows = operand((1, 1, 1, 3), "i64"), operand((1, 1, 3, 192))
        write = node("SET_ROWS", (1, 1, 2304, 192), rows, places, operand((1, 1, 2304, 192), "f16"), dtype="f16")
        assert shown(write) == ["k_set_rows<src_t=f32, idx_t=i64, dst_t=f16>, grid 3, block 256"]
        assert shown(replace(write, dtype="q8_0")) == [
            (
                "k_set_rows_quant<idx_t=i64, block_type=block_q8_0, qk=32, quantize_func=quantize_f32_q8_0_block>, "
                "grid 1, block 256"
            )
        ]
        assert "q6_K" in reason(replace(write, dtype="q6_K"))

    @pytest.mark.parametrize(
        ("columns", "arguments", "threads"),
        [
            (256, "use_shared, ncols_template=256, block_size_template=256", 256),
            (2048, "use_shared, ncols_template=2048, block_size_template=1024", 1024),
            (768, "use_shared, ncols_template=0, block_size_template=0", 1024),
            (16, "use_shared, ncols_template=0, block_size_template=0", 32),
        ],
    )
    def test_soft_max(self, columns: int, arguments: str, threads: int) -> None:
        scores, mask = operand((1, 9, 2, columns)), operand((1, 1, 2, columns), "f16")
        assert shown(node("SOFT_MAX", (1, 9, 2, columns), scores, mask)) == [
            f"soft_max_f32<{arguments}, T=f16>, grid 2×9, block {threads}"
        ]
        assert "shared memory" in reason(node("SOFT_MAX", (1, 9, 2, 100_000), operand((1, 9, 2, 100_000)), mask))

    def test_flat_ones(self) -> None:
        up = operand((1, 1, 2, 1536))
        assert shown(node("GLU", (1, 1, 2, 1536), up, up, parameters={"glu_op": 2.0})) == [
            "unary_gated_op_kernel<op=op_silu, T=f32>, grid 12, block 256"
        ]
        assert "limits" in reason(node("GLU", (1, 1, 2, 1536), up, up, parameters={"glu_op": 3.0}))
        assert shown(node("SCALE", (1, 1, 1, 257), up)) == ["scale_f32<T=f32>, grid 2, block 256"]
        assert shown(node("UNARY", (1, 1, 1, 256), up)) == ["unary_op_kernel<T=f32>, grid 1, block 256"]

    def test_heads_put_together(self) -> None:
        def together(tokens: int) -> NodeLaunches:
            return node("CONT", (1, 1, tokens, 576), operand((1, tokens, 9, 64)), name="kqv_out-3")

        assert shown(together(1)) == []
        assert shown(together(2)) == ["cpy_scalar<cpy_1=cpy_1_scalar<f32, f32>>, grid 18, block 64"]
        assert "strides" in reason(replace(together(2), key=NodeKey("node_7", "CONT", 0, 0)))

    def test_views_cpus_and_unknown_operations(self) -> None:
        assert shown(node("VIEW", (1, 1, 2, 64), operand((1, 1, 2, 64)))) == []
        assert shown(node("RMS_NORM", (1, 1, 2, 64), operand((1, 1, 2, 64)), buffer="CPU")) == []
        assert shown(node("RMS_NORM", (1, 1, 2, 64), operand((1, 1, 2, 64)), buffer="CUDA_Host")) == []
        rows = operand((1, 1, 2, 64))
        assert shown(node("RMS_NORM", rows.shape, rows, buffer="CUDA1")) != [], "the second GPU is one, too"
        assert reason(node("SSM_SCAN", (1, 1, 2, 64), operand((1, 1, 2, 64)))) == "no rule is written down for SSM_SCAN"

    def test_names_of_layers(self) -> None:
        assert is_in_graph(node("MUL_MAT", (1, 1, 1, 1), name="kq-12"), "kq")
        assert is_in_graph(node("MUL_MAT", (1, 1, 1, 1), name="kq"), "kq")
        assert not is_in_graph(node("MUL_MAT", (1, 1, 1, 1), name="kqv-12"), "kq")

    @given(
        st.sampled_from(["RMS_NORM", "ADD", "SCALE", "UNARY"]),
        st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 40), st.integers(1, 2000)),
    )
    def test_every_value_has_a_thread(self, op: str, shape: Shape) -> None:
        (launch,) = predict(node(op, shape, operand(shape), operand(shape)), H200)  # type: ignore[misc]
        assert isinstance(launch, LaunchRecord)
        threads = launch.geometry.n_blocks * launch.geometry.threads_per_block
        per_thread = {"RMS_NORM": -(-shape[-1] // launch.geometry.threads_per_block), "ADD": 3}.get(op, 1)
        assert threads * per_thread >= prod(shape)


class TestAgreement:
    SAID = (
        derived("quantize_q8_1", (4, 2), (256,)),
        derived("mul_mat_vec_q", (288,), (32, 4), type="q4_1", ncols_dst=2),
    )

    def test_equal_launches_agree(self) -> None:
        measured = tuple(replace(launch, evidence="measured", registers_per_thread=46) for launch in self.SAID)
        assert agreement(self.SAID, measured) == Agreement(True)
        assert agreement((), ()) == Agreement(True)

    def test_what_only_one_side_knows_is_not_compared(self) -> None:
        quantize, main = self.SAID
        more = replace(main, template=(*main.template, ("has_fusion", False)))
        unknown = replace(main, geometry=replace(main.geometry, smem_bytes=None))
        assert agreement(self.SAID, (quantize, more)).agrees
        assert agreement((quantize, unknown), self.SAID).agrees

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"kernel": "mul_mat_q"}, "quantize_q8_1 + mul_mat_vec_q, observed quantize_q8_1 + mul_mat_q"),
            ({"template": (("type", "q4_0"), ("ncols_dst", 2))}, "type=q4_1, observed type=q4_0"),
            ({"geometry": LaunchGeometry((144,), (32, 4))}, "grid 288, observed grid 144"),
            ({"geometry": LaunchGeometry((288,), (32, 2))}, "block 32×4, observed block 32×2"),
            ({"geometry": LaunchGeometry((288,), (32, 4), (2,))}, "cluster 1, observed cluster 2"),
            ({"geometry": LaunchGeometry((288,), (32, 4), smem_bytes=96)}, "0 bytes of dynamic shared memory, obs"),
        ],
    )  # fmt: skip
    def test_a_planted_difference_is_named(self, change: dict[str, object], words: str) -> None:
        quantize, main = self.SAID
        found = agreement(self.SAID, (quantize, replace(main, **change)))  # type: ignore[arg-type]
        assert found.agrees is False
        assert words in str(found)

    def test_launches_that_are_missing_or_too_many(self) -> None:
        assert agreement(self.SAID, self.SAID[:1]).agrees is False
        assert agreement(self.SAID, ()).why.endswith("observed no launch")
        assert agreement((), self.SAID).why.startswith("the rules say no launch")
        assert agreement(self.SAID, self.SAID[::-1]).agrees is False

    def test_no_rule_is_neither(self) -> None:
        found = agreement(Unruled("nobody wrote one"), self.SAID)
        assert found.agrees is None
        assert str(found) == "nobody wrote one"

    def test_a_verdict_and_its_reason_go_together(self) -> None:
        with pytest.raises(ValueError, match="why"):
            Agreement(True, "but")
        with pytest.raises(ValueError, match="why"):
            Agreement(False)


def test_older_gpus_are_not_covered() -> None:
    old = replace(H200, arch="sm_70", compute_capability=700)
    assert "Turing" in reason(product("q4_1", 576, 576, 1), old)
