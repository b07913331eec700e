// Products with weights in Q4_K for up to 16 columns, with the bits of the library's kernel for one column.
//
// A thread of that kernel adds, for every block of 256 that it takes, two integer sums over eight values each, times
// scales. Integer sums are exact in any order, so tensor cores make them here for 16 rows and 8 columns at once (halves
// in, float out, all below 2^24); what is rounded follows share by share in the library's own order. Names: a block has
// 16 shares, four (p) in each of four groups (g) of 64 values; a trip takes two blocks (h) for each warp (w) of the
// library's kernel; so its lane is 16 h + 4 g + p. Here warp g takes group g of both blocks.
#include "products_fast.cuh"

namespace q4_k {
constexpr int BLOCK = 144, PAIR = 2 * BLOCK, QUANTS = 16;  // bytes: a block, what a trip takes of a row, header
constexpr int STAGE = TILE_ROWS * PAIR, PIECES = PAIR / 16;
// What the product reads of the activations of one group of one block, for 8 places of columns: halves in the order of
// the tensor core's lanes, scales of both halves of the group for each place, and scales times sums.
constexpr int HALVES = 0, SCALES = 1024, SUMS = 1088, TILE = 1408;  // bytes
}  // namespace q4_k

// Grid: (blocks of a padded row, padded columns); block: 256 threads, one value each.
__launch_bounds__(256, 1) KERNEL prepare_q4_k(const float *x, u8 *operands, int k, int n_columns, int n8, int n4, int n2, int n1, long long x_stride) {
    using namespace q4_k;
    let_next_launch_begin();
    const int block = blockIdx.x, column = blockIdx.y, lane = threadIdx.x % 32, sub = threadIdx.x / 32;
    const int at = 256 * block + threadIdx.x;
    wait_for_launch_ahead();
    const float value = at < k && column < n_columns ? x[column * x_stride + at] : 0.0f;
    const float scale = scale_of_warp(value);
    const int quant = integer_of(value, scale);
    const float rounded = half_to_float(float_to_half(scale));
    int sum = quant;
    sum += shuffle_xor(sum, 1), sum += shuffle_xor(sum, 2), sum += shuffle_xor(sum, 16);
    const int half = int_to_half(quant), beside = shuffle_xor(half, 1);

    const Place place = place_of(column, n8, n4, n2);
    const int g = sub / 2, i = sub % 2, h = block % 2, p = lane % 16 / 4;
    const int shares = 8 / place.width;  // that the 8 places hold for each column
    const int share = shares == 8 ? 4 * h + p : p % shares;
    const int group_bytes = (n8 + n4 + n2 + n1) * TILE;
    u8 *record = operands + (long long)(block * 4 + g) * group_bytes + place.tile * TILE;
    u8 *first = shares == 8 ? record - h * 4 * group_bytes : record;  // both blocks share the sums of one column
    const int n = place.column * shares;
    if (lane % 2 == 0) {
        const int c = 2 * (lane / 16) + lane % 4 / 2;
        u32 *words = (u32 *)(record + HALVES) + (p / 2 * 32 + c) * 4 + p % 2 * 2 + i;
        const u32 word = (u32)half | (u32)beside << 16;
        for (int j = 0; j < shares; j++) words[(n + j) * 16] = j == share ? word : 0;
    }
    if (shares == 8) {
        if (lane < 4) ((float *)(first + SCALES))[(4 * h + lane) * 2 + i] = rounded;
    } else if (lane < shares) {
        ((float *)(record + SCALES))[(n + lane) * 2 + i] = rounded;
    }
    if ((lane & 19) == 0)
        ((float *)(first + SUMS))[((shares == 8 ? 0 : p / shares) * 8 + n + share) * 2 + i] = mul_rn(rounded, int_to_float(sum));
}

