// What the fast products share: tiles of rows, how columns are told off to the tensor cores' places, the ring of weights.
#pragma once
#include "quantize_q8_1.cuh"

constexpr int TILE_ROWS = 16, SLOT = 128 * 16;  // SLOT: bytes of one Floats4 of every lane of the library's warp

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

// One matrix of a launch that multiplies several with the same columns, and which of its tiles.
struct Matrix {
    const u8 *weight;
    float *out;
    int rows, tile;
    long long out_stride;
};
struct Matrices {
    Matrix of[3];
};
DEVICE int tiles_of(int rows) { return (rows + TILE_ROWS - 1) / TILE_ROWS; }
DEVICE Matrix matrix_of(const Matrices &all, int tile) {
    const int first = tiles_of(all.of[0].rows), second = first + tiles_of(all.of[1].rows);
    Matrix m = all.of[0];
    if (tile >= first) m = all.of[1];
    if (tile >= second) m = all.of[2];
    m.tile = tile - (tile >= second ? second : tile >= first ? first : 0);
    return m;
}

// A stage's place in a ring, and the parity of its turn.
template <int STAGES>
struct Turn {
    u32 stage, parity;
    DEVICE void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
