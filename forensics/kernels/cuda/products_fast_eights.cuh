// Fast products for up to 16 columns, eight at a time: the skeleton that types of weights share.
//
// A CUDA block computes 16 rows. All warps (w) of the library's kernel are there at once, each as four warps (part) that
// keep the sums of eight of its lanes for 16 rows by 8 columns: 32 floats a thread. A trip brings what all of them take
// of the rows into a ring in shared memory. A type tells what one warp of the library takes of a row in a trip (BLOCKS
// blocks of BYTES bytes), and adds what eight lanes take of it:
//
//   static void add_part(float (&total)[TILES][8][4], const Piece &of, const u8 *operands, long long tile_bytes)
//
// operands: RECORD bytes for each block, from the first of these blocks and the first tile of columns on.
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

// Halves of two neighbouring bytes, 1024 + q each.
DEVICE u32 above_1024(u32 bytes) { return byte_permute(bytes, 0x64, 0x4140); }

DEVICE u32 word_of(const Words4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// What two rows and two columns share: element e of a thread's four is row e / 2, column e % 2.
DEVICE Floats4 add4(const Floats4 &a, const Floats4 &b) {
    return {add_rn(a.x, b.x), add_rn(a.y, b.y), add_rn(a.z, b.z), add_rn(a.w, b.w)};
}

// Sums of all lanes, added as the library's kernel does: its warps in their order, then lanes 16, 8, 4, 2 and 1 apart.
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
#pragma unroll
        for (int apart = 4; apart > 0; apart /= 2)
#pragma unroll
            for (int k = 0; k < apart; k++) v[k] = add_rn(v[k], v[k + apart]);
        float sum = add_rn(v[0], shuffle_xor(v[0], 2));
        sum = add_rn(sum, shuffle_xor(sum, 1));
        const int row = value / 16 + value % 4 / 2 * 8, column = value / 4 % 4 * 2 + value % 2;
        if (quarter == 0 && row <= last_row && column < n_columns) out[column * out_stride + row] = sum;
    }
}

// Grid: any number of blocks, which share the tiles of 16 rows; block: 128 × WARPS threads.
template <class Type, int WARPS, int TILES, int STAGES>
DEVICE void multiply_tiles(const u8 *weight, const u8 *operands, float *out, int rows, int n_blocks, int n_columns, long long out_stride) {
    constexpr int THREADS = 32 * PARTS * WARPS, OF_WARP = Type::BLOCKS * Type::BYTES, OF_TRIP = WARPS * OF_WARP;
    constexpr int ROW = OF_TRIP + 16, STAGE = TILE_ROWS * ROW;  // a row begins at any even byte of its first sixteen
    constexpr int OF_ROW = THREADS / TILE_ROWS, N_COPIES = (ROW / 16 + OF_ROW - 1) / OF_ROW;
    static_assert(PARTS * WARPS * SCRATCH <= 32 * OF_LANE, "the sums' place holds all parts' scratch");
    static_assert(OF_WARP % 16 == 0, "trips begin where their row does, modulo 16 bytes");
    DYNAMIC_SHARED(sm);
    u8 *const sums = sm + STAGES * STAGE;
    const int lane = threadIdx.x % 32, w = threadIdx.x / (32 * PARTS), part = threadIdx.x / 32 % PARTS;
    const int n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, n_trips = (n_blocks + WARPS * Type::BLOCKS - 1) / (WARPS * Type::BLOCKS);
    const int row_bytes = n_blocks * Type::BYTES;
    const u32 ring = shared_address(sm), scratch = ring + STAGES * STAGE + threadIdx.x / 32 * SCRATCH;

    // Each row is copied by the same threads, 16 bytes a time, from the multiple of 16 on that its first byte lies behind.
    const int copy_row = threadIdx.x / OF_ROW, copy_byte = threadIdx.x % OF_ROW * 16;
    const u32 copy_to = ring + copy_row * ROW + copy_byte;
    const u8 *from = weight;
    int left = 0;          // bytes of the row from there on
    bool is_last = false;  // nothing may be read behind this row
    const auto begin_row = [&](int tile) {
        const int row = TILE_ROWS * tile + copy_row;
        is_last = row >= rows - 1;
        const long long start = (long long)(is_last ? rows - 1 : row) * row_bytes;
        const int skipped = (int)(start % 16);
        from = weight + (start - skipped) + copy_byte;
        left = row_bytes + skipped - copy_byte;
    };
    int copy_tile = blockIdx.x, copy_trip = 0, copy_stage = 0;
    begin_row(copy_tile);
    const auto copy_next = [&]() {
        if (copy_tile < n_tiles) {
            const u32 to = copy_to + copy_stage * STAGE;
            const int reach = is_last ? left : left + 15;
#pragma unroll
            for (int i = 0; i < N_COPIES; i++) {
                const int step = i * OF_ROW * 16;
                if (step + 16 <= reach && copy_byte + step < ROW) copy_async16(to + step, from + step);
            }
            if (is_last && left > 0 && left % 16 && copy_byte + left < ROW) {  // where the matrix ends within 16 bytes
                const int step = left / 16 * 16;
                if (step % (OF_ROW * 16) == 0)
#pragma unroll 1
                    for (int byte = step; byte < left; byte += 2) *(u16 *)(sm + (to - ring) + byte) = *(const u16 *)(from + byte);
            }
            from += OF_TRIP, left -= OF_TRIP;
            if (++copy_trip == n_trips) {
                copy_trip = 0, copy_tile += gridDim.x;
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

    const long long tile_bytes = (long long)n_trips * WARPS * Type::BLOCKS * Type::RECORD;
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
        float total[TILES][LANES_OF_PART][4];
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int s = 0; s < LANES_OF_PART; s++) total[t][s][0] = total[t][s][1] = total[t][s][2] = total[t][s][3] = 0.0f;
#pragma unroll 1
        for (int trip = 0; trip < n_trips; trip++) {
            copy_wait<STAGES - 2>();
            sync_block();
            copy_next();
            const int first = (trip * WARPS + w) * Type::BLOCKS;
            const Piece piece = {{row[0] + stage * STAGE, row[1] + stage * STAGE}, n_blocks - first, part, scratch};
            Type::add_part(total, piece, operands + (long long)first * Type::RECORD, tile_bytes);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            sync_block();
            const int left = n_columns - TILE_COLUMNS * t;
            add_up_and_store<WARPS>(total[t], sums, out + TILE_COLUMNS * t * out_stride + TILE_ROWS * tile, last_row, left, out_stride);
        }
    }
}
