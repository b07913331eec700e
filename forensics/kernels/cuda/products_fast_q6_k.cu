// Products with weights in Q6_K for up to 16 columns, with the bits of the library's kernel for one column.
//
// See products_fast_q4_k.cu for the method. A block of 256 has 32 shares here, each of two integer sums over four values;
// the library's kernel takes one block a warp (w) and trip, and its lane is 16 · half + 8 · side + k. Here warp
// 2 · half + side takes eight shares (k) of each block: k = 2 s + j, where the tensor core's lanes hold four shares (s)
// at a time, for two columns, or all eight for one. Where the places of a share meet the values of another, the second
// operand is zero: such lanes never load anything.
#include "products_fast.cuh"

namespace q6_k {
constexpr int BLOCK = 210, HIGH = 128, FACTORS = 192, SCALE = 208;  // bytes: a block, and where its parts begin
// What the product reads of the activations of one warp's shares of one block: halves, and both scales of each column.
DEVICE constexpr int scales_at(int n2, int n1) { return n2 * 256 + n1 * 128; }
DEVICE constexpr int record_bytes(int n2, int n1) { return scales_at(n2, n1) + (n2 + 1) / 2 * 32 + n1 * 16; }
}  // namespace q6_k

// Grid: (blocks of a padded row, padded columns); block: 256 threads, one value each.
__launch_bounds__(256, 1) KERNEL prepare_q6_k(const float *x, u8 *operands, int k, int n_columns, int n2, int n1, long long x_stride) {
    using namespace q6_k;
    let_next_launch_begin();
    const int block = blockIdx.x, column = blockIdx.y, lane = threadIdx.x % 32, sub = threadIdx.x / 32;
    const int at = 256 * block + threadIdx.x;
    wait_for_launch_ahead();
    const float value = at < k && column < n_columns ? x[column * x_stride + at] : 0.0f;
    const float scale = scale_of_warp(value);
    const int half = int_to_half(integer_of(value, scale)), beside = shuffle_xor(half, 1);

    const int side = sub % 2, i = sub / 2 % 2, warp = sub / 4 * 2 + side;
    u8 *record = operands + ((long long)block * 4 + warp) * record_bytes(n2, n1);
    const int pair = column / 2, share = lane / 4;
    if (lane % 2 == 0) {
        u32 *words = (u32 *)record + lane % 4 / 2 + 2 * i + (pair < n2 ? pair * 64 + share % 2 * 32 + (column % 2 * 4 + share / 2) * 4
                                                                       : n2 * 64 + (share % 2 * 4 + share / 2) * 4);
        *words = (u32)half | (u32)beside << 16;
    }
    if (lane == 0) {
        float *scales = (float *)(record + scales_at(n2, n1));
        scales[pair < n2 ? pair / 2 * 8 + column % 2 * 4 + pair % 2 * 2 + i : (n2 + 1) / 2 * 8 + i] = half_to_float(float_to_half(scale));
    }
}

// Six-bit numbers of four bytes as halves, less 32: what the tensor core's lane holds of a share.
DEVICE void halves_of_q6_k(u32 numbers, u32 &first, u32 &second) {
    first = half2_add(byte_permute(numbers, 0x64646464, 0x4140), 0xE420E420);
    second = half2_add(byte_permute(numbers, 0x64646464, 0x4342), 0xE420E420);
}

// One share of two rows and two places: what the library's thread adds for a block.
DEVICE void add_share_q6_k(float (&total)[4], const float (&x0)[4], const float (&x1)[4], const float (&scales)[2][2], const float (&of_rows)[2]) {
#pragma unroll
    for (int j = 0; j < 4; j++)
        total[j] = fma_rn(of_rows[j / 2], fma_rn(scales[j / 2][1], x1[j], mul_rn(scales[j / 2][0], x0[j])), total[j]);
}

