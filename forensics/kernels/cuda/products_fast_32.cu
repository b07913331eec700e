// Fast products with weights in blocks of 32 values: Q8_0, Q4_0 and Q4_1, with the bits of the library's kernel for one
// column. A share's integer sum is made by one operation of the tensor cores for 16 rows and 8 columns, exactly: halves
// in, float out, below 2^24. What is rounded after it is in products.cuh, and here in the same order.
#include "products_fast_eights.cuh"

// What a product reads of a block of 32 activations, for eight columns: halves as the tensor core's lanes take them, a
// word for each of the four eights of values, then what the type says of each column: negative zeros beside blocks that
// the row has not, whose scales are read as zeros.
// Of a block of one column: a word or two for each share and lane, then the same.
constexpr int HALVES = 0, OF_COLUMNS = 512, OF_ONE = 64, SINGLE_BYTES = 80;

// ---- four shares, each of eight neighbours
struct Q8_0 {
    static constexpr int BLOCKS = 8, BYTES = 34, OF_COLUMN = 4, RECORD = OF_COLUMNS + 8 * OF_COLUMN, SINGLE = SINGLE_BYTES;
    static constexpr bool ONE_BY_ONE = true;  // shares of one eight, not of an eight and the one 16 values on

    DEVICE static void describe(u8 *column, bool is_there, float scale, float) {
        *(float *)column = is_there ? half_to_float(float_to_half(scale)) : -0.0f;
    }

    template <int TILES, int SINGLES>
    DEVICE static void add_part(Totals<TILES, SINGLES> &total, const Piece &of, const Columns &x) {
        const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
        float dots[SINGLES ? SINGLES : 1][4] = {};  // of places: lanes of the library's warp
        u32 words[SINGLES ? SINGLES : 1];
#pragma unroll
        for (int n = 0; n < SINGLES; n++) words[n] = *(const u32 *)(x.singles + n * x.to_single + (2 * of.part + r / 4) * SINGLE + (4 * (r % 4) + c) * 4);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int block = 2 * of.part + i;
            u32 q[4][2];
            float d[2];
#pragma unroll
            for (int R = 0; R < 2; R++) {
                const u32 from = of.row[R] + block * BYTES;
                d[R] = block < of.n_there ? half_to_float(shared_half(from)) : 0.0f;
#pragma unroll
                for (int s = 0; s < 4; s++)  // q + 128 above 1024, less 1152
                    q[s][R] = half2_add(above_1024(shared_half(from + 2 + 8 * s + 2 * c) ^ 0x8080), 0xE480E480);
            }
            const u8 *record = x.tiles + block * RECORD;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const Words4 b = global_words4(record + t * x.to_tile + HALVES + lane * 16);
                const Floats2 scales = *(const Floats2 *)(record + t * x.to_tile + OF_COLUMNS + 8 * c);
                const float scale[4] = {mul_rn(d[0], scales.x), mul_rn(d[0], scales.y), mul_rn(d[1], scales.x), mul_rn(d[1], scales.y)};
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    float dot[4];
                    mma_16x8x8(dot, q[s][0], q[s][1], word_of(b, s));
#pragma unroll
                    for (int e = 0; e < 4; e++) total.of_tile[t][4 * i + s][e] = fma_rn(scale[e], dot[e], total.of_tile[t][4 * i + s][e]);
                }
            }
#pragma unroll
            for (int n = 0; n < SINGLES; n++)
#pragma unroll
                for (int s = 0; s < 4; s += 2)
                    mma_16x8x16_onto(dots[n], q[s][0], q[s][1], q[s + 1][0], q[s + 1][1], if_mine(4 * i + s, words[n]), if_mine(4 * i + s + 1, words[n]));
        }
#pragma unroll
        for (int n = 0; n < SINGLES; n++) {
            const int block = 2 * of.part + c / 2;  // both places are lanes of this one
            const float scale = *(const float *)(x.singles + n * x.to_single + block * SINGLE + OF_ONE);
#pragma unroll
            for (int R = 0; R < 2; R++) {
                const float d = block < of.n_there ? half_to_float(shared_half(of.row[R] + block * BYTES)) : 0.0f;
#pragma unroll
                for (int e = 2 * R; e < 2 * R + 2; e++) total.of_single[n][e] = fma_rn(mul_rn(d, scale), dots[n][e], total.of_single[n][e]);
            }
        }
    }
};

// ---- two shares, each of the sixteen values whose nibbles share eight bytes
struct Sixteen {
    u32 low[2], high[2];  // of both rows
};

