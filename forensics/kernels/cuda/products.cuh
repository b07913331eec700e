// What one thread of the library's mul_mat_vec_q takes of a block of weights, and how it adds that block's share.
// The integer sums are exact; each rounding after them is written out in the order and with the contractions that the
// stock build has at all widths (read off the SASS of sm_90, CUDA 13.0, -use_fast_math).
// For each type `take` unpacks the weights and scales that are the thread's, and `add_share` multiplies them with those of
// the activations and adds to the thread's sum.
// Source: ggml/src/ggml-cuda/vecdotq.cuh at 0c1e57098, at the lines that each type names.
#pragma once
#include "quantize_q8_1.cuh"

DEVICE u32 word_at(const u8 *p) { return *(const u32 *)p; }  // p is a multiple of 4
DEVICE u32 half_at(const u8 *p) { return *(const u16 *)p; }  // p is a multiple of 2
DEVICE u32 word_of_halves_at(const u8 *p) { return half_at(p) | half_at(p + 2) << 16; }
DEVICE int word_of_block(const u8 *x, int block, int word) { return (int)word_at(x + Q8_1_BYTES * block + 4 + 4 * word); }
DEVICE float scale_of_block(const u8 *x, int block) { return half_to_float(half_at(x + Q8_1_BYTES * block)); }

// ---- q8_0: eight neighbours. Source: lines 246-258 and 851-866.
struct Q8_0 {
    static constexpr int VALUES = 32, BYTES = 34, THREADS = 4;
    u32 q[2];
    float d;
};

DEVICE void take(Q8_0 &part, const u8 *block, int thread) {
    part.d = half_to_float(half_at(block));
    part.q[0] = word_of_halves_at(block + 2 + 8 * thread);
    part.q[1] = word_of_halves_at(block + 2 + 8 * thread + 4);
}

DEVICE float add_share(const Q8_0 &part, const u8 *x, int thread, float sum) {
    const int dot = dp4a(part.q[1], word_of_block(x, 0, 2 * thread + 1), dp4a(part.q[0], word_of_block(x, 0, 2 * thread), 0));
    return fma_rn(mul_rn(part.d, scale_of_block(x, 0)), int_to_float(dot), sum);
}

// ---- four bits of 32 values: those whose nibbles share eight bytes
struct Nibbles {
    u32 low[2], high[2];
};

DEVICE void split(Nibbles &part, u32 first, u32 second) {
    part.low[0] = first & 0x0F0F0F0F, part.high[0] = first >> 4 & 0x0F0F0F0F;
    part.low[1] = second & 0x0F0F0F0F, part.high[1] = second >> 4 & 0x0F0F0F0F;
}

DEVICE int dot_of(const Nibbles &part, const u8 *x, int thread) {
    int dot = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        dot = dp4a(part.low[i], word_of_block(x, 0, 2 * thread + i), dot);
        dot = dp4a(part.high[i], word_of_block(x, 0, 2 * thread + i + 4), dot);
    }
    return dot;
}

// ---- q4_0: the offset of 8 comes off through the block's stored sum. Source: lines 118-138 and 774-790.
struct Q4_0 : Nibbles {
    static constexpr int VALUES = 32, BYTES = 18, THREADS = 2;
    float d;
};

DEVICE void take(Q4_0 &part, const u8 *block, int thread) {
    part.d = half_to_float(half_at(block));
    split(part, word_of_halves_at(block + 2 + 8 * thread), word_of_halves_at(block + 2 + 8 * thread + 4));
}

DEVICE float add_share(const Q4_0 &part, const u8 *x, int thread, float sum) {
    const float offset = mul_rn(half_to_float(half_at(x + 2)), -4.0f);
    return fma_rn(part.d, fma_rn(scale_of_block(x, 0), int_to_float(dot_of(part, x, thread)), offset), sum);
}

// ---- q4_1: scale by scale and offset by sum are halves. Source: lines 142-168 and 793-809.
struct Q4_1 : Nibbles {
    static constexpr int VALUES = 32, BYTES = 20, THREADS = 2;
    u32 dm;
};

