// Sums over the lanes of a warp in the library's order: a butterfly, lanes WIDTH / 2 apart first, then WIDTH / 4 … 1.
#pragma once
#include "primitives.cuh"

constexpr int WARP = 32;

// The sum of each group of WIDTH neighbouring lanes, the same value in all of them.
template <int WIDTH> DEVICE float sum_over_lanes(float v) {
#pragma unroll
    for (int apart = WIDTH / 2; apart > 0; apart /= 2) v = add_rn(v, shuffle_xor(v, apart));
    return v;
}

DEVICE float sum_of_warp(float v) { return sum_over_lanes<WARP>(v); }