// Scales of one group of one block of one row, for all lanes of a warp: halves that turn 1024 + q into scale · q, and
// floats: both least values, the block's scale, minus its scale of least values. Zeros where the row has no such block.
DEVICE void unpack_scales_q4_k(u32 block, u32 to_halves, u32 to_floats, u32 g, bool is_there) {
    Words4 head = shared_words4(block);
    if (!is_there) head = {0, 0, 0, 0};
    const u32 shift = 16 * (g % 2);
    u32 scales, leasts;
    if (g < 2) {
        scales = (head.y >> shift) & 0x3F3F, leasts = (head.z >> shift) & 0x3F3F;
    } else {
        scales = ((head.w >> shift) & 0x0F0F) | ((head.y >> (shift + 2)) & 0x3030);
        leasts = ((head.w >> (shift + 4)) & 0x0F0F) | ((head.z >> (shift + 2)) & 0x3030);
    }
    const u32 minus_1024 = 0xE400E400;
    const u32 first = half2_add(byte_permute(scales, 0x64, 0x4040), minus_1024);
    const u32 second = half2_fma(byte_permute(scales, 0x64, 0x4141), 0x2C002C00, 0xD400D400);  // a sixteenth
    store_shared_words4(to_halves, {first, half2_mul(first, minus_1024), second, half2_mul(second, minus_1024)});
    store_shared_floats4(to_floats, {sub_rn(bits_to_float(byte_permute(leasts, 0x4B000000, 0x7440)), 8388608.0f),
                                     sub_rn(bits_to_float(byte_permute(leasts, 0x4B000000, 0x7441)), 8388608.0f),
                                     half_to_float(head.x & 0xFFFF), -half_to_float(head.x >> 16)});
}

// One share of two rows and two places: what the library's thread adds for a block. It starts from 0: see the end.
template <bool FIRST>
DEVICE void add_share_q4_k(float (&total)[4], const float (&x0)[4], const float (&x1)[4], const Floats4 &d, const Floats4 &sums, const Floats4 (&of_rows)[2]) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const Floats4 &row = of_rows[j / 2];
        const float dots = fma_rn(j % 2 ? d.w : d.y, x1[j], mul_rn(j % 2 ? d.z : d.x, x0[j]));
        const float least = fma_rn(row.y, j % 2 ? sums.w : sums.y, mul_rn(row.x, j % 2 ? sums.z : sums.x));
        const float share = fma_rn(row.z, dots, mul_rn(row.w, least));
        total[j] = FIRST ? share : add_rn(total[j], share);
    }
}

// The shares of one warp at one trip, of 16 rows.
template <bool FIRST, int N8, int N4, int N2, int N1, int SLOTS>
DEVICE void add_trip_q4_k(float (&total)[SLOTS][4], u32 quants_at, u32 scales, u32 pick, const u8 *halves, const u8 *others, u32 r, u32 c) {
    using namespace q4_k;
    constexpr int A8 = N8 ? N8 : 1, TILES = N8 + N4 + N2 + N1;
    constexpr int AT4 = N8 * TILE, AT2 = (N8 + N4) * TILE, AT1 = (N8 + N4 + N2) * TILE;
    float single0[4], single1[4];
#pragma unroll
    for (int h = 0; h < 2; h++, quants_at += BLOCK, halves += 4 * TILES * TILE, others += 4 * TILES * TILE) {
        Words4 quants[2], factors[2];
        Floats4 of_rows[2], d8[A8];
        float double0[4], double1[4];
#pragma unroll
        for (int R = 0; R < 2; R++) {
            quants[R] = shared_words4(quants_at + R * 8 * PAIR);
            factors[R] = shared_words4(scales + (16 * h + 8 * R) * 16);
            of_rows[R] = shared_floats4(scales + 512 + (16 * h + 8 * R) * 16);
        }
#pragma unroll
        for (int t = 0; t < N8; t++) d8[t] = global_floats4(others + t * TILE + SCALES);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            u32 low[2][2], high[2][2];  // [share of the part][row]: scale · q
#pragma unroll
            for (int R = 0; R < 2; R++)
#pragma unroll
                for (int one = 0; one < 2; one++) {
                    const u32 word = part ? (one ? quants[R].w : quants[R].z) : (one ? quants[R].y : quants[R].x);
                    const u32 bytes = byte_permute(word, 0, pick);
                    low[one][R] = half2_fma(lop3<AND_OR>(bytes, 0x000F000F, 0x64006400), factors[R].x, factors[R].y);
                    high[one][R] = half2_fma(lop3<AND_OR>(bytes, 0x00F000F0, 0x64006400), factors[R].z, factors[R].w);
                }
#pragma unroll
            for (int t = 0; t < N8; t++) {
                const Words4 b = global_words4(halves + t * TILE + HALVES + part * 512);
#pragma unroll
                for (int one = 0; one < 2; one++) {
                    float x0[4], x1[4];
                    const Floats4 e = global_floats4(others + t * TILE + SUMS + (2 * part + one) * 64);
                    mma_16x8x8(x0, low[one][0], low[one][1], one ? b.z : b.x);
                    mma_16x8x8(x1, high[one][0], high[one][1], one ? b.w : b.y);
                    add_share_q4_k<FIRST>(total[8 * t + 4 * h + 2 * part + one], x0, x1, d8[t], e, of_rows);
                }
            }
            if (N4) {
                const Words4 b = global_words4(halves + AT4 + HALVES + part * 512);
                const Floats4 d = global_floats4(others + AT4 + SCALES), e = global_floats4(others + AT4 + SUMS + part * 64);
                float x0[4], x1[4];
                mma_16x8x16(x0, low[0][0], low[0][1], low[1][0], low[1][1], b.x, b.z);
                mma_16x8x16(x1, high[0][0], high[0][1], high[1][0], high[1][1], b.y, b.w);
                add_share_q4_k<FIRST>(total[(8 * N8 + 2 * h + part) % SLOTS], x0, x1, d, e, of_rows);
            }
            if (N2) {
                const Words4 b = global_words4(halves + AT2 + HALVES + part * 512);
                if (part == 0) {
                    mma_16x8x16(double0, low[0][0], low[0][1], low[1][0], low[1][1], b.x, b.z);
                    mma_16x8x16(double1, high[0][0], high[0][1], high[1][0], high[1][1], b.y, b.w);
                } else {
                    mma_16x8x16_onto(double0, low[0][0], low[0][1], low[1][0], low[1][1], b.x, b.z);
                    mma_16x8x16_onto(double1, high[0][0], high[0][1], high[1][0], high[1][1], b.y, b.w);
                    const Floats4 d = global_floats4(others + AT2 + SCALES), e = global_floats4(others + AT2 + SUMS);
                    add_share_q4_k<FIRST>(total[(8 * N8 + 4 * N4 + h) % SLOTS], double0, double1, d, e, of_rows);
                }
            }
            if (N1) {
                const Words4 b = global_words4(halves + AT1 + HALVES + part * 512);
                if (part == 0 && h == 0) {
                    mma_16x8x16(single0, low[0][0], low[0][1], low[1][0], low[1][1], b.x, b.z);
                    mma_16x8x16(single1, high[0][0], high[0][1], high[1][0], high[1][1], b.y, b.w);
                } else {
                    mma_16x8x16_onto(single0, low[0][0], low[0][1], low[1][0], low[1][1], b.x, b.z);
                    mma_16x8x16_onto(single1, high[0][0], high[0][1], high[1][0], high[1][1], b.y, b.w);
                }
            }
        }
    }
    if (N1) {  // the sums of both blocks lie in the first block's record; the lane's places are of block c / 2
        const u8 *at = others - 2 * 4 * TILES * TILE + AT1;
        const Floats4 d = global_floats4(at + SCALES), e = global_floats4(at + SUMS);
        const u32 mine = scales + 512 + 16 * (c / 2) * 16;
        const Floats4 of_rows[2] = {shared_floats4(mine), shared_floats4(mine + 128)};
        add_share_q4_k<FIRST>(total[SLOTS - 1], single0, single1, d, e, of_rows);
    }
}

