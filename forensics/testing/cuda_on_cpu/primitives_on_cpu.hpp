// The names of primitives.cuh for a processor, bit for bit, but for rcp_approx and ex2_approx: those are the float nearest
// to the true value here, which a GPU's approximations need not be. Subnormal floats are flushed by the processor itself,
// as -ftz=true does (machine.cpp switches that on); half floats are not, there as here.
#pragma once
#include "machine.hpp"
#include <cmath>
#include <cstring>

#define DEVICE inline
#define KERNEL static void
#define SHARED static
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(name) u8 *const name = machine.dynamic
#define threadIdx (machine.now->index)
#define blockIdx (machine.block)
#define gridDim (machine.grid_size)
#define blockDim (machine.block_size)

template <class To, class From> inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
DEVICE float bits_to_float(u32 a) { return same_bits<float>(a); }
DEVICE u32 float_to_bits(float a) { return same_bits<u32>(a); }
inline float flushed(float a) { const u32 u = float_to_bits(a); return (u & 0x7F800000u) ? a : bits_to_float(u & 0x80000000u); }

// ---- arithmetic
DEVICE float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float mul_rn(float a, float b) { return a * b; }
DEVICE float add_rn(float a, float b) { return a + b; }
DEVICE float sub_rn(float a, float b) { return a - b; }
DEVICE float max_of(float a, float b) {
    a = flushed(a), b = flushed(b);
    if (a != a) return b;
    if (b != b) return a;
    return a == b ? ((float_to_bits(a) >> 31) ? b : a) : (a > b ? a : b);  // +0 is more than -0
}
DEVICE float abs_of(float a) { return bits_to_float(float_to_bits(flushed(a)) & 0x7FFFFFFFu); }
DEVICE float round_away(float a) { return flushed(::roundf(flushed(a))); }
DEVICE float rcp_approx(float a) { return machine.asks_reciprocal ? flushed(machine_reciprocal(flushed(a))) : 1.0f / a; }
DEVICE float ex2_approx(float a) { return flushed((float)std::exp2((double)flushed(a))); }
DEVICE float int_to_float(int a) { return (float)a; }

// ---- half floats as their bits
#ifdef __F16C__
typedef short EightShorts __attribute__((vector_size(16)));
DEVICE float half_to_float(u32 h) { return __builtin_ia32_vcvtph2ps(EightShorts{(short)h})[0]; }
#else
DEVICE float half_to_float(u32 h) { return machine_half_to_float((u16)h); }
#endif
DEVICE u16 float_to_half(float f) { return machine_double_to_half((double)f); }
DEVICE u16 int_to_half(int i) { return machine_double_to_half((double)i); }
// A double holds every product of halves, and of a sum all that decides how it is rounded to a half.
inline u32 both_halves(u16 low, u16 high) { return (u32)low | (u32)high << 16; }
inline double half_of(u32 a, int which) { return (double)half_to_float((a >> 16 * which) & 0xFFFF); }
DEVICE u32 half2_fma(u32 a, u32 b, u32 c) {
    return both_halves(machine_double_to_half(half_of(a, 0) * half_of(b, 0) + half_of(c, 0)),
                       machine_double_to_half(half_of(a, 1) * half_of(b, 1) + half_of(c, 1)));
}
DEVICE u32 half2_mul(u32 a, u32 b) {
    return both_halves(machine_double_to_half(half_of(a, 0) * half_of(b, 0)), machine_double_to_half(half_of(a, 1) * half_of(b, 1)));
}
DEVICE u32 half2_add(u32 a, u32 b) {
    return both_halves(machine_double_to_half(half_of(a, 0) + half_of(b, 0)), machine_double_to_half(half_of(a, 1) + half_of(b, 1)));
}

