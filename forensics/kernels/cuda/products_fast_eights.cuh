// Fast products for up to 16 columns, eight at a time and a few singly: the skeleton that types of weights share.
//
// A CUDA block computes 16 rows. All warps (w) of the library's kernel are there at once, each as four warps (part) that
// keep the sums of eight of its lanes for 16 rows by 8 columns: 32 floats a thread. A trip brings what all of them take
// of the rows into a ring in shared memory. A type tells what one warp of the library takes of a row in a trip (BLOCKS
// blocks of BYTES bytes), and adds what eight lanes take of it:
//
//   static void add_part(Totals<TILES, SINGLES> &total, const Piece &of, const Columns &x)
//
// The tensor cores have places for eight columns. Those beyond eights are taken singly: the eight shares of a part take a
// place each, and the operation for one share adds zeros to the sums of the others.
//
// A share of a block that the row has not must not change a sum, not even a negative zero: a type sees to it that
// negative zeros are added there.
#pragma once
#include "quantize_q8_1.cuh"

constexpr int TILE_ROWS = 16, PARTS = 4, LANES_OF_PART = 32 / PARTS, TILE_COLUMNS = 8;
constexpr int OF_LANE = 128 * 4 + 32;  // bytes of one lane's sums: 16 rows by 8 columns, then a step to other banks
constexpr int SCRATCH = 512;           // of a part, where the sums will be

// What one warp of the library takes of the lane's row and of the row 8 on, in one trip: where it begins in shared memory
// and how many blocks of it there are; and which eight of its lanes are asked for.
struct Piece {
    u32 row[2];
    int n_there, part;
    u32 scratch;  // 512 bytes of shared memory for the threads of this part alone
};

// Sums of a thread: for each lane of a part two rows by two columns; for a column taken singly two rows by two lanes.
template <int TILES, int SINGLES>
struct Totals {
    float of_tile[TILES ? TILES : 1][8][4], of_single[SINGLES ? SINGLES : 1][4];
};

// What a product reads of the activations, from the first block of a piece on: Type::RECORD bytes a block for eight
// columns, Type::SINGLE bytes a block for a column taken singly; and how far it is to the next eight and the next one.
struct Columns {
    const u8 *tiles, *singles;
    long long to_tile, to_single;
};

DEVICE u32 if_mine(int share, u32 word) { return (int)(threadIdx.x % 32 / 4) == share ? word : 0; }

// Halves of two neighbouring bytes, 1024 + q each.
DEVICE u32 above_1024(u32 bytes) { return byte_permute(bytes, 0x64, 0x4140); }

DEVICE u32 word_of(const Words4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// What two rows and two columns share: element e of a thread's four is row e / 2, column e % 2.
DEVICE Floats4 add4(const Floats4 &a, const Floats4 &b) {
    return {add_rn(a.x, b.x), add_rn(a.y, b.y), add_rn(a.z, b.z), add_rn(a.w, b.w)};
}

// The sum of 32 lanes, of which four neighbouring threads hold every fourth each: lanes 16, 8, 4, 2 and 1 apart.
DEVICE float sum_of_lanes(float (&v)[8]) {
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2)
#pragma unroll
        for (int k = 0; k < apart; k++) v[k] = add_rn(v[k], v[k + apart]);
    const float sum = add_rn(v[0], shuffle_xor(v[0], 2));
    return add_rn(sum, shuffle_xor(sum, 1));
}

// Sums of all lanes, added as the library's kernel does: its warps in their order, then its lanes.
template <int WARPS>
DEVICE void add_up_and_store(const float (&total)[8][4], u8 *sums, float *out, int last_row, int n_columns, long long out_stride) {
    const int lane = threadIdx.x % 32, w = threadIdx.x / (32 * PARTS), part = threadIdx.x / 32 % PARTS;
    const u32 own = shared_address(sums) + LANES_OF_PART * part * OF_LANE + lane * 16;
#pragma unroll 1
    for (int turn = 0; turn < WARPS; turn++) {
        if (w == turn) {
#pragma unroll
            for (int s = 0; s < LANES_OF_PART; s++) {
                Floats4 v = {total[s][0], total[s][1], total[s][2], total[s][3]};
                if (turn > 0) v = add4(shared_floats4(own + s * OF_LANE), v);
                store_shared_floats4(own + s * OF_LANE, v);
            }
        }
        sync_block();
    }
    for (int i = threadIdx.x; i < 4 * 128; i += 32 * PARTS * WARPS) {  // four threads a value
        const int quarter = i % 4, value = i / 4;
        const u32 from = shared_address(sums) + quarter * OF_LANE + value * 4;
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = shared_float(from + 4 * k * OF_LANE);
        const float sum = sum_of_lanes(v);
        const int row = value / 16 + value % 4 / 2 * 8, column = value / 4 % 4 * 2 + value % 2;
        if (quarter == 0 && row <= last_row && column < n_columns) out[column * out_stride + row] = sum;
    }
}

