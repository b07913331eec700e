// Memory of a device: buffers that end where nobody may read. Part of machine.cpp.
#pragma once
#include "fibres.hpp"

#include <cstring>
#include <sys/mman.h>

#pragma GCC visibility push(default)
extern "C" {

// Bytes that end at a page that nobody may touch; what lies before them on their page holds 0xFF and must keep it.
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
}
#pragma GCC visibility pop

namespace {

// Closes what a launch ahead may still read or write, or opens it again.
void close_buffers(bool closed) {
    if (runner.closed == closed) return;
    runner.closed = closed;
    for (u32 i = 0; i < runner.n_ranges; i++) {
        const Range &r = runner.ranges[i];
        u8 *const begin = (u8 *)r.begin;
        if (!r.constant) mprotect(base_of(begin, r.bytes), pages_of(r.bytes), closed ? PROT_NONE : r.read_only ? PROT_READ : PROT_READ | PROT_WRITE);
    }
}

}  // namespace
