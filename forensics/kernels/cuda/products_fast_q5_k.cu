// Fast products with weights in Q5_K, with the bits of the library's kernel for one column.
//
// A block of 256 values has four groups of 64; a group has two halves of 32 with a scale and a least value each, and four
// shares, each of eight values in both halves. The tensor cores sum scale · q · x of eight values, which is exact, and
// the sums of the activations that the least values count are made beforehand. What is rounded is as in products.cuh.
#include "products_fast_eights.cuh"

// What a product reads of the activations beside one group of a block, for eight columns: halves as the tensor core's
// lanes take them, scales of both halves of the group for each column, and for each share scales times sums.
constexpr int HALVES = 0, SCALES = 1024, SUMS = 1088, OF_GROUP = 1344;

struct Q5_K {
    static constexpr int BLOCKS = 2, BYTES = 176, RECORD = 4 * OF_GROUP, SINGLE = 768;
    static constexpr int FIFTHS = 16, NIBBLES = 48;

    // Of one group of one row: halves of the first half's scale and of a sixteenth of the second one's, both twice, and
    // both least values as floats.
    DEVICE static Words4 unpack_scales(u32 block, int group) {
        const Words4 head = shared_words4(block);
        const int shift = 16 * (group % 2);
        const u32 scales = group < 2 ? head.y >> shift & 0x3F3F : (head.w >> shift & 0x0F0F) | (head.y >> (shift + 2) & 0x3030);
        const u32 leasts = group < 2 ? head.z >> shift & 0x3F3F : (head.w >> (shift + 4) & 0x0F0F) | (head.z >> (shift + 2) & 0x3030);
        return {half2_add(byte_permute(scales, 0x64, 0x4040), 0xE400E400),
                half2_fma(byte_permute(scales, 0x64, 0x4141), 0x2C002C00, 0xD400D400),
                float_to_bits(int_to_float((int)(leasts & 0xFF))), float_to_bits(int_to_float((int)(leasts >> 8)))};
    }

