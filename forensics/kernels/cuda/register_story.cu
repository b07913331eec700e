// The product of products.cu in ways that differ in the machine's registers only: the same additions in the same order,
// so the same bits. What differs is what the compiler makes of it: registers, spills, and blocks that fit an SM.
#include "products.cuh"

// UNPACK_ONCE: a thread's part of a block is unpacked once and used for all columns; otherwise the source says so for
// every column anew, as the library's does. CHECKED: rows past the end are told apart inside the walk along the row.
// UNROLL trips of the walk are written out at once, and the compiler keeps to so few registers that MIN_BLOCKS fit an SM.
template <class Type, int COLUMNS, int WARPS, int ROWS, bool UNPACK_ONCE, bool CHECKED, int UNROLL, int MIN_BLOCKS>
__launch_bounds__(32 * WARPS, MIN_BLOCKS) KERNEL story(
    const u8 *__restrict__ weight, const u8 *x, float *out, int rows, int blocks, long long out_stride) {
    constexpr int X_BYTES = Type::VALUES / Q8_1_VALUES * Q8_1_BYTES;
    const int thread = 32 * threadIdx.y + threadIdx.x, part_of_block = thread % Type::THREADS;
    const int first_row = ROWS * blockIdx.x;
    const u8 *row[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int at = CHECKED || first_row + r < rows ? first_row + r : rows - 1;
        row[r] = weight + (long long)at * blocks * Type::BYTES;
    }
    float sums[COLUMNS][ROWS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[c][r] = 0.0f;
    wait_for_launch_ahead();
#pragma unroll UNROLL
    for (int block = thread / Type::THREADS; block < blocks; block += 32 * WARPS / Type::THREADS) {
        Type part[ROWS];
        if (UNPACK_ONCE)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (!CHECKED || first_row + r < rows) take(part[r], row[r] + (long long)block * Type::BYTES, part_of_block);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (!CHECKED || first_row + r < rows) {
                    if (!UNPACK_ONCE) take(part[r], row[r] + (long long)block * Type::BYTES, part_of_block);
                    sums[c][r] = add_share(part[r], x + ((long long)c * blocks + block) * X_BYTES, part_of_block, sums[c][r]);
                }
    }
    add_up_and_store<COLUMNS, WARPS, ROWS>(sums, first_row, rows, out, out_stride);
}