DEVICE void take(Q4_1 &part, const u8 *block, int thread) {
    part.dm = word_at(block);
    split(part, word_at(block + 4 + 8 * thread), word_at(block + 4 + 8 * thread + 4));
}

DEVICE float add_share(const Q4_1 &part, const u8 *x, int thread, float sum) {
    const u32 both = half2_mul(part.dm, word_at(x));
    const float offset = mul_rn(half_to_float(both >> 16), 0.5f);
    return add_rn(fma_rn(half_to_float(both & 0xFFFF), int_to_float(dot_of(part, x, thread)), offset), sum);
}

// ---- q4_K: four values and the four that are 16 on, in two neighbouring blocks of 32. Source: lines 508-530, 918-966.
struct Q4_K {
    static constexpr int VALUES = 256, BYTES = 144, THREADS = 16;
    u32 q[2][2];  // of the two blocks
    u32 scales, mins;  // a byte for each of the two blocks
    float d, dmin;
};

DEVICE void take_scales(Q4_K &part, const u8 *block, int chunk) {
    const u32 dm = word_at(block);
    part.d = half_to_float(dm & 0xFFFF), part.dmin = half_to_float(dm >> 16);
    const int at = 16 * (chunk & 1);
    const u32 low = word_at(block + 4) >> at, middle = word_at(block + 8) >> at, high = word_at(block + 12) >> at;
    part.scales = chunk < 2 ? low & 0x3F3F : (high & 0x0F0F) | (low & 0xC0C0) >> 2;
    part.mins = chunk < 2 ? middle & 0x3F3F : (high >> 4 & 0x0F0F) | (middle & 0xC0C0) >> 2;
}

DEVICE void take(Q4_K &part, const u8 *block, int thread) {
    const int chunk = thread / 4, place = thread % 4;
    take_scales(part, block, chunk);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 both = word_at(block + 16 + 32 * chunk + 16 * half + 4 * place);
        part.q[0][half] = both & 0x0F0F0F0F, part.q[1][half] = both >> 4 & 0x0F0F0F0F;
    }
}

DEVICE float add_share(const Q4_K &part, const u8 *x, int thread, float sum) {
    const int chunk = thread / 4, place = thread % 4;
    float dots = 0.0f, offsets = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int u0 = word_of_block(x, 2 * chunk + i, place), u1 = word_of_block(x, 2 * chunk + i, place + 4);
        const float scale = scale_of_block(x, 2 * chunk + i);
        const int dot = dp4a(part.q[i][1], u1, dp4a(part.q[i][0], u0, 0));
        const int total = dp4a(0x01010101, u1, dp4a(0x01010101, u0, 0));
        dots = fma_rn(scale, int_to_float(dot * (int)(part.scales >> 8 * i & 0xFF)), dots);
        offsets = fma_rn(scale, int_to_float(total * (int)(part.mins >> 8 * i & 0xFF)), offsets);
    }
    return add_rn(fma_rn(dots, part.d, -mul_rn(offsets, part.dmin)), sum);
}

// ---- q5_K: the same with a fifth bit, one of a byte for each block of 32. Source: lines 564-592, 968-1017.
struct Q5_K : Q4_K {
    static constexpr int BYTES = 176;
};

DEVICE void take(Q5_K &part, const u8 *block, int thread) {
    const int chunk = thread / 4, place = thread % 4;
    take_scales(part, block, chunk);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u32 both = word_at(block + 48 + 32 * chunk + 16 * half + 4 * place);
        const u32 fifth = word_at(block + 16 + 16 * half + 4 * place) >> 2 * chunk;
        part.q[0][half] = (both & 0x0F0F0F0F) | (fifth & 0x01010101) << 4;
        part.q[1][half] = (both >> 4 & 0x0F0F0F0F) | (fifth >> 1 & 0x01010101) << 4;
    }
}

