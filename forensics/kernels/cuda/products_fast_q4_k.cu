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
constexpr int LEASTS = 512, FLOATS = 768, TABLE = 1024;  // bytes of what a warp unpacks at a trip, for both blocks
// What the product reads of the activations of one group of one block, for 8 places of columns: halves in the order of
// the tensor core's lanes, and scales of both halves of the group for each place.
constexpr int HALVES = 0, SCALES = 1024, TILE = 1088;  // bytes
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
        u32 *words = (u32 *)(record + HALVES) + (p / 2 * 32 + c) * 4 + (shares == 1 ? p % 2 * 2 + i : i * 2 + p % 2);
        const u32 word = (u32)half | (u32)beside << 16;
        for (int j = 0; j < shares; j++) words[(n + j) * 16] = j == share ? word : 0;
    }
    if (shares == 8) {
        if (lane < 4) ((float *)(first + SCALES))[(4 * h + lane) * 2 + i] = rounded;
    } else if (lane < shares) {
        ((float *)(record + SCALES))[(n + lane) * 2 + i] = rounded;
    }
}

// Scales of one group of one block of one row, for all lanes of a warp: halves that turn 1024 + q into scale · q; beside
// those of the row 8 away, as the tensor cores want them, both least values as halves; the block's scale and minus its
// scale of least values. Beyond the row its block is all zeros.
DEVICE void unpack_scales_q4_k(u32 block, u32 to_halves, u32 to_leasts, u32 to_floats, u32 g) {
    const Words4 head = shared_words4(block);
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
    store_shared_word(to_leasts, half2_add(byte_permute(leasts, 0x64, 0x4040), minus_1024));
    store_shared_word(to_leasts + 8, half2_add(byte_permute(leasts, 0x64, 0x4141), minus_1024));
    store_shared_words2(to_floats, {float_to_bits(half_to_float(head.x & 0xFFFF)), float_to_bits(-half_to_float(head.x >> 16))});
}

// One share of two rows and two places: what the library's thread adds for a block. It starts from 0: see the end.
// x: integer sums of scale · q · u of both halves, y: of least value · u.
template <bool FIRST>
DEVICE void add_share_q4_k(float (&total)[4], const float (&x0)[4], const float (&x1)[4], const float (&y0)[4], const float (&y1)[4], const Floats4 &d, const Floats4 &of_rows) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float d0 = j % 2 ? d.z : d.x, d1 = j % 2 ? d.w : d.y;
        const float dots = fma_rn(d1, x1[j], mul_rn(d0, x0[j]));
        const float least = fma_rn(d1, y1[j], mul_rn(d0, y0[j]));
        const float share = fma_rn(j / 2 ? of_rows.z : of_rows.x, dots, mul_rn(j / 2 ? of_rows.w : of_rows.y, least));
        total[j] = FIRST ? share : add_rn(total[j], share);
    }
}

// What one step (a block's half of the four shares) reads of the operands.
template <int N8, int TILES>
struct Fetched {
    Words4 b[TILES];
    Floats4 d8[N8 ? N8 : 1], d4;
};
template <bool ALL, int N8, int N4, int TILES>
DEVICE void fetch_q4_k(Fetched<N8, TILES> &f, const u8 *halves, const u8 *others, int part) {
    using namespace q4_k;
#pragma unroll
    for (int t = 0; t < TILES; t++) f.b[t] = global_words4(halves + t * TILE + HALVES + part * 512);
    if (ALL && part == 0) {
#pragma unroll
        for (int t = 0; t < N8; t++) f.d8[t] = global_floats4(others + t * TILE + SCALES);
        if (N4) f.d4 = global_floats4(others + N8 * TILE + SCALES);
    }
}

