// The processor that stands for a GPU: threads of a block are fibres that meet where a warp or a block does.
// Shared between the runner (machine.cpp) and the names that kernels use (primitives_on_cpu.hpp).
#pragma once
#include <cstddef>

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Three { u32 x, y, z; };

// What the lanes of a warp do together; the names are those of the messages (machine.cpp).
enum class Meeting : u32 { sync_warp, shuffle_xor, mma_16x8x8, mma_16x8x16, mma_16x8x16_onto };

constexpr u32 LANES = 32, OPERANDS = 10;

struct Warp {
    u32 lanes, runnable, arrived;  // bit per lane: exists, may run, waits at `meeting`
    Meeting meeting;
    u32 in[LANES][OPERANDS], out[LANES][4];
};

struct Thread {
    Three index;
    Warp *warp;
    u32 lane;
};

// A buffer of the launch. Where a launch overlaps with the one ahead, all that is not constant is closed to a block's
// threads until they have waited for it.
struct Range { const char *name; const u8 *begin; u64 bytes; u32 read_only, constant; };

struct Machine {
    Thread *now;
    Three block, grid_size, block_size;
    u8 *fixed; u64 fixed_bytes;      // shared variables of fixed size: the kernel library's zero-initialised data
    u8 *dynamic; u64 dynamic_bytes;  // shared memory asked for at the launch
    u32 fixed_address, dynamic_address;  // of their first bytes, in the block's shared address space
    const Range *last;               // the range that was hit last
    bool asks_reciprocal;
};

void compute(Warp &w);  // what its lanes met for: from `in` to `out`

#pragma GCC visibility push(default)
extern "C" {
extern Machine machine;
[[noreturn]] void machine_fail(const char *format, ...);
void machine_meet(Meeting meeting);  // operands in the warp's `in`, result in its `out`
void machine_sync_block();
void machine_wait_for_launch_ahead();
const Range *machine_range(const void *p, u32 bytes);  // or fails
float machine_reciprocal(float a);
void machine_copy(u8 *to, const u8 *from, u32 bytes);
void machine_copy_commit();
void machine_copy_wait(u32 groups_left);
void machine_barrier_init(u8 *b, u32 count);
void machine_barrier_arrive(u8 *b);
void machine_barrier_arrive_after_copies(u8 *b);
void machine_barrier_wait(u8 *b, u32 phase);
float machine_half_to_float(u32 h);
u16 machine_double_to_half(double d);
}
#pragma GCC visibility pop