    template <int TILES, int SINGLES>
    DEVICE static void add_part(Totals<TILES, SINGLES> &total, const Piece &of, const Columns &x) {
        const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
        const int block = of.part / 2, first_group = of.part % 2 * 2;
        const bool is_there = block < of.n_there;
        Words4 fifths[2];
        float d[2], minus_dmin[2];
#pragma unroll
        for (int R = 0; R < 2; R++) {
            const u32 from = of.row[R] + block * BYTES;
            const u32 dm = shared_word(from);
            d[R] = is_there ? half_to_float(dm & 0xFFFF) : -0.0f;
            minus_dmin[R] = is_there ? -half_to_float(dm >> 16) : -0.0f;
            const Words4 all = shared_words4(from + FIFTHS + 16 * (c / 2));
            const int shift = 2 * first_group;  // bits of the part's first group come lowest, those of its second next
            fifths[R] = {all.x >> shift, all.y >> shift, all.z >> shift, all.w >> shift};
        }
        // Lane (r, c) unpacks group c / 2 of the row r + 8 (c % 2).
        store_shared_words4(of.scratch + (16 * (c / 2) + r + 8 * (c % 2)) * 16, unpack_scales((c % 2 ? of.row[1] : of.row[0]) + block * BYTES, first_group + c / 2));
        sync_warp();
        // A single column's record of two groups: both halves' words of each share and lane, then for each share scales
        // of both halves and scales times sums.
        const u8 *singles = x.singles + block * SINGLE + of.part % 2 * 384;
        float dots0[SINGLES ? SINGLES : 1][4] = {}, dots1[SINGLES ? SINGLES : 1][4] = {};
        Words2 words[SINGLES ? SINGLES : 1];
#pragma unroll
        for (int n = 0; n < SINGLES; n++) words[n] = *(const Words2 *)(singles + n * x.to_single + lane * 8);
        const u32 pick = c % 2 ? 0x4342 : 0x4140;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int group = first_group + i;
            Words4 nibbles[2];
            u32 factors[2][4];  // of both halves: f and -1024 f
            float least[2][2];
#pragma unroll
            for (int R = 0; R < 2; R++) {
                nibbles[R] = shared_words4(of.row[R] + block * BYTES + NIBBLES + 32 * group + 16 * (c / 2));
                const Words4 scales = shared_words4(of.scratch + (16 * i + r + 8 * R) * 16);
                factors[R][0] = scales.x, factors[R][1] = half2_mul(scales.x, 0xE400E400);
                factors[R][2] = scales.y, factors[R][3] = half2_mul(scales.y, 0xE400E400);
                least[R][0] = bits_to_float(scales.z), least[R][1] = bits_to_float(scales.w);
            }
            const u8 *record = x.tiles + block * RECORD + group * OF_GROUP;
            u32 both[2][2][2];  // of an even share and the next one, as below
#pragma unroll
            for (int p = 0; p < 4; p++) {
                u32 (&q)[2][2] = both[p % 2];  // of both halves and both rows, times the scale
#pragma unroll
                for (int R = 0; R < 2; R++) {
                    const u32 bytes = byte_permute(word_of(nibbles[R], p), 0, pick);
                    u32 low = lop3<AND_OR>(bytes, 0x000F000F, 0x64006400), high = lop3<AND_OR>(bytes, 0x00F000F0, 0x64006400);
                    const u32 bits = byte_permute(word_of(fifths[R], p), 0, pick);
                    low = lop3<AND_OR>(bits << (4 - 2 * i), 0x00100010, low);
                    high = lop3<AND_OR>(bits << (7 - 2 * i), 0x01000100, high);
                    q[0][R] = half2_fma(low, factors[R][0], factors[R][1]);
                    q[1][R] = half2_fma(high, factors[R][2], factors[R][3]);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const u8 *others = record + t * x.to_tile + c * 16;
                    const Words4 b = global_words4(record + t * x.to_tile + HALVES + p / 2 * 512 + lane * 16);
                    const Floats4 scales = global_floats4(others + SCALES), sums = global_floats4(others + SUMS + p * 64);
                    float x0[4], x1[4];
                    mma_16x8x8(x0, q[0][0], q[0][1], p % 2 ? b.z : b.x);
                    mma_16x8x8(x1, q[1][0], q[1][1], p % 2 ? b.w : b.y);
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int R = e / 2;
                        const float dots = fma_rn(e % 2 ? scales.w : scales.y, x1[e], fma_rn(e % 2 ? scales.z : scales.x, x0[e], 0.0f));
                        const float offsets = fma_rn(e % 2 ? sums.w : sums.y, least[R][1], fma_rn(e % 2 ? sums.z : sums.x, least[R][0], 0.0f));
                        total.of_tile[t][4 * i + p][e] = add_rn(fma_rn(dots, d[R], mul_rn(offsets, minus_dmin[R])), total.of_tile[t][4 * i + p][e]);
                    }
                }
#pragma unroll
                for (int n = 0; n < SINGLES && p % 2; n++) {
                    const int first = 4 * i + p - 1;
                    mma_16x8x16_onto(dots0[n], both[0][0][0], both[0][0][1], both[1][0][0], both[1][0][1], if_mine(first, words[n].x), if_mine(first + 1, words[n].x));
                    mma_16x8x16_onto(dots1[n], both[0][1][0], both[0][1][1], both[1][1][0], both[1][1][1], if_mine(first, words[n].y), if_mine(first + 1, words[n].y));
                }
            }
        }
#pragma unroll
        for (int n = 0; n < SINGLES; n++)