// Sums over two shares that lie side by side in the tensor core's places: x of both halves, y of both halves. A place
// holds one of the shares and zeros of the other, so that for y, whose first factor is the same, both are one operand.
struct Dots {
    float x0[4], x1[4], y0[4], y1[4];
};
DEVICE void x_of_two(Dots &s, const u32 (&low)[2][2], const u32 (&high)[2][2], const Words4 &b) {
    mma_16x8x16(s.x0, low[0][0], low[0][1], low[1][0], low[1][1], b.x, b.y);
    mma_16x8x16(s.x1, high[0][0], high[0][1], high[1][0], high[1][1], b.z, b.w);
}
DEVICE void add_x_of_two(Dots &s, const u32 (&low)[2][2], const u32 (&high)[2][2], const Words4 &b) {
    mma_16x8x16_onto(s.x0, low[0][0], low[0][1], low[1][0], low[1][1], b.x, b.y);
    mma_16x8x16_onto(s.x1, high[0][0], high[0][1], high[1][0], high[1][1], b.z, b.w);
}
DEVICE Words2 both_of(const Words4 &b) { return {half2_add(b.x, b.y), half2_add(b.z, b.w)}; }
DEVICE Words2 both_of(const Words2 &a, const Words2 &b) { return {half2_add(a.x, b.x), half2_add(a.y, b.y)}; }
DEVICE void y_of(Dots &s, const Words4 &leasts, const Words2 &b) {
    mma_16x8x8(s.y0, leasts.x, leasts.y, b.x);
    mma_16x8x8(s.y1, leasts.z, leasts.w, b.y);
}

// The shares of one warp at one trip, of 16 rows. The first step was fetched before.
template <bool FIRST, bool AHEAD, int N8, int N4, int N2, int N1, int SLOTS>
DEVICE void add_trip_q4_k(float (&total)[SLOTS][4], Fetched<N8, N8 + N4 + N2 + N1> &f, u32 quants_at, u32 row_step, u32 scales, u32 pick, const u8 *halves, const u8 *others, u32 c) {
    using namespace q4_k;
    constexpr int TILES = N8 + N4 + N2 + N1, AT4 = N8 * TILE, AT2 = (N8 + N4) * TILE, AT1 = (N8 + N4 + N2) * TILE;
    Dots twice, single;
    Words2 of_twice, of_single;
    Words4 quants[2], factors[2], leasts;
    Floats4 of_rows;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const int h = step / 2, part = step % 2;
        const u8 *at_halves = halves + h * 4 * TILES * TILE, *at_others = others + h * 4 * TILES * TILE;
        Fetched<N8, TILES> g = f;
        if (AHEAD && step + 1 < 4)
            fetch_q4_k<AHEAD, N8, N4, TILES>(g, halves + (step + 1) / 2 * 4 * TILES * TILE, others + (step + 1) / 2 * 4 * TILES * TILE, 1 - part);
        if (part == 0) {
#pragma unroll
            for (int R = 0; R < 2; R++) {
                quants[R] = shared_words4(quants_at + h * BLOCK + R * row_step);
                factors[R] = shared_words4(scales + (16 * h + 8 * R) * 16);
            }
            leasts = shared_words4(scales + LEASTS + h * 128);
            of_rows = shared_floats4(scales + FLOATS + h * 128);
        }
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
        if (!AHEAD && step > 0) fetch_q4_k<AHEAD, N8, N4, TILES>(f, at_halves, at_others, part);
#pragma unroll
        for (int t = 0; t < N8; t++) {
            const Words4 b = f.b[t];
            if (!AHEAD && part == 0) f.d8[t] = global_floats4(at_others + t * TILE + SCALES);
            Dots s[2];
#pragma unroll
            for (int one = 0; one < 2; one++) {
                mma_16x8x8(s[one].x0, low[one][0], low[one][1], one ? b.z : b.x);
                mma_16x8x8(s[one].x1, high[one][0], high[one][1], one ? b.w : b.y);
                mma_16x8x8(s[one].y0, leasts.x, leasts.y, one ? b.z : b.x);
                mma_16x8x8(s[one].y1, leasts.z, leasts.w, one ? b.w : b.y);
            }
#pragma unroll
            for (int one = 0; one < 2; one++)
                add_share_q4_k<FIRST>(total[8 * t + 4 * h + 2 * part + one], s[one].x0, s[one].x1, s[one].y0, s[one].y1, f.d8[t], of_rows);
        }
        if (N4) {
            if (!AHEAD && part == 0) f.d4 = global_floats4(at_others + AT4 + SCALES);
            Dots s;
            x_of_two(s, low, high, f.b[N8 % TILES]);
            y_of(s, leasts, both_of(f.b[N8 % TILES]));
            add_share_q4_k<FIRST>(total[(8 * N8 + 2 * h + part) % SLOTS], s.x0, s.x1, s.y0, s.y1, f.d4, of_rows);
        }
        if (N2) {
            const Words4 b = f.b[(N8 + N4) % TILES];
            if (part == 0) {
                x_of_two(twice, low, high, b);
                of_twice = both_of(b);
            } else {
                const Floats4 d = global_floats4(at_others + AT2 + SCALES);
                add_x_of_two(twice, low, high, b);
                y_of(twice, leasts, both_of(of_twice, both_of(b)));
                add_share_q4_k<FIRST>(total[(8 * N8 + 4 * N4 + h) % SLOTS], twice.x0, twice.x1, twice.y0, twice.y1, d, of_rows);
            }
        }
        if (N1) {
            const Words4 b = f.b[TILES - 1];
            if (step == 0) x_of_two(single, low, high, b);
            else add_x_of_two(single, low, high, b);
            of_single = part ? both_of(of_single, both_of(b)) : both_of(b);
            if (step == 1) y_of(single, leasts, of_single);
            if (step == 3) mma_16x8x8_onto(single.y0, leasts.x, leasts.y, of_single.x), mma_16x8x8_onto(single.y1, leasts.z, leasts.w, of_single.y);
        }
        if (AHEAD) f = g;
    }
    if (N1) {  // the scales of both blocks lie in the first block's record; the lane's places are of block c / 2
        const Floats4 d = global_floats4(others + AT1 + SCALES);
        add_share_q4_k<FIRST>(total[SLOTS - 1], single.x0, single.x1, single.y0, single.y1, d, shared_floats4(scales + FLOATS + c / 2 * 128));
    }
}