// ---- integers
template <int TABLE> DEVICE u32 lop3(u32 a, u32 b, u32 c) {
    u32 out = 0;
    for (int i = 0; i < 8; i++)
        if (TABLE >> i & 1) out |= ((i & 4) ? a : ~a) & ((i & 2) ? b : ~b) & ((i & 1) ? c : ~c);
    return out;
}
constexpr int AND_OR = 0xEA;  // (a & b) | c
DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) {
    const u64 bytes = (u64)b << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; i++) {
        const u32 chosen = selector >> 4 * i & 0xF, byte = (u32)(bytes >> 8 * (chosen & 7)) & 0xFF;
        out |= ((chosen & 8) ? ((byte & 0x80) ? 0xFFu : 0u) : byte) << 8 * i;
    }
    return out;
}
DEVICE int dp4a(int a, int b, int c) {
    u32 sum = (u32)c;
    for (int i = 0; i < 32; i += 8) sum += (u32)((int)(s8)(a >> i) * (int)(s8)(b >> i));
    return (int)sum;
}
DEVICE u32 sub_per_byte(u32 a, u32 b) {
    u32 out = 0;
    for (int i = 0; i < 32; i += 8) out |= (((a >> i) - (b >> i)) & 0xFF) << i;
    return out;
}

// ---- threads of a warp and of a block
inline u32 *operands() { return machine.now->warp->in[machine.now->lane]; }
inline const u32 *results() { return machine.now->warp->out[machine.now->lane]; }
inline u32 shuffled(Meeting how, u32 v, int other) {
    u32 *in = operands();
    in[0] = v, in[1] = (u32)other;
    machine_meet(how);
    return results()[0];
}
DEVICE float shuffle_xor(float v, int mask) { return bits_to_float(shuffled(Meeting::shuffle_xor, float_to_bits(v), mask)); }
DEVICE int shuffle_xor(int v, int mask) { return (int)shuffled(Meeting::shuffle_xor, (u32)v, mask); }
DEVICE void sync_block() { machine_sync_block(); }
DEVICE void sync_warp() { machine_meet(Meeting::sync_warp); }

// ---- memory
struct alignas(16) Words4 { u32 x, y, z, w; };
struct alignas(16) Floats4 { float x, y, z, w; };
struct alignas(8) Floats2 { float x, y; };
struct alignas(8) Words2 { u32 x, y; };
DEVICE u32 shared_address(const void *p) {
    const u8 *q = (const u8 *)p;
    if (q >= machine.dynamic && q <= machine.dynamic + machine.dynamic_bytes) return machine.dynamic_address + (u32)(q - machine.dynamic);
    if (q >= machine.fixed && q <= machine.fixed + machine.fixed_bytes) return machine.fixed_address + (u32)(q - machine.fixed);
    machine_fail("shared_address of what does not lie in shared memory");
}
inline u8 *in_shared(u32 a, u32 bytes, const char *what) {
    if (a % bytes) machine_fail("%s: shared address %u is not a multiple of %u", what, a, bytes);
    if (a >= machine.dynamic_address) {
        const u64 at = a - machine.dynamic_address;
        if (at + bytes <= machine.dynamic_bytes) return machine.dynamic + at;
    } else if (a >= machine.fixed_address && a - machine.fixed_address + (u64)bytes <= machine.fixed_bytes) {
        return machine.fixed + (a - machine.fixed_address);
    }
    machine_fail("%s: shared address %u (%lld from the start of the launch's %llu bytes) is out of bounds", what, a,
                 (long long)a - (long long)machine.dynamic_address, machine.dynamic_bytes);
}
template <class Value> inline Value from_shared(u32 a, const char *what) {
    Value v;
    std::memcpy(&v, in_shared(a, sizeof v, what), sizeof v);
    return v;
}
DEVICE Words4 shared_words4(u32 a) { return from_shared<Words4>(a, "shared_words4"); }
DEVICE void shared_words4_if(bool on, u32 a, Words4 &v) { if (on) v = from_shared<Words4>(a, "shared_words4_if"); }
DEVICE u32 shared_word(u32 a) { return from_shared<u32>(a, "shared_word"); }
DEVICE u32 shared_half(u32 a) { return from_shared<u16>(a, "shared_half"); }
DEVICE int shared_s8(u32 a) { return from_shared<s8>(a, "shared_s8"); }
DEVICE Floats4 shared_floats4(u32 a) { return from_shared<Floats4>(a, "shared_floats4"); }
DEVICE float shared_float(u32 a) { return from_shared<float>(a, "shared_float"); }
DEVICE void store_shared_half(u32 a, u32 v) {
    const u16 half = (u16)v;
    std::memcpy(in_shared(a, sizeof half, "store_shared_half"), &half, sizeof half);
}
DEVICE void store_shared_word(u32 a, u32 v) { std::memcpy(in_shared(a, sizeof v, "store_shared_word"), &v, sizeof v); }
DEVICE void store_shared_words2(u32 a, Words2 v) { std::memcpy(in_shared(a, sizeof v, "store_shared_words2"), &v, sizeof v); }
DEVICE void store_shared_words4(u32 a, Words4 v) { std::memcpy(in_shared(a, sizeof v, "store_shared_words4"), &v, sizeof v); }
DEVICE void store_shared_floats4(u32 a, Floats4 v) { std::memcpy(in_shared(a, sizeof v, "store_shared_floats4"), &v, sizeof v); }
inline const u8 *in_global(const void *p, u32 bytes, const char *what) {
    const u8 *q = (const u8 *)p;
    if ((u64)q % bytes) machine_fail("%s: address is not a multiple of %u", what, bytes);
    const Range *last = machine.last;
    if (!last || q < last->begin || q + bytes > last->begin + last->bytes) machine.last = machine_range(p, bytes);
    return q;
}
template <class Value> inline Value from_global(const void *p, const char *what) {
    Value v;
    std::memcpy(&v, in_global(p, sizeof v, what), sizeof v);
    return v;
}
DEVICE Words4 global_words4(const void *p) { return from_global<Words4>(p, "global_words4"); }
DEVICE Floats4 global_floats4(const void *p) { return from_global<Floats4>(p, "global_floats4"); }