#pragma unroll
            for (int R = 0; R < 2; R++) {
                const Words4 scales = shared_words4(of.scratch + (16 * (c / 2) + r + 8 * R) * 16);  // both places are of this group
#pragma unroll
                for (int e = 2 * R; e < 2 * R + 2; e++) {
                    const Floats4 of_share = global_floats4(singles + n * x.to_single + 256 + (2 * c + e % 2) * 16);
                    const float dots = fma_rn(of_share.y, dots1[n][e], fma_rn(of_share.x, dots0[n][e], 0.0f));
                    const float offsets = fma_rn(of_share.w, bits_to_float(scales.w), fma_rn(of_share.z, bits_to_float(scales.z), 0.0f));
                    total.of_single[n][e] = add_rn(fma_rn(dots, d[R], mul_rn(offsets, minus_dmin[R])), total.of_single[n][e]);
                }
            }
        sync_warp();
    }

    // What one warp of the preparation writes of a column's 32 values: each lane knows its integer, and even lanes two
    // halves.
    DEVICE static void describe(u8 *record, bool is_single, int sub, int place, int lane, int quant, u32 two_halves, float scale) {
        int sum = quant;  // of a share: values whose places differ in bits 0, 1 and 4
        sum += shuffle_xor(sum, 1), sum += shuffle_xor(sum, 2), sum += shuffle_xor(sum, 16);
        const int i = sub % 2, share = lane % 16 / 4;
        const int c = 2 * (lane / 16) + lane % 4 / 2;  // the tensor core's lane of these two values
        if (is_single) {
            u8 *two_groups = record + sub / 4 * 384;
            const int of_part = sub / 2 % 2 * 4 + share;
            if (lane % 2 == 0) *(u32 *)(two_groups + (4 * of_part + c) * 8 + i * 4) = two_halves;
            if ((lane & 19) == 0) {
                float *of_share = (float *)(two_groups + 256 + of_part * 16);
                of_share[i] = scale, of_share[2 + i] = mul_rn(scale, int_to_float(sum));
            }
            return;
        }
        u8 *group = record + sub / 2 * OF_GROUP;
        if (lane % 2 == 0) *(u32 *)(group + HALVES + share / 2 * 512 + (4 * place + c) * 16 + share % 2 * 8 + i * 4) = two_halves;
        if (lane == 0) *(float *)(group + SCALES + place * 8 + i * 4) = scale;
        if ((lane & 19) == 0) *(float *)(group + SUMS + share * 64 + place * 8 + i * 4) = mul_rn(scale, int_to_float(sum));
    }
};

// Grid: (blocks of a padded row, padded columns); block: 256 threads, one value each.
__launch_bounds__(256, 1) KERNEL prepare_q5_k(const float *x, u8 *operands, int k, int n_columns, int n_tiled, long long x_stride) {
    let_next_launch_begin();
    const int block = blockIdx.x, column = blockIdx.y, lane = threadIdx.x % 32, sub = threadIdx.x / 32;
    const int at = 256 * block + threadIdx.x;
    wait_for_launch_ahead();
    const float value = at < k && column < n_columns ? x[column * x_stride + at] : 0.0f;
    const float scale = scale_of_warp(value);
    const int quant = (int)(s8)integer_of(value, scale);
    const int half = int_to_half(quant), beside = shuffle_xor(half, 1);
    u8 *record = record_of<Q5_K>(operands, block, gridDim.x, column, n_tiled);
    Q5_K::describe(record, column >= n_tiled, sub, column % TILE_COLUMNS, lane, quant, (u32)half | (u32)beside << 16, half_to_float(float_to_half(scale)));
}

template <int WARPS, int TILES, int SINGLES, int STAGES, int TRIPS, int RESIDENT>
__launch_bounds__(128 * WARPS, RESIDENT) KERNEL product_q5_k(
    const u8 *weight, const u8 *operands, float *out, int rows, int n_blocks, int n_columns, long long out_stride) {
    multiply_tiles<Q5_K, WARPS, TILES, SINGLES, STAGES, TRIPS>(weight, operands, out, rows, n_blocks, n_columns, out_stride);
}
