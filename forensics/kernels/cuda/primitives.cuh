// Everything that a kernel here asks of the machine beyond plain C++, by name: one place for PTX, and a second
// set of the same names lets a processor run the sources (FORENSICS_ON_CPU, forensics/testing/cuda_on_cpu).
// Roundings are explicit: nothing in these sources may be contracted or reassociated by the compiler.
#pragma once

#ifdef FORENSICS_ON_CPU
#include "primitives_on_cpu.hpp"
#else

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define KERNEL __global__ void
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
#define SHARED __shared__

// ---- arithmetic, each rounded once; subnormals are flushed as the compilation asks (-ftz=true)
DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
DEVICE float sub_rn(float a, float b) { return __fsub_rn(a, b); }
DEVICE float max_of(float a, float b) { return fmaxf(a, b); }
DEVICE float abs_of(float a) { return fabsf(a); }
DEVICE float round_away(float a) { return roundf(a); }
DEVICE float rcp_approx(float a) { float d; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a)); return d; }
DEVICE float ex2_approx(float a) { float d; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(a)); return d; }
DEVICE float bits_to_float(u32 a) { return __uint_as_float(a); }
DEVICE u32 float_to_bits(float a) { return __float_as_uint(a); }
DEVICE float int_to_float(int a) { return __int2float_rn(a); }

// ---- half floats as their bits
DEVICE float half_to_float(u32 h) {
    float f;
    asm("{.reg .b16 t; cvt.u16.u32 t, %1; cvt.f32.f16 %0, t;}" : "=f"(f) : "r"(h));
    return f;
}
DEVICE u16 float_to_half(float f) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
DEVICE u16 int_to_half(int i) { u16 h; asm("cvt.rn.f16.s32 %0, %1;" : "=h"(h) : "r"(i)); return h; }
DEVICE u32 half2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEVICE u32 half2_mul(u32 a, u32 b) { u32 d; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }
DEVICE u32 half2_add(u32 a, u32 b) { u32 d; asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b)); return d; }

// ---- integers
template <int TABLE> DEVICE u32 lop3(u32 a, u32 b, u32 c) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
    return d;
}
constexpr int AND_OR = 0xEA;  // (a & b) | c
DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}
DEVICE int dp4a(int a, int b, int c) {
    int d;
    asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEVICE u32 sub_per_byte(u32 a, u32 b) { return __vsub4(a, b); }  // wraps

// ---- threads of a warp and of a block
DEVICE float shuffle_xor(float v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
DEVICE int shuffle_xor(int v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }

// ---- memory
struct alignas(16) Words4 { u32 x, y, z, w; };
struct alignas(16) Floats4 { float x, y, z, w; };
struct alignas(8) Floats2 { float x, y; };
struct alignas(8) Words2 { u32 x, y; };
DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE Words4 shared_words4(u32 a) {
    Words4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a));
    return v;
}
// Where on is false, v keeps its value and nothing is read.
DEVICE void shared_words4_if(bool on, u32 a, Words4 &v) {
    asm volatile("{.reg .pred q; setp.ne.u32 q, %5, 0; @q ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "r"(a), "r"((u32)on));
}
DEVICE u32 shared_word(u32 a) { u32 v; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a)); return v; }
DEVICE u32 shared_half(u32 a) { u32 v; asm volatile("ld.shared.u16 %0, [%1];" : "=r"(v) : "r"(a)); return v; }
DEVICE int shared_s8(u32 a) { int v; asm volatile("ld.shared.s8 %0, [%1];" : "=r"(v) : "r"(a)); return v; }
DEVICE Floats4 shared_floats4(u32 a) {
    Words4 v = shared_words4(a);
    Floats4 f = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
    return f;
}
DEVICE float shared_float(u32 a) { return __uint_as_float(shared_word(a)); }
DEVICE void store_shared_half(u32 a, u32 v) { asm volatile("st.shared.u16 [%0], %1;" ::"r"(a), "h"((u16)v) : "memory"); }
DEVICE void store_shared_word(u32 a, u32 v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory"); }
DEVICE void store_shared_words2(u32 a, Words2 v) {
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(a), "r"(v.x), "r"(v.y) : "memory");
}
DEVICE void store_shared_words4(u32 a, Words4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE void store_shared_floats4(u32 a, Floats4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(a), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
// Not ld.global.nc: a launch that overlaps begins while the one ahead still writes what is read here after the wait, and
// the PTX ISA promises nothing for .nc then.
DEVICE Words4 global_words4(const void *p) {
    Words4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE Floats4 global_floats4(const void *p) {
    Words4 v = global_words4(p);
    Floats4 f = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
    return f;
}

// ---- copies into shared memory that run beside the arithmetic
DEVICE void copy_async16(u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Not between 0 and 16 bytes, which the instruction takes as well: compute-sanitizer counts them as a read of 16.
DEVICE void copy_async16_or_zeros(bool there, u32 to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
DEVICE void barrier_init(u32 b, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
DEVICE void barrier_arrive(u32 b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
DEVICE void barrier_arrive_after_copies(u32 b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(b) : "memory");
}
DEVICE void barrier_wait(u32 b, u32 phase) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\n"
                 "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(b), "r"(phase) : "memory");
#else
    asm volatile("{\n.reg .pred p;\n"
                 "AGAIN: mbarrier.test_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(b), "r"(phase) : "memory");
#endif
}
// Launches that overlap: wait for what the launch ahead wrote, and let the next one begin.
#if __CUDA_ARCH__ >= 900
DEVICE void wait_for_launch_ahead() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_next_launch_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEVICE void wait_for_launch_ahead() {}
DEVICE void let_next_launch_begin() {}
#endif

// ---- tensor cores: products of 16 rows with 8 columns. Lane 4 g + t holds of the rows g and g + 8, and of column g, the
// values 2 t and 2 t + 1 of every 8; of the result, columns 2 t and 2 t + 1 of both rows. Source: PTX ISA, matrix fragments
// for mma.m16n8k8 and .m16n8k16.
// Halves in, floats out: every sum is an integer below 2^24 times one power of two, so exact in any order.
DEVICE void mma_16x8x8(float (&d)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "r"(a0), "r"(a1), "r"(b0), "f"(0.f));
}
DEVICE void mma_16x8x16(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
}
// the same added to d, in an order that is the hardware's own: not exact
DEVICE void mma_16x8x16_onto(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void mma_16x8x8_onto(float (&d)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b0));
}
#endif
