/* The driver's library: found, loaded once, and its devices opened when they are first asked for. */
#ifndef NNADAPTER_PADDLE_DRIVER_H
#define NNADAPTER_PADDLE_DRIVER_H

#include <exception>
#include <mutex>
#include <string>

#include "nnadapter_driver.h"

namespace nnadapter_paddle {

struct Device { /* open until the process ends */
    int id = 0;
    NNAdapterDevice *handle = nullptr;
    NNAdapterContext *context = nullptr;
    NNAdapterCapability capability{};
    std::mutex lock;   /* of the context's calls, which come one at a time */
    std::mutex serial; /* of a device that computes one thing at a time */
    std::mutex untold_lock;
    std::exception_ptr untold; /* what went wrong where it could not be raised */
};

/* The driver's table; raises what is wrong with its library. */
const NNAdapterDriver &driver();
/* Its groups of functions; null where it has none. */
const NNAdapterMemoryFunctions *memory_functions();
const NNAdapterStreamFunctions *stream_functions();
/* How many devices it lists; one where the library cannot be loaded, so that its error has a place to be told. */
size_t device_count() noexcept;
/* The device at this position of the driver's list; raises if there is none, or it does not open. */
Device &device(int id);
/* Whether this process was forked from one that had opened a device: threads of drivers, and what they hold, stayed
 * there. */
bool is_forked() noexcept;

/* Whether a table that the driver made has a member: it may be older than this file. */
#define NNADAPTER_PADDLE_HAS(type, table, member) ((table) && NNADAPTER_HAS(type, table, member) && (table)->member)

}  // namespace nnadapter_paddle
#endif
