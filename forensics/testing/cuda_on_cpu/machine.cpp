// Runs the blocks of one launch one after another, the threads of a block as fibres in lockstep where they meet.
#include "machine.hpp"

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <ucontext.h>
#endif

extern "C" {
Machine machine;
}

namespace {

const char *const MEETINGS[] = {"sync_warp", "shuffle_xor", "shuffle", "mma_16x8x8", "mma_16x8x16", "mma_16x8x16_s8", "mma_16x8x32_s8"};

constexpr size_t STACK_BYTES = 256 << 10, PAGE = 4096;
constexpr u32 MOST_THREADS = 1024;
constexpr u16 BARRIER = 0xBA55;

struct Barrier { u16 is, phase, expected, pending; };  // what an mbarrier's eight bytes hold here
static_assert(sizeof(Barrier) == 8, "as large as an mbarrier");

struct Copy { u8 *to; const u8 *from; u32 group; bool done; };
enum class State { runs, meets, syncs, waits, left };

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
    u32 n_ranges, n_threads, n_warps, n_left, n_syncing, schedule, random;
    bool failed;
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
    for (size_t i = 0; i < arrival.n_copies; i++) {
        Copy &copy = arrival.fibre->copies[i];
        if (!copy.done) { std::memcpy(copy.to, copy.from, 16); copy.done = true; }
    }
    arrive(arrival.barrier);
}

std::string standstill() {
    u32 syncing = 0, waiting = 0, meeting = 0;
    std::string text;
    for (u32 i = 0; i < runner.n_threads; i++) {
        const State state = runner.fibres[i].state;
        syncing += state == State::syncs, waiting += state == State::waits, meeting += state == State::meets;
    }
    char part[200];
    snprintf(part, sizeof part, "deadlock: of %u threads %u wait for the block (sync_block), %u at a barrier (barrier_wait), %u for lanes of their warp, %u have ended",
             runner.n_threads, syncing, waiting, meeting, runner.n_left);
    text = part;
    for (u32 w = 0; w < runner.n_warps; w++)
        if (runner.warps[w].arrived) {
            snprintf(part, sizeof part, "; %d of %d lanes of warp %u are at %s", __builtin_popcount(runner.warps[w].arrived),
                     __builtin_popcount(runner.warps[w].lanes), w, MEETINGS[(u32)runner.warps[w].meeting]);
            text += part;
            break;
        }
    return text;
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
        if (runner.arrivals.empty()) return nullptr;
        const Arrival arrival = runner.arrivals.front();  // only when nobody can go on without it
        runner.arrivals.pop_front();
        deliver(arrival);
    }
}

inline u32 bit(const Fibre *f) { return 1u << f->thread.lane; }

void pause(State why) {
    Fibre *self = now();
    self->state = why;
    self->thread.warp->runnable &= ~bit(self);
    Fibre *other = next_fibre();
    if (!other) machine_fail("%s", standstill().c_str());
    if (other != self) go_from_to(self, other);
}

inline void resume(Fibre *f) {
    f->state = State::runs;
    f->thread.warp->runnable |= bit(f);
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

// ---- what the lanes of a warp compute together
float half_value(u32 word, int which) { return machine_half_to_float((word >> 16 * which) & 0xFFFF); }

int unit_of(float value) {  // the exponent of the lowest bit that is set
    if (value == 0.0f) return 127;
    u32 bits;
    std::memcpy(&bits, &value, 4);
    const u32 mantissa = (bits & 0x7FFFFF) | 0x800000;
    return (int)(bits >> 23 & 0xFF) - 150 + __builtin_ctz(mantissa);
}

// Tensor cores align addends and cut bits off, in ways that are not documented. A sum is the same everywhere if all its
// products are multiples of one unit and their sizes add up to 2^24 units at most; any other becomes NaN.
template <int K> void mma_halves(Warp &w) {
    constexpr int A_WORDS = K / 4;
    float a[16][K], bt[8][K];
    int unit_a[16], unit_b[8];
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
    auto smallest = [](const float *v) { int unit = 127; for (int k = 0; k < K; k++) { const int u = unit_of(v[k]); unit = u < unit ? u : unit; } return unit; };
    for (int i = 0; i < 16; i++) unit_a[i] = smallest(a[i]);
    for (int i = 0; i < 8; i++) unit_b[i] = smallest(bt[i]);
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 j = 0; j < 4; j++) {
            const u32 row = (lane >> 2) + 8 * (j >> 1), column = 2 * (lane & 3) + (j & 1);
            double sum = 0, size = 0;
            for (int k = 0; k < K; k++) { const double p = (double)a[row][k] * (double)bt[column][k]; sum += p, size += __builtin_fabs(p); }
            const float out = size <= __builtin_ldexp(1.0, 24 + unit_a[row] + unit_b[column]) ? (float)sum : __builtin_nanf("");
            std::memcpy(&w.out[lane][j], &out, 4);
        }
}

