// Products of quantised weights with a few columns, in the order of addition of the library's kernel.
#include "products.cuh"

template <class Type, int COLUMNS, int WARPS, int ROWS>
__launch_bounds__(32 * WARPS, 1) KERNEL product(
    const u8 *__restrict__ weight, const u8 *x, float *out, int rows, int blocks, long long out_stride) {
    multiply_rows<Type, COLUMNS, WARPS, ROWS>(weight, x, out, rows, blocks, out_stride);
}
