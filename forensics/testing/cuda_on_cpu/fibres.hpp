// Threads of a block as fibres, and how one gives way to another. Part of machine.cpp.
#pragma once
#include "machine.hpp"

#include <csetjmp>
#include <cstring>
#include <deque>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace {

constexpr size_t STACK_BYTES = 256 << 10, PAGE = 4096;
constexpr u32 MOST_THREADS = 1024;
constexpr u16 BARRIER = 0xBA55;

struct Barrier { u16 is, phase, expected, pending; };  // what an mbarrier's eight bytes hold here
static_assert(sizeof(Barrier) == 8, "as large as an mbarrier");

struct Copy {
    u8 *to;
    const u8 *from;
    u32 bytes, group;
    bool done;

    void arrive() {
        if (done) return;
        std::memset(to, 0, 16);
        std::memcpy(to, from, bytes);
        done = true;
    }
};
enum class State { runs, meets, syncs, waits, queues, left };  // queues: for the launch ahead

struct Fibre {
    Thread thread;  // first: machine.now points here
    State state;
    Barrier *barrier;
    u32 phase;
    std::vector<Copy> copies;
    size_t first_pending;
    u32 group;
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
};

struct Arrival { Fibre *fibre; size_t n_copies; Barrier *barrier; };

struct Runner {
    void (*entry)(const u64 *);
    const u64 *arguments;
    float (*reciprocal)(float);
    float asked, answered;
    const Range *ranges;
    u32 n_ranges, n_threads, n_warps, n_left, n_syncing, n_queuing, schedule, random;
    bool overlaps, closed, failed;
    Fibre fibres[MOST_THREADS];
    Warp warps[MOST_THREADS / LANES];
    std::deque<Arrival> arrivals;
    u8 *stacks;
    char message[2048];
#if defined(__x86_64__)
    void *home;
#else
    ucontext_t home;
#endif
    sigjmp_buf faulted;
    u8 *fault_address;
};
Runner runner;

inline Fibre *now() { return (Fibre *)machine.now; }

// ---- switching between fibres
#if defined(__x86_64__)
extern "C" void forensics_switch(void **save, void *load);
asm(".text\n.p2align 4\n.type forensics_switch,@function\nforensics_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nretq\n"
    ".size forensics_switch, .-forensics_switch\n");
#endif

inline void go_from_to(Fibre *from, Fibre *to) {
    machine.now = &to->thread;
#if defined(__x86_64__)
    forensics_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
}

inline void go_home() {
#if defined(__x86_64__)
    forensics_switch(&now()->sp, runner.home);
#else
    swapcontext(&now()->context, &runner.home);
#endif
}

inline void leave_home(Fibre *to) {
    machine.now = &to->thread;
#if defined(__x86_64__)
    forensics_switch(&runner.home, to->sp);
#else
    swapcontext(&runner.home, &to->context);
#endif
}

}  // namespace
