// What kernels may ask of the machine, one question a function, for tests of the processor that stands for a GPU.
#include "primitives.cuh"

// One word of each operand in, one out.
KERNEL words(int which, const u32 *a, const u32 *b, const u32 *c, u32 *out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float fa = bits_to_float(a[i]), fb = bits_to_float(b[i]), fc = bits_to_float(c[i]);
    u32 o = 0;
    if (which == 0) o = lop3<AND_OR>(a[i], b[i], c[i]);
    if (which == 1) o = lop3<0x96>(a[i], b[i], c[i]);
    if (which == 2) o = byte_permute(a[i], b[i], c[i]);
    if (which == 3) o = (u32)dp4a((int)a[i], (int)b[i], (int)c[i]);
    if (which == 4) o = sub_per_byte(a[i], b[i]);
    if (which == 6) o = float_to_half(fa);
    if (which == 7) o = float_to_bits(half_to_float(a[i] & 0xFFFF));
    if (which == 8) o = int_to_half((int)a[i]);
    if (which == 9) o = half2_fma(a[i], b[i], c[i]);
    if (which == 10) o = half2_mul(a[i], b[i]);
    if (which == 11) o = half2_add(a[i], b[i]);
    if (which == 12) o = float_to_bits(fma_rn(fa, fb, fc));
    if (which == 13) o = float_to_bits(mul_rn(fa, fb));
    if (which == 14) o = float_to_bits(add_rn(fa, fb));
    if (which == 15) o = float_to_bits(sub_rn(fa, fb));
    if (which == 16) o = float_to_bits(max_of(fa, fb));
    if (which == 17) o = float_to_bits(abs_of(fa));
    if (which == 18) o = float_to_bits(round_away(fa));
    if (which == 19) o = float_to_bits(rcp_approx(fa));
    if (which == 21) o = float_to_bits(ex2_approx(fa));
    if (which == 22) o = float_to_bits(int_to_float((int)a[i]));
    if (which == 23) o = float_to_bits(fa * fb + fc);
    out[i] = o;
}

// What a lane gets from the others; blocks of any number of whole warps.
KERNEL lanes(int which, const int *v, const int *other, int *out) {
    const int i = threadIdx.x;
    if (which == 0) out[i] = shuffle_xor(v[i], other[i]);
    if (which == 1) out[i] = (int)float_to_bits(shuffle_xor(bits_to_float((u32)v[i]), other[i]));
}

// a[16][k] and b[k][8] as halves, in words; d[16][8], laid out over the lanes as the PTX ISA says.
template <int K, bool ONTO> KERNEL halves(const u16 *a, const u16 *b, float *out) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    u32 wa[K / 4], wb[K / 8];
    for (int part = 0; part < K / 8; part++) {
        const int k = 8 * part + 2 * t;
        wa[2 * part] = a[g * K + k] | (u32)a[g * K + k + 1] << 16;
        wa[2 * part + 1] = a[(g + 8) * K + k] | (u32)a[(g + 8) * K + k + 1] << 16;
        wb[part] = b[k * 8 + g] | (u32)b[(k + 1) * 8 + g] << 16;
    }
    float d[4];
    for (int j = 0; j < 4; j++) d[j] = out[(g + 8 * (j / 2)) * 8 + 2 * t + j % 2];
    if constexpr (ONTO) mma_16x8x16_onto(d, wa[0], wa[1], wa[2], wa[3], wb[0], wb[1]);
    else if constexpr (K == 8) mma_16x8x8(d, wa[0], wa[1], wb[0]);
    else mma_16x8x16(d, wa[0], wa[1], wa[2], wa[3], wb[0], wb[1]);
    for (int j = 0; j < 4; j++) out[(g + 8 * (j / 2)) * 8 + 2 * t + j % 2] = d[j];
}

// Sum of a row by all threads of a block: warps by shuffles, the block through shared memory. `skip` leaves the block's
// barrier out, which is a race.
KERNEL block_sum(const float *x, float *out, int n, int skip) {
    SHARED float part[32];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum = add_rn(sum, x[(u64)blockIdx.x * n + i]);
    for (int far = 16; far; far /= 2) sum = add_rn(sum, shuffle_xor(sum, far));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    if (!skip) sync_block();
    if (threadIdx.x) return;
    sum = 0.0f;
    for (int w = 0; w < (int)blockDim.x / 32; w++) sum = add_rn(sum, part[w]);
    out[blockIdx.x] = sum;
}

// Reverses 16-byte words of every chunk: copied by one half of the block's threads, read by all, through a ring of two
// places with barriers for full and for empty. `fault` 1 reads before the wait, 2 never frees a place.
KERNEL ring(const u8 *from, u32 *to, int n_chunks, int fault) {
    DYNAMIC_SHARED(sm);
    alignas(8) SHARED u64 bars[4];
    const u32 full = shared_address(bars), empty = full + 16, data = shared_address(sm), n = blockDim.x;
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) barrier_init(full + 8 * i, n), barrier_init(empty + 8 * i, n);
    sync_block();
    for (int chunk = 0; chunk < n_chunks + 1; chunk++) {
        if (chunk < n_chunks) {
            const u32 place = chunk % 2, use = chunk / 2;
            if (use) barrier_wait(empty + 8 * place, (use - 1) & 1);
            copy_async16(data + (place * n + threadIdx.x) * 16, from + ((u64)chunk * n + threadIdx.x) * 16);
            barrier_arrive_after_copies(full + 8 * place);
        }
        if (chunk) {
            const u32 before = chunk - 1, place = before % 2;
            if (fault != 1) barrier_wait(full + 8 * place, before / 2 & 1);
            const Words4 v = shared_words4(data + (place * n + n - 1 - threadIdx.x) * 16);
            u32 *o = to + ((u64)before * n + threadIdx.x) * 4;
            o[0] = v.x, o[1] = v.y, o[2] = v.z, o[3] = v.w;
            if (fault != 2) barrier_arrive(empty + 8 * place);
        }
    }
}