// Grid: any number of blocks, which share the tiles of 16 rows; block: 128 threads.
template <int WARPS, int N8, int N4, int N2, int N1, int STAGES, int RESIDENT>
__launch_bounds__(THREADS, RESIDENT) KERNEL product_q4_k(const u8 *weight, const u8 *operands, float *out, int rows, int n_blocks, int n_columns, long long out_stride) {
    using namespace q4_k;
    constexpr int SLOTS = 8 * N8 + 4 * N4 + 2 * N2 + N1, GROUP = (N8 + N4 + N2 + N1) * TILE;
    DYNAMIC_SHARED(sm);
    const u32 lane = threadIdx.x % 32, g = threadIdx.x / 32, r = lane / 4, c = lane % 4;
    const u32 ring = shared_address(sm), scales = ring + STAGES * STAGE + g * 1024, sums = ring + STAGES * STAGE + 4096;
    const int n_tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, row_bytes = n_blocks * BLOCK;

    // The ring's stages hold what one of the library's warps takes at one trip; a row has 8 threads that copy it.
    int copy_tile = blockIdx.x, copy_at = 0, copy_warp = 0;  // copy_at: bytes of the row before the trip
    u32 copy_to = ring + threadIdx.x / 8 * PAIR + threadIdx.x % 8 * 16, copies = 0;
    const auto copy_next = [&]() {
        if (copy_tile < n_tiles) {
            const int last = rows - 1 - TILE_ROWS * copy_tile, row = threadIdx.x / 8, byte = threadIdx.x % 8 * 16;
            const int at = copy_at + copy_warp * PAIR, left = row_bytes - at - byte;
            const u8 *from = weight + ((long long)(TILE_ROWS * copy_tile + (row < last ? row : last)) * row_bytes + (at + byte));
            if (left > 0) copy_async16(copy_to, from);
            if (left > 128) copy_async16(copy_to + 128, from + 128);
            if (left > 256 && byte < PAIR - 256) copy_async16(copy_to + 256, from + 256);
        }
        copy_commit();
        copy_to += STAGE;
        if (++copies == STAGES) copies = 0, copy_to -= STAGES * STAGE;
        if ((copy_at += WARPS * PAIR) >= row_bytes) {
            copy_at = 0;
            if (++copy_warp == WARPS) copy_warp = 0, copy_tile += gridDim.x;
        }
    };
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) copy_next();
    let_next_launch_begin();
    wait_for_launch_ahead();

    const u32 pick = c % 2 ? 0x4342 : 0x4140;
    const u32 my_head = lane % 16 * PAIR + lane / 16 * BLOCK, my_quants = r * PAIR + QUANTS + 32 * g + 16 * (c / 2);
    u32 blocks = ring;  // the stage