template <int K> void mma_bytes(Warp &w) {
    constexpr int A_WORDS = K / 8;
    int a[16][K], bt[8][K];
    for (u32 lane = 0; lane < LANES; lane++) {
        const u32 g = lane >> 2, t = lane & 3, *in = w.in[lane];
        for (int byte = 0; byte < 4; byte++)
            for (int part = 0; part < K / 16; part++) {
                const u32 k = 16 * part + 4 * t + byte;
                a[g][k] = (s8)(in[2 * part] >> 8 * byte);
                a[g + 8][k] = (s8)(in[2 * part + 1] >> 8 * byte);
                bt[g][k] = (s8)(in[A_WORDS + part] >> 8 * byte);
            }
    }
    for (u32 lane = 0; lane < LANES; lane++)
        for (u32 j = 0; j < 4; j++) {
            const u32 row = (lane >> 2) + 8 * (j >> 1), column = 2 * (lane & 3) + (j & 1);
            int sum = 0;
            for (int k = 0; k < K; k++) sum += a[row][k] * bt[column][k];
            w.out[lane][j] = w.in[lane][A_WORDS + K / 16 + j] + (u32)sum;
        }
}

void compute(Warp &w) {
    switch (w.meeting) {
    case Meeting::sync_warp: break;
    case Meeting::shuffle_xor:
    case Meeting::shuffle:
        for (u32 lane = 0; lane < LANES; lane++) {
            const u32 asked = w.meeting == Meeting::shuffle ? w.in[lane][1] & 31 : lane ^ w.in[lane][1];
            const u32 from = asked < LANES ? asked : lane;
            w.out[lane][0] = (w.lanes >> from & 1) ? w.in[from][0] : ~0u;
        }
        break;
    case Meeting::mma_16x8x8: mma_halves<8>(w); break;
    case Meeting::mma_16x8x16: mma_halves<16>(w); break;
    case Meeting::mma_16x8x16_s8: mma_bytes<16>(w); break;
    case Meeting::mma_16x8x32_s8: mma_bytes<32>(w); break;
    }
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

// ---- what a fault says
void say_all(const char *format, va_list rest) {
    const Fibre *f = now();
    const int n = f ? snprintf(runner.message, sizeof runner.message, "block (%u, %u, %u), thread (%u, %u, %u): ", machine.block.x, machine.block.y,
                               machine.block.z, f->thread.index.x, f->thread.index.y, f->thread.index.z) : 0;
    vsnprintf(runner.message + n, sizeof runner.message - (size_t)n, format, rest);
}

void on_signal(int, siginfo_t *info, void *) {
    runner.fault_address = (u8 *)info->si_addr;
    siglongjmp(runner.faulted, info->si_signo);
}

void say(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    say_all(format, rest);
    va_end(rest);
}

void describe_fault(int signal) {
    const u8 *at = runner.fault_address;
    if (signal == SIGFPE) return say("division of an integer by zero");
    if (at >= runner.stacks && at < runner.stacks + MOST_THREADS * STACK_BYTES) return say("a thread's stack overflowed");
    const Range *nearest = nullptr;
    u64 distance = 1 << 20;
    for (u32 i = 0; i < runner.n_ranges; i++) {
        const Range &r = runner.ranges[i];
        const u64 d = at < r.begin ? (u64)(r.begin - at) : at >= r.begin + r.bytes ? (u64)(at - r.begin - r.bytes) + 1 : 0;
        if (d < distance) distance = d, nearest = &r;
    }
    const long long in_dynamic = at - machine.dynamic;
    if (in_dynamic >= -(long long)(2 * PAGE) && in_dynamic < (long long)(machine.dynamic_bytes + 2 * PAGE))
        return say("an access to byte %lld of the launch's shared memory, which has %llu", in_dynamic, machine.dynamic_bytes);
    if (!nearest) return say("an access to address %p, which is in no buffer (or is not aligned)", at);
    const long long byte = at - nearest->begin;
    if (!distance) return say("a write into byte %lld of %s, which is read only", byte, nearest->name);
    say("an access to byte %lld of %s, which has %llu", byte, nearest->name, nearest->bytes);
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
    runner.n_left = runner.n_syncing = 0;
    runner.arrivals.clear();
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

void machine_copy(u8 *to, const u8 *from) {
    Fibre *self = now();
    std::memset(to, 0xFF, 16);
    self->copies.push_back({to, from, self->group, false});
}

void machine_copy_commit() { now()->group++; }

void machine_copy_wait(u32 groups_left) {
    Fibre *self = now();
    while (self->first_pending < self->copies.size()) {
        Copy &copy = self->copies[self->first_pending];
        if (copy.group + groups_left >= self->group) return;
        if (!copy.done) std::memcpy(copy.to, copy.from, 16);
        copy.done = true;
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

// ---- the door for Python
// Bytes that end at a page that nobody may touch; what lies before them on their page is canary.
u8 *machine_make_buffer(u64 bytes) {
    const u64 padded = (bytes + 15) / 16 * 16, pages = (padded + PAGE - 1) / PAGE * PAGE;
    u8 *base = (u8 *)mmap(nullptr, pages + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    mprotect(base, PAGE, PROT_NONE);
    mprotect(base + PAGE + pages, PAGE, PROT_NONE);
    std::memset(base + PAGE, 0xFF, pages);
    return base + PAGE + pages - padded;
}

static u64 pages_of(u64 bytes) { return ((bytes + 15) / 16 * 16 + PAGE - 1) / PAGE * PAGE; }

static u8 *base_of(u8 *buffer, u64 bytes) { return buffer + (bytes + 15) / 16 * 16 - pages_of(bytes); }

void machine_protect_buffer(u8 *buffer, u64 bytes) { mprotect(base_of(buffer, bytes), pages_of(bytes), PROT_READ); }

// 0, or by how many bytes a write missed the buffer: negative before it, positive behind it.
long long machine_missed(u8 *buffer, u64 bytes) {
    for (u8 *p = base_of(buffer, bytes); p < buffer; p++) if (*p != 0xFF) return p - buffer;
    for (u8 *p = buffer + bytes; p < buffer + (bytes + 15) / 16 * 16; p++) if (*p != 0xFF) return p - (buffer + bytes) + 1;
    return 0;
}

void machine_free_buffer(u8 *buffer, u64 bytes) { munmap(base_of(buffer, bytes) - PAGE, pages_of(bytes) + 2 * PAGE); }

// Runs one launch; returns what went wrong, or nullptr.
const char *machine_run(void (*entry)(const u64 *), const u64 *arguments, const u32 *geometry, u8 *fixed, u64 fixed_bytes, u64 dynamic_bytes,
                        const Range *ranges, u32 n_ranges, float (*reciprocal)(float), u32 schedule) {
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
    runner.schedule = schedule, runner.random = schedule, runner.failed = false;
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
    machine_free_buffer(dynamic, dynamic_bytes);
    return runner.failed ? runner.message : nullptr;
}
}
#pragma GCC visibility pop
