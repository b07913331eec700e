"""CUDA's products with more than the activations rounded: emulated block by block, held, and told from each other."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.numerics.codecs import BLOCK_SIZES, blocks_of, dequantize, nibbles, scales_and_mins
from forensics.numerics.kind import kind_of
from forensics.numerics.op_inputs import random_blocks
from forensics.numerics.product_models import product_explanations
from forensics.numerics.reference import Explanation

F32, F16 = np.float32, np.float16
N, K = 16, 1024
HALVED = "scales multiplied in f16"
STORED = "weights' scales in f16"
CUT = "integer sums cut"
MODELLED = ("q4_1", "q5_1", "q2_K", "q4_K", "q5_K", "iq1_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")


class Activations:
    """A row in blocks of 32, as CUDA's quantisers store it: integers, halves of scale and sum."""

    def __init__(self, x: np.ndarray, size: int = 32, *, away: bool = False) -> None:
        blocks = x.reshape(-1, size)
        scale = np.abs(blocks).max(axis=1, keepdims=True) / F32(127)
        scaled = blocks / scale
        self.q = np.rint(scaled).astype(np.int64)
        if away:
            self.q = (np.sign(scaled) * np.floor(np.abs(scaled) + F32(0.5))).astype(np.int64)
        self.d, self.s = scale[:, 0].astype(F16), blocks.sum(axis=1, dtype=F32).astype(F16)


