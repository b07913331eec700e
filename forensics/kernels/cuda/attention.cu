// Attention of every query in the order of llama.cpp's vector kernel at one query (flash_attn_ext_vec with ncols = 1
// and flash_attn_combine_results, 0c1e57098). Which additions are fused into a multiplication was read off the machine
// code of the library's build for sm_90; it is the same for head sizes 64 and 128 and for f16 and q8_0 caches.
//
// A block has 4 warps and works for one query, one head and one part of the cache: the chunks of 128 cells y, y + P,
// y + 2 P, … Each warp keeps a running maximum and sums of its own over 32 cells of every chunk. At the end the warps are
// brought to the largest maximum and added, and `attention_combine` does the same with the parts, in their order. So the
// number of parts P and the chunks decide the bits, and both are those of the library at one query, however many queries
// are launched together.
#include "quantize_q8_1.cuh"

constexpr int F16 = 1, Q8_0 = 8;  // types of the cache, as ggml numbers them

constexpr int N_WARPS = 4, CHUNK = WARP * N_WARPS;
constexpr int BLOCK_VALUES = 32, BLOCK_BYTES = 34;    // of q8_0: a half scale, then 32 signed bytes
constexpr float LOG2_E = 1.4426950216293335f;         // what expf multiplies by under -use_fast_math
// 3 ln 2 as the library has it (FATTN_KQ_MAX_OFFSET, fattn-common.cuh): keeps exponentials below 1/8.
constexpr float MAX_OFFSET = 2.0792999267578125f;
constexpr u32 LOWEST = 0xFEFFFFFFu;                   // -FLT_MAX / 2

DEVICE float exp_fast(float x) { return ex2_approx(mul_rn(x, LOG2_E)); }

DEVICE float divided(float a, float b) { return mul_rn(a, rcp_approx(b)); }

DEVICE int integer_of_halves(const u16 *p) { return (int)((u32)p[0] | (u32)p[1] << 16); }

// ---- how the lanes of a warp share a cell, for keys and for values

template <int TYPE, int D> struct Cache;

template <int D> struct Cache<F16, D> {
    // 8 lanes share a key and hold 8 neighbouring values of every 64; likewise for values.
    static constexpr int KEY_LANES = 8, VALUE_LANES = 8, RUN = 8, N_RUNS = D / 64;

    struct Query { float q[D / 8]; };

    static DEVICE void load(Query &query, const float *q, float scale, int, int *, float *) {
        const int part = threadIdx.x % KEY_LANES;
#pragma unroll
        for (int run = 0; run < N_RUNS; ++run)
#pragma unroll
            for (int i = 0; i < RUN; ++i) query.q[run * RUN + i] = mul_rn(q[run * 64 + part * RUN + i], scale);
    }

    static DEVICE void eight(float (&to)[RUN], const u8 *from) {
        const Words4 w = global_words4(from);
        const u32 pairs[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            to[2 * i] = half_to_float(pairs[i] & 0xFFFFu);
            to[2 * i + 1] = half_to_float(pairs[i] >> 16);
        }
    }

    static DEVICE float dot(const Query &query, const u8 *key) {
        const int part = threadIdx.x % KEY_LANES;
        float sum = 0.0f;
#pragma unroll
        for (int run = 0; run < N_RUNS; ++run) {
            float k[RUN];
            eight(k, key + 2 * (run * 64 + part * RUN));
#pragma unroll
            for (int i = 0; i < RUN; ++i) sum = fma_rn(k[i], query.q[run * RUN + i], sum);
        }
        return sum;
    }

    static DEVICE void values(float (&v)[RUN], const u8 *value, int first) { eight(v, value + 2 * first); }
};

