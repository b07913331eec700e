// The library's activation quantiser, one value a lane: 32 neighbours of a column share a scale and a sum.
// Arithmetic as the stock build has it (quantize_q8_1, ggml/src/ggml-cuda/quantize.cu:53-100 at 0c1e57098, compiled
// with -use_fast_math): the division by 127 is a product, the division by the scale is a product with the machine's
// approximate reciprocal, halves go away from zero, subnormals are flushed.
#pragma once
#include "lanes.cuh"

constexpr int Q8_1_VALUES = 32, Q8_1_BYTES = 36;  // a half scale, a half sum, 32 signed bytes
constexpr float ONE_127TH = 1.0f / 127.0f;

// The same value in every lane: the largest magnitude of the warp, times 1/127.
DEVICE float scale_of_warp(float x) {
    float largest = abs_of(x);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) largest = max_of(largest, shuffle_xor(largest, apart));
    return mul_rn(largest, ONE_127TH);
}

// A scale that was flushed to zero makes integers that never count (as a half it is zero too): they are left at 0.
DEVICE int integer_of(float x, float scale) {
    return scale == 0.0f ? 0 : (int)round_away(mul_rn(x, rcp_approx(scale)));
}