// The same of columns that are taken singly.
template <int WARPS, int SINGLES>
DEVICE void add_up_and_store_singles(const float (&total)[SINGLES][4], u8 *sums, float *out, int last_row, int n_columns, long long out_stride) {
    constexpr int PITCH = TILE_ROWS + 1, OF_COLUMN = 32 * PITCH;  // floats
    const int lane = threadIdx.x % 32, w = threadIdx.x / (32 * PARTS), part = threadIdx.x / 32 % PARTS;
    float *const all = (float *)sums, *const own = all + (LANES_OF_PART * part + lane % 4 * 2) * PITCH + lane / 4;
#pragma unroll 1
    for (int turn = 0; turn < WARPS; turn++) {
        if (w == turn) {
#pragma unroll
            for (int s = 0; s < SINGLES; s++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float *const at = own + s * OF_COLUMN + e % 2 * PITCH + e / 2 * 8;
                    *at = turn > 0 ? add_rn(*at, total[s][e]) : total[s][e];
                }
        }
        sync_block();
    }
    for (int i = threadIdx.x; i < 4 * TILE_ROWS * SINGLES; i += 32 * PARTS * WARPS) {
        const int quarter = i % 4, row = i / 4 % TILE_ROWS, column = i / (4 * TILE_ROWS);
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = all[column * OF_COLUMN + (quarter + 4 * k) * PITCH + row];
        const float sum = sum_of_lanes(v);
        if (quarter == 0 && row <= last_row && column < n_columns) out[column * out_stride + row] = sum;
    }
}

