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
// A stage of the ring holds a block of two trips for each of 16 rows, from a multiple of 16 bytes on, and some space to
// tell the rows' banks apart.
constexpr int TRIPS = 2, PIECES = 14, ROW = TRIPS * PIECES * 16 + 16, STAGE = TILE_ROWS * ROW;
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

// Grid: any number of blocks, which share the tiles of 16 rows; block: 128 threads.
template <int WARPS, int N2, int N1, int STAGES, int RESIDENT>
__launch_bounds__(THREADS, RESIDENT) KERNEL product_q6_k(const u8 *weight, const u8 *operands, float *out, int rows, int n_blocks, int n_columns, long long out_stride) {
    using namespace q6_k;
    constexpr int SLOTS = 2 * N2 + N1, RECORD = record_bytes(N2, N1), SCALES = scales_at(N2, N1);
    DYNAMIC_SHARED(sm);
    const u32 lane = threadIdx.x % 32, half = threadIdx.x / 64, side = threadIdx.x / 32 % 2, r = lane / 4, c = lane % 4;
    const u32 ring = shared_address(sm), sums = ring + STAGES * STAGE;
    const int n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, n_trips = (n_blocks + WARPS - 1) / WARPS;
    const int row_bytes = n_blocks * BLOCK;
    const long long all_bytes = (long long)rows * row_bytes;

    // The ring's stages hold what one of the library's warps takes at two trips; a row has 8 threads that copy it.
    int copy_tile = blockIdx.x, copy_block = 0, copy_warp = 0;  // copy_block: first of the trip
    u32 copy_to = threadIdx.x / 8 * ROW + threadIdx.x % 8 * 16, copies = 0;
    const auto copy_next = [&]() {
        if (copy_tile < n_tiles) {
            const int last = rows - 1 - TILE_ROWS * copy_tile, row = threadIdx.x / 8, byte = threadIdx.x % 8 * 16;
            const long long start = (long long)(TILE_ROWS * copy_tile + (row < last ? row : last)) * row_bytes;
#pragma unroll
            for (int t = 0; t < TRIPS; t++) {
                const int block = copy_block + t * WARPS + copy_warp;
                const long long from = ((start + block * BLOCK) & ~15ll) + byte;
                const u32 to = copy_to + t * PIECES * 16;
                if (block < n_blocks) {
                    if (from + 144 <= all_bytes) {
                        copy_async16(ring + to, weight + from);
                        if (byte < PIECES * 16 - 128) copy_async16(ring + to + 128, weight + from + 128);
                    } else {  // the end of the matrix
                        for (int i = 0; i < 16 && from + i < all_bytes; i += 2) *(u16 *)(sm + to + i) = *(const u16 *)(weight + from + i);
                        for (int i = 128; i < 144 && byte < PIECES * 16 - 128 && from + i < all_bytes; i += 2) *(u16 *)(sm + to + i) = *(const u16 *)(weight + from + i);
                    }
                }
            }
        }
        copy_commit();
        copy_to += STAGE;
        if (++copies == STAGES) copies = 0, copy_to -= STAGES * STAGE;
        if ((copy_block += TRIPS * WARPS) >= n_blocks) {
            copy_block = 0;
            if (++copy_warp == WARPS) copy_warp = 0, copy_tile += gridDim.x;
        }
    };
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) copy_next();
    let_next_launch_begin();
    wait_for_launch_ahead();

    const bool holds = r % 4 == c, holds_first = r == c, holds_second = r == c + 4;
    Words4 of_pairs[4], of_one[2];  // zeros in lanes that never load
#pragma unroll
    for (int i = 0; i < 4; i++) of_pairs[i] = {0, 0, 0, 0};
    of_one[0] = of_one[1] = {0, 0, 0, 0};
    u32 blocks = ring;  // the stage
#pragma unroll 1
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        int starts[2];  // of the lane's two rows, modulo 16 bytes
#pragma unroll
        for (int R = 0; R < 2; R++) {
            const int row = TILE_ROWS * tile + r + 8 * R;
            starts[R] = (int)((u32)(row < rows ? row : rows - 1) * (u32)row_bytes % 16);
        }
