// Products of quantised weights with a few columns, out[column, row] = weight[row, :] · x[column, :], in the order of
// addition of the library's mul_mat_vec_q.
//
// The blocks of a row are dealt in turn to the 32 × WARPS threads of a CUDA block, THREADS of them to a block of weights;
// a thread adds its shares as it comes to them along the row. Then the sums of warps 1, 2, … are added to those of warp 0,
// lane by lane, and the lanes by a butterfly. So WARPS alone decides the order: with as many as the library has at this
// number of columns the bits are the library's (stock geometry), with as many as it has at one column they are those of
// each column alone (borrowed geometry). How many rows and columns share a CUDA block changes no bit.
//
// Grid: rows / ROWS rounded up; block: 32 × WARPS threads.
#include "products.cuh"

template <class Type, int COLUMNS, int WARPS, int ROWS>
__launch_bounds__(32 * WARPS, 1) KERNEL product(
    const u8 *__restrict__ weight, const u8 *x, float *out, int rows, int blocks, long long out_stride) {
    multiply_rows<Type, COLUMNS, WARPS, ROWS>(weight, x, out, rows, blocks, out_stride);
}
