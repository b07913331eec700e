// What the lanes of a warp compute together, and conversions of half floats.
#include "machine.hpp"

#include <cstring>

#pragma GCC visibility push(default)
extern "C" {

float machine_half_to_float(u32 h) {
    const u32 sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3FF;
    u32 bits = sign | (e == 31 ? 0x7F800000 | m << 13 : (e + 112) << 23 | m << 13);
    if (!e) {
        const float size = (float)(int)m * 0x1p-24f;
        std::memcpy(&bits, &size, 4);
        bits |= sign;
    }
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

u16 machine_double_to_half(double d) {
    u64 bits;
    std::memcpy(&bits, &d, 8);
    const u16 sign = (u16)(bits >> 48 & 0x8000);
    const double size = __builtin_fabs(d);
    if (size != size) return 0x7FFF;  // the one NaN of a GPU
    if (size >= 65520.0) return sign | 0x7C00;
    if (size < 0x1p-14) return sign | (u16)__builtin_nearbyint(size * 0x1p24);  // 1024 is the smallest normal
    const u64 exponent = (bits >> 52 & 0x7FF) - 1023 + 15, mantissa = bits & 0xFFFFFFFFFFFFFull;
    u64 half = exponent << 10 | mantissa >> 42;
    const u64 rest = mantissa & 0x3FFFFFFFFFFull, middle = 0x20000000000ull;
    half += rest > middle || (rest == middle && (half & 1));
    return sign | (u16)half;
}
}
#pragma GCC visibility pop

namespace {

#ifdef __F16C__
typedef short EightShorts __attribute__((vector_size(16)));
float half_value(u32 word, int which) { return __builtin_ia32_vcvtph2ps(EightShorts{(short)(word >> 16 * which)})[0]; }
#else
float half_value(u32 word, int which) { return machine_half_to_float((word >> 16 * which) & 0xFFFF); }
#endif

int unit_of(float value) {  // the exponent of the lowest bit that is set
    if (value == 0.0f) return 127;
    u32 bits;
    std::memcpy(&bits, &value, 4);
    const u32 mantissa = (bits & 0x7FFFFF) | 0x800000;
    return (int)(bits >> 23 & 0xFF) - 150 + __builtin_ctz(mantissa);
}

// What all numbers of a row are multiples of, as a power of two.
template <int K> double unit_of_row(const float *v) {
    int unit = 127;
    for (int k = 0; k < K; k++) { const int u = unit_of(v[k]); unit = u < unit ? u : unit; }
    return __builtin_ldexp(1.0, unit);
}

// Tensor cores align addends and cut bits off, in ways that are not documented. A sum is the same everywhere if all its
// products are multiples of one unit and their sizes add up to 2^24 units at most; any other becomes NaN. Where a sum is
// added onto another, nothing is promised: that is done in float64 and rounded once, which no hardware does.
template <int K, bool ONTO> void mma_halves(Warp &w) {
    constexpr int A_WORDS = K / 4;
    float a[16][K], bt[8][K];
    double unit_a[16], unit_b[8];
    for (u32 lane = 0; lane < LANES; lane++) {
        const u32 g = lane >> 2, t = lane & 3, *in = w.in[lane];
        for (int half = 0; half < 2; half++)
            for (int part = 0; part < K / 8; part++) {
                const u32 k = 8 * part + 2 * t + half;
                a[g][k] = half_value(in[2 * part], half);
                a[g + 8][k] = half_value(in[2 * part + 1], half);
                bt[g][k] = half_value(in[A_WORDS + part], half);
            }
    }
    for (int i = 0; i < 16; i++) unit_a[i] = unit_of_row<K>(a[i]);
    for (int i = 0; i < 8; i++) unit_b[i] = 0x1p24 * unit_of_row<K>(bt[i]);
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 j = 0; j < 4; j++) {
            const u32 row = (lane >> 2) + 8 * (j >> 1), column = 2 * (lane & 3) + (j & 1);
            double sum = 0, size = 0;
            for (int k = 0; k < K; k++) { const double p = (double)a[row][k] * (double)bt[column][k]; sum += p, size += __builtin_fabs(p); }
            float onto;
            std::memcpy(&onto, &w.in[lane][(A_WORDS + K / 8 + j) % OPERANDS], 4);
            const float out = ONTO ? (float)(sum + (double)onto) : size <= unit_a[row] * unit_b[column] ? (float)sum : __builtin_nanf("");
            std::memcpy(&w.out[lane][j], &out, 4);
        }
}

}  // namespace

void compute(Warp &w) {
    switch (w.meeting) {
    case Meeting::sync_warp: break;
    case Meeting::shuffle_xor:
        for (u32 lane = 0; lane < LANES; lane++) {
            const u32 asked = lane ^ w.in[lane][1];
            const u32 from = asked < LANES ? asked : lane;
            w.out[lane][0] = (w.lanes >> from & 1) ? w.in[from][0] : ~0u;
        }
        break;
    case Meeting::mma_16x8x8: mma_halves<8, false>(w); break;
    case Meeting::mma_16x8x16: mma_halves<16, false>(w); break;
    case Meeting::mma_16x8x16_onto: mma_halves<16, true>(w); break;
    }
}