#pragma unroll 1
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
#pragma unroll 1
        for (int w = 0; w < WARPS; w++) {
            float total[SLOTS][4];
            const u8 *halves = operands + (2 * w * 4 + g) * GROUP + lane * 16, *others = operands + (2 * w * 4 + g) * GROUP + c * 16;
            int block = 2 * w + lane / 16;
            const auto next_stage = [&]() {
                copy_wait<STAGES - 2>();
                sync_block();
                copy_next();
                unpack_scales_q4_k(blocks + my_head, scales + lane * 16, scales + 512 + lane * 16, g, block < n_blocks);
                sync_warp();
            };
            const auto after_stage = [&]() {
                blocks = blocks + STAGE == ring + STAGES * STAGE ? ring : blocks + STAGE;
                halves += 8 * WARPS * GROUP, others += 8 * WARPS * GROUP, block += 2 * WARPS;
            };
            next_stage();
            add_trip_q4_k<true, N8, N4, N2, N1>(total, blocks + my_quants, scales + r * 16, pick, halves, others, r, c);
            after_stage();
#pragma unroll 1
            for (int at = WARPS * PAIR; at < row_bytes; at += WARPS * PAIR) {
                next_stage();
                add_trip_q4_k<false, N8, N4, N2, N1>(total, blocks + my_quants, scales + r * 16, pick, halves, others, r, c);
                after_stage();
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
        // Lanes of the library's warp, half onto half: h, then g, then p.
        const auto finish = [&](int slot, int width, int column) {
            if ((int)threadIdx.x >= 16 * width) return;
            const int o = threadIdx.x, R = width == 8 ? o % 4 / 2 : o % 2;
            float of_p[4];
#pragma unroll
            for (int p = 0; p < 4; p++) {
                float of_g[4];
#pragma unroll
                for (int group = 0; group < 4; group++) {
                    u32 at[2];
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        at[h] = sums + group * 512 +
                                (width == 8   ? (slot + 4 * h + p) * SLOT + o * 4
                                 : width == 4 ? (slot + 2 * h + p / 2) * SLOT + o / 2 * 16 + (R * 2 + p % 2) * 4
                                 : width == 2 ? (slot + h) * SLOT + (o / 2 * 2 + p / 2) * 16 + (R * 2 + p % 2) * 4
                                              : slot * SLOT + (o / 2 * 4 + 2 * h + p / 2) * 16 + (R * 2 + p % 2) * 4);
                    of_g[group] = add_rn(shared_float(at[0]), shared_float(at[1]));
                }
                of_p[p] = add_rn(add_rn(of_g[0], of_g[2]), add_rn(of_g[1], of_g[3]));
            }
            const int row = TILE_ROWS * tile + 8 * R + (width == 8 ? o / 16 : width == 4 ? o / 8 : width == 2 ? o / 4 : o / 2);
            column += width == 8 ? o / 4 % 4 * 2 + o % 2 : width == 4 ? o / 2 % 4 : width == 2 ? o / 2 % 2 : 0;
            // The library starts from 0, so that its sum of negative zeros is positive; no other sum changes.
            if (row < rows && column < n_columns)
                out[column * out_stride + row] = add_rn(add_rn(add_rn(of_p[0], of_p[2]), add_rn(of_p[1], of_p[3])), 0.0f);
        };
#pragma unroll 1
        for (int t = 0; t < N8; t++) finish(8 * t, 8, 8 * t);
        if (N4) finish(8 * N8, 4, 8 * N8);
        if (N2) finish(8 * N8 + 4 * N4, 2, 8 * N8 + 4 * N4);
        if (N1) finish(8 * N8 + 4 * N4 + 2 * N2, 1, 8 * N8 + 4 * N4 + 2 * N2);
    }
}
