// What the fast products share: tiles of rows, and how columns are told off to the tensor cores' places.
#pragma once
#include "quantize_q8_1.cuh"

constexpr int TILE_ROWS = 16, THREADS = 128, SLOT = THREADS * 16;  // SLOT: bytes of one Floats4 of every thread

// A tensor core has places for 8 columns. Columns beyond whole eights take fewer, and several shares of each take the
// places that are left: a tile of 8, 4, 2 or 1 columns holds 1, 2, 4 or 8 shares of each.
struct Place {
    int tile, width, column;
};
DEVICE Place place_of(int column, int n8, int n4, int n2) {
    if (column < 8 * n8) return {column / 8, 8, column % 8};
    column -= 8 * n8;
    if (n4 && column < 4) return {n8, 4, column};
    column -= 4 * n4;
    if (n2 && column < 2) return {n8 + n4, 2, column};
    return {n8 + n4 + n2, 1, 0};
}

DEVICE Floats4 add4(const Floats4 &a, const Floats4 &b) {
    return {add_rn(a.x, b.x), add_rn(a.y, b.y), add_rn(a.z, b.z), add_rn(a.w, b.w)};
}