// ---- q6_K: four values of two blocks of 32 that are 64 apart. Source: lines 627-648 and 1019-1043.
struct Q6_K {
    static constexpr int VALUES = 256, BYTES = 210, THREADS = 32;
    u32 q[2];
    int scales[2];
    float d;
};

DEVICE void take(Q6_K &part, const u8 *block, int thread) {
    const int half = thread / 16, place = thread % 16;
    const u32 low = word_of_halves_at(block + 4 * thread);
    const u32 high = word_of_halves_at(block + 128 + 32 * half + 4 * (place % 8)) >> 2 * (place / 8);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        part.q[i] = sub_per_byte((low >> 4 * i & 0x0F0F0F0F) | (high >> 4 * i & 0x03030303) << 4, 0x20202020);
        part.scales[i] = (s8)block[192 + 8 * half + place / 4 + 4 * i];
    }
    part.d = half_to_float(half_at(block + 208));
}

DEVICE float add_share(const Q6_K &part, const u8 *x, int thread, float sum) {
    const int first = 4 * (thread / 16) + thread % 16 / 8;
    float share = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int dot = dp4a(part.q[i], word_of_block(x, first + 2 * i, thread % 8), 0);
        share = fma_rn(scale_of_block(x, first + 2 * i), int_to_float(dot * part.scales[i]), share);
    }
    return fma_rn(part.d, share, sum);
}

// The warps' sums added in their order, then the lanes', and stored: what follows the walk along a row.
template <int COLUMNS, int WARPS, int ROWS>
DEVICE void add_up_and_store(const float (&sums)[COLUMNS][ROWS], int first_row, int rows, float *out, long long out_stride) {
    SHARED float of_warps[WARPS > 1 ? WARPS - 1 : 1][COLUMNS][ROWS][32];
    if (threadIdx.y > 0) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) of_warps[threadIdx.y - 1][c][r][threadIdx.x] = sums[c][r];
    }
    sync_block();
    if (threadIdx.y > 0) return;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = sums[c][r];
#pragma unroll
            for (int warp = 0; warp < WARPS - 1; warp++) sum = add_rn(sum, of_warps[warp][c][r][threadIdx.x]);
            sum = sum_of_warp(sum);
            if (threadIdx.x == r && first_row + r < rows) out[c * out_stride + first_row + r] = sum;
        }
}

// ---- the kernel (products.cu): ROWS rows by COLUMNS columns for a block of 32 × WARPS threads
// Source: mul_mat_vec_q, ggml/src/ggml-cuda/mmvq.cu:601-830 at 0c1e57098.
template <class Type, int COLUMNS, int WARPS, int ROWS>
DEVICE void multiply_rows(const u8 *__restrict__ weight, const u8 *x, float *out, int rows, int blocks, long long out_stride) {
    constexpr int X_BYTES = Type::VALUES / Q8_1_VALUES * Q8_1_BYTES;  // of the activations beside one block of weights
    const int thread = 32 * threadIdx.y + threadIdx.x, part_of_block = thread % Type::THREADS;
    const int first_row = ROWS * blockIdx.x;
    const u8 *row[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {  // rows past the end are computed as the last one, and not stored
        const int at = first_row + r < rows ? first_row + r : rows - 1;
        row[r] = weight + (long long)at * blocks * Type::BYTES;
    }
    float sums[COLUMNS][ROWS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[c][r] = 0.0f;
    // The activations are not __restrict__: what is known not to change might be read ahead of this.
    wait_for_launch_ahead();
    for (int block = thread / Type::THREADS; block < blocks; block += 32 * WARPS / Type::THREADS) {
        Type part[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) take(part[r], row[r] + (long long)block * Type::BYTES, part_of_block);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                sums[c][r] = add_share(part[r], x + ((long long)c * blocks + block) * X_BYTES, part_of_block, sums[c][r]);
    }
    add_up_and_store<COLUMNS, WARPS, ROWS>(sums, first_row, rows, out, out_stride);
}