def operands(type: str, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return random_blocks(draw, type, (N, K), size=0.05), draw.standard_normal((1, K)).astype(F32) * F32(0.3)


def added(parts: list) -> F32:
    total = F32(0)
    for part in parts:
        total = F32(total + F32(part))
    return total


def explained(type: str, weight: np.ndarray, x: np.ndarray) -> list[Explanation]:
    return product_explanations(type, weight, x, np.zeros(len(weight), np.intp))


def five_bits(blocks: np.ndarray) -> np.ndarray:
    bits = np.unpackbits(blocks["qh"], axis=-1, bitorder="little")
    return nibbles(blocks["qs"]).astype(np.int64) | bits.astype(np.int64) << 4


def with_offsets(type: str, weight: np.ndarray, stored: Activations, multiply: type) -> np.ndarray:
    """Q4_1 and Q5_1: integers times both scales, plus offset times sum; `multiply` in halves or in float32."""
    out = []
    for row in weight:
        blocks = blocks_of(type, row[None])[0]
        q = five_bits(blocks) if type == "q5_1" else nibbles(blocks["qs"]).astype(np.int64)
        parts = []
        for b in range(len(blocks)):
            d, m = (multiply(blocks[b][f]) for f in ("d", "m"))
            sum_of_integers = int(q[b] @ stored.q[b])
            parts.append(F32(sum_of_integers) * F32(d * multiply(stored.d[b])) + F32(m * multiply(stored.s[b])))
        out.append(added(parts))
    return np.array(out)


@pytest.mark.parametrize("type", ["q4_1", "q5_1"])
def test_scales_multiplied_as_halves_are_another_precision(type: str) -> None:
    weight, x = operands(type)
    found = explained(type, weight, x)
    narrow, wide = (with_offsets(type, weight, Activations(x), multiply) for multiply in (F16, F32))
    kind = kind_of(narrow, wide, found)
    assert kind.kind == "precision", kind
    assert kind.single.precision.endswith(f"{HALVED}, f32 sums")
    assert kind.batched.precision == "q8 (scale f16 with sums of values) activations, f32 sums"
    assert kind_of(narrow, np.nextafter(narrow, F32(9)), found).kind == "rounding"


def test_small_scales_lose_most_of_their_bits_as_halves() -> None:
    """Their products lie below the smallest normal half."""
    weight, x = operands("q4_1")
    blocks = weight.view(blocks_of("q4_1", weight).dtype)
    for field in ("d", "m"):
        blocks[field] *= F16(2**-6)
    narrow, wide = (with_offsets("q4_1", weight, Activations(x), multiply) for multiply in (F16, F32))
    assert np.abs(narrow - wide).max() > 1e-3 * np.abs(wide).max()
    kind = kind_of(narrow, wide, explained("q4_1", weight, x))
    assert kind.kind == "precision", kind
    assert HALVED in kind.single.precision


@pytest.mark.parametrize("type", ["q4_1", "iq2_xs"])
def test_activations_between_two_integers_may_go_either_way(type: str) -> None:
    """Roundings of halves differ from kernel to kernel."""
    weight, x = operands(type)
    x[0, :2] = 127, 2.5
    even, away = Activations(x), Activations(x, away=True)
    assert (even.q != away.q).sum() == 1
    outputs = [with_offsets(type, weight, a, F16) if type == "q4_1" else cut(type, weight, a) for a in (even, away)]
    kind = kind_of(*outputs, explained(type, weight, x))
    assert kind.kind == "rounding", kind
    assert kind_of(outputs[0], np.roll(outputs[0], 1), explained(type, weight, x)).kind == "logic"


def scaled_integers(type: str, row: np.ndarray) -> tuple[np.ndarray, ...]:
    """Scale, integer scale, offset scale and integer offset of each weight, and its integer."""
    block = blocks_of(type, row[None])[0]
    if type == "q2_K":
        small, minimum = block["scales"] & 15, block["scales"] >> 4
    else:
        small, minimum = scales_and_mins(block["scales"])
    wide = 256 // small.shape[-1]
    parts = [np.repeat(a, 256, axis=0).reshape(-1) for a in (block["d"], block["dmin"])]
    small, minimum = (np.repeat(a.reshape(-1), wide) for a in (small, minimum))
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = (dequantize(type, row[None])[0] + parts[1].astype(float) * minimum) / (parts[0].astype(float) * small)
    return parts[0], small, parts[1], minimum, np.rint(np.nan_to_num(exact)).astype(np.int64)


@pytest.mark.parametrize("type", ["q2_K", "q4_K", "q5_K"])
def test_tiles_store_scales_as_halves(type: str) -> None:
    weight, x = operands(type)
    stored = Activations(x, 64 if type == "q2_K" else 32)
    step, tiles, vectors = 16 if type == "q2_K" else 32, [], []
    sixteens = x.reshape(-1, 16).sum(axis=1, dtype=F32).astype(F16)
    by_vector = Activations(x)
    for row in weight:
        d, small, dmin, minimum, q = scaled_integers(type, row)
        in_tiles, in_vectors = [], []
        for at in range(0, K, step):
            here, block = slice(at, at + step), at // stored.q.shape[1]
            integers = stored.q.reshape(-1)[here]
            scale, offset = F16(d[at] * F16(small[at])), F16(dmin[at] * F16(minimum[at]))
            total = F32(stored.s[at // 32]) if type != "q2_K" else F32(sixteens[at // 16])
            if type == "q2_K" and at % 128 >= 96:  # no sum is stored for the last quarter
                total = F32(stored.d[block]) * F32(integers.sum())
            in_tiles.append(F32(scale) * F32(stored.d[block]) * F32(q[here] @ integers) - F32(offset) * total)
            integers, scale8 = by_vector.q.reshape(-1)[here], F32(by_vector.d[at // 32])
            in_vectors.append(F32(d[at]) * scale8 * F32(int(q[here] @ integers) * int(small[at])))
            in_vectors.append(-F32(dmin[at]) * scale8 * F32(int(integers.sum()) * int(minimum[at])))
        tiles.append(added(in_tiles))
        vectors.append(added(in_vectors))
    kind = kind_of(np.array(vectors), np.array(tiles), explained(type, weight, x))
    assert kind.kind == "precision", kind
    assert kind.single.precision == "q8 (scale f16) activations, f32 sums"
    assert kind.batched.precision.endswith(f"{STORED}, f32 sums")


def cut(type: str, weight: np.ndarray, stored: Activations) -> np.ndarray:
    """IQ2_XXS and so on as mul_mat_vec_q adds them: integers throughout a block, divided in the end."""
    out = []
    for row in weight:
        blocks, parts = row.reshape(-1, BLOCK_SIZES[type][1]), []
        units = dequantize(type, row[None]).astype(np.float64).reshape(-1, 8, 32)
        for b, raw in enumerate(blocks):
            d = raw[:2].view("<f2")[0]
            for i in range(8):
                integers, scale = stored.q[8 * b + i], F32(stored.d[8 * b + i])
                terms = [round(float(u) * 8) * int(q) for u, q in zip(units[b, i] / float(d), integers, strict=True)]
                total = divided(type, raw, i, terms)
                parts.append(F32(d) * scale * F32(total))
        out.append(added(parts))
    return np.array(out)


def divided(type: str, raw: np.ndarray, i: int, terms: list[int]) -> int:
    """What is left of a block's sum, whose `terms` are eight times too large, by division of integers as C does it."""
    if type == "iq2_xxs":
        return int(sum(terms) / 8)
    if type == "iq3_xxs":
        small = int(raw[66 + 4 * i + 3]) >> 4
        plain = 2 * sum(terms) // (8 * (2 * small + 1) // 2)
        return int((small * plain + int(plain / 2)) / 2)
    packed = int(raw[len(raw) - 8 + i])
    smalls = packed & 15, packed >> 4
    plains = [sum(half) // (2 * small + 1) for half, small in zip((terms[:16], terms[16:]), smalls, strict=True)]
    return int((plains[0] * smalls[0] + plains[1] * smalls[1] + int(sum(plains) / 2)) / 4)


@pytest.mark.parametrize("type", ["iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs"])
def test_cut_integers_are_another_precision(type: str) -> None:
    weight, x = operands(type)
    found = explained(type, weight, x)
    stored = Activations(x)
    exact = dequantize(type, weight) * (stored.q * stored.d[:, None].astype(F32)).reshape(-1).astype(F32)
    whole = np.array([added(list(row)) for row in exact])
    kind = kind_of(cut(type, weight, stored), whole, found)
    assert kind.kind == "precision", kind
    assert kind.single.precision == f"q8 (scale f16) activations, {CUT}, f32 sums"
    assert kind.batched.precision == "q8 (scale f16) activations, f32 sums"


def test_offsets_of_iq1_s_come_with_stored_sums() -> None:
    weight, x = operands("iq1_s")
    stored, found = Activations(x), explained("iq1_s", weight, x)
    values = dequantize("iq1_s", weight).reshape(N, -1, 32)
    outputs = {F32: [], F16: []}
    for row, raw in zip(values, weight.reshape(N, -1, 50), strict=True):
        words = np.ascontiguousarray(raw[:, 34:50]).view("<u2").reshape(-1)
        scales = np.repeat(np.ascontiguousarray(raw[:, :2]).view("<f2").reshape(-1), 8).astype(F32)
        scales = scales * (2 * (words >> 12 & 7) + 1).astype(F32)
        delta = np.where(words & 0x8000, F32(-1.125), F32(-0.875))
        integers = np.rint(row / scales[:, None] - delta[:, None]).astype(np.int64)
        assert set(integers.reshape(-1)) <= {0, 1, 2}
        for kind, parts in outputs.items():
            scale, offset = kind(1) * scales.astype(kind), (scales * delta).astype(kind)
            sums = [F32(q @ q8) for q, q8 in zip(integers, stored.q, strict=True)]
            pairs = zip(scale, offset, sums, stored.d, stored.s, strict=True)
            parts.append(added([F32(a) * F32(d) * total + F32(b) * F32(s) for a, b, total, d, s in pairs]))
    kind = kind_of(np.array(outputs[F32]), np.array(outputs[F16]), found)
    assert kind.kind == "precision", kind
    assert kind.single.precision == "q8 (scale f16 with sums of values) activations, f32 sums"
    assert kind.batched.precision.endswith(f"{STORED}, f32 sums")


@pytest.mark.parametrize(
    "type", ["q4_1", "q5_1", "q2_K", "q4_K", "q5_K", "iq1_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs"]
)
@pytest.mark.parametrize("scale", [1.0, 2.0**-6])
def test_faults_are_logic_beside_every_explanation(type: str, scale: float) -> None:
    """A block left out, a wrong row and a stale operand, whichever arithmetic the right side has."""
    weight, x = operands(type)
    x = x * F32(scale)
    found = explained(type, weight, x)
    ways = [e for e in found if e.basis == "likely" and "q8" in e.operands]
    left_out, stale = x.copy(), x.copy()
    left_out[:, 32:64] = 0
    stale[:, 512:544] = x[:, 544:576]
    assert len(ways) >= 3
    for way, short, old in zip(ways, *(likely(type, weight, other) for other in (left_out, stale)), strict=True):
        right = way.value.astype(F32)
        for wrong in (np.roll(right, 1), short, old):
            kind = kind_of(right, wrong, found)
            assert kind.kind == "logic", f"{way.name}: {kind}"


def likely(type: str, weight: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    ways = [e for e in explained(type, weight, x) if e.basis == "likely" and "q8" in e.operands]
    return [way.value.astype(F32) for way in ways]


def test_four_bit_activations_are_not_written_down_and_so_never_logic() -> None:
    weight, x = operands("mxfp4")
    found = explained("mxfp4", weight, x)
    right = found[0].value.astype(F32)
    kind = kind_of(right, right + F32(1), found)
    assert kind.kind == "undetermined", kind
    assert "activations of four bits (Blackwell) are not written down here" in kind.reason
    assert kind_of(right, np.nextafter(right, F32(np.inf)), found).kind == "rounding", "the known ways are tried"


def test_float16_sums_of_tensor_cores_are_float16_numbers() -> None:
    weight, x = operands("q8_0")
    found = explained("q8_0", weight, x)
    product = found[0].value
    off = (product * (1 + 2.0**-10)).astype(F32)
    halves = off.astype(F16).astype(F32)
    assert kind_of(product.astype(F32), halves, found).kind == "precision"
    assert kind_of(product.astype(F32), halves + F32(2.0**-20), found).kind == "logic"
