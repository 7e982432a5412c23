#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "errors.h"

namespace nnadapter_paddle {
namespace {

const size_t ALIGNMENT = 64;
const size_t FILL_BYTES = size_t{1} << 20; /* host buffer of a fill */
const size_t MOST_STAGED = size_t{1} << 20; /* copies up to this size are staged, and so asynchronous */

struct Range { /* reserved addresses of a device allocation */
    size_t reserved;
    NNAdapterMemory *memory;
};

std::shared_mutex &ranges_lock() {
    static auto &lock = *new std::shared_mutex;
    return lock;
}

/* By first address. Never destroyed: Paddle frees device memory until the process ends. */
std::map<uintptr_t, Range> &ranges() {
    static auto &all = *new std::map<uintptr_t, Range>;
    return all;
}

}  // namespace

void *allocate(Device &device, size_t bytes) {
    const auto *memory = memory_functions();
    if (!memory) {
        const size_t rounded = (std::max<size_t>(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        void *address = std::aligned_alloc(ALIGNMENT, rounded);
        if (!address) raise(NNADAPTER_OUT_OF_MEMORY, "the host has no " + std::to_string(bytes) + " bytes left");
        return address;
    }
    /* The addresses are reserved without memory: host code that uses them by mistake faults. */
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t reserved = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
    void *address = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        raise(NNADAPTER_OUT_OF_MEMORY, "no addresses are left for " + std::to_string(bytes) + " bytes");
    NNAdapterMemory *allocated = nullptr;
    Sentence sentence;
    const NNAdapterStatus status = memory->allocate(device.handle, bytes, &allocated, sentence.buffer());
    if (status != NNADAPTER_OK) munmap(address, reserved);
    sentence.check(status, "allocate", device.id);
    const std::unique_lock<std::shared_mutex> guard(ranges_lock());
    ranges().emplace(reinterpret_cast<uintptr_t>(address), Range{reserved, allocated});
    return address;
}

void release(Device &device, void *address) noexcept {
    if (!address) return;
    wait_quietly(device, nullptr); /* pending work may use it */
    const auto *memory = memory_functions();
    if (!memory) return std::free(address);
    Range range{};
    {
        const std::unique_lock<std::shared_mutex> guard(ranges_lock());
        const auto entry = ranges().find(reinterpret_cast<uintptr_t>(address));
        if (entry == ranges().end()) return;
        range = entry->second;
        ranges().erase(entry);
    }
    memory->free_memory(range.memory);
    munmap(address, range.reserved);
}

Spot spot_of(const void *address) {
    if (!memory_functions()) return {};
    const auto number = reinterpret_cast<uintptr_t>(address);
    const std::shared_lock<std::shared_mutex> guard(ranges_lock());
    auto entry = ranges().upper_bound(number);
    if (entry != ranges().begin() && number - (--entry)->first < entry->second.reserved)
        return {entry->second.memory, number - entry->first};
    raise(NNADAPTER_INVALID_ARGUMENT, "an address does not belong to device '" NNADAPTER_PADDLE_DEVICE "'");
}

void copy_in(Device &device, Stream *stream, void *target, const void *source, size_t bytes) {
    if (!bytes) return;
    const Spot to = spot_of(target);
    if (!to.memory) {
        settle(device, stream);
        std::memcpy(target, source, bytes);
        return;
    }
    const bool staged = handle_of(stream) && bytes <= MOST_STAGED;
    if (!staged) {
        settle(device, stream);
        stream = nullptr;
    }
    /* The caller may reuse the host memory on return, even if the copy runs later. */
    const auto *first = static_cast<const char *>(source);
    auto staging = staged ? std::make_shared<std::vector<char>>(first, first + bytes) : nullptr;
    const void *from = staging ? staging->data() : source;
    enqueue(device, stream, "copy_in", staging, [&](NNAdapterStream *handle, NNAdapterError *error) {
        return memory_functions()->copy_in(to.memory, to.offset, from, bytes, handle, error);
    });
}

void copy_out(Device &device, Stream *stream, void *target, const void *source, size_t bytes) {
    if (!bytes) return;
    const Spot from = spot_of(source);
    if (!from.memory || !handle_of(stream)) settle(device, stream);
    if (!from.memory) {
        std::memcpy(target, source, bytes);
        return;
    }
    enqueue(device, stream, "copy_out", nullptr, [&](NNAdapterStream *handle, NNAdapterError *error) {
        return memory_functions()->copy_out(from.memory, from.offset, target, bytes, handle, error);
    });
}

void copy_within(Device &device, Stream *stream, void *target, const void *source, size_t bytes) {
    if (!bytes) return;
    const Spot to = spot_of(target), from = spot_of(source);
    if (!to.memory || !handle_of(stream)) settle(device, stream);
    if (!to.memory) {
        std::memmove(target, source, bytes);
        return;
    }
    enqueue(device, stream, "copy_between", nullptr, [&](NNAdapterStream *handle, NNAdapterError *error) {
        return memory_functions()->copy_between(to.memory, to.offset, from.memory, from.offset, bytes, handle, error);
    });
}

void fill(Device &device, void *target, unsigned char value, size_t bytes) {
    const std::vector<char> piece(std::min(bytes, FILL_BYTES), static_cast<char>(value));
    for (size_t copied = 0; copied < bytes; copied += piece.size()) {
        const size_t count = std::min(piece.size(), bytes - copied);
        copy_in(device, nullptr, static_cast<char *>(target) + copied, piece.data(), count);
    }
}

}  // namespace nnadapter_paddle
