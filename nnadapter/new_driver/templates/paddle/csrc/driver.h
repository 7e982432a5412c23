/* The driver's library, loaded once, and its devices, opened on first use. */
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
    std::mutex lock;   /* serializes calls of the context */
    std::mutex serial; /* serializes computations of a SERIAL device */
    std::mutex untold_lock;
    std::exception_ptr untold; /* error of a function that cannot raise; raised by the next wait */
};

/* The driver's function table; raises if the library cannot be loaded. */
const NNAdapterDriver &driver();
/* Optional groups of functions; null if the driver has none. */
const NNAdapterMemoryFunctions *memory_functions();
const NNAdapterStreamFunctions *stream_functions();
/* Number of devices; 1 if the library cannot be loaded, so that opening that device raises the error. */
size_t device_count() noexcept;
/* The device at an index of the driver's list; raises if there is none, or it cannot be opened. */
Device &device(int id);
/* True if a device was opened before this process was forked: threads and resources of drivers are not inherited. */
bool is_forked() noexcept;

/* True if a driver's table has a member; the driver may be older than this file. */
#define NNADAPTER_PADDLE_HAS(type, table, member) ((table) && NNADAPTER_HAS(type, table, member) && (table)->member)

}  // namespace nnadapter_paddle
#endif
