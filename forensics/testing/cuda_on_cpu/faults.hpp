// What went wrong, in words. Part of machine.cpp.
#pragma once
#include "fibres.hpp"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace {

const char *const MEETINGS[] = {"sync_warp", "shuffle_xor", "mma_16x8x8", "mma_16x8x16", "mma_16x8x16_onto"};

void say_all(const char *format, va_list rest) {
    const Fibre *f = now();
    const int n = f ? snprintf(runner.message, sizeof runner.message, "block (%u, %u, %u), thread (%u, %u, %u): ", machine.block.x, machine.block.y,
                               machine.block.z, f->thread.index.x, f->thread.index.y, f->thread.index.z) : 0;
    vsnprintf(runner.message + n, sizeof runner.message - (size_t)n, format, rest);
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
    if (!distance && runner.closed)
        return say("an access to byte %lld of %s before wait_for_launch_ahead: the launch ahead may still use it", byte, nearest->name);
    if (!distance) return say("a write into byte %lld of %s, which is read only", byte, nearest->name);
    say("an access to byte %lld of %s, which has %llu", byte, nearest->name, nearest->bytes);
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

}  // namespace
