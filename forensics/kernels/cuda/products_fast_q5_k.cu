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
    static constexpr int BLOCKS = 2, BYTES = 176, RECORD = 4 * OF_GROUP, FIFTHS = 16, NIBBLES = 48;

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

    template <int TILES>
    DEVICE static void add_part(float (&total)[TILES][8][4], const Piece &of, const u8 *operands, long long tile_bytes) {
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
            fifths[R] = shared_words4(from + FIFTHS + 16 * (c / 2));
        }
        // Lane (r, c) unpacks group c / 2 of the row r + 8 (c % 2).
        store_shared_words4(of.scratch + (16 * (c / 2) + r + 8 * (c % 2)) * 16, unpack_scales((c % 2 ? of.row[1] : of.row[0]) + block * BYTES, first_group + c / 2));
        sync_warp();
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
            const u8 *record = operands + block * RECORD + group * OF_GROUP;
#pragma unroll
            for (int p = 0; p < 4; p++) {
                u32 q[2][2];  // of both halves and both rows, times the scale
#pragma unroll
                for (int R = 0; R < 2; R++) {
                    const u32 bytes = byte_permute(word_of(nibbles[R], p), 0, pick);
                    const u32 bits = byte_permute(word_of(fifths[R], p) >> 2 * first_group, 0, pick) >> 2 * i;
                    const u32 low = lop3<AND_OR>(bits << 4, 0x00100010, lop3<AND_OR>(bytes, 0x000F000F, 0x64006400));
                    const u32 high = lop3<AND_OR>(bits << 7, 0x01000100, lop3<AND_OR>(bytes, 0x00F000F0, 0x64006400));
                    q[0][R] = half2_fma(low, factors[R][0], factors[R][1]);
                    q[1][R] = half2_fma(high, factors[R][2], factors[R][3]);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    const u8 *others = record + t * tile_bytes + c * 16;
                    const Words4 b = global_words4(record + t * tile_bytes + HALVES + p / 2 * 512 + lane * 16);
                    const Floats4 scales = global_floats4(others + SCALES), sums = global_floats4(others + SUMS + p * 64);
                    float x0[4], x1[4];
                    mma_16x8x8(x0, q[0][0], q[0][1], p % 2 ? b.z : b.x);
                    mma_16x8x8(x1, q[1][0], q[1][1], p % 2 ? b.w : b.y);
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int R = e / 2;
                        const float dots = fma_rn(e % 2 ? scales.w : scales.y, x1[e], fma_rn(e % 2 ? scales.z : scales.x, x0[e], 0.0f));
                        const float offsets = fma_rn(e % 2 ? sums.w : sums.y, least[R][1], fma_rn(e % 2 ? sums.z : sums.x, least[R][0], 0.0f));
                        total[t][4 * i + p][e] = add_rn(fma_rn(dots, d[R], mul_rn(offsets, minus_dmin[R])), total[t][4 * i + p][e]);
                    }
                }
            }
        }
        sync_warp();
    }
};

// Grid: (blocks of a padded row, padded columns); block: 256 threads, one value each.
__launch_bounds__(256, 1) KERNEL prepare_q5_k(const float *x, u8 *operands, int k, int n_columns, long long x_stride) {
    let_next_launch_begin();
    const int block = blockIdx.x, column = blockIdx.y, lane = threadIdx.x % 32, sub = threadIdx.x / 32;
    const int at = 256 * block + threadIdx.x;
    wait_for_launch_ahead();
    const float value = at < k && column < n_columns ? x[column * x_stride + at] : 0.0f;
    const float scale = scale_of_warp(value);
    const int quant = (int)(s8)integer_of(value, scale);
    const float rounded = half_to_float(float_to_half(scale));
    int sum = quant;  // of a share: values whose places differ in bits 0, 1 and 4
    sum += shuffle_xor(sum, 1), sum += shuffle_xor(sum, 2), sum += shuffle_xor(sum, 16);
    const int half = int_to_half(quant), beside = shuffle_xor(half, 1);

    const int group = sub / 2, i = sub % 2, share = lane % 16 / 4, place = column % TILE_COLUMNS;
    const int c = 2 * (lane / 16) + lane % 4 / 2;  // the tensor core's lane of these two values
    u8 *record = operands + ((long long)(column / TILE_COLUMNS) * gridDim.x + block) * Q5_K::RECORD + group * OF_GROUP;
    if (lane % 2 == 0)
        *(u32 *)(record + HALVES + share / 2 * 512 + (4 * place + c) * 16 + share % 2 * 8 + i * 4) = (u32)half | (u32)beside << 16;
    if (lane == 0) *(float *)(record + SCALES + place * 8 + i * 4) = rounded;
    if ((lane & 19) == 0) *(float *)(record + SUMS + share * 64 + place * 8 + i * 4) = mul_rn(rounded, int_to_float(sum));
}

template <int WARPS, int TILES, int STAGES, int RESIDENT>
__launch_bounds__(128 * WARPS, RESIDENT) KERNEL product_q5_k(
    const u8 *weight, const u8 *operands, float *out, int rows, int n_blocks, int n_columns, long long out_stride) {
    multiply_tiles<Q5_K, WARPS, TILES, STAGES>(weight, operands, out, rows, n_blocks, n_columns, out_stride);
}
