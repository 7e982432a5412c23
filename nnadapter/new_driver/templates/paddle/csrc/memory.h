/* Addresses of device memory: Paddle uses pointers, drivers use handles and offsets. */
#ifndef NNADAPTER_PADDLE_MEMORY_H
#define NNADAPTER_PADDLE_MEMORY_H

#include <cstddef>
#include <cstdint>

#include "driver.h"
#include "streams.h"

namespace nnadapter_paddle {

struct Spot { /* device memory at an address */
    NNAdapterMemory *memory = nullptr; /* null if the driver has no device memory: a host address */
    uint64_t offset = 0;
};

void *allocate(Device &device, size_t bytes);
void release(Device &device, void *address) noexcept;
Spot spot_of(const void *address);

/* Copies. Without a stream they are synchronous, after all other work of the device. */
void copy_in(Device &device, Stream *stream, void *target, const void *source, size_t bytes);
void copy_out(Device &device, Stream *stream, void *target, const void *source, size_t bytes);
void copy_within(Device &device, Stream *stream, void *target, const void *source, size_t bytes);
void fill(Device &device, void *target, unsigned char value, size_t bytes);

}  // namespace nnadapter_paddle
#endif