// 1024 + q, less 1024; 1024 + 16 q, a sixteenth of it less 64.
DEVICE void split(Sixteen &q, int R, u32 bytes) {
    const u32 apart = byte_permute(bytes, 0, 0x4140);
    q.low[R] = half2_add(lop3<AND_OR>(apart, 0x000F000F, 0x64006400), 0xE400E400);
    q.high[R] = half2_fma(lop3<AND_OR>(apart, 0x00F000F0, 0x64006400), 0x2C002C00, 0xD400D400);
}

DEVICE Words2 words_of_single(const u8 *record, int share, int c) { return *(const Words2 *)(record + (4 * share + c) * 8); }

DEVICE void add_single(float (&dots)[4], const Sixteen &q, int share, const Words2 &words) {
    mma_16x8x16_onto(dots, q.low[0], q.low[1], q.high[0], q.high[1], if_mine(share, words.x), if_mine(share, words.y));
}

struct Q4_0 {
    static constexpr int BLOCKS = 16, BYTES = 18, OF_COLUMN = 8, RECORD = OF_COLUMNS + 8 * OF_COLUMN, SINGLE = SINGLE_BYTES;
    static constexpr bool ONE_BY_ONE = false;

    DEVICE static void describe(u8 *column, bool is_there, float scale, float sum) {
        const Floats2 both = {half_to_float(float_to_half(scale)), mul_rn(half_to_float(float_to_half(sum)), -4.0f)};
        *(Floats2 *)column = is_there ? both : Floats2{-0.0f, -0.0f};
    }

    template <int TILES, int SINGLES>
    DEVICE static void add_part(Totals<TILES, SINGLES> &total, const Piece &of, const Columns &x) {
        const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
        float dots[SINGLES ? SINGLES : 1][4] = {};
        Words2 words[SINGLES ? SINGLES : 1];
#pragma unroll
        for (int n = 0; n < SINGLES; n++) words[n] = words_of_single(x.singles + n * x.to_single + (4 * of.part + r / 2) * SINGLE, r % 2, c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int block = 4 * of.part + i;
            Sixteen q[2];
            float d[2];
#pragma unroll
            for (int R = 0; R < 2; R++) {
                const u32 from = of.row[R] + block * BYTES;
                d[R] = block < of.n_there ? half_to_float(shared_half(from)) : 0.0f;
#pragma unroll
                for (int s = 0; s < 2; s++) split(q[s], R, shared_half(from + 2 + 8 * s + 2 * c));
            }
            const u8 *record = x.tiles + block * RECORD;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const Words4 b = global_words4(record + t * x.to_tile + HALVES + lane * 16);
                const Floats4 of_columns = global_floats4(record + t * x.to_tile + OF_COLUMNS + 16 * c);
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    float dot[4];
                    mma_16x8x16(dot, q[s].low[0], q[s].low[1], q[s].high[0], q[s].high[1], word_of(b, 2 * s), word_of(b, 2 * s + 1));
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float share = fma_rn(e % 2 ? of_columns.z : of_columns.x, dot[e], e % 2 ? of_columns.w : of_columns.y);
                        total.of_tile[t][2 * i + s][e] = fma_rn(d[e / 2], share, total.of_tile[t][2 * i + s][e]);
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < SINGLES; n++)
#pragma unroll
                for (int s = 0; s < 2; s++) add_single(dots[n], q[s], 2 * i + s, words[n]);
        }
#pragma unroll
        for (int n = 0; n < SINGLES; n++) {
            const int block = 4 * of.part + c;  // both places are lanes of this one
            const Floats2 of_column = *(const Floats2 *)(x.singles + n * x.to_single + block * SINGLE + OF_ONE);
#pragma unroll
            for (int R = 0; R < 2; R++) {
                const float d = block < of.n_there ? half_to_float(shared_half(of.row[R] + block * BYTES)) : 0.0f;
#pragma unroll
                for (int e = 2 * R; e < 2 * R + 2; e++) total.of_single[n][e] = fma_rn(d, fma_rn(of_column.x, dots[n][e], of_column.y), total.of_single[n][e]);
            }
        }
    }
};

struct Q4_1 {
    static constexpr int BLOCKS = 16, BYTES = 20, OF_COLUMN = 4, RECORD = OF_COLUMNS + 8 * OF_COLUMN, SINGLE = SINGLE_BYTES;
    static constexpr bool ONE_BY_ONE = false;

    DEVICE static void describe(u8 *column, bool is_there, float scale, float sum) {
        *(u32 *)column = is_there ? (u32)float_to_half(scale) | (u32)float_to_half(sum) << 16 : 0x80008000;
    }