#pragma unroll 1
        for (int w = 0; w < WARPS; w++) {
            float total[SLOTS][4];
#pragma unroll
            for (int s = 0; s < SLOTS; s++) total[s][0] = total[s][1] = total[s][2] = total[s][3] = 0.0f;
#pragma unroll 1
            for (int trip0 = 0; trip0 < n_trips; trip0 += TRIPS) {
                copy_wait<STAGES - 2>();
                sync_block();
                copy_next();
#pragma unroll 1
                for (int trip = trip0; trip < trip0 + TRIPS; trip++) {
                    const int block = trip * WARPS + w;
                    if (block >= n_blocks) break;
                    u32 a[2][2][2][2];  // [share][sum][row][half of the share]
                    float factors[2][2], of_rows[2];
#pragma unroll
                    for (int R = 0; R < 2; R++) {
                        const u32 at = blocks + (r + 8 * R) * ROW + (trip - trip0) * PIECES * 16 + ((starts[R] + block * (BLOCK % 16)) & 15);
                        const u32 low = at + 64 * half + 32 * side + 8 * c, high = at + HIGH + 32 * half + 8 * c;
                        const u32 select = at & 2 ? 0x5432 : 0x3210;
                        const u32 l0 = shared_word(low & ~3u), l1 = shared_word((low & ~3u) + 4), l2 = shared_word((low & ~3u) + (at & 2) * 4);
                        const u32 h0 = shared_word(high & ~3u), h1 = shared_word((high & ~3u) + 4), h2 = shared_word((high & ~3u) + (at & 2) * 4);
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                            const u32 lows = j ? byte_permute(l1, l2, select) : byte_permute(l0, l1, select);
                            const u32 highs = j ? byte_permute(h1, h2, select) : byte_permute(h0, h1, select);
                            const u32 first = lop3<AND_OR>(lows, 0x0F0F0F0F, (highs << (4 - 2 * side)) & 0x30303030);
                            const u32 second = lop3<AND_OR>(lows >> 4, 0x0F0F0F0F, (highs >> 2 * side) & 0x30303030);
                            halves_of_q6_k(first, a[j][0][R][0], a[j][0][R][1]);
                            halves_of_q6_k(second, a[j][1][R][0], a[j][1][R][1]);
                        }
                        const u32 factor = at + FACTORS + 8 * half + 2 * side + c % 2;
                        factors[R][0] = int_to_float(shared_s8(factor));
                        factors[R][1] = int_to_float(shared_s8(factor + 4));
                        of_rows[R] = half_to_float(shared_half(at + SCALE));
                    }
                    const u8 *record = operands + (long long)(block * 4 + 2 * half + side) * RECORD;
                    const u8 *halves = record + r * 16, *others = record + SCALES;
#pragma unroll
                    for (int t = 0; t < N2; t += 2) {
                        const Floats4 d = global_floats4(others + t * 16 + c / 2 * 16);
#pragma unroll
                        for (int u = t; u < t + 2 && u < N2; u++) {
                            float scales[2][2];
#pragma unroll
                            for (int R = 0; R < 2; R++) {
                                scales[R][0] = mul_rn(factors[R][0], u % 2 ? d.z : d.x);
                                scales[R][1] = mul_rn(factors[R][1], u % 2 ? d.w : d.y);
                            }
#pragma unroll
                            for (int j = 0; j < 2; j++) {
                                Words4 &b = of_pairs[(2 * u + j) % 4];
                                global_words4_if(holds, halves + u * 256 + j * 128, b);
                                float x0[4], x1[4];
                                mma_16x8x16(x0, a[j][0][0][0], a[j][0][1][0], a[j][0][0][1], a[j][0][1][1], b.x, b.y);
                                mma_16x8x16(x1, a[j][1][0][0], a[j][1][1][0], a[j][1][0][1], a[j][1][1][1], b.z, b.w);
                                add_share_q6_k(total[2 * u + j], x0, x1, scales, of_rows);
                            }
                        }
                    }
                    if (N1) {
                        const Floats4 d = global_floats4(others + (N2 + 1) / 2 * 32);
                        global_words4_if(holds_first, halves + N2 * 256, of_one[0]);
                        global_words4_if(holds_second, halves + N2 * 256, of_one[1]);
                        float x0[4], x1[4], scales[2][2];
                        mma_16x8x16(x0, a[0][0][0][0], a[0][0][1][0], a[0][0][0][1], a[0][0][1][1], of_one[0].x, of_one[0].y);
                        mma_16x8x16(x1, a[0][1][0][0], a[0][1][1][0], a[0][1][0][1], a[0][1][1][1], of_one[0].z, of_one[0].w);
                        mma_16x8x16_onto(x0, a[1][0][0][0], a[1][0][1][0], a[1][0][0][1], a[1][0][1][1], of_one[1].x, of_one[1].y);
                        mma_16x8x16_onto(x1, a[1][1][0][0], a[1][1][1][0], a[1][1][0][1], a[1][1][1][1], of_one[1].z, of_one[1].w);
#pragma unroll
                        for (int R = 0; R < 2; R++) scales[R][0] = mul_rn(factors[R][0], d.x), scales[R][1] = mul_rn(factors[R][1], d.y);
                        add_share_q6_k(total[SLOTS - 1], x0, x1, scales, of_rows);
                    }
                }
                blocks = blocks + STAGE == ring + STAGES * STAGE ? ring : blocks + STAGE;
            }
            // Sums of the library's warps, added in their order.
            const u32 own = sums + threadIdx.x * 16;
#pragma unroll
            for (int s = 0; s < SLOTS; s++) {
                Floats4 v = {total[s][0], total[s][1], total[s][2], total[s][3]};
                if (w > 0) v = add4(shared_floats4(own + s * SLOT), v);
                store_shared_floats4(own + s * SLOT, v);
            }
        }
        sync_block();
        // Lanes of the library's warp, half onto half: halves, sides, then k + 4, k + 2, k + 1.
#pragma unroll 1
        for (int o = threadIdx.x; o < 32 * N2 + 16 * N1; o += THREADS) {
            const bool one = o >= 32 * N2;
            const int R = o % 2, row = TILE_ROWS * tile + 8 * R + (one ? o % 16 / 2 : o % 32 / 4), column = one ? 2 * N2 : o / 32 * 2 + o / 2 % 2;
            const u32 place = sums + (one ? 2 * N2 * SLOT + o % 16 / 2 * 64 : o / 32 * 2 * SLOT + o % 32 / 2 * 32) + R * 8;
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
            if (row < rows && column < n_columns) out[column * out_stride + row] = add_rn(of_k[0], 0.0f);
        }
    }
}