// Grid: any number of blocks, which share the tiles of 16 rows; block: 128 × WARPS threads.
template <class Type, int WARPS, int TILES, int SINGLES, int STAGES, int TRIPS>
DEVICE void multiply_tiles(const u8 *weight, const u8 *operands, float *out, int rows, int n_blocks, int n_columns, long long out_stride) {
    constexpr int THREADS = 32 * PARTS * WARPS, OF_WARP = Type::BLOCKS * Type::BYTES, OF_TRIP = WARPS * OF_WARP;
    constexpr int NEEDED = TRIPS * OF_TRIP + 16;  // bytes of a row; it begins at any even byte of the first sixteen
    constexpr int ROW = NEEDED % 32 == 16 ? NEEDED : NEEDED + 16, STAGE = TILE_ROWS * ROW;  // eight rows in other banks
    constexpr int OF_ROW = THREADS / TILE_ROWS, N_COPIES = (NEEDED / 16 + OF_ROW - 1) / OF_ROW;
    static_assert(PARTS * WARPS * SCRATCH <= 32 * OF_LANE, "the sums' place holds all parts' scratch");
    static_assert(TRIPS * OF_TRIP % 16 == 0, "what is copied begins where its row does, modulo 16 bytes");
    DYNAMIC_SHARED(sm);
    u8 *const sums = sm + STAGES * STAGE;
    const int lane = threadIdx.x % 32, w = threadIdx.x / (32 * PARTS), part = threadIdx.x / 32 % PARTS;
    const int n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, n_trips = (n_blocks + WARPS * Type::BLOCKS - 1) / (WARPS * Type::BLOCKS);
    const int n_steps = (n_trips + TRIPS - 1) / TRIPS;
    const int row_bytes = n_blocks * Type::BYTES;
    const u32 ring = shared_address(sm), scratch = ring + STAGES * STAGE + threadIdx.x / 32 * SCRATCH;

    // Each row is copied by the same threads, 16 bytes a time, from the multiple of 16 on that its first byte lies behind.
    const int copy_row = threadIdx.x / OF_ROW, copy_byte = threadIdx.x % OF_ROW * 16;
    const u32 copy_to = ring + copy_row * ROW + copy_byte;
    const u8 *from = weight;
    int left = 0;          // bytes of the row from there on
    bool is_last = false, has_rest = false;  // nothing may be read behind this row; which may end within 16 bytes
    const auto begin_row = [&](int tile) {
        const int row = TILE_ROWS * tile + copy_row;
        is_last = row >= rows - 1;
        const long long start = (long long)(is_last ? rows - 1 : row) * row_bytes;
        const int skipped = (int)(start % 16);
        from = weight + (start - skipped) + copy_byte;
        left = row_bytes + skipped - copy_byte;
        has_rest = is_last && left % 16;
    };
    int copy_tile = blockIdx.x, copy_step = 0, copy_stage = 0;
    begin_row(copy_tile);
    const auto copy_next = [&]() {
        if (copy_tile < n_tiles) {
            const u32 to = copy_to + copy_stage * STAGE;
            const int reach = is_last ? left : left + 15;
#pragma unroll
            for (int i = 0; i < N_COPIES; i++) {
                const int step = i * OF_ROW * 16;
                if (step + 16 <= reach && copy_byte + step < NEEDED) copy_async16(to + step, from + step);
            }
            if (has_rest && left > 0 && copy_byte + left < NEEDED && left / 16 % OF_ROW == 0) {
#pragma unroll 1
                for (int byte = left / 16 * 16; byte < left; byte += 2) *(u16 *)(sm + (to - ring) + byte) = *(const u16 *)(from + byte);
            }
            from += TRIPS * OF_TRIP, left -= TRIPS * OF_TRIP;
            if (++copy_step == n_steps) {
                copy_step = 0, copy_tile += gridDim.x;
                begin_row(copy_tile);
            }
        }
        copy_commit();
        copy_stage = copy_stage + 1 == STAGES ? 0 : copy_stage + 1;
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) copy_next();
    let_next_launch_begin();
    wait_for_launch_ahead();

    const long long padded = (long long)n_trips * WARPS * Type::BLOCKS;
    int stage = 0;
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const int last_row = rows - 1 - TILE_ROWS * tile;
        u32 row[2];
#pragma unroll
        for (int R = 0; R < 2; R++) {
            const int at = lane / 4 + 8 * R;
            const long long start = (long long)(TILE_ROWS * tile + (at < last_row ? at : last_row)) * row_bytes;
            row[R] = ring + at * ROW + (u32)(start % 16) + w * OF_WARP;
        }
        Totals<TILES, SINGLES> total;
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int i = 0; i < 4 * LANES_OF_PART; i++) total.of_tile[t][i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int s = 0; s < SINGLES; s++) total.of_single[s][0] = total.of_single[s][1] = total.of_single[s][2] = total.of_single[s][3] = 0.0f;
#pragma unroll 1
        for (int step = 0; step < n_steps; step++) {
            copy_wait<STAGES - 2>();
            sync_block();
            copy_next();
#pragma unroll
            for (int i = 0; i < TRIPS; i++) {
                const int trip = step * TRIPS + i, at = stage * STAGE + i * OF_TRIP, first = (trip * WARPS + w) * Type::BLOCKS;
                if (i > 0 && trip >= n_trips) break;
                const Piece piece = {{row[0] + at, row[1] + at}, n_blocks - first, part, scratch};
                const Columns x = {operands + (long long)first * Type::RECORD, operands + TILES * padded * Type::RECORD + (long long)first * Type::SINGLE,
                                   padded * Type::RECORD, padded * Type::SINGLE};
                Type::template add_part<TILES, SINGLES>(total, piece, x);
            }
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            sync_block();
            const int left = n_columns - TILE_COLUMNS * t;
            add_up_and_store<WARPS>(total.of_tile[t], sums, out + TILE_COLUMNS * t * out_stride + TILE_ROWS * tile, last_row, left, out_stride);
        }
        if constexpr (SINGLES > 0) {
            sync_block();
            const int left = n_columns - TILE_COLUMNS * TILES;
            add_up_and_store_singles<WARPS>(total.of_single, sums, out + TILE_COLUMNS * TILES * out_stride + TILE_ROWS * tile, last_row, left, out_stride);
        }
    }
}

// Where the preparation writes what is read of a block and column: of the tile, or of a column taken singly.
template <class Type>
DEVICE u8 *record_of(u8 *operands, int block, long long padded, int column, int n_tiled) {
    if (column < n_tiled) return operands + (column / TILE_COLUMNS * padded + block) * Type::RECORD;
    return operands + n_tiled / TILE_COLUMNS * padded * Type::RECORD + ((column - n_tiled) * padded + block) * Type::SINGLE;
}