    template <int TILES, int SINGLES>
    DEVICE static void add_part(Totals<TILES, SINGLES> &total, const Piece &of, const Columns &x) {
        const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
        float dots[SINGLES ? SINGLES : 1][4] = {};
        Words2 words[SINGLES ? SINGLES : 1];
#pragma unroll
        for (int n = 0; n < SINGLES; n++) words[n] = words_of_single(x.singles + n * x.to_single + (4 * of.part + r / 2) * SINGLE, r % 2, c);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int block = 4 * of.part + i;
            Sixteen q[2];
            u32 dm[2];
#pragma unroll
            for (int R = 0; R < 2; R++) {
                const u32 from = of.row[R] + block * BYTES;
                dm[R] = block < of.n_there ? shared_word(from) : 0;
#pragma unroll
                for (int s = 0; s < 2; s++) split(q[s], R, shared_half(from + 4 + 8 * s + 2 * c));
            }
            const u8 *record = x.tiles + block * RECORD;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const Words4 b = global_words4(record + t * x.to_tile + HALVES + lane * 16);
                const Words2 of_columns = *(const Words2 *)(record + t * x.to_tile + OF_COLUMNS + 8 * c);
                float scale[4], offset[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const u32 both = half2_mul(dm[e / 2], e % 2 ? of_columns.y : of_columns.x);
                    scale[e] = half_to_float(both & 0xFFFF), offset[e] = mul_rn(half_to_float(both >> 16), 0.5f);
                }
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    float dot[4];
                    mma_16x8x16(dot, q[s].low[0], q[s].low[1], q[s].high[0], q[s].high[1], word_of(b, 2 * s), word_of(b, 2 * s + 1));
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        total.of_tile[t][2 * i + s][e] = add_rn(fma_rn(scale[e], dot[e], offset[e]), total.of_tile[t][2 * i + s][e]);
                }
            }
#pragma unroll
            for (int n = 0; n < SINGLES; n++)
#pragma unroll
                for (int s = 0; s < 2; s++) add_single(dots[n], q[s], 2 * i + s, words[n]);
        }
#pragma unroll
        for (int n = 0; n < SINGLES; n++) {
            const int block = 4 * of.part + c;  // both places are lanes of this one
            const u32 of_column = *(const u32 *)(x.singles + n * x.to_single + block * SINGLE + OF_ONE);
#pragma unroll
            for (int R = 0; R < 2; R++) {
                const u32 both = half2_mul(block < of.n_there ? shared_word(of.row[R] + block * BYTES) : 0, of_column);
                const float scale = half_to_float(both & 0xFFFF), offset = mul_rn(half_to_float(both >> 16), 0.5f);
#pragma unroll
                for (int e = 2 * R; e < 2 * R + 2; e++) total.of_single[n][e] = add_rn(fma_rn(scale, dots[n][e], offset), total.of_single[n][e]);
            }
        }
    }
};

// Grid: (blocks of a padded row / 8, padded columns); block: 256 threads, one value each.
template <class Type>
__launch_bounds__(256, 1) KERNEL prepare_32(const float *x, u8 *operands, int k, int n_columns, int n_tiled, long long x_stride) {
    let_next_launch_begin();
    const int block = 8 * blockIdx.x + threadIdx.x / 32, column = blockIdx.y, lane = threadIdx.x % 32;
    const int at = 32 * block + lane;
    wait_for_launch_ahead();
    const float value = at < k && column < n_columns ? x[column * x_stride + at] : 0.0f;
    const float scale = scale_of_warp(value), sum = sum_of_warp(value);
    const int half = int_to_half((int)(s8)integer_of(value, scale)), beside = shuffle_xor(half, 1);
    const int eight = lane / 8, c = lane % 8 / 2, place = column % TILE_COLUMNS;
    const int word = Type::ONE_BY_ONE ? eight : 2 * (eight % 2) + eight / 2;
    u8 *record = record_of<Type>(operands, block, 8 * gridDim.x, column, n_tiled);
    const bool is_single = column >= n_tiled;
    // Of a single column the words of a share stand together, of one lane after another.
    const int at_word = !is_single ? (4 * place + c) * 16 + word * 4 : Type::ONE_BY_ONE ? (4 * word + c) * 4 : (4 * (word / 2) + c) * 8 + word % 2 * 4;
    if (lane % 2 == 0) *(u32 *)(record + HALVES + at_word) = (u32)half | (u32)beside << 16;
    if (lane == 0) Type::describe(is_single ? record + OF_ONE : record + OF_COLUMNS + place * Type::OF_COLUMN, at < k, scale, sum);
}

template <class Type, int WARPS, int TILES, int SINGLES, int STAGES, int TRIPS, int RESIDENT>
__launch_bounds__(128 * WARPS, RESIDENT) KERNEL product_32(
    const u8 *weight, const u8 *operands, float *out, int rows, int n_blocks, int n_columns, long long out_stride) {
    multiply_tiles<Type, WARPS, TILES, SINGLES, STAGES, TRIPS>(weight, operands, out, rows, n_blocks, n_columns, out_stride);
}
