/* Addresses for memory that has none: Paddle counts in pointers, drivers in handles and offsets. */
#ifndef NNADAPTER_PADDLE_MEMORY_H
#define NNADAPTER_PADDLE_MEMORY_H

#include <cstddef>
#include <cstdint>

#include "driver.h"
#include "streams.h"

namespace nnadapter_paddle {

struct Spot { /* what an address means */
    NNAdapterMemory *memory = nullptr; /* null where the driver has no memory of its own: the address is the host's */
    uint64_t offset = 0;
};

void *allocate(Device &device, size_t bytes);
void release(Device &device, void *address) noexcept;
Spot spot_of(const void *address);

/* Copies. Without a stream they are done on return, after everything else on the device. */
void copy_in(Device &device, Stream *stream, void *target, const void *source, size_t bytes);
void copy_out(Device &device, Stream *stream, void *target, const void *source, size_t bytes);
void copy_within(Device &device, Stream *stream, void *target, const void *source, size_t bytes);
void fill(Device &device, void *target, unsigned char value, size_t bytes);

}  // namespace nnadapter_paddle
#endif
