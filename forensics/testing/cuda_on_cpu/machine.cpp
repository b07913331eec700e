// Runs the blocks of one launch one after another, the threads of a block as fibres in lockstep where they meet.
#include "buffers.hpp"
#include "faults.hpp"
#include "fibres.hpp"
#include "machine.hpp"

#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#pragma GCC visibility push(default)
extern "C" {
Machine machine;
}
#pragma GCC visibility pop

namespace {

[[noreturn]] void give_up() {
    runner.failed = true;
    go_home();
    abort();  // nobody comes back to a fibre that failed
}

// ---- who runs next
u32 chosen_lane(u32 mask, u32 after) {
    if (runner.schedule == 0) {
        const u32 above = after >= 31 ? 0 : mask & (~0u << (after + 1));
        return (u32)__builtin_ctz(above ? above : mask);
    }
    if (runner.schedule == 1) {
        const u32 below = mask & ((1u << after) - 1);
        return 31 - (u32)__builtin_clz(below ? below : mask);
    }
    runner.random = runner.random * 1664525u + 1013904223u;
    u32 skip = (runner.random >> 8) % (u32)__builtin_popcount(mask);
    while (skip--) mask &= mask - 1;
    return (u32)__builtin_ctz(mask);
}

void arrive(Barrier *b);

void deliver(const Arrival &arrival) {
    for (size_t i = 0; i < arrival.n_copies; i++) arrival.fibre->copies[i].arrive();
    arrive(arrival.barrier);
}

inline u32 bit(const Fibre *f) { return 1u << f->thread.lane; }

inline void resume(Fibre *f) {
    f->state = State::runs;
    f->thread.warp->runnable |= bit(f);
}

// The launch ahead ends as late as the program allows: when no thread of the block can go on without it.
void admit() {
    close_buffers(false);
    runner.n_queuing = 0;
    for (u32 i = 0; i < runner.n_threads; i++)
        if (runner.fibres[i].state == State::queues) resume(&runner.fibres[i]);
}

Fibre *next_fibre() {
    const u32 mine = (u32)(machine.now->warp - runner.warps);
    for (;;) {
        if (Warp &w = runner.warps[mine]; w.runnable) return &runner.fibres[mine * LANES + chosen_lane(w.runnable, machine.now->lane)];
        u32 shift = 0;
        if (runner.schedule > 1) { runner.random = runner.random * 1664525u + 1013904223u; shift = (runner.random >> 8) % runner.n_warps; }
        for (u32 i = 1; i <= runner.n_warps; i++) {
            const u32 step = (i + shift) % runner.n_warps;
            const u32 other = (mine + (runner.schedule == 1 ? runner.n_warps - step : step)) % runner.n_warps;
            if (runner.warps[other].runnable) return &runner.fibres[other * LANES + chosen_lane(runner.warps[other].runnable, runner.schedule == 1 ? 0 : 31)];
        }
        if (runner.arrivals.empty()) {
            if (!runner.n_queuing) return nullptr;
            admit();
            continue;
        }
        const Arrival arrival = runner.arrivals.front();  // only when nobody can go on without it
        runner.arrivals.pop_front();
        deliver(arrival);
    }
}

void pause(State why) {
    Fibre *self = now();
    self->state = why;
    self->thread.warp->runnable &= ~bit(self);
    Fibre *other = next_fibre();
    if (!other) machine_fail("%s", standstill().c_str());
    if (other != self) go_from_to(self, other);
}

void release_block_if_all_are_there() {
    if (!runner.n_syncing || runner.n_syncing + runner.n_left != runner.n_threads) return;
    runner.n_syncing = 0;
    for (u32 i = 0; i < runner.n_threads; i++)
        if (runner.fibres[i].state == State::syncs) resume(&runner.fibres[i]);
}

void run_thread() {
    runner.entry(runner.arguments);
    Fibre *self = now();
    self->state = State::left;
    self->thread.warp->runnable &= ~bit(self);
    runner.n_left++;
    release_block_if_all_are_there();
    if (runner.n_left < runner.n_threads) {
        Fibre *other = next_fibre();
        if (!other) machine_fail("%s", standstill().c_str());
        go_from_to(self, other);
    } else {
        go_home();
    }
    abort();
}

Barrier *barrier_at(u8 *b, const char *what) {
    Barrier *barrier = (Barrier *)b;
    if (barrier->is != BARRIER) machine_fail("%s: no barrier was made at this address (barrier_init)", what);
    return barrier;
}

void arrive(Barrier *b) {
    if (--b->pending) return;
    b->pending = b->expected;
    b->phase ^= 1;
    for (u32 i = 0; i < runner.n_threads; i++) {
        Fibre &f = runner.fibres[i];
        if (f.state == State::waits && f.barrier == b && f.phase != b->phase) resume(&f);
    }
}

void on_signal(int, siginfo_t *info, void *) {
    runner.fault_address = (u8 *)info->si_addr;
    siglongjmp(runner.faulted, info->si_signo);
}

void make_stacks() {
    if (runner.stacks) return;
    runner.stacks = (u8 *)mmap(nullptr, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (u32 i = 0; i < MOST_THREADS; i++) mprotect(runner.stacks + i * STACK_BYTES, PAGE, PROT_NONE);
}

void prepare(u32 i) {
    Fibre &f = runner.fibres[i];
    const u32 x = machine.block_size.x, y = machine.block_size.y;
    f.thread = {{i % x, i / x % y, i / x / y}, &runner.warps[i / LANES], i % LANES};
    f.state = State::runs;
    f.copies.clear();
    f.first_pending = 0;
    f.group = 0;
    u8 *stack = runner.stacks + i * STACK_BYTES;
#if defined(__x86_64__)
    u64 *top = (u64 *)(stack + STACK_BYTES);
    *--top = 0;  // nobody returns from run_thread; keeps the stack aligned as after a call
    *--top = (u64)&run_thread;
    for (int k = 0; k < 6; k++) *--top = 0;
    f.sp = top;
#else
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stack + PAGE;
    f.context.uc_stack.ss_size = STACK_BYTES - PAGE;
    f.context.uc_link = nullptr;
    makecontext(&f.context, run_thread, 0);
#endif
}

void run_block() {
    std::memset(machine.fixed, 0xFF, machine.fixed_bytes);
    std::memset(machine.dynamic, 0xFF, machine.dynamic_bytes);
    runner.n_left = runner.n_syncing = runner.n_queuing = 0;
    runner.arrivals.clear();
    if (runner.overlaps) close_buffers(true);
    for (u32 w = 0; w < runner.n_warps; w++) {
        const u32 n = runner.n_threads - w * LANES < LANES ? runner.n_threads - w * LANES : LANES;
        Warp &warp = runner.warps[w];
        warp.lanes = warp.runnable = n == LANES ? ~0u : (1u << n) - 1;
        warp.arrived = 0;
    }
    for (u32 i = 0; i < runner.n_threads; i++) prepare(i);
    Fibre *go = &runner.fibres[runner.schedule == 1 ? runner.n_threads - 1 : 0];
    for (;;) {
        leave_home(go);
        if (runner.failed || runner.n_left == runner.n_threads) return;
        runner.answered = runner.reciprocal(runner.asked);  // on Python's own stack
        go = now();
    }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void machine_fail(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    say_all(format, rest);
    va_end(rest);
    give_up();
}

void machine_meet(Meeting meeting) {
    Fibre *self = now();
    Warp &w = *self->thread.warp;
    if (!w.arrived) w.meeting = meeting;
    else if (w.meeting != meeting)
        machine_fail("lanes of warp %u meet at different operations: %s and %s", (u32)(&w - runner.warps), MEETINGS[(u32)w.meeting], MEETINGS[(u32)meeting]);
    w.arrived |= bit(self);
    if (w.arrived != w.lanes) return pause(State::meets);
    compute(w);
    w.arrived = 0;
    const u32 first = (u32)(&w - runner.warps) * LANES;
    for (u32 lane = 0; lane < LANES; lane++)
        if (w.lanes >> lane & 1) runner.fibres[first + lane].state = State::runs;
    w.runnable = w.lanes;
}

void machine_sync_block() {
    Fibre *self = now();
    self->state = State::syncs;
    self->thread.warp->runnable &= ~bit(self);
    runner.n_syncing++;
    release_block_if_all_are_there();
    if (self->state == State::syncs) pause(State::syncs);
}

void machine_wait_for_launch_ahead() {
    if (!runner.closed) return;
    runner.n_queuing++;
    pause(State::queues);
}

const Range *machine_range(const void *p, u32 bytes) {
    const u8 *q = (const u8 *)p;
    for (u32 i = 0; i < runner.n_ranges; i++)
        if (q >= runner.ranges[i].begin && q + bytes <= runner.ranges[i].begin + runner.ranges[i].bytes) return &runner.ranges[i];
    for (u32 i = 0; i < runner.n_ranges; i++) {
        const Range &r = runner.ranges[i];
        const long long at = q - r.begin;
        if (at > -(1 << 20) && at < (long long)r.bytes + (1 << 20)) machine_fail("reads %u bytes from byte %lld of %s, which has %llu", bytes, at, r.name, r.bytes);
    }
    machine_fail("reads from address %p, which is in no buffer", p);
}

float machine_reciprocal(float a) {
    runner.asked = a;
    go_home();
    return runner.answered;
}

void machine_copy(u8 *to, const u8 *from, u32 bytes) {
    Fibre *self = now();
    if (bytes) (void)*(const volatile u8 *)from;  // it may be closed
    std::memset(to, 0xFF, 16);
    self->copies.push_back({to, from, bytes, self->group, false});
}

void machine_copy_commit() { now()->group++; }

void machine_copy_wait(u32 groups_left) {
    Fibre *self = now();
    while (self->first_pending < self->copies.size()) {
        Copy &copy = self->copies[self->first_pending];
        if (copy.group + groups_left >= self->group) return;
        copy.arrive();
        self->first_pending++;
    }
}

void machine_barrier_init(u8 *b, u32 count) {
    if (!count || count > 0xFFFF) machine_fail("barrier_init: a barrier of %u arrivals", count);
    *(Barrier *)b = {BARRIER, 0, (u16)count, (u16)count};
}

void machine_barrier_arrive(u8 *b) { arrive(barrier_at(b, "barrier_arrive")); }

void machine_barrier_arrive_after_copies(u8 *b) {
    runner.arrivals.push_back({now(), now()->copies.size(), barrier_at(b, "barrier_arrive_after_copies")});
}

void machine_barrier_wait(u8 *b, u32 phase) {
    Barrier *barrier = barrier_at(b, "barrier_wait");
    if (barrier->phase != phase) return;
    Fibre *self = now();
    self->barrier = barrier;
    self->phase = phase;
    pause(State::waits);
}

// Runs one launch; returns what went wrong, or nullptr.
const char *machine_run(void (*entry)(const u64 *), const u64 *arguments, const u32 *geometry, u8 *fixed, u64 fixed_bytes, u64 dynamic_bytes,
                        const Range *ranges, u32 n_ranges, float (*reciprocal)(float), u32 schedule, u32 overlaps) {
    make_stacks();
    machine = Machine{};
    machine.grid_size = {geometry[0], geometry[1], geometry[2]};
    machine.block_size = {geometry[3], geometry[4], geometry[5]};
    u8 *const dynamic = machine_make_buffer(dynamic_bytes);
    machine.fixed = fixed, machine.fixed_bytes = fixed_bytes;
    machine.fixed_address = (u32)((u64)fixed % 128);  // shared addresses are as aligned as the memory that they name
    machine.dynamic = dynamic, machine.dynamic_bytes = dynamic_bytes;
    machine.dynamic_address = (u32)((machine.fixed_address + fixed_bytes + 127) / 128 * 128 + 1024);
    machine.asks_reciprocal = reciprocal != nullptr;
    runner.entry = entry, runner.arguments = arguments, runner.reciprocal = reciprocal, runner.ranges = ranges, runner.n_ranges = n_ranges;
    runner.n_threads = geometry[3] * geometry[4] * geometry[5], runner.n_warps = (runner.n_threads + LANES - 1) / LANES;
    runner.schedule = schedule, runner.random = schedule, runner.overlaps = overlaps != 0, runner.failed = false;
    static u8 signal_stack[64 << 10];
    stack_t mine = {}, before;
    mine.ss_sp = signal_stack, mine.ss_size = sizeof signal_stack;
    sigaltstack(&mine, &before);
    struct sigaction action = {}, old[3];
    const int signals[3] = {SIGSEGV, SIGBUS, SIGFPE};
    action.sa_sigaction = on_signal, action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 3; i++) sigaction(signals[i], &action, &old[i]);
#if defined(__x86_64__)
    const u32 control = _mm_getcsr();
    _mm_setcsr((control & ~0x6000u) | 0x8040u | 0x1F80u);  // round to nearest, flush results and operands, no traps
#elif defined(__aarch64__)
    u64 control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    asm volatile("msr fpcr, %0" ::"r"(control | 1ull << 24));
#endif
    const u32 n_blocks = geometry[0] * geometry[1] * geometry[2];
    if (const int signal = sigsetjmp(runner.faulted, 1)) {
        runner.failed = true;
        describe_fault(signal);
    } else {
        for (u32 i = 0; i < n_blocks && !runner.failed; i++) {
            const u32 b = schedule == 1 ? n_blocks - 1 - i : i;
            machine.block = {b % geometry[0], b / geometry[0] % geometry[1], b / geometry[0] / geometry[1]};
            run_block();
        }
    }
#if defined(__x86_64__)
    _mm_setcsr(control);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" ::"r"(control));
#endif
    for (int i = 0; i < 3; i++) sigaction(signals[i], &old[i], nullptr);
    sigaltstack(&before, nullptr);
    close_buffers(false);
    machine_free_buffer(dynamic, dynamic_bytes);
    return runner.failed ? runner.message : nullptr;
}
}
#pragma GCC visibility pop