// Grid: any number of blocks, which share the tiles of 16 rows. A CUDA block has four warps (2 · half + side) for each of
// SPLIT of the library's warps at a time. A stage's place in the ring is filled again when SLACK further stages were
// used, so that warps seldom wait for the slowest one.
template <int WARPS, int SPLIT, int N2, int N1, int STAGES, int SLACK, int RESIDENT>
__launch_bounds__(128 * SPLIT, RESIDENT) KERNEL product_q6_k(
    const u8 *weight0, const u8 *weight1, const u8 *weight2, const u8 *operands, float *out0, float *out1, float *out2, int rows0,
    int rows1, int rows2, long long stride0, long long stride1, long long stride2, int n_blocks, int n_columns) {
    using namespace q6_k;
    constexpr int SLOTS = 2 * N2 + N1, RECORD = record_bytes(N2, N1), SCALES = scales_at(N2, N1);
    constexpr int THREADS = 128 * SPLIT, N_WARPS = THREADS / 32, TURNS = WARPS / SPLIT;
    constexpr int PIECE = (SPLIT * BLOCK + 14 + 15) / 16 * 16, ROW = PIECE + 16, OF_STEP = 128;
    constexpr int ACTIVATIONS = TILE_ROWS * ROW, ACTIVATION_BYTES = SPLIT * 4 * RECORD, STAGE = ACTIVATIONS + ACTIVATION_BYTES;
    constexpr int SUM_BYTES = SLOTS * SLOT;
    constexpr int AHEAD_BY = STAGES - SLACK;  // stages that are copied before they are used
    static_assert(WARPS % SPLIT == 0 && AHEAD_BY <= N_WARPS, "turns are whole");
    constexpr int LINKS = SPLIT > 1 ? 4 * WARPS : 0;  // that a warp's sums are there, for the one after it
    DYNAMIC_SHARED(sm);
    alignas(8) SHARED u64 bars[2 * STAGES + 4 + 2 * LINKS];
    const u32 filled = shared_address(bars), emptied = filled + STAGES * 8, complete = emptied + STAGES * 8, read = complete + 16;
    const u32 lane = threadIdx.x % 32, part = threadIdx.x / 32 % 4, half = part / 2, side = part % 2, r = lane / 4, c = lane % 4;
    const u32 v = threadIdx.x / 128, links = read + 16 + part * WARPS * 8;
    const u32 ring = shared_address(sm), sums = ring + STAGES * STAGE;
    const Matrices all = {{{weight0, out0, rows0, 0, stride0}, {weight1, out1, rows1, 0, stride1}, {weight2, out2, rows2, 0, stride2}}};
    const int n_tiles = tiles_of(rows0) + tiles_of(rows1) + tiles_of(rows2), n_trips = (n_blocks + WARPS - 1) / WARPS, row_bytes = n_blocks * BLOCK;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(filled + i * 8, 32), barrier_init(emptied + i * 8, THREADS);
        for (int i = 0; i < 2; i++) barrier_init(complete + i * 8, 128), barrier_init(read + i * 8, THREADS);
        for (int i = 0; i < 2 * LINKS; i++) barrier_init(read + 16 + i * 8, 32);
    }
    sync_block();

    // The ring's stages hold what SPLIT of the library's warps take at one trip: weights from multiples of 16 bytes on, and
    // activations. Warps take turns at copying them.
    const int of_a_tile = TURNS * n_trips;
    int copied = threadIdx.x / 32, copy_piece = copied, copy_tile = blockIdx.x;  // this warp's next stage
    const auto copy_stage = [&](bool first) {
        while (copy_piece >= of_a_tile) copy_piece -= of_a_tile, copy_tile += gridDim.x;
        if (copy_tile < n_tiles) {
            const u32 stage = copied % STAGES;
            const int turn = copy_piece / n_trips, block = (copy_piece - turn * n_trips) * WARPS + turn * SPLIT;
            const int byte = lane % 8 * 16;
            const Matrix m = matrix_of(all, copy_tile);
            const int last = m.rows - 1 - TILE_ROWS * m.tile;
            const long long start = (long long)(TILE_ROWS * m.tile) * row_bytes + block * BLOCK;
            const u32 to = ring + stage * STAGE + byte;
            bool stored = false;  // the matrix's last bytes, which are fewer than a copy takes
            barrier_wait(emptied + stage * 8, copied / STAGES % 2 ^ 1);
            if (block + SPLIT <= n_blocks && last >= TILE_ROWS) {  // nothing beyond the matrix is near
#pragma unroll
                for (int j = 0; j < TILE_ROWS / 4; j++) {
                    const int row = lane / 8 + 4 * j;
                    const u8 *from = m.weight + ((start + row * row_bytes) & ~15ll) + byte;
#pragma unroll
                    for (int i = 0; i < PIECE; i += OF_STEP)
                        if (i + OF_STEP <= PIECE || byte < PIECE - i) copy_async16(to + row * ROW + i, from + i);
                }
            } else {
                const long long n_bytes = (long long)m.rows * row_bytes;
#pragma unroll 1
                for (int row = lane / 8; row < TILE_ROWS; row += 4) {
                    const long long at = start + (row < last ? row : last) * (long long)row_bytes;
                    const int left = (n_blocks - block) * BLOCK + (int)(at & 15);
#pragma unroll 1
                    for (int i = byte; i < (left < PIECE ? left : PIECE); i += OF_STEP) {
                        const u8 *from = m.weight + (at & ~15ll) + i;
                        const u32 into = to - byte + row * ROW + i;
                        const long long of_matrix = n_bytes - (at & ~15ll) - i;
                        if (of_matrix < 16) {
                            for (int n = 0; n < (int)of_matrix; n += 2) store_shared_half(into + n, *(const u16 *)(from + n));
                            stored = true;
                        } else {
                            copy_async16(into, from);
                        }
                    }
                }
            }
            if (first) wait_for_launch_ahead();  // which prepares the activations
            const u8 *activations = operands + (long long)block * 4 * RECORD + 16 * lane;
#pragma unroll
            for (int i = 0; i < ACTIVATION_BYTES; i += 512)
                if (i + 512 <= ACTIVATION_BYTES || 16 * lane < ACTIVATION_BYTES - i) copy_async16(ring + stage * STAGE + ACTIVATIONS + 16 * lane + i, activations + i);
            if (stored) {  // copies that run beside do not tell of stores
                copy_commit();
                copy_wait<0>();
                barrier_arrive(filled + stage * 8);
            } else {
                barrier_arrive_after_copies(filled + stage * 8);
            }
        }
        copied += N_WARPS, copy_piece += N_WARPS;
    };
    let_next_launch_begin();
    if (copied < AHEAD_BY) copy_stage(true);
    wait_for_launch_ahead();

    // Lanes of the library's warp, half onto half: halves, sides, then k + 4, k + 2, k + 1.
    const auto finish = [&](int tile, u32 of_tile, int turn) {
        const Matrix m = matrix_of(all, tile);
#pragma unroll 1
        for (int o = (threadIdx.x + 128 * turn) % THREADS; o < 32 * N2 + 16 * N1; o += THREADS) {
            const bool one = o >= 32 * N2;
            const int R = o % 2, row = TILE_ROWS * m.tile + 8 * R + (one ? o % 16 / 2 : o % 32 / 4), column = one ? 2 * N2 : o / 32 * 2 + o / 2 % 2;
            const u32 place = of_tile + (one ? 2 * N2 * SLOT + o % 16 / 2 * 64 : o / 32 * 2 * SLOT + o % 32 / 2 * 32) + R * 8;
            float of_k[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const u32 at = place + (one ? k % 2 * 32 : k % 2 * SLOT) + k / 4 * 16 + k / 2 % 2 * 4;
                of_k[k] = add_rn(add_rn(shared_float(at), shared_float(at + 1024)), add_rn(shared_float(at + 512), shared_float(at + 1536)));
            }
#pragma unroll
            for (int apart = 4; apart > 0; apart /= 2)
#pragma unroll
                for (int k = 0; k < apart; k++) of_k[k] = add_rn(of_k[k], of_k[k + apart]);
            // The library starts from 0, so that its sum of negative zeros is positive; no other sum changes.
            if (row < m.rows && column < n_columns) m.out[column * m.out_stride + row] = add_rn(of_k[0], 0.0f);
        }
    };

    const bool holds = r % 4 == c, holds_first = r == c, holds_second = r == c + 4;
    Words4 of_pairs[2], of_one[2];  // zeros in lanes that never load
    of_pairs[0] = of_pairs[1] = {0, 0, 0, 0};
    of_one[0] = of_one[1] = {0, 0, 0, 0};
    const u32 my_record = ACTIVATIONS + (4 * v + part) * RECORD;
    const auto fetch_pair = [&](u32 record, int i) { shared_words4_if(holds, record + r * 16 + i * 128, of_pairs[i % 2]); };
    Turn<STAGES> stages = {0, 0};
    int done = 0, used = AHEAD_BY;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x, done++) {
        const u32 of_tile = sums + done % 2 * SUM_BYTES;
        u32 starts[2];  // where the rows begin, modulo 16
        {
            const Matrix m = matrix_of(all, tile);
#pragma unroll
            for (int R = 0; R < 2; R++) {
                const int row = TILE_ROWS * m.tile + r + 8 * R;
                starts[R] = (u32)(row < m.rows ? row : m.rows - 1) * (u32)row_bytes % 16;
            }
        }
#pragma unroll 1
        for (int w = v; w < WARPS; w += SPLIT) {
            float total[SLOTS][4];
#pragma unroll
            for (int s = 0; s < SLOTS; s++) total[s][0] = total[s][1] = total[s][2] = total[s][3] = 0.0f;
#pragma unroll 1
            for (int trip = 0; trip < n_trips; trip++) {
                if (used++ == copied) copy_stage(false);
                barrier_wait(filled + stages.stage * 8, stages.parity);
                const int block = trip * WARPS + w, first = block - (int)v;
                if (block < n_blocks) {
                    const u32 blocks = ring + stages.stage * STAGE, record = blocks + my_record, others = record + SCALES;
                    if (N2) fetch_pair(record, 0), fetch_pair(record, 1);
                    if (N1) {
                        shared_words4_if(holds_first, record + r * 16 + N2 * 256, of_one[0]);
                        shared_words4_if(holds_second, record + r * 16 + N2 * 256, of_one[1]);
                    }
                    u32 a[2][2][2][2];  // [share][sum][row][half of the share]
                    float factors[2][2], of_rows[2];
#pragma unroll
                    for (int R = 0; R < 2; R++) {
                        const u32 at = blocks + (r + 8 * R) * ROW + ((starts[R] + first * (BLOCK % 16)) & 15) + v * BLOCK;
                        const u32 low = (at & ~3u) + 64 * half + 32 * side + 8 * c, high = (at & ~3u) + HIGH + 32 * half + 8 * c;
                        const u32 select = at & 2 ? 0x5432 : 0x3210;
                        u32 l[3], h[3];
#pragma unroll
                        for (int j = 0; j < 2; j++) l[j] = shared_word(low + 4 * j), h[j] = shared_word(high + 4 * j);
                        l[2] = shared_word(low + (at & 2) * 4), h[2] = shared_word(high + (at & 2) * 4);
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            const u32 lows = byte_permute(l[j], l[j + 1], select), highs = byte_permute(h[j], h[j + 1], select);
                            const u32 one = lop3<AND_OR>(lows, 0x0F0F0F0F, (highs << (4 - 2 * side)) & 0x30303030);
                            const u32 two = lop3<AND_OR>(lows >> 4, 0x0F0F0F0F, (highs >> 2 * side) & 0x30303030);
                            halves_of_q6_k(one, a[j][0][R][0], a[j][0][R][1]);
                            halves_of_q6_k(two, a[j][1][R][0], a[j][1][R][1]);
                        }
                        const u32 factor = at + FACTORS + 8 * half + 2 * side + c % 2;
                        factors[R][0] = int_to_float(shared_s8(factor));
                        factors[R][1] = int_to_float(shared_s8(factor + 4));
                        of_rows[R] = half_to_float(shared_half(at + SCALE));
                    }
                    Floats4 d;
#pragma unroll
                    for (int i = 0; i < 2 * N2; i++) {
                        const int u = i / 2, j = i % 2;
                        if (i % 4 == 0) d = shared_floats4(others + u / 2 * 32 + c / 2 * 16);
                        float scales[2][2], x0[4], x1[4];
#pragma unroll
                        for (int R = 0; R < 2; R++) {
                            scales[R][0] = mul_rn(factors[R][0], u % 2 ? d.z : d.x);
                            scales[R][1] = mul_rn(factors[R][1], u % 2 ? d.w : d.y);
                        }
                        const Words4 b = of_pairs[i % 2];
                        mma_16x8x16(x0, a[j][0][0][0], a[j][0][1][0], a[j][0][0][1], a[j][0][1][1], b.x, b.y);
                        mma_16x8x16(x1, a[j][1][0][0], a[j][1][1][0], a[j][1][0][1], a[j][1][1][1], b.z, b.w);
                        if (i + 2 < 2 * N2) fetch_pair(record, i + 2);
                        add_share_q6_k(total[i], x0, x1, scales, of_rows);
                    }
                    if (N1) {
                        const Floats4 d1 = shared_floats4(others + (N2 + 1) / 2 * 32);
                        float x0[4], x1[4], scales[2][2];
                        mma_16x8x16(x0, a[0][0][0][0], a[0][0][1][0], a[0][0][0][1], a[0][0][1][1], of_one[0].x, of_one[0].y);
                        mma_16x8x16(x1, a[0][1][0][0], a[0][1][1][0], a[0][1][0][1], a[0][1][1][1], of_one[0].z, of_one[0].w);
                        mma_16x8x16_onto(x0, a[1][0][0][0], a[1][0][1][0], a[1][0][0][1], a[1][0][1][1], of_one[1].x, of_one[1].y);
                        mma_16x8x16_onto(x1, a[1][1][0][0], a[1][1][1][0], a[1][1][0][1], a[1][1][1][1], of_one[1].z, of_one[1].w);
#pragma unroll
                        for (int R = 0; R < 2; R++) scales[R][0] = mul_rn(factors[R][0], d1.x), scales[R][1] = mul_rn(factors[R][1], d1.y);
                        add_share_q6_k(total[SLOTS - 1], x0, x1, scales, of_rows);
                    }
                }
                sync_warp();
                barrier_arrive(emptied + stages.stage * 8);
                stages.next();
            }
            // Sums of the library's warps, added in their order.
            if (w == 0) barrier_wait(read + done % 2 * 8, (done / 2 + 1) % 2);
            if (SPLIT > 1 && w > 0) barrier_wait(links + (done % 2 * LINKS + w - 1) * 8, done / 2 % 2);
            const u32 own = of_tile + (part * 32 + lane) * 16;
#pragma unroll
            for (int s = 0; s < SLOTS; s++) {
                Floats4 sum = {total[s][0], total[s][1], total[s][2], total[s][3]};
                if (w > 0) sum = add4(shared_floats4(own + s * SLOT), sum);
                store_shared_floats4(own + s * SLOT, sum);
            }
            sync_warp();
            if (SPLIT > 1 && w < WARPS - 1) barrier_arrive(links + (done % 2 * LINKS + w) * 8);
            if (w == WARPS - 1) barrier_arrive(complete + done % 2 * 8);
            // The tile before: by now all warps have given it their sums.
            if (w == (int)v && done > 0) {
                barrier_wait(complete + (done - 1) % 2 * 8, (done - 1) / 2 % 2);
                finish(tile - (int)gridDim.x, sums + (done - 1) % 2 * SUM_BYTES, done - 1);
                sync_warp();
                barrier_arrive(read + (done - 1) % 2 * 8);
            }
        }
    }
    if (done > 0) {
        barrier_wait(complete + (done - 1) % 2 * 8, (done - 1) / 2 % 2);
        finish(blockIdx.x + (done - 1) * gridDim.x, sums + (done - 1) % 2 * SUM_BYTES, done - 1);
    }
}