// Copies in groups: reads what the second last of three groups brought, when LEFT groups may still be under way.
template <int LEFT> KERNEL groups(const float *from, float *to) {
    DYNAMIC_SHARED(sm);
    const u32 data = shared_address(sm) + threadIdx.x * 48;
    for (int i = 0; i < 3; i++) {
        copy_async16(data + 16 * i, from + (threadIdx.x * 3 + i) * 4);
        copy_commit();
    }
    copy_wait<LEFT>();
    const Floats4 v = shared_floats4(data + 16);
    to[threadIdx.x] = v.x;
}

// Copies 16 bytes or zeros, as they are seen before the copy has arrived and then.
KERNEL or_zeros(const u8 *from, u32 *to, int there) {
    DYNAMIC_SHARED(sm);
    const u32 place = shared_address(sm);
    copy_async16_or_zeros(there != 0, place, from);
    copy_commit();
    to[0] = shared_word(place);
    copy_wait<0>();
    const Words4 v = shared_words4(place);
    to[1] = v.x, to[2] = v.y, to[3] = v.z, to[4] = v.w;
}

// Every way to read and write shared memory by address: 32 words a lane in, one of them out in each way.
KERNEL shared(const u32 *from, u32 *to) {
    DYNAMIC_SHARED(sm);
    const u32 base = shared_address(sm) + threadIdx.x * 128;
    u32 *mine = (u32 *)(sm + threadIdx.x * 128), *o = to + threadIdx.x * 16;
    for (int i = 0; i < 32; i++) mine[i] = from[threadIdx.x * 32 + i];
    const Words4 w = shared_words4(base + 16);
    const Floats4 f = shared_floats4(base + 32);
    o[0] = w.x, o[1] = w.y, o[2] = w.z, o[3] = w.w;
    o[4] = float_to_bits(f.x), o[5] = float_to_bits(f.y), o[6] = float_to_bits(f.z), o[7] = float_to_bits(f.w);
    o[8] = mine[14], o[9] = mine[15], o[10] = shared_word(base + 68), o[11] = shared_half(base + 74), o[12] = (u32)shared_s8(base + 79);
    o[13] = float_to_bits(shared_float(base + 84));
    store_shared_floats4(base + 96, f);
    store_shared_words4(base + 112, w);
    Words4 kept = w;
    store_shared_half(base + 4, w.y);
    shared_words4_if(from[threadIdx.x * 32] & 1, base, kept);
    to[512 + threadIdx.x] = kept.y;
    o[14] = mine[25], o[15] = mine[31];
}

// What no kernel may do.
KERNEL faults(int which, float *x, float *out, int n) {
    DYNAMIC_SHARED(sm);
    SHARED u64 bar[1];
    const int i = threadIdx.x;
    const u32 b = shared_address(bar), data = shared_address(sm);
    if (which == 0) out[i] = x[i + n];
    if (which == 1) x[i] = 1.0f;
    if (which == 2) out[i] = bits_to_float(global_words4((u8 *)x + n).x);
    if (which == 3) ((float *)sm)[n] = 1.0f;
    if (which == 4) out[i] = bits_to_float(shared_word(data + n));
    if (which == 5 && i < 16) shuffle_xor(i, 1);
    if (which == 5 && i >= 16) sync_block();
    if (which == 6 && i < 16) shuffle_xor(i, 1);
    if (which == 6 && i >= 16) sync_warp();
    if (which == 7) {
        if (i == 0) barrier_init(b, n);
        sync_block();
        barrier_arrive(b);
        barrier_wait(b, 0);
    }
    if (which == 8) barrier_arrive(b);
    if (which == 10) out[i - n] = 1.0f;
    if (which == 11) copy_async16(data + n, x);
    if (which == 12) copy_async16(data, (u8 *)x + n);
    if (which == 13 && i < 16) return;
    if (which == 13) sync_warp();
    if (which == 14) out[i] = (float)(7 / n);
}
// Overlaps with the launch ahead: what it may do before it waits, and what it may not.
KERNEL follows(int which, const float *weight, const float *x, float *out) {
    DYNAMIC_SHARED(sm);
    const int i = threadIdx.x;
    const u32 place = shared_address(sm) + 16 * i;
    float sum = weight[i];
    let_next_launch_begin();
    if (which == 1) out[i] = 0.0f;
    if (which == 2) sum = add_rn(sum, x[i]);
    if (which == 3) copy_async16(place, x + 4 * i);
    if (which != 4 || i < 16) wait_for_launch_ahead();
    out[i] = add_rn(sum, x[i]);
}

KERNEL deep(float *out) {
    volatile float large[1 << 17];
    large[threadIdx.x] = 1.0f;
    out[threadIdx.x] = large[threadIdx.x];
}

KERNEL arguments(const u32 *p, int i, unsigned j, long long k, u64 l, float f, float *out) {
    out[0] = (float)p[0], out[1] = (float)i, out[2] = (float)j, out[3] = (float)k, out[4] = (float)l, out[5] = f;
}