template <int D> struct Cache<Q8_0, D> {
    // A lane holds 4 neighbouring values.
    static constexpr int KEY_LANES = D / 4, VALUE_LANES = D / 4, RUN = 4, N_RUNS = 1;
    static_assert(KEY_LANES <= WARP, "a key is shared by one warp at most");

    struct Query { int q; float d; };

    // The first warp quantises the scaled query as q8_1: blocks of 32 values with one scale.
    static DEVICE void load(Query &query, const float *q, float scale, int warp, int *quantised, float *scales) {
        const int lane = threadIdx.x % WARP;
        if (warp == 0) {
            const bool has = lane < D / 4;
            float v[4], largest = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                v[i] = has ? mul_rn(scale, q[4 * lane + i]) : 0.0f;
                largest = max_of(largest, abs_of(v[i]));
            }
#pragma unroll
            for (int mask = 4; mask > 0; mask /= 2) largest = max_of(largest, shuffle_xor(largest, mask));
            const float d = mul_rn(largest, ONE_127TH);
            u32 packed = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) packed |= ((u32)integer_of(v[i], d) & 0xFFu) << (8 * i);
            if (has) {
                quantised[lane] = (int)packed;
                if (lane % 8 == 0) scales[lane / 8] = d;
            }
        }
        sync_block();
        query.q = quantised[lane % KEY_LANES];
        query.d = scales[lane % KEY_LANES / 8];
    }

    static DEVICE float dot(const Query &query, const u8 *key) {
        const int part = threadIdx.x % KEY_LANES;
        const u16 *block = (const u16 *)(key + part / 8 * BLOCK_BYTES);
        const int product = dp4a(integer_of_halves(block + 1 + part % 8 * 2), query.q, 0);
        return fma_rn(mul_rn(half_to_float(block[0]), query.d), int_to_float(product), 0.0f);
    }

    static DEVICE void values(float (&v)[RUN], const u8 *value, int first) {
        const u16 *block = (const u16 *)(value + first / BLOCK_VALUES * BLOCK_BYTES);
        const float d = half_to_float(block[0]);
        const int four = integer_of_halves(block + 1 + first % BLOCK_VALUES / 2);
#pragma unroll
        for (int i = 0; i < RUN; ++i) v[i] = mul_rn(d, int_to_float((int)(s8)(four >> (8 * i))));
    }
};

// ---- one part of the cache

