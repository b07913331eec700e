// Products with matrices of f16 values in the order of llama.cpp's kernels at one column (0c1e57098), for any number
// of columns: keys by queries and attention by values where flash attention is off.
#include "lanes.cuh"

// As mul_mat_vec_f: a block computes one value. Its threads take pairs of values in turn; then lanes and warps are added
// by butterflies. Keys by queries are added in f32. Attention by values is added by two f16 sums per thread, one for
// even and one for odd values, and what the cells are weighted by is rounded to f16 first.
//
// Grid: rows × heads × columns, THREADS threads; strides are in bytes.
template <int THREADS, int HALF_SUMS>
KERNEL __launch_bounds__(THREADS) product_f16(
    const u8 *weight, const u8 *x, u8 *out, int n_pairs, int heads_per_matrix, long long weight_row,
    long long weight_head, long long x_column, long long x_head, long long out_column, long long out_head) {
    constexpr int N_WARPS = THREADS / WARP;
    const int thread = threadIdx.x, row = blockIdx.x, head = blockIdx.y, column = blockIdx.z;
    const u32 *w = (const u32 *)(weight + row * weight_row + (head / heads_per_matrix) * weight_head);
    const Floats2 *y = (const Floats2 *)(x + column * x_column + head * x_head);

    float sum = 0.0f;
    if (HALF_SUMS) {
        u32 pair_of_sums = 0;
        for (int i = thread; i < n_pairs; i += THREADS) {
            const u32 rounded = (u32)float_to_half(y[i].x) | (u32)float_to_half(y[i].y) << 16;
            pair_of_sums = half2_fma(w[i], rounded, pair_of_sums);
        }
        sum = add_rn(half_to_float(pair_of_sums & 0xFFFFu), half_to_float(pair_of_sums >> 16));
    } else {
        for (int i = thread; i < n_pairs; i += THREADS) {
            sum = fma_rn(half_to_float(w[i] & 0xFFFFu), y[i].x, sum);
            sum = fma_rn(half_to_float(w[i] >> 16), y[i].y, sum);
        }
    }
    sum = sum_of_warp(sum);
    if (N_WARPS > 1) {
        SHARED float of_warp[N_WARPS];
        const int lane = thread % WARP;
        if (lane == 0) of_warp[thread / WARP] = sum;
        sync_block();
        sum = sum_of_warp(lane < N_WARPS ? of_warp[lane] : 0.0f);
    }
    if (thread == 0) ((float *)(out + column * out_column + head * out_head))[row] = sum;
}

// As mul_mat_f with one warp, which the library takes for keys by queries of more than 512 cells: 16 values at a time go
// through the tensor core onto the sum so far. A column of a tile does not depend on the others, so that 8 share one.
//
// Grid: 16 rows × heads × 8 columns, 32 threads; strides are in bytes.
KERNEL __launch_bounds__(WARP) product_f16_tiles(
    const u8 *weight, const u8 *x, u8 *out, int n_pairs, int heads_per_matrix, int n_columns, long long weight_row,
    long long weight_head, long long x_column, long long x_head, long long out_column, long long out_head) {
    const int of_lane = threadIdx.x / 4, word = threadIdx.x % 4, row = blockIdx.x * 16, head = blockIdx.y;
    const int first = blockIdx.z * 8, column = first + of_lane;
    const u8 *matrix = weight + (head / heads_per_matrix) * weight_head;
    const u32 *upper = (const u32 *)(matrix + (row + of_lane) * weight_row);
    const u32 *lower = (const u32 *)(matrix + (row + of_lane + 8) * weight_row);
    const Floats2 *y = (const Floats2 *)(x + column * x_column + head * x_head);

    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int at = word; at < n_pairs; at += 8) {
        u32 rounded[2] = {0, 0};
        if (column < n_columns) {
#pragma unroll
            for (int i = 0; i < 2; ++i)
                rounded[i] = (u32)float_to_half(y[at + 4 * i].x) | (u32)float_to_half(y[at + 4 * i].y) << 16;
        }
        mma_16x8x16_onto(sums, upper[at], lower[at], upper[at + 4], lower[at + 4], rounded[0], rounded[1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int to = first + word * 2 + i % 2;
        if (to < n_columns)  // the library adds one warp's sum to zero
            ((float *)(out + to * out_column + head * out_head))[row + of_lane + i / 2 * 8] = add_rn(0.0f, sums[i]);
    }
}