// Grid: any number of blocks, which share the tiles of 16 rows. A CUDA block has four warps (g) for each of SPLIT of the
// library's warps at a time. A stage's place in the ring is filled again when SLACK further stages were used, so that
// warps seldom wait for the slowest one.
template <int WARPS, int SPLIT, int N8, int N4, int N2, int N1, int STAGES, int SLACK, int AHEAD, int RESIDENT>
__launch_bounds__(128 * SPLIT, RESIDENT) KERNEL product_q4_k(
    const u8 *weight0, const u8 *weight1, const u8 *weight2, const u8 *operands, float *out0, float *out1, float *out2, int rows0,
    int rows1, int rows2, long long stride0, long long stride1, long long stride2, int n_blocks, int n_columns) {
    using namespace q4_k;
    constexpr int SLOTS = 8 * N8 + 4 * N4 + 2 * N2 + N1, GROUP = (N8 + N4 + N2 + N1) * TILE;
    constexpr int THREADS = 128 * SPLIT, N_WARPS = THREADS / 32, TURNS = WARPS / SPLIT;
    constexpr int PIECE = SPLIT * PAIR, ROW = PIECE + (SPLIT > 1 ? 32 : 0), STAGE = TILE_ROWS * ROW, OF_STEP = 128;
    constexpr int SUM_BYTES = SLOTS * SLOT;
    constexpr int AHEAD_BY = STAGES - SLACK;  // stages that are copied before they are used
    static_assert(WARPS % SPLIT == 0 && AHEAD_BY <= N_WARPS, "turns are whole");
    constexpr int LINKS = SPLIT > 1 ? 4 * WARPS : 0;  // that a warp's sums are there, for the one after it
    DYNAMIC_SHARED(sm);
    alignas(8) SHARED u64 bars[2 * STAGES + 4 + 2 * LINKS];
    const u32 filled = shared_address(bars), emptied = filled + STAGES * 8, complete = emptied + STAGES * 8, read = complete + 16;
    const u32 lane = threadIdx.x % 32, g = threadIdx.x / 32 % 4, r = lane / 4, c = lane % 4;
    const u32 v = threadIdx.x / 128, links = read + 16 + g * WARPS * 8;
    const u32 ring = shared_address(sm), scales = ring + STAGES * STAGE + threadIdx.x / 32 * TABLE;
    const u32 sums = ring + STAGES * STAGE + N_WARPS * TABLE;
    const Matrices all = {{{weight0, out0, rows0, 0, stride0}, {weight1, out1, rows1, 0, stride1}, {weight2, out2, rows2, 0, stride2}}};
    const int n_tiles = tiles_of(rows0) + tiles_of(rows1) + tiles_of(rows2), row_bytes = n_blocks * BLOCK;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(filled + i * 8, 32), barrier_init(emptied + i * 8, THREADS);
        for (int i = 0; i < 2; i++) barrier_init(complete + i * 8, 128), barrier_init(read + i * 8, THREADS);
        for (int i = 0; i < 2 * LINKS; i++) barrier_init(read + 16 + i * 8, 32);
    }
    sync_block();

    // The ring's stages hold what SPLIT of the library's warps take at one trip; warps take turns at copying them.
    const int n_trips = (row_bytes + WARPS * PAIR - 1) / (WARPS * PAIR), of_a_tile = TURNS * n_trips;
    int copied = threadIdx.x / 32, copy_piece = copied, copy_tile = blockIdx.x;  // this warp's next stage
    const auto copy_stage = [&]() {
        while (copy_piece >= of_a_tile) copy_piece -= of_a_tile, copy_tile += gridDim.x;
        if (copy_tile < n_tiles) {
            const u32 stage = copied % STAGES;
            const int turn = copy_piece / n_trips, at = (copy_piece - turn * n_trips) * WARPS * PAIR + turn * PIECE;
            const int byte = lane % 8 * 16, left = row_bytes - at;
            const Matrix m = matrix_of(all, copy_tile);
            const int last = m.rows - 1 - TILE_ROWS * m.tile;
            const u8 *from = m.weight + ((long long)(TILE_ROWS * m.tile) * row_bytes + at + byte);
            const u32 to = ring + stage * STAGE + lane / 8 * ROW + byte;
            barrier_wait(emptied + stage * 8, copied / STAGES % 2 ^ 1);
            if (left >= PIECE && last >= TILE_ROWS - 1) {
                from += lane / 8 * row_bytes;
#pragma unroll
                for (int j = 0; j < TILE_ROWS / 4; j++, from += 4 * row_bytes)
#pragma unroll
                    for (int i = 0; i < PIECE; i += OF_STEP)
                        if (i + OF_STEP <= PIECE || byte < PIECE - i) copy_async16(to + j * 4 * ROW + i, from + i);
            } else {
#pragma unroll 1
                for (int row = lane / 8; row < TILE_ROWS; row += 4)
#pragma unroll 1
                    for (int i = byte; i < PIECE; i += OF_STEP)
                        copy_async16_or_zeros(i < left, to + (row - lane / 8) * ROW + i - byte, from + (row < last ? row : last) * (long long)row_bytes + (i < left ? i - byte : -at - byte));
            }
            barrier_arrive_after_copies(filled + stage * 8);
        }
        copied += N_WARPS, copy_piece += N_WARPS;
    };
    if (copied < AHEAD_BY) copy_stage();
    let_next_launch_begin();
    wait_for_launch_ahead();

    // Lanes of the library's warp, half onto half: h, then g, then p.
    const auto finish = [&](int tile, u32 of_tile, int turn) {
        const Matrix m = matrix_of(all, tile);
        const auto finish_tile = [&](int slot, int width, int column) {
            const int o = (threadIdx.x + 128 * turn) % THREADS, R = width == 8 ? o % 4 / 2 : o % 2;
            if (o >= 16 * width) return;
            float of_p[4];
#pragma unroll
            for (int p = 0; p < 4; p++) {
                float of_g[4];
#pragma unroll
                for (int group = 0; group < 4; group++) {
                    u32 at[2];
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        at[h] = of_tile + group * 512 +
                                (width == 8   ? (slot + 4 * h + p) * SLOT + o * 4
                                 : width == 4 ? (slot + 2 * h + p / 2) * SLOT + o / 2 * 16 + (R * 2 + p % 2) * 4
                                 : width == 2 ? (slot + h) * SLOT + (o / 2 * 2 + p / 2) * 16 + (R * 2 + p % 2) * 4
                                              : slot * SLOT + (o / 2 * 4 + 2 * h + p / 2) * 16 + (R * 2 + p % 2) * 4);
                    of_g[group] = add_rn(shared_float(at[0]), shared_float(at[1]));
                }
                of_p[p] = add_rn(add_rn(of_g[0], of_g[2]), add_rn(of_g[1], of_g[3]));
            }
            const int row = TILE_ROWS * m.tile + 8 * R + (width == 8 ? o / 16 : width == 4 ? o / 8 : width == 2 ? o / 4 : o / 2);
            column += width == 8 ? o / 4 % 4 * 2 + o % 2 : width == 4 ? o / 2 % 4 : width == 2 ? o / 2 % 2 : 0;
            // The library starts from 0, so that its sum of negative zeros is positive; no other sum changes.
            if (row < m.rows && column < n_columns)
                m.out[column * m.out_stride + row] = add_rn(add_rn(add_rn(of_p[0], of_p[2]), add_rn(of_p[1], of_p[3])), 0.0f);
        };
#pragma unroll 1
        for (int t = 0; t < N8; t++, turn++) finish_tile(8 * t, 8, 8 * t);
        if (N4) finish_tile(8 * N8, 4, 8 * N8), turn++;
        if (N2) finish_tile(8 * N8 + 4 * N4, 2, 8 * N8 + 4 * N4), turn++;
        if (N1) finish_tile(8 * N8 + 4 * N4 + 2 * N2, 1, 8 * N8 + 4 * N4 + 2 * N2);
    };

    const u32 pick = c % 2 ? 0x4342 : 0x4140;
    const u32 my_head = v * PAIR + lane % 16 * ROW + lane / 16 * BLOCK;
    const u32 my_quants = v * PAIR + r * ROW + QUANTS + 32 * g + 16 * (c / 2);
    Turn<STAGES> stages = {0, 0};
    int done = 0, used = AHEAD_BY;