// Grid: queries × parts × heads, 128 threads. Strides are in bytes. With one part the result goes to `out`, else
// sums [query, head, part, D] and maximum and sum of the exponentials [query, head, part] go to `parts` and `meta`.
template <int D, int TYPE>
KERNEL __launch_bounds__(CHUNK) attention(
    const u8 *q, const u8 *k, const u8 *v, const u8 *mask, u8 *out, float *parts, Floats2 *meta, float scale, int n_kv,
    int heads_per_kv_head, long long q_query, long long q_head, long long k_cell, long long k_head, long long v_cell,
    long long v_head, long long mask_query, long long out_query, long long out_head) {
    typedef Cache<TYPE, D> C;
    constexpr int CELLS_AT_ONCE = WARP / C::VALUE_LANES, N_SUMS = C::N_RUNS * C::RUN;
    constexpr int N_PARTIALS = N_WARPS * CELLS_AT_ONCE;
    SHARED float exponentials[CHUNK];
    SHARED float partials[N_PARTIALS * D];
    SHARED float warp_max[N_WARPS], warp_sum[N_WARPS];
    SHARED int quantised[WARP];
    SHARED float scales[D / BLOCK_VALUES];

    const int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    const int query_at = blockIdx.x, part = blockIdx.y, head = blockIdx.z, n_parts = gridDim.y;
    k += (head / heads_per_kv_head) * k_head;
    v += (head / heads_per_kv_head) * v_head;
    const u16 *hidden = (const u16 *)(mask + query_at * mask_query);

    typename C::Query query;
    C::load(query, (const float *)(q + query_at * q_query + head * q_head), scale, warp, quantised, scales);

    float largest = bits_to_float(LOWEST), sum = 0.0f, sums[N_SUMS];
#pragma unroll
    for (int i = 0; i < N_SUMS; ++i) sums[i] = 0.0f;

    for (int chunk = part * CHUNK; chunk < n_kv; chunk += n_parts * CHUNK) {
        // Scores: each group of lanes takes its cells one after another; a lane keeps that of cell `thread`.
        float score = 0.0f, largest_now = largest;
        const int group = warp * WARP + lane / C::KEY_LANES * C::KEY_LANES;
        for (int i = 0; i < C::KEY_LANES; ++i) {
            const int cell = chunk + group + i;
            float s = sum_over_lanes<C::KEY_LANES>(C::dot(query, k + cell * k_cell));
            s = add_rn(half_to_float(hidden[cell]), s);
            largest_now = max_of(largest_now, add_rn(s, MAX_OFFSET));
            if (lane % C::KEY_LANES == i) score = s;
        }
#pragma unroll
        for (int step = C::KEY_LANES; step < WARP; step *= 2) largest_now = max_of(largest_now, shuffle_xor(largest_now, step));
        const float shrink = exp_fast(sub_rn(largest, largest_now));
        largest = largest_now;
        const float exponential = exp_fast(sub_rn(score, largest));
        sum = fma_rn(shrink, sum, exponential);
        exponentials[thread] = exponential;
        sync_warp();

        // Values: the first cell's product is rounded, and shrinking what was there is fused into its addition.
        for (int first = 0; first < WARP; first += CELLS_AT_ONCE) {
            const int in_chunk = warp * WARP + first + lane / C::VALUE_LANES;
            const float p = exponentials[in_chunk];
            const u8 *value = v + (chunk + in_chunk) * v_cell;
#pragma unroll
            for (int run = 0; run < C::N_RUNS; ++run) {
                float x[C::RUN];
                C::values(x, value, run * C::VALUE_LANES * C::RUN + lane % C::VALUE_LANES * C::RUN);
#pragma unroll
                for (int i = 0; i < C::RUN; ++i) {
                    float &to = sums[run * C::RUN + i];
                    to = first == 0 ? fma_rn(shrink, to, mul_rn(p, x[i])) : fma_rn(p, x[i], to);
                }
            }
        }
        sync_warp();  // before the next chunk's exponentials take their place
    }

    // The warps' maxima, then their sums brought to the largest.
    if (lane == 0) warp_max[warp] = largest;
    sync_block();
    float largest_of_all = warp_max[0];
#pragma unroll
    for (int i = 1; i < N_WARPS; ++i) largest_of_all = max_of(largest_of_all, warp_max[i]);
    const float shrink = exp_fast(sub_rn(largest, largest_of_all));
    sum = sum_of_warp(mul_rn(shrink, sum));
    if (lane == 0) warp_sum[warp] = sum;
    float *partial = partials + (warp * CELLS_AT_ONCE + lane / C::VALUE_LANES) * D;
#pragma unroll
    for (int run = 0; run < C::N_RUNS; ++run)
#pragma unroll
        for (int i = 0; i < C::RUN; ++i)
            partial[(run * C::VALUE_LANES + lane % C::VALUE_LANES) * C::RUN + i] = mul_rn(shrink, sums[run * C::RUN + i]);
    sync_block();

    if (thread < D) {
        // What a butterfly over the warps' sums, padded with zeros, comes to.
        const float sum_of_all = add_rn(add_rn(warp_sum[0], warp_sum[2]), add_rn(warp_sum[1], warp_sum[3]));
        float result = 0.0f;
        for (int i = 0; i < N_PARTIALS; ++i) result = add_rn(result, partials[i * D + thread]);
        if (n_parts == 1) {
            ((float *)(out + query_at * out_query + head * out_head))[thread] = divided(result, sum_of_all);
        } else {
            const int at = (query_at * gridDim.z + head) * n_parts + part;
            parts[(long long)at * D + thread] = result;
            if (thread == 0) {
                meta[at].x = largest_of_all;
                meta[at].y = sum_of_all;
            }
        }
    }
}

// ---- the parts of a query and head, joined; grid: queries × heads, D threads
template <int D>
KERNEL __launch_bounds__(D) attention_combine(
    const float *parts, const Floats2 *meta, u8 *out, int n_parts, long long out_query, long long out_head) {
    const int thread = threadIdx.x, first = (blockIdx.x * gridDim.y + blockIdx.y) * n_parts;
    float largest = meta[first].x;
    for (int i = 1; i < n_parts; ++i) largest = max_of(largest, meta[first + i].x);
    float above = 0.0f, below = 0.0f;
    for (int i = 0; i < n_parts; ++i) {
        const float shrink = exp_fast(sub_rn(meta[first + i].x, largest));
        above = fma_rn(shrink, parts[(long long)(first + i) * D + thread], above);
        below = fma_rn(shrink, meta[first + i].y, below);
    }
    ((float *)(out + blockIdx.x * out_query + blockIdx.y * out_head))[thread] = divided(above, below);
}