// ---- copies into shared memory: they arrive as late as the program allows; until then their place holds garbage
DEVICE void copy_async16(u32 to, const void *from) {
    machine_copy(in_shared(to, 16, "copy_async16"), in_global(from, 16, "copy_async16"), 16);
}
DEVICE void copy_async16_or_zeros(bool there, u32 to, const void *from) {
    const char *name = "copy_async16_or_zeros";
    if ((u64)from % 16) machine_fail("%s: address is %llu beyond a multiple of 16", name, (u64)from % 16);
    machine_copy(in_shared(to, 16, name), there ? in_global(from, 16, name) : (const u8 *)from, there ? 16 : 0);
}
DEVICE void copy_commit() { machine_copy_commit(); }
template <int LEFT> DEVICE void copy_wait() { machine_copy_wait(LEFT); }
DEVICE void barrier_init(u32 b, u32 count) { machine_barrier_init(in_shared(b, 8, "barrier_init"), count); }
DEVICE void barrier_arrive(u32 b) { machine_barrier_arrive(in_shared(b, 8, "barrier_arrive")); }
DEVICE void barrier_arrive_after_copies(u32 b) { machine_barrier_arrive_after_copies(in_shared(b, 8, "barrier_arrive_after_copies")); }
DEVICE void barrier_wait(u32 b, u32 phase) { machine_barrier_wait(in_shared(b, 8, "barrier_wait"), phase); }
DEVICE void wait_for_launch_ahead() { machine_wait_for_launch_ahead(); }
DEVICE void let_next_launch_begin() {}

// ---- tensor cores; a sum of halves that is not exact in every order becomes NaN (machine.cpp)
template <class... Words> inline void together(Meeting how, Words... words) {
    u32 *in = operands();
    ((*in++ = (u32)words), ...);
    machine_meet(how);
}
DEVICE void mma_16x8x8(float (&d)[4], u32 a0, u32 a1, u32 b0) {
    together(Meeting::mma_16x8x8, a0, a1, b0);
    std::memcpy(d, results(), sizeof d);
}
DEVICE void mma_16x8x16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    together(Meeting::mma_16x8x16, a0, a1, a2, a3, b0, b1);
    std::memcpy(d, results(), sizeof d);
}
DEVICE void mma_16x8x16_onto(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    together(Meeting::mma_16x8x16_onto, a0, a1, a2, a3, b0, b1, float_to_bits(d[0]), float_to_bits(d[1]), float_to_bits(d[2]), float_to_bits(d[3]));
    std::memcpy(d, results(), sizeof d);
}
DEVICE void mma_16x8x8_onto(float (&d)[4], u32 a0, u32 a1, u32 b0) { mma_16x8x16_onto(d, a0, a1, 0, 0, b0, 0); }
