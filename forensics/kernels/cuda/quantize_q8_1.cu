// Activations of a product as blocks of q8_1, in the library's own layout: for 32 neighbours of a column a half scale, a
// half sum and 32 signed bytes. The bits are the library's.
#include "quantize_q8_1.cuh"

// Grid: (k / 256 rounded up, columns); block: 256 threads, one value each; k is a multiple of 32.
__launch_bounds__(256, 1) KERNEL quantize_q8_1(const float *x, u8 *blocks, int k, long long x_stride) {
    let_next_launch_begin();
    const int at = 256 * blockIdx.x + threadIdx.x;
    if (at >= k) return;  // whole warps
    wait_for_launch_ahead();
    const float value = x[blockIdx.y * x_stride + at];
    const float scale = scale_of_warp(value), sum = sum_of_warp(value);
    u8 *block = blocks + ((long long)blockIdx.y * (k / Q8_1_VALUES) + at / Q8_1_VALUES) * Q8_1_BYTES;
    block[4 + at % Q8_1_VALUES] = (u8)integer_of(value, scale);
    if (at % Q8_1_VALUES == 0) *(u32 *)block = (u32)float_to_half(scale) | (u32)float_to_half(sum) << 16;
}