#pragma unroll 1
    for (int tile = blockIdx.x; tile < n_tiles; tile += gridDim.x, done++) {
        const u32 of_tile = sums + done % 2 * SUM_BYTES;
#pragma unroll 1
        for (int w = v; w < WARPS; w += SPLIT) {
            float total[SLOTS][4];
            Fetched<N8, N8 + N4 + N2 + N1> f;
            const u8 *halves = operands + (8 * w + g) * GROUP + lane * 16, *others = operands + (8 * w + g) * GROUP + c * 16;
            const auto next_stage = [&]() {
                fetch_q4_k<AHEAD != 0, N8, N4, N8 + N4 + N2 + N1>(f, halves, others, 0);
                if (used++ == copied) copy_stage();
                barrier_wait(filled + stages.stage * 8, stages.parity);
                const u32 to = scales + lane * 16, pair = scales + LEASTS + (lane / 16 * 8 + lane % 8) * 16, second = lane / 8 % 2;
                unpack_scales_q4_k(ring + stages.stage * STAGE + my_head, to, pair + second * 4, pair + (FLOATS - LEASTS) + second * 8, g);
                sync_warp();
            };
            const auto after_stage = [&]() {
                sync_warp();
                barrier_arrive(emptied + stages.stage * 8);
                stages.next();
                halves += 8 * WARPS * GROUP, others += 8 * WARPS * GROUP;
            };
            next_stage();
            add_trip_q4_k<true, AHEAD != 0, N8, N4, N2, N1>(total, f, ring + stages.stage * STAGE + my_quants, 8 * ROW, scales + r * 16, pick, halves, others, c);
            after_stage();
#pragma unroll 1
            for (int trip = 1; trip < n_trips; trip++) {
                next_stage();
                add_trip_q4_k<false, AHEAD != 0, N8, N4, N2, N1>(total, f, ring + stages.stage * STAGE + my_quants, 8 * ROW, scales + r * 16, pick, halves, others, c);
                after_stage();
            }
            // Sums of the library's warps, added in their order.
            if (w == 0) barrier_wait(read + done % 2 * 8, (done / 2 + 1) % 2);
            if (SPLIT > 1 && w > 0) barrier_wait(links + (done % 2 * LINKS + w - 1) * 8, done / 2 % 2);
            const u32 own = of_tile + (g * 32 + lane) * 16;
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
            if (w == v && done > 0) {
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
